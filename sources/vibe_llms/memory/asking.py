"""One question to a model, with failures as values."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from msgspec import Struct

from vibe_llms.base.exceptions import (
    ModelUnavailable,
    OutputCut,
    OutputInvalid,
    RequestRefused,
    VibeLlmsError,
)
from vibe_llms.conversations.hosts import Asker

T = TypeVar("T")


class Unanswered(Struct, frozen=True):
    """Reason for a missing answer; `final` if asking again would not help."""

    why: str
    final: bool = False


async def attempt(
    asker: Asker, supervisor: str, text: str, output: type[T], *, seconds: float
) -> T | Unanswered:
    """Ask a model; return its answer, or the reason if there is none within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            return await asker.ask(supervisor, text, output)
    except TimeoutError:
        return Unanswered(f"no answer within {seconds:g} s (timeout-seconds)")
    except ModelUnavailable as error:
        # The model comes from the settings, so another one may answer.
        return Unanswered(str(error))
    except OutputInvalid as error:
        tries = "1 try" if error.attempts == 1 else f"{error.attempts} tries"
        return Unanswered(f"the model gave no valid answer ({tries})", final=True)
    except (OutputCut, RequestRefused) as error:
        return Unanswered(str(error), final=True)
    except VibeLlmsError as error:
        return Unanswered(str(error))
