"""What asks a model for a value of a type, whichever model it is; and how long that may take."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from msgspec import Struct

from vibe_llms.exceptions import (
    ModelUnavailable,
    OutputCut,
    OutputInvalid,
    RequestRefused,
    VibeLlmsError,
)
from vibe_llms.messages.canisters import Usage

T = TypeVar("T")


class Asker(Protocol):
    """Asks a model; for tests anything that answers."""

    @property
    def usage(self) -> Usage:
        """The tokens of all that was asked so far, what failed included."""
        ...

    async def ask(self, supervisor: str, text: str, output: type[T]) -> T:
        """The value that the model answers; a `VibeLlmsError` where it gives none."""
        ...


class Unanswered(Struct, frozen=True):
    """No answer, and why; `final` where the model did answer, and asking again is of no use."""

    why: str
    final: bool = False


async def attempt(
    asker: Asker, supervisor: str, text: str, output: type[T], *, seconds: float
) -> T | Unanswered:
    """The answer, or why there is none within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            return await asker.ask(supervisor, text, output)
    except TimeoutError:
        return Unanswered(f"no answer within {seconds:g} s (timeout-seconds)")
    except ModelUnavailable as error:
        # It is named in the settings: another one may answer.
        return Unanswered(str(error))
    except OutputInvalid as error:
        tries = "1 try" if error.attempts == 1 else f"{error.attempts} tries"
        return Unanswered(f"the model gave no valid answer ({tries})", final=True)
    except (OutputCut, RequestRefused) as error:
        return Unanswered(str(error), final=True)
    except VibeLlmsError as error:
        return Unanswered(str(error))
