"""Runs the hooks of a session: calls them before turns, and does their work after turns."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from vibe_llms.conversations.hooks import HookContext, HookRequest, TurnHook, Work
from vibe_llms.messages.canisters import DocumentCanister, Turn
from vibe_llms.messages.events import Notice
from vibe_llms.providers.interfaces import ignore_notices

#: Seconds for cancelled work to end before its resources are closed.
_END_SECONDS = 2.0


class Background:
    """The background work of hooks after turns, done in order for each hook."""

    def __init__(self, notify: Callable[[Notice], None] = ignore_notices) -> None:
        self._notify = notify
        self._queues: dict[TurnHook, _Queue] = {}
        self._postponing = False
        #: Number of turns with work left to a later session.
        self.postponed = 0

    @property
    def pending(self) -> int:
        """Number of turns with unfinished work."""
        return sum(queue.pending for queue in self._queues.values())

    def postpone(self) -> None:
        """Leave new work to a later session from now on, if its hook `resumes`.

        Memory records what it must learn. The next session of the same user that does not postpone
        learns it, or `vibe-llms memory ingest`.
        """
        self._postponing = True

    async def wait(self) -> None:
        """Wait until all work is done, at most the `close_seconds` of each hook.

        The rest is cancelled, and a notice reports its amount.
        """
        await asyncio.gather(*(self._wait(*one) for one in list(self._queues.items())))

    def cancel(self) -> None:
        """Cancel all work immediately; a notice reports the amount of unfinished work."""
        for hook, queue in list(self._queues.items()):
            self._cancel(hook, queue, "was cancelled")

    def add(self, hook: TurnHook, work: Work) -> None:
        """Queue the work that a hook has returned, or leave it to a later session."""
        if self._postponing and hook.resumes:
            work.close()
            self.postponed += 1
            return
        if hook not in self._queues:
            # Each of a process's thousands of conversations may have its own hook.
            ended = partial(self._queues.pop, hook, None)
            self._queues[hook] = _Queue(hook, self._notify, ended)
        self._queues[hook].put(work)

    @property
    def tasks(self) -> Sequence[asyncio.Task[None]]:
        """Tasks that are running, or have not ended after their cancellation."""
        return [queue.task for queue in self._queues.values() if queue.task is not None]

    async def _wait(self, hook: TurnHook, queue: _Queue) -> None:
        seconds = hook.close_seconds
        if not await queue.wait(seconds):
            self._cancel(hook, queue, f"did not finish within {seconds:g} s")

    def _cancel(self, hook: TurnHook, queue: _Queue, why: str) -> None:
        left = queue.cancel()
        if left:
            turns = f"{left} {'turn' if left == 1 else 'turns'}"
            after = "it will resume next time" if hook.resumes else "it is lost"
            self._notify(Notice("hook", f"the work of {hook.name} on {turns} {why}; {after}"))


class HookRunner:
    """A runner of a session's hooks, before turns and after them."""

    def __init__(self, notify: Callable[[Notice], None] = ignore_notices) -> None:
        self._notify = notify
        self.background = Background(notify)
        self._own: dict[str, TurnHook] = {}
        self._slow: set[asyncio.Future[Any]] = set()

    def access(self, name: str, produce: Callable[[], TurnHook]) -> TurnHook:
        """Return the session's own hook of a name, creating it at its first use."""
        if name not in self._own:
            self._own[name] = produce()
        return self._own[name]

    async def before_turn(
        self, hooks: Sequence[TurnHook], request: HookRequest
    ) -> Sequence[HookContext]:
        """Return the additions of hooks to a turn; all hooks are called concurrently.

        A hook that fails or is too slow is skipped, with a notice.
        """
        contexts = await asyncio.gather(*(self._ask(hook, request) for hook in hooks))
        return [context for context in contexts if context is not None and context.canisters]

    async def record_turn(
        self, hooks: Sequence[TurnHook], request: HookRequest, turn: Turn
    ) -> None:
        """Let hooks record their later work; a hook that fails or is too slow causes a notice."""
        await asyncio.gather(*(self._record(hook, request, turn) for hook in hooks))

    def after_turn(self, hooks: Sequence[TurnHook], request: HookRequest, turn: Turn) -> None:
        """Queue the work of hooks on a turn that has ended."""
        for hook in hooks:
            with _guard(hook, "cannot work on this turn", request.notify):
                if (work := hook.after_turn(request, turn)) is not None:
                    self.background.add(hook, work)

    async def close(self) -> None:
        """Wait for all work, and close the session's own hooks."""
        try:
            await self.background.wait()
        finally:
            self.background.cancel()
            for task in self._slow:
                task.cancel()
            await self._wait_for_ends()
            for hook in self._own.values():
                await self._close(hook)

    async def _wait_for_ends(self) -> None:
        """Let cancelled work end before its resources are closed, for a limited time."""
        ending = [task for task in (*self.background.tasks, *self._slow) if not task.done()]
        if ending:
            await asyncio.wait(ending, timeout=_END_SECONDS)

    async def _ask(self, hook: TurnHook, request: HookRequest) -> HookContext | None:
        async def before_turn() -> HookContext:
            # Called inside the task, so that errors of a method that is not async are handled too.
            return await hook.before_turn(request)

        slow = False
        with _guard(hook, "adds nothing to this turn", request.notify):
            seconds = hook.before_seconds
            task = asyncio.ensure_future(before_turn())
            if await self._wait(task, seconds):
                return _read(task)
            slow = True
        if slow:
            text = f"{hook.name} took longer than {seconds:g} s; this turn continues without it"
            request.notify(Notice("hook", text))
        return None

    async def _record(self, hook: TurnHook, request: HookRequest, turn: Turn) -> None:
        if type(hook).record_turn is TurnHook.record_turn:
            return
        with _guard(hook, "could not record this turn", request.notify):
            async with asyncio.timeout(hook.before_seconds):
                await hook.record_turn(request, turn)

    async def _wait(self, task: asyncio.Future[Any], seconds: float) -> bool:
        """Wait for a hook's context; return True if it arrived in time."""
        try:
            await asyncio.wait([task], timeout=seconds)
        finally:
            if not task.done():
                # A hook that ignores the cancellation delays nothing.
                task.cancel()
                self._slow.add(task)
                task.add_done_callback(self._forget)
        return task.done()

    def _forget(self, task: asyncio.Future[Any]) -> None:
        self._slow.discard(task)
        if not task.cancelled():
            # Retrieved so that asyncio does not log it as never retrieved.
            task.exception()

    async def _close(self, hook: TurnHook) -> None:
        with _guard(hook, "cannot be closed", self._notify):
            async with asyncio.timeout(hook.close_seconds):
                await hook.close()


class _Queue:
    """The work of one hook, done one item at a time; `ended` is called after the last."""

    def __init__(
        self, hook: TurnHook, notify: Callable[[Notice], None], ended: Callable[[], object]
    ) -> None:
        self._hook = hook
        self._notify = notify
        self._ended = ended
        self._waiting: deque[Work] = deque()
        self._cancelled = False
        self.task: asyncio.Task[None] | None = None

    @property
    def pending(self) -> int:
        running = self.task is not None and not self.task.done() and not self._cancelled
        return len(self._waiting) + running

    def put(self, work: Work) -> None:
        self._waiting.append(work)
        if self.task is None or self.task.done() or self._cancelled:
            self._cancelled = False
            self.task = asyncio.create_task(self._do(), name=f"work of {self._hook.name}")
            self.task.add_done_callback(self._end)

    async def wait(self, seconds: float) -> bool:
        """Wait for the work; return True if all of it is done."""
        if self.task is not None:
            await asyncio.wait([self.task], timeout=seconds)
        return not self.pending

    def cancel(self) -> int:
        """Cancel the work; return the number of turns with unfinished work."""
        left = self.pending
        while self._waiting:
            self._waiting.popleft().close()
        if self.task is not None and not self._cancelled:
            # Only once: a second cancellation would interrupt the cleanup.
            self._cancelled = True
            self.task.cancel()
        return left

    def _end(self, task: asyncio.Task[None]) -> None:
        if task is self.task and not self._waiting:
            self._ended()

    async def _do(self) -> None:
        while self._waiting:
            with _guard(self._hook, "could not finish its work", self._notify):
                await self._waiting.popleft()


@contextmanager
def _guard(hook: TurnHook, what: str, notify: Callable[[Notice], object]) -> Iterator[None]:
    """Convert errors of a hook's own code in the block to notices."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  (a hook's own code: adr/0034)
        words = " ".join(str(error).split()) or type(error).__name__
        notify(Notice("hook", f"{hook.name} {what}: {words}"))


def _read(task: asyncio.Future[HookContext]) -> HookContext:
    """Return a hook's additions to a turn; raises an error if they are invalid."""
    if task.cancelled():
        # Its own cancellation would look like that of the turn.
        raise RuntimeError("it was cancelled")
    context = task.result()
    documents = tuple(context.canisters)
    foreign = [one for one in documents if not isinstance(one, DocumentCanister)]
    if foreign:
        raise TypeError(f"a {type(foreign[0]).__name__} is not a document")
    trusted = not context.outside
    documents = tuple(msgspec.structs.replace(one, trusted=trusted) for one in documents)
    return HookContext(documents, context.outside)
