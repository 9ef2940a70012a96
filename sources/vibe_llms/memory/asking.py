"""What asks a model for a value of a type, whichever model it is; and how long that may take."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from vibe_llms.exceptions import VibeLlmsError
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


async def attempt(
    asker: Asker, supervisor: str, text: str, output: type[T], *, seconds: float
) -> tuple[T | None, str]:
    """The answer and no words, or none and why."""
    try:
        async with asyncio.timeout(seconds):
            return await asker.ask(supervisor, text, output), ""
    except TimeoutError:
        return None, f"no answer within {seconds:g} s (timeout-seconds)"
    except VibeLlmsError as error:
        return None, str(error)
