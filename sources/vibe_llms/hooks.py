"""Turn hooks: they add documents to a turn before it starts, and work on it after it ends.

Memory is one; programs pass others to `session.begin(..., hooks=[...])`. A hook cannot break a
turn, and delays it by at most its own `before_seconds`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from vibe_llms.configuration import Configuration
from vibe_llms.events import Notice
from vibe_llms.messages.canisters import Canister, DocumentCanister, Turn, Usage
from vibe_llms.providers.interfaces import Loader, Model, Notifier, ignore_notices, refuse_loading
from vibe_llms.providers.provider_pool import Providers
from vibe_llms.registries import Registry, Row
from vibe_llms.storage.backends import Backend
from vibe_llms.tracing import Tracer

T = TypeVar("T")
Work: TypeAlias = Coroutine[Any, Any, None]


class HookRequest(Struct, frozen=True, kw_only=True):
    """The turn that a hook is asked about.

    `history` is the conversation before it, `said` the new messages, `model` the one that answers.
    `kept` is false where the conversation is not stored. `load` returns the bytes of references,
    and `notify` shows a notice to the user.
    """

    conversation: str
    model: Model
    history: Sequence[Canister] = ()
    said: Sequence[Canister] = ()
    kept: bool = True
    load: Loader = refuse_loading
    notify: Notifier = ignore_notices


class HookContext(Struct, frozen=True):
    """What a hook adds to a turn: documents, kept right before the user's message.

    They are data without authority. With `outside` they hold text of other people, so that tools
    which send data out ask for approval as long as they are sent.
    """

    canisters: Sequence[DocumentCanister] = ()
    outside: bool = True


class TurnHook:
    """The base class of hooks; override what you need. One hook may serve many conversations."""

    #: What notices call it, and what `remove_hook` takes.
    name: str = "hook"
    #: How long a turn waits for `before_turn`.
    before_seconds: float = 5.0
    #: How long a closing session waits for its work.
    close_seconds: float = 5.0
    #: Whether a later session continues work that was cancelled.
    resumes: bool = False

    async def before_turn(self, request: HookRequest) -> HookContext:
        """What to add to the turn, before anything is kept or sent.

        Not called for a turn without a new message.
        """
        return HookContext()

    async def note_turn(self, request: HookRequest, turn: Turn) -> None:
        """Write down, if need be, what `after_turn` will do, so that it survives this process.

        The end of the turn waits for it, at most `before_seconds`; a run has not ended before.
        """

    def after_turn(self, request: HookRequest, turn: Turn) -> Work | None:
        """The work to do after the turn, if any; it runs in the background.

        Called for every turn of which a message was kept, also if it failed or was interrupted:
        see `turn.stop_reason`. The work of one hook runs in order, one turn at a time.
        """
        return None

    async def close(self) -> None:
        """Release what the hook holds; safe to call twice."""


class Asker(Protocol):
    """Asks a model one question at a time."""

    @property
    def usage(self) -> Usage:
        """The tokens of all questions so far, failed ones included."""
        ...

    async def ask(self, supervisor: str, text: str, output: type[T]) -> T:
        """The model's answer as a value of `output`; raises `VibeLlmsError` without one."""
        ...


class HookHost(Struct, frozen=True, kw_only=True):
    """What a hook may ask of its session.

    `providers` give models by their addresses, with their controls and limits;
    `produce_asker(model, output_tokens)` gives what asks one of them. `restore` gives the messages
    of a stored conversation, `load` the bytes of references. `notify` shows a notice outside of any
    turn; any thread may call it. `tracer` records what the hook does. `backend` keeps what belongs
    to the `user`.
    """

    backend: Backend
    user: str
    providers: Providers
    produce_asker: Callable[[Model, int], Asker]
    restore: Callable[[str], Awaitable[Sequence[Canister]]]
    load: Loader
    notify: Callable[[Notice], object]
    tracer: Tracer = Tracer()


HookFactory: TypeAlias = Callable[[Configuration, HookHost], TurnHook]

#: The row of memory; its module is imported when it is first used.
MEMORY = Row("memory", "vibe_llms.memory.hook")
_REGISTRY: Registry[HookFactory] = Registry("hooks")


def register(name: str, factory: HookFactory) -> None:
    """Offer a hook's factory to the rows that name the calling module."""
    _REGISTRY.register(name, factory)


def access_hook(row: Row, configuration: Configuration, host: HookHost) -> TurnHook:
    """The hook that a row describes; imports its module."""
    return _REGISTRY.access(row)(configuration, host)


#: How long cancelled work may take to end before what it uses is closed.
_END_SECONDS = 2.0


class Background:
    """The work that turns leave to hooks: done in order for each hook, while you continue."""

    def __init__(self, notify: Callable[[Notice], None] = ignore_notices) -> None:
        self._notify = notify
        self._queues: dict[TurnHook, _Queue] = {}
        self._postponing = False
        #: How many turns have left work to a later session.
        self.postponed = 0

    @property
    def pending(self) -> int:
        """How many turns have work that is not done yet."""
        return sum(queue.pending for queue in self._queues.values())

    def postpone(self) -> None:
        """From now on, leave new work to a later session where its hook `resumes`.

        What memory would learn is written down. The next session of the same user that does not
        postpone learns it, or `vibe-llms memory ingest`.
        """
        self._postponing = True

    async def wait(self) -> None:
        """Wait until all work is done, at most the `close_seconds` of each hook.

        The rest is cancelled, and a notice says how much it is.
        """
        await asyncio.gather(*(self._wait(*one) for one in list(self._queues.items())))

    def cancel(self) -> None:
        """Cancel all work at once; a notice says how much was not done."""
        for hook, queue in list(self._queues.items()):
            self._cancel(hook, queue, "was cancelled")

    def add(self, hook: TurnHook, work: Work) -> None:
        """Queue the work that a hook has returned, or leave it to a later session."""
        if self._postponing and hook.resumes:
            work.close()
            self.postponed += 1
            return
        if hook not in self._queues:
            # A conversation may have a hook of its own, and a process thousands of these.
            ended = partial(self._queues.pop, hook, None)
            self._queues[hook] = _Queue(hook, self._notify, ended)
        self._queues[hook].put(work)

    @property
    def tasks(self) -> Sequence[asyncio.Task[None]]:
        """What runs, or has not ended yet after it was cancelled."""
        return [queue.task for queue in self._queues.values() if queue.task is not None]

    async def _wait(self, hook: TurnHook, queue: _Queue) -> None:
        seconds = hook.close_seconds
        if not await queue.wait(seconds):
            self._cancel(hook, queue, f"was not done within {seconds:g} s")

    def _cancel(self, hook: TurnHook, queue: _Queue, why: str) -> None:
        left = queue.cancel()
        if left:
            turns = f"{left} {'turn' if left == 1 else 'turns'}"
            after = "it is done the next time" if hook.resumes else "it is lost"
            self._notify(Notice("hook", f"the work of {hook.name} on {turns} {why}; {after}"))


class HookRunner:
    """The hooks of a session: asks them before turns, and queues their work after turns."""

    def __init__(self, notify: Callable[[Notice], None] = ignore_notices) -> None:
        self._notify = notify
        self.background = Background(notify)
        self._own: dict[str, TurnHook] = {}
        self._slow: set[asyncio.Future[Any]] = set()

    def access(self, name: str, produce: Callable[[], TurnHook]) -> TurnHook:
        """The session's own hook of a name, made when it is first used."""
        if name not in self._own:
            self._own[name] = produce()
        return self._own[name]

    async def before_turn(
        self, hooks: Sequence[TurnHook], request: HookRequest
    ) -> Sequence[HookContext]:
        """What hooks add to a turn, all asked at the same time.

        A hook that fails or is too slow is left out, with a notice.
        """
        contexts = await asyncio.gather(*(self._ask(hook, request) for hook in hooks))
        return [context for context in contexts if context is not None and context.canisters]

    async def note_turn(self, hooks: Sequence[TurnHook], request: HookRequest, turn: Turn) -> None:
        """Let hooks write down what they will do; one that fails or is too slow gives a notice."""
        await asyncio.gather(*(self._note(hook, request, turn) for hook in hooks))

    def after_turn(self, hooks: Sequence[TurnHook], request: HookRequest, turn: Turn) -> None:
        """Queue the work that hooks have on a turn that has ended."""
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
        """Let cancelled work leave what it uses before that is closed, if it obeys."""
        ending = [task for task in (*self.background.tasks, *self._slow) if not task.done()]
        if ending:
            await asyncio.wait(ending, timeout=_END_SECONDS)

    async def _ask(self, hook: TurnHook, request: HookRequest) -> HookContext | None:
        async def before_turn() -> HookContext:
            # Within the task, so that a method that is no coroutine fails as others do.
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

    async def _note(self, hook: TurnHook, request: HookRequest, turn: Turn) -> None:
        if type(hook).note_turn is TurnHook.note_turn:
            return
        with _guard(hook, "could not note this turn", request.notify):
            async with asyncio.timeout(hook.before_seconds):
                await hook.note_turn(request, turn)

    async def _wait(self, task: asyncio.Future[Any], seconds: float) -> bool:
        """Wait for a hook's context; whether it has come in time."""
        try:
            await asyncio.wait([task], timeout=seconds)
        finally:
            if not task.done():
                # A hook that ignores this delays nothing.
                task.cancel()
                self._slow.add(task)
                task.add_done_callback(self._forget)
        return task.done()

    def _forget(self, task: asyncio.Future[Any]) -> None:
        self._slow.discard(task)
        if not task.cancelled():
            # Read, so that asyncio does not log it: nothing waits for it any more.
            task.exception()

    async def _close(self, hook: TurnHook) -> None:
        with _guard(hook, "cannot be closed", self._notify):
            async with asyncio.timeout(hook.close_seconds):
                await hook.close()


class _Queue:
    """The work of one hook, one piece at a time; `ended` is called after the last."""

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
        """Wait for the work; whether it is all done."""
        if self.task is not None:
            await asyncio.wait([self.task], timeout=seconds)
        return not self.pending

    def cancel(self) -> int:
        """Cancel the work; how many turns it leaves undone."""
        left = self.pending
        while self._waiting:
            self._waiting.popleft().close()
        if self.task is not None and not self._cancelled:
            # Once: a second time would cancel its cleaning up.
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
    """Where a hook's own code runs: an error of it becomes a notice."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  (a hook's own code: adr/0034)
        words = " ".join(str(error).split()) or type(error).__name__
        notify(Notice("hook", f"{hook.name} {what}: {words}"))


def _read(task: asyncio.Future[HookContext]) -> HookContext:
    """What a hook adds, if it is fit for a turn."""
    if task.cancelled():
        # Raised here, its own cancellation would look like that of the turn.
        raise RuntimeError("it was cancelled")
    context = task.result()
    documents = tuple(context.canisters)
    foreign = [one for one in documents if not isinstance(one, DocumentCanister)]
    if foreign:
        raise TypeError(f"a {type(foreign[0]).__name__} is no document")
    trusted = not context.outside
    documents = tuple(msgspec.structs.replace(one, trusted=trusted) for one in documents)
    return HookContext(documents, context.outside)
