"""Attendants: they bring something to a turn before it is held, and work on it once it has ended.

Memory is one; a program may pass others to `session.begin(..., attendants=[...])`. Whatever an
attendant does, it cannot break a turn, nor hold it up for longer than it says itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
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
        self._slow: set[asyncio.Task[Any]] = set()

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
            try:
                work = one.conclude(occasion, turn)
            except Exception as error:  # noqa: BLE001 (whatever it is, the turn has ended well)
                occasion.notify(_fail(one, "cannot work on this turn", error))
                continue
            if work is not None:
                self._access_bench(one).put(work)

    async def drain(self) -> None:
        """Wait until all work is done, for each attendant as long as it says; then give it up."""
        await asyncio.gather(*(self._drain(one) for one in list(self._benches)))

    def give_up(self) -> None:
        """End all work at once, and tell how much is not done."""
        for attendant in list(self._benches):
            self._give_up(attendant, "was given up")

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

        task = asyncio.ensure_future(brief())
        try:
            await asyncio.wait([task], timeout=attendant.brief_seconds)
        finally:
            if not task.done():
                # Whoever does not heed this holds nobody up.
                task.cancel()
                self._slow.add(task)
                task.add_done_callback(self._forget)
        if not task.done():
            seconds = f"{attendant.brief_seconds:g} s"
            text = f"{attendant.name} took longer than {seconds}; this turn goes on without it"
            occasion.notify(Notice("attendant", text))
            return None
        try:
            briefing = task.result()
            brought = tuple(briefing.canisters)
            foreign = [one for one in brought if not isinstance(one, DocumentCanister)]
            if foreign:
                raise TypeError(f"a {type(foreign[0]).__name__} is no document")  # noqa: TRY301
        except asyncio.CancelledError as error:
            occasion.notify(_fail(attendant, "brings nothing to this turn", error))
        except Exception as error:  # noqa: BLE001 (whatever it is, the turn goes on)
            occasion.notify(_fail(attendant, "brings nothing to this turn", error))
        else:
            return Briefing(brought, briefing.outside)
        return None

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._slow.discard(task)
        if not task.cancelled():
            # Nobody waits for it any more, so nobody is told.
            task.exception()

    def _access_bench(self, attendant: Attendant) -> _Bench:
        if attendant not in self._benches:

            def tell(error: Exception) -> None:
                self._tell(_fail(attendant, "could not finish its work", error))

            self._benches[attendant] = _Bench(attendant.name, tell)
        return self._benches[attendant]

    async def _drain(self, attendant: Attendant) -> None:
        seconds = attendant.close_seconds
        if not await self._benches[attendant].drain(seconds):
            self._give_up(attendant, f"was not done within {seconds:g} s")

    def _give_up(self, attendant: Attendant, why: str) -> None:
        left = self._benches[attendant].give_up()
        if left:
            turns = f"{left} {'turn' if left == 1 else 'turns'}"
            after = "it is done the next time" if attendant.resumes else "it is lost"
            text = f"the work of {attendant.name} on {turns} {why}; {after}"
            self._tell(Notice("attendant", text))

    async def _close(self, attendant: Attendant) -> None:
        try:
            async with asyncio.timeout(attendant.close_seconds):
                await attendant.close()
        except Exception as error:  # noqa: BLE001 (the rest is closed too)
            self._tell(_fail(attendant, "cannot be closed", error))


class _Bench:
    """The work of one attendant: done in order, one at a time."""

    def __init__(self, name: str, tell: Callable[[Exception], None]) -> None:
        self._name = name
        self._tell = tell
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

    async def _do(self) -> None:
        while self._waiting:
            try:
                await self._waiting.popleft()
            except Exception as error:  # noqa: BLE001 (the work on the next turn is not hurt)
                self._tell(error)


def _fail(attendant: Attendant, what: str, error: BaseException) -> Notice:
    words = " ".join(str(error).split()) or type(error).__name__
    return Notice("attendant", f"{attendant.name} {what}: {words}")
