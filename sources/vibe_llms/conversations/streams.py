"""A running turn: a task of its conversation, and a loop over its events or text."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Generic, Self

from vibe_llms.base.exceptions import RequestError, StorageError
from vibe_llms.base.futures import finish
from vibe_llms.conversations.turns import Handover, TurnRun
from vibe_llms.messages.canisters import StopReason, T, Turn
from vibe_llms.messages.events import (
    Event,
    MessageProgressEvent,
    MessageStartedEvent,
    TextChunk,
)

_QUEUED_EVENTS = 256
#: Most seconds until an interrupt of a notebook cell is handled.
_WAKE_SECONDS = 0.2


def _wake_while(task: asyncio.Task[Any]) -> None:
    """Wake the event loop of a notebook periodically while a task runs.

    ipykernel 7.4 handles an interrupt by a callback that does not wake its loop: without events, a
    cell could not be interrupted.
    """
    if not task.done():
        task.get_loop().call_later(_WAKE_SECONDS, _wake_while, task)


class RunningTurn:
    """A turn as a task. It always begins, so its end is reported and its messages are stored."""

    def __init__(self, run: TurnRun, *, name: str) -> None:
        #: The turn; None after its end, unless a run continues it.
        self._run: TurnRun | None = run
        self._begun = False
        self._doomed = False
        self._quiet = False
        #: True if the loop over its events was left: the turn is ending, and the next one waits.
        self.left = False
        self.task = asyncio.create_task(self._run_turn(), name=name)
        # Only a kernel imports it; to look for kernels, as other programs do, imports `ipykernel`.
        if "ipykernel.kernelapp" in sys.modules:
            _wake_while(self.task)

    def interrupt(self, *, quietly: bool = False) -> None:
        """Cancel the turn; with `quietly`, `converse` returns an interrupted turn."""
        self._quiet = self._quiet or quietly
        self._doomed = True
        # Cancelling a task that has not begun would prevent it from beginning.
        if self._begun:
            self.task.cancel()

    @property
    def run(self) -> TurnRun | None:
        """The turn while it runs."""
        return None if self.task.done() else self._run

    @property
    def handover(self) -> Handover:
        """The values that a run needs to continue the turn."""
        assert self._run is not None
        return self._run.handover

    async def suspend(self) -> Handover:
        """End the turn so that a run continues it; running calls are awaited.

        Raises `RequestError` if the turn ends or fails first.
        """
        if self._run is not None and self._run.suspend() and self._begun:
            self.interrupt()
        await asyncio.wait([self.task])
        if self.task.cancelled() or self.task.exception() is not None:
            raise RequestError("the turn has failed")
        if self.task.result().stop_reason != StopReason.SUSPENDED:
            raise RequestError("the turn has ended")
        return self.handover

    async def end(self) -> None:
        """Cancel the turn if it runs, and wait for its end, even if the wait is cancelled.

        Raises `StorageError` if part of the turn could not be stored.
        """
        if not self.task.done():
            self.interrupt()
            await finish(asyncio.wait([self.task]))
        if not self.task.cancelled() and isinstance(error := self.task.exception(), StorageError):
            raise error

    async def _run_turn(self) -> Turn:
        self._begun = True
        if self._doomed:
            self.task.cancel()
        run = self._run
        assert run is not None
        try:
            turn = await run.run()
        except asyncio.CancelledError:
            if not self._quiet:
                raise
            return run.result(StopReason.INTERRUPTED)
        if turn.stop_reason != StopReason.SUSPENDED:
            # A conversation keeps its last turn, and the run uses far more memory than its result.
            self._run = None
        return turn


class _Channel:
    """A queue of events for a loop."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.news = asyncio.Event()
        self.room = asyncio.Event()
        self.room.set()

    def put(self, event: Event) -> None:
        self.events.append(event)
        self.news.set()
        if len(self.events) >= _QUEUED_EVENTS:
            self.room.clear()

    def take(self) -> Sequence[Event]:
        events, self.events = self.events, []
        self.news.clear()
        self.room.set()
        return events


class EventStream(Generic[T]):
    """The events of a turn, for `async for`; as a context manager, it ends the turn on exit.

    `turn` is the finished turn, after the loop has ended.
    """

    def __init__(self) -> None:
        self.channel = _Channel()
        self.turn: Turn[T] | None = None
        self._running: RunningTurn | None = None
        self._start: Callable[[], Awaitable[RunningTurn]] | None = None
        self._pending: deque[Event] = deque()
        self._texts: list[str] = []

    def begin(self, running: RunningTurn) -> None:
        """Follow a running turn."""
        self._running = running
        news = self.channel.news
        running.task.add_done_callback(lambda _: news.set())

    def begin_later(self, start: Callable[[], Awaitable[RunningTurn]]) -> None:
        """Follow a turn that starts when its first event is requested."""
        self._start = start

    def text(self) -> TextStream:
        """Return the pieces of text as they arrive; leaving the loop early cancels the turn."""
        return TextStream(self)

    async def take(self) -> Sequence[Event]:
        """Wait for events that no loop has seen, and return them; empty after the end of the turn.

        `partial` reflects only the events of loops.
        """
        if self._start is not None:
            start, self._start = self._start, None
            self.begin(await start())
        if self._running is None:
            return ()
        while not (events := [*self._pending, *self.channel.take()]):
            if self._running.task.done():
                self.turn = self._running.task.result()
                return ()
            await self.channel.news.wait()
        self._pending.clear()
        return events

    @property
    def partial(self) -> Any:
        """The JSON of the current message that has arrived, as plain values."""
        from vibe_llms.conversations.outputs import read_partial

        return read_partial("".join(self._texts))

    @property
    def throttle(self) -> Callable[[], Awaitable[object]]:
        """Function that waits while the loop is too far behind."""
        return self.channel.room.wait

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After an early exit, only failures to store are raised.
        if self._running is not None and not self._running.task.done():
            await self._running.end()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if not self._pending:
            self._pending.extend(await self.take())
        if not self._pending:
            raise StopAsyncIteration
        event = self._pending.popleft()
        match event:
            case MessageStartedEvent():
                self._texts.clear()
            case MessageProgressEvent(chunk=TextChunk(text)):
                self._texts.append(text)
        return event

    def __del__(self) -> None:
        # Left by `break` without a context manager: later operations of the conversation wait.
        running = self._running
        if running is not None and not running.task.done():
            running.left = True
            running.task.get_loop().call_soon_threadsafe(running.interrupt)


class TextStream:
    """The pieces of a turn's text, for `async for`; leaving the loop early cancels the turn."""

    def __init__(self, events: EventStream[Any]) -> None:
        self._events = events

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        try:
            async for event in self._events:
                match event:
                    case MessageProgressEvent(chunk=TextChunk(text)):
                        return text
        except asyncio.CancelledError:
            await self.aclose()
            raise
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Cancel the turn if it runs, and wait for its end."""
        await self._events.__aexit__(None, None, None)
