"""Attendants: they bring something to a turn before it is held, and work on it once it has ended.

Memory is one; a program may pass others to `session.begin(..., attendants=[...])`. Whatever an
attendant does, it cannot break a turn, nor hold it up for longer than it says itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from vibe_llms.configuration import Configuration
from vibe_llms.events import Notice
from vibe_llms.messages.canisters import Canister, DocumentCanister, Turn
from vibe_llms.providers.interfaces import Loader, Model, Notifier, ignore_notices, refuse_loading
from vibe_llms.providers.rows import Providers
from vibe_llms.registries import Registry, Row

Work: TypeAlias = Coroutine[Any, Any, None]


class Occasion(Struct, frozen=True, kw_only=True):
    """The turn that an attendant is asked about.

    `history` is what stood in the conversation before it, `said` what is said now, `model` who
    answers. `kept` tells whether the conversation is kept in an archive, `load` gives the bytes of
    references, and `notify` tells the person something.
    """

    conversation: str
    model: Model
    history: Sequence[Canister] = ()
    said: Sequence[Canister] = ()
    kept: bool = True
    load: Loader = refuse_loading
    notify: Notifier = ignore_notices


class Briefing(Struct, frozen=True):
    """What an attendant brings to a turn: documents, kept right before what the person said.

    They are data without authority. `outside` tells that they hold what somebody else wrote, so
    that tools which send something out are asked for again in this turn.
    """

    canisters: Sequence[DocumentCanister] = ()
    outside: bool = True


class Attendant(Protocol):
    """Whoever attends the turns of conversations; one may attend several at the same time."""

    @property
    def name(self) -> str:
        """What people know it by."""
        ...

    @property
    def brief_seconds(self) -> float:
        """How long a turn waits for its briefing."""
        ...

    @property
    def close_seconds(self) -> float:
        """How long a session that closes waits for its work."""
        ...

    @property
    def resumes(self) -> bool:
        """Whether work that was given up is taken up by a later session."""
        ...

    async def brief(self, occasion: Occasion) -> Briefing:
        """What it brings, before anything is kept or sent; not called where nothing is said."""
        ...

    def conclude(self, occasion: Occasion, turn: Turn) -> Work | None:
        """The work that a turn leaves behind, if any; it must not wait by itself.

        It is told every turn of which something was kept, however it ended, as the stop reason
        says. Work is done in the background, one after another, while the conversation goes on.
        """
        ...

    async def close(self) -> None:
        """Give everything up; safe to call twice."""
        ...


class AttendantHost(Struct, frozen=True, kw_only=True):
    """What an attendant may ask of its session.

    `providers` give models by their addresses, with their controls and limits; `restore` gives what
    a stored conversation says, `load` the bytes of references. `tell` tells the person something
    outside of any turn; it may be called by any thread.
    """

    providers: Providers
    restore: Callable[[str], Awaitable[Sequence[Canister]]]
    load: Loader
    tell: Callable[[Notice], object]


AttendantFactory: TypeAlias = Callable[[Configuration, AttendantHost], Attendant]

#: The row of the memory: its module is loaded where it is used, and by nobody else.
MEMORY = Row("memory", "vibe_llms.memory.attendant")
_REGISTRY: Registry[AttendantFactory] = Registry("attendants")


def register(name: str, factory: AttendantFactory) -> None:
    """Offer an attendant's factory to the rows that name the calling module."""
    _REGISTRY.register(name, factory)


def access_attendant(row: Row, configuration: Configuration, host: AttendantHost) -> Attendant:
    """The attendant that a row describes; imports its module."""
    return _REGISTRY.access(row)(configuration, host)


#: So long work that was given up has to come to its end before what it uses is closed.
_END_SECONDS = 2.0


class Attendance:
    """The attendants of a session: asks them before turns, and has their work done after them."""

    def __init__(self, tell: Callable[[Notice], None] = ignore_notices) -> None:
        self._tell = tell
        self._own: dict[str, Attendant] = {}
        self._benches: dict[Attendant, _Bench] = {}
        self._slow: set[asyncio.Future[Any]] = set()
        self._postponing = False
        #: How many turns have left work to a later session.
        self.postponed = 0

    def postpone(self) -> None:
        """Begin no more work that a later session takes up: it is left to that."""
        self._postponing = True

    @property
    def unfinished(self) -> int:
        """How many turns have left work that is not done."""
        return sum(bench.unfinished for bench in self._benches.values())

    def access(self, name: str, produce: Callable[[], Attendant]) -> Attendant:
        """The session's own attendant of a name, made when it is first wanted."""
        if name not in self._own:
            self._own[name] = produce()
        return self._own[name]

    async def brief(
        self, attendants: Sequence[Attendant], occasion: Occasion
    ) -> Sequence[Briefing]:
        """What attendants bring to a turn, all asked at the same time.

        One that fails, or takes longer than it may, is told and left out.
        """
        briefings = await asyncio.gather(*(self._ask(one, occasion) for one in attendants))
        return [one for one in briefings if one is not None and one.canisters]

    def conclude(self, attendants: Sequence[Attendant], occasion: Occasion, turn: Turn) -> None:
        """Tell attendants of a turn that has ended; what work it leaves is begun."""
        for one in attendants:
            with _border(one, "cannot work on this turn", occasion.notify):
                if (work := one.conclude(occasion, turn)) is None:
                    continue
                if self._postponing and one.resumes:
                    work.close()
                    self.postponed += 1
                else:
                    self._access_bench(one).put(work)

    async def drain(self) -> None:
        """Wait until all work is done, for each attendant as long as it says; then give it up."""
        await asyncio.gather(*(self._drain(*one) for one in list(self._benches.items())))

    def give_up(self) -> None:
        """End all work at once, and tell how much is not done."""
        for attendant, bench in list(self._benches.items()):
            self._give_up(attendant, bench, "was given up")

    async def close(self) -> None:
        """Wait for all work, and close the session's own attendants."""
        try:
            await self.drain()
        finally:
            self.give_up()
            for task in self._slow:
                task.cancel()
            await self._wait_for_ends()
            for one in self._own.values():
                await self._close(one)

    async def _wait_for_ends(self) -> None:
        """Let what was given up leave what it uses before that is closed, if it heeds its end."""
        tasks = [bench.task for bench in self._benches.values()]
        ending = [task for task in (*tasks, *self._slow) if task is not None and not task.done()]
        if ending:
            await asyncio.wait(ending, timeout=_END_SECONDS)

    async def _ask(self, attendant: Attendant, occasion: Occasion) -> Briefing | None:
        async def brief() -> Briefing:
            # Here, so that one whose method is no coroutine fails as others do.
            return await attendant.brief(occasion)

        slow = False
        with _border(attendant, "brings nothing to this turn", occasion.notify):
            seconds = attendant.brief_seconds
            task = asyncio.ensure_future(brief())
            if await self._wait(task, seconds):
                return _read(task)
            slow = True
        if slow:
            text = f"{attendant.name} took longer than {seconds:g} s; this turn goes on without it"
            occasion.notify(Notice("attendant", text))
        return None

    async def _wait(self, task: asyncio.Future[Any], seconds: float) -> bool:
        """Wait for somebody's briefing; whether it has come in time."""
        try:
            await asyncio.wait([task], timeout=seconds)
        finally:
            if not task.done():
                # Whoever does not heed this holds nobody up.
                task.cancel()
                self._slow.add(task)
                task.add_done_callback(self._forget)
        return task.done()

    def _forget(self, task: asyncio.Future[Any]) -> None:
        self._slow.discard(task)
        if not task.cancelled():
            # Nobody waits for it any more, so nobody is told.
            task.exception()

    def _access_bench(self, attendant: Attendant) -> _Bench:
        if attendant not in self._benches:
            border = partial(_border, attendant, "could not finish its work", self._tell)
            # A conversation may have an attendant of its own, and a process thousands of these.
            ended = partial(self._benches.pop, attendant, None)
            self._benches[attendant] = _Bench(attendant.name, border, ended)
        return self._benches[attendant]

    async def _drain(self, attendant: Attendant, bench: _Bench) -> None:
        seconds = attendant.close_seconds
        if not await bench.drain(seconds):
            self._give_up(attendant, bench, f"was not done within {seconds:g} s")

    def _give_up(self, attendant: Attendant, bench: _Bench, why: str) -> None:
        left = bench.give_up()
        if left:
            turns = f"{left} {'turn' if left == 1 else 'turns'}"
            after = "it is done the next time" if attendant.resumes else "it is lost"
            text = f"the work of {attendant.name} on {turns} {why}; {after}"
            self._tell(Notice("attendant", text))

    async def _close(self, attendant: Attendant) -> None:
        with _border(attendant, "cannot be closed", self._tell):
            async with asyncio.timeout(attendant.close_seconds):
                await attendant.close()


class _Bench:
    """The work of one attendant: done in order, one at a time; `ended` is called after the last."""

    def __init__(
        self,
        name: str,
        border: Callable[[], AbstractContextManager[None]],
        ended: Callable[[], object],
    ) -> None:
        self._name = name
        self._border = border
        self._ended = ended
        self._waiting: deque[Work] = deque()
        self._given_up = False
        self.task: asyncio.Task[None] | None = None

    @property
    def unfinished(self) -> int:
        running = self.task is not None and not self.task.done() and not self._given_up
        return len(self._waiting) + running

    def put(self, work: Work) -> None:
        self._waiting.append(work)
        if self.task is None or self.task.done() or self._given_up:
            self._given_up = False
            self.task = asyncio.create_task(self._do(), name=f"work of {self._name}")
            self.task.add_done_callback(self._end)

    async def drain(self, seconds: float) -> bool:
        """Wait for the work; whether it is all done."""
        if self.task is not None:
            await asyncio.wait([self.task], timeout=seconds)
        return not self.unfinished

    def give_up(self) -> int:
        """End the work; how many turns it leaves undone."""
        left = self.unfinished
        while self._waiting:
            self._waiting.popleft().close()
        if self.task is not None and not self._given_up:
            # Once: a second time would end what it does to leave things in order.
            self._given_up = True
            self.task.cancel()
        return left

    def _end(self, task: asyncio.Task[None]) -> None:
        if task is self.task and not self._waiting:
            self._ended()

    async def _do(self) -> None:
        while self._waiting:
            with self._border():
                await self._waiting.popleft()


@contextmanager
def _border(attendant: Attendant, what: str, tell: Callable[[Notice], object]) -> Iterator[None]:
    """Where an attendant's own code runs: whatever goes wrong in it is told, and hurts nobody."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  (the border of an attendant: adr/0034)
        words = " ".join(str(error).split()) or type(error).__name__
        tell(Notice("attendant", f"{attendant.name} {what}: {words}"))


def _read(task: asyncio.Future[Briefing]) -> Briefing:
    """What a task has brought, if it is fit for a turn."""
    if task.cancelled():
        # Raised here, its own end would be taken for that of the turn.
        raise RuntimeError("it was cancelled")
    briefing = task.result()
    brought = tuple(briefing.canisters)
    foreign = [one for one in brought if not isinstance(one, DocumentCanister)]
    if foreign:
        raise TypeError(f"a {type(foreign[0]).__name__} is no document")
    return Briefing(brought, briefing.outside)
