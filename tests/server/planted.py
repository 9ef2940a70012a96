"""`vibe-llms serve` with a bug, or killed at a moment: `python -m tests.server.planted NAME serve`.

Each bug breaks one promise of runs, at the moment at which it matters. The same moment without the
bug is `NAME-moment`. A moment comes once in a home.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tests.server.storms import MOMENT
from vibe_llms.cli.main import main
from vibe_llms.conversations.history import History
from vibe_llms.invocation import execution
from vibe_llms.messages.canisters import AssistantCanister
from vibe_llms.runs import job, sqlite, sqlite_budgets
from vibe_llms.runs.accounts import Amount
from vibe_llms.runs.events import RunEvent, cut
from vibe_llms.runs.recorder import RunRecorder, translate
from vibe_llms.runs.run import Run
from vibe_llms.runs.sqlite import SqliteRunStore
from vibe_llms.runs.worker import RunWorker

#: In which what was sent has reached every client.
_SETTLE_SECONDS = 0.5


def kill() -> None:
    """End this process as a power failure would."""
    os.kill(os.getpid(), signal.SIGKILL)


def comes() -> bool:
    """Whether the moment has come, which it does once."""
    try:
        (Path(os.environ["VIBE_LLMS_HOME"]) / MOMENT).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def patch(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    """Replace a function by what is made of it."""
    setattr(owner, name, wrap(getattr(owner, name)))


def no_moment() -> None:
    """Nothing happens."""


def kill_before_a_reply_is_durable() -> None:
    """The moment: a reply has arrived."""

    def wrap(append: Any) -> Any:
        async def wrapped(self: History, canisters: Sequence[Any], *rest: Any, **named: Any) -> Any:
            if isinstance(canisters[0], AssistantCanister) and comes():
                await asyncio.sleep(_SETTLE_SECONDS)
                kill()
            return await append(self, canisters, *rest, **named)

        return wrapped

    patch(History, "append", wrap)


def kill_after_an_effect() -> None:
    """The moment: a tool has returned."""

    def wrap(invoke: Any) -> Any:
        async def wrapped(*given: Any) -> Any:
            result = await invoke(*given)
            if comes():
                kill()
            return result

        return wrapped

    patch(execution, "_invoke", wrap)


def kill_before_events_are_recorded() -> None:
    """The moment: events are about to be recorded."""

    def wrap(append: Any) -> Any:
        async def wrapped(self: SqliteRunStore, lease: Any, events: Any, **options: Any) -> Any:
            if comes():
                await asyncio.sleep(_SETTLE_SECONDS)
                kill()
            return await append(self, lease, events, **options)

        return wrapped

    patch(SqliteRunStore, "append_events", wrap)


def stop_before_a_reply_is_durable() -> None:
    """The moment: the machine sleeps for longer than the lease."""

    def wrap(append: Any) -> Any:
        async def wrapped(self: History, canisters: Sequence[Any], *rest: Any, **named: Any) -> Any:
            if isinstance(canisters[0], AssistantCanister) and comes():
                subprocess.Popen(["/bin/sh", "-c", f"sleep 3; kill -CONT {os.getpid()}"])
                os.kill(os.getpid(), signal.SIGSTOP)
            return await append(self, canisters, *rest, **named)

        return wrapped

    patch(History, "append", wrap)


def show_before_durable() -> None:
    """Followers learn that a message is complete when the model says so."""

    def call(self: RunRecorder, event: Any) -> None:
        if (translated := translate(event)) is not None:
            self.put(translated)

    patch(RunRecorder, "__call__", lambda _: call)


def acknowledge_before_durable() -> None:
    """A reply is said to be kept while it is being written."""

    def wrap(append: Any) -> Any:
        async def wrapped(self: History, canisters: Sequence[Any], *rest: Any, **named: Any) -> Any:
            if isinstance(canisters[0], AssistantCanister):
                keeping.add(asyncio.ensure_future(append(self, canisters, *rest, **named)))
                return
            await append(self, canisters, *rest, **named)

        return wrapped

    keeping: set[Any] = set()
    patch(History, "append", wrap)


def mark_no_call() -> None:
    """A call is not marked before it runs."""

    async def begin(*_: Any) -> int:
        return 0

    patch(SqliteRunStore, "begin_call", lambda _: begin)


def follow_from(offset: int) -> Callable[[], None]:
    """The cursor of a follower is off by one."""

    def plant() -> None:
        def wrap(events: Any) -> Any:
            async def wrapped(self: Run, *, after: int = 0) -> AsyncIterator[tuple[int, RunEvent]]:
                async for one in events(self, after=max(after + offset, 0) if after else 0):
                    yield one

            return wrapped

        patch(Run, "events", wrap)

    return plant


def repeat_after_a_takeover() -> None:
    """A worker that takes a run over sends again what was recorded."""
    patch(job, "find_missing", lambda find: lambda _, added: find([], added))


def announce_nothing() -> None:
    """A worker that takes a run over does not say which message starts again."""
    patch(job, "find_open", lambda _: lambda *_: "")


def show_before_recorded() -> None:
    """Followers see every event before it is recorded."""

    def read(self: RunRecorder, after: int) -> Sequence[tuple[int, RunEvent]]:
        return [*cut(self._pending, after)]

    patch(RunRecorder, "read", lambda _: read)


def renew_nothing() -> None:
    """A lease is not renewed."""

    async def beat(_: RunWorker) -> None:
        await asyncio.Event().wait()

    patch(RunWorker, "_renew_leases", lambda _: beat)


def check_no_epoch() -> None:
    """A worker that has lost a run may go on writing it."""
    patch(sqlite, "LEASED", lambda _: "user = ? and identity = ? and (epoch = ? or true)")


def decide_again() -> None:
    """A later decision replaces an earlier one."""

    def wrap(decide: Any) -> Any:
        async def wrapped(
            self: SqliteRunStore, user: str, run: str, call: str, **options: Any
        ) -> Any:
            await self.write(lambda database: database.execute(_UNDECIDED, (user, run, call)))
            return await decide(self, user, run, call, **options)

        return wrapped

    patch(SqliteRunStore, "decide", wrap)


_UNDECIDED = "update approvals set allowed = null where user = ? and run = ? and invocation = ?"


def reserve_nothing() -> None:
    """What other requests have reserved is not counted."""

    def wrap(decide: Any) -> Any:
        def wrapped(claim: Any, balances: Any) -> Any:
            return decide(claim, [replace(one, reserved=Amount()) for one in balances])

        return wrapped

    patch(sqlite_budgets, "decide", wrap)


class Planted(Struct, frozen=True):
    """A bug, the moment at which it matters, how many servers it needs, and what is complained of.

    A slow reply takes nearly as long as a lease.
    """

    bug: Callable[[], None]
    moment: Callable[[], None]
    found: str
    servers: int = 1
    slow: bool = False


BUGS = {
    "shown-before-durable": Planted(
        show_before_durable, kill_before_a_reply_is_durable, "was lost"
    ),
    "not-marked": Planted(mark_no_call, kill_after_an_effect, "an effect was repeated"),
    "not-durable": Planted(acknowledge_before_durable, kill_before_a_reply_is_durable, "was lost"),
    "cursor-early": Planted(follow_from(-1), no_moment, "came twice|was lost"),
    "cursor-late": Planted(follow_from(1), no_moment, "was lost"),
    "repeated": Planted(repeat_after_a_takeover, kill_after_an_effect, "came twice|was lost"),
    "not-announced": Planted(
        announce_nothing, kill_before_a_reply_is_durable, "that was not announced"
    ),
    "not-recorded": Planted(
        show_before_recorded, kill_before_events_are_recorded, "that was not announced"
    ),
    "not-renewed": Planted(
        renew_nothing, no_moment, "a worker that lived|was lost", servers=2, slow=True
    ),
    "not-fenced": Planted(
        check_no_epoch, stop_before_a_reply_is_durable, "no history has|was lost", servers=2
    ),
    "decided-twice": Planted(decide_again, no_moment, "a decision was changed"),
}

#: Of budgets; a storm of runs does not find it.
SPENDING = {"not-reserved": Planted(reserve_nothing, no_moment, "too much was spent", servers=2)}

if __name__ == "__main__":
    planted = {**BUGS, **SPENDING}[sys.argv[1].removesuffix("-moment")]
    planted.moment()
    if not sys.argv[1].endswith("-moment"):
        planted.bug()
    del sys.argv[1]
    main()
