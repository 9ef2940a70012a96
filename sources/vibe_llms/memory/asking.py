"""One question to a model, and why there is no answer."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from msgspec import Struct

from vibe_llms.exceptions import (
    ModelUnavailable,
    OutputCut,
    OutputInvalid,
    RequestRefused,
    VibeLlmsError,
)
from vibe_llms.hooks import Asker

T = TypeVar("T")


class Unanswered(Struct, frozen=True):
    """Why there is no answer; `final` if the model did answer, so asking again does not help."""

    why: str
    final: bool = False


async def attempt(
    asker: Asker, supervisor: str, text: str, output: type[T], *, seconds: float
) -> T | Unanswered:
    """The answer, or why there is none within some seconds."""
    try:
        async with asyncio.timeout(seconds):
            return await asker.ask(supervisor, text, output)
    except TimeoutError:
        return Unanswered(f"no answer within {seconds:g} s (timeout-seconds)")
    except ModelUnavailable as error:
        # The settings name it, and another one may answer.
        return Unanswered(str(error))
    except OutputInvalid as error:
        tries = "1 try" if error.attempts == 1 else f"{error.attempts} tries"
        return Unanswered(f"the model gave no valid answer ({tries})", final=True)
    except (OutputCut, RequestRefused) as error:
        return Unanswered(str(error), final=True)
    except VibeLlmsError as error:
        return Unanswered(str(error))
