"""A hook that adds what it was given, and keeps the turns that it got."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from vibe_llms.conversations.hooks import HookContext, HookRequest, TurnHook, Work
from vibe_llms.messages.canisters import DocumentCanister, Turn


def document(text: str) -> DocumentCanister:
    return DocumentCanister.from_text(text)


class Companion(TurnHook):
    """Brings the texts, as documents, to each turn; `works` are what it does after turns."""

    def __init__(
        self,
        *texts: str,
        name: str = "companion",
        before_seconds: float = 30.0,
        close_seconds: float = 30.0,
        resumes: bool = False,
        outside: bool = True,
        waits: bool = False,
        error: BaseException | None = None,
        work: Callable[[Turn], Work | None] = lambda _: None,
    ) -> None:
        self.name = name
        self.before_seconds = before_seconds
        self.close_seconds = close_seconds
        self.resumes = resumes
        self.texts = texts
        self.outside = outside
        self.error = error
        self.work = work
        self.asked: list[HookRequest] = []
        self.reported: list[tuple[HookRequest, Turn]] = []
        self.begun = asyncio.Event()
        self.waits = waits
        self.closed = 0

    async def before_turn(self, request: HookRequest) -> HookContext:
        self.asked.append(request)
        self.begun.set()
        if self.waits:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return HookContext([document(text) for text in self.texts], self.outside)

    def after_turn(self, request: HookRequest, turn: Turn) -> Work | None:
        self.reported.append((request, turn))
        return self.work(turn)

    async def close(self) -> None:
        self.closed += 1

    @property
    def words(self) -> Sequence[str]:
        """The first message of each turn that it got."""
        return [turn.canisters[0].text for _, turn in self.reported]  # type: ignore[union-attr]
