"""An attendant that brings what it was given, and keeps what it was told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from vibe_llms.attendants import Briefing, Occasion, Work
from vibe_llms.messages.canisters import DocumentCanister, Turn


def document(text: str) -> DocumentCanister:
    return DocumentCanister.from_text(text)


class Companion:
    """Brings the texts, as documents, to each turn; `works` are what it does after turns."""

    def __init__(
        self,
        *texts: str,
        name: str = "companion",
        brief_seconds: float = 30.0,
        close_seconds: float = 30.0,
        resumes: bool = False,
        outside: bool = True,
        waits: bool = False,
        error: BaseException | None = None,
        work: Callable[[Turn], Work | None] = lambda _: None,
    ) -> None:
        self.name = name
        self.brief_seconds = brief_seconds
        self.close_seconds = close_seconds
        self.resumes = resumes
        self.texts = texts
        self.outside = outside
        self.error = error
        self.work = work
        self.asked: list[Occasion] = []
        self.told: list[tuple[Occasion, Turn]] = []
        self.begun = asyncio.Event()
        self.waits = waits
        self.closed = 0

    async def brief(self, occasion: Occasion) -> Briefing:
        self.asked.append(occasion)
        self.begun.set()
        if self.waits:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return Briefing([document(text) for text in self.texts], self.outside)

    def conclude(self, occasion: Occasion, turn: Turn) -> Work | None:
        self.told.append((occasion, turn))
        return self.work(turn)

    async def close(self) -> None:
        self.closed += 1

    @property
    def words(self) -> Sequence[str]:
        """What each turn that it was told had said at first."""
        return [turn.canisters[0].text for _, turn in self.told]  # type: ignore[union-attr]
