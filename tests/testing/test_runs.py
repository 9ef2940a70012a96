"""The contract of a store of runs: our own keeps it, and a store with a bug does not."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes.postgres import temporary_database
from vibe_llms.base.exceptions import TooManyRuns
from vibe_llms.invocation.questions import ElicitationAnswer
from vibe_llms.runs import CallApproval, RunRecord, RunStatus, sqlite
from vibe_llms.runs.interfaces import Lease
from vibe_llms.runs.postgres import PostgresRunStore
from vibe_llms.runs.sqlite import SqliteRunStore
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.settings import PostgresSettings
from vibe_llms.testing import check_run_store


class Unfenced(SqliteRunStore):
    """A worker that lost its lease still marks that a call runs."""

    async def begin_call(self, lease: Lease, invocation: str) -> int:
        found = await self.access(lease.user, lease.run)
        return await super().begin_call(Lease(lease.user, lease.run, found.epoch), invocation)


class Repeating(SqliteRunStore):
    """A follower gets the event of its cursor once more."""

    async def read_events(
        self, user: str, run: str, *, after: int = 0, limit: int = 1000
    ) -> Sequence[tuple[int, bytes]]:
        return await super().read_events(user, run, after=max(0, after - 1), limit=limit)


class Hasty(SqliteRunStore):
    """It looks for a run in one transaction and takes it in another."""

    async def claim(
        self, user: str | None, seconds: float, *, known: Collection[str]
    ) -> RunRecord | None:
        found = await self.run(lambda database: sqlite._find_claimable(database, user, known, 1e12))
        if found is None:
            return None

        def take(database: sqlite3.Connection) -> RunRecord:
            database.execute(
                "update runs set status = 'running', epoch = epoch + 1, until = ? "
                "where user = ? and identity = ?",
                (1e12 + seconds, *found),
            )
            return sqlite._access(database, *found)

        return await self.write(take)


class Impartial(SqliteRunStore):
    """Any worker may take a new run."""

    async def create(
        self, record: RunRecord, seconds: float = 0.0, *, most: int | None = None
    ) -> None:
        queued = msgspec.structs.replace(record, status=RunStatus.QUEUED)
        await super().create(queued, most=most)


class Forgetful(SqliteRunStore):
    """It looks for the key of a request before it keeps the run, in another transaction."""

    async def create(
        self, record: RunRecord, seconds: float = 0.0, *, most: int | None = None
    ) -> None:
        if record.request is not None:
            await self.find_request(record.user, record.request)
        await super().create(msgspec.structs.replace(record, request=None), seconds, most=most)


class Crowded(SqliteRunStore):
    """It counts the runs of a user before it keeps another one, in another transaction."""

    async def create(
        self, record: RunRecord, seconds: float = 0.0, *, most: int | None = None
    ) -> None:
        known = await self.survey(record.user)
        going = [one for one in known if one.status in (RunStatus.QUEUED, RunStatus.RUNNING)]
        if most is not None and len(going) >= most:
            raise TooManyRuns("too many")
        await super().create(record, seconds)


class Fickle(SqliteRunStore):
    """The last decision on a call counts."""

    async def decide(
        self,
        user: str,
        run: str,
        invocation: str,
        *,
        allowed: bool,
        explanation: str = "",
        always: bool = False,
    ) -> CallApproval:
        def forget(database: sqlite3.Connection) -> None:
            database.execute(
                "update approvals set allowed = null where user = ? and run = ?", (user, run)
            )

        await self.write(forget)
        return await super().decide(
            user, run, invocation, allowed=allowed, explanation=explanation, always=always
        )


class Credulous(SqliteRunStore):
    """A decision also holds for a tool that has changed."""

    async def suspend(
        self, lease: Lease, approvals: Sequence[CallApproval], events: Any = (), **questions: Any
    ) -> RunStatus:
        same = [msgspec.structs.replace(one, definition="one") for one in approvals]
        return await super().suspend(lease, same, events, **questions)


class Partial(SqliteRunStore):
    """Events are kept one by one, until one cannot be."""

    async def append_events(
        self, lease: Lease, events: Sequence[tuple[int, bytes]], *, conversation: str = ""
    ) -> None:
        for event in events:
            await super().append_events(lease, [event], conversation=conversation)


class Circular(SqliteRunStore):
    """Every page of a list is the first one."""

    async def survey(self, user: str, *, after: str = "", **which: Any) -> Sequence[RunRecord]:
        if after:
            await super().survey(user, after=after)
        return await super().survey(user, **which)


class Heavy(SqliteRunStore):
    """A list has all that clients sent."""

    async def survey(self, user: str, **which: Any) -> Sequence[RunRecord]:
        return [
            await self.access(user, one.identity) for one in await super().survey(user, **which)
        ]


class Open(SqliteRunStore):
    """Every user reads all events."""

    async def read_events(
        self, user: str, run: str, *, after: int = 0, limit: int = 1000
    ) -> Sequence[tuple[int, bytes]]:
        return await super().read_events(user.removeprefix("not-"), run, after=after, limit=limit)


class Deaf(SqliteRunStore):
    """That a call stops waiting replaces an answer that came in time."""

    async def close_question(
        self, lease: Lease, question: str, otherwise: ElicitationAnswer
    ) -> ElicitationAnswer:
        def forget(database: sqlite3.Connection) -> None:
            database.execute("update questions set answer = null where run = ?", (lease.run,))

        await self.check(lease)
        await self.write(forget)
        return await super().close_question(lease, question, otherwise)


class Endless(SqliteRunStore):
    """A worker goes on although its lease is over."""

    async def renew(self, leases: Collection[Lease], seconds: float) -> Collection[Lease]:
        await super().renew(leases, seconds)
        return ()


class Waiting(SqliteRunStore):
    """A run that is cancelled just before it would wait does wait."""

    async def suspend(self, lease: Lease, *given: Any, **questions: Any) -> RunStatus:
        await self.write(lambda database: database.execute("update runs set cancelling = 0"))
        return await super().suspend(lease, *given, **questions)


class Impatient(SqliteRunStore):
    """A run that was put off is continued at once."""

    async def release(self, lease: Lease, seconds: float = 0.0) -> None:
        await super().release(lease)


class Stubborn(SqliteRunStore):
    """A run that was put off waits although it is to be cancelled."""

    async def release(self, lease: Lease, seconds: float = 0.0) -> None:
        await super().release(lease, seconds)
        await self.write(lambda database: database.execute("update runs set cancelling = 0"))


BROKEN: dict[Callable[..., SqliteRunStore], str] = {
    Unfenced: "begin_call of an earlier epoch: no LeaseLost",
    Repeating: "it is read again",
    Hasty: "were claimed",
    Impartial: "although its creator works on it",
    Crowded: "runs are created at the same time, not 3",
    Forgetful: "have the same request",
    Fickle: "decision",
    Credulous: "the decision holds for a tool that has changed",
    Partial: "a refused write is stored in part",
    Circular: "a list does not continue after a run",
    Heavy: "is listed, not",
    Open: "another user reads the events",
    Waiting: "a cancelled run that tries to wait",
    Impatient: "a deferred run is offered to a worker",
    Stubborn: "a run that is to be cancelled waits",
    Deaf: "the answer is replaced",
    Endless: "is lost, not the first lease",
}


async def test_our_store_in_postgresql_keeps_the_contract() -> None:
    with temporary_database() as place:
        databases = []

        async def open_store() -> PostgresRunStore:
            databases.append(Database(PostgresSettings(dsn=place.dsn)))
            return PostgresRunStore(databases[-1])

        try:
            await check_run_store(open_store)
        finally:
            for one in databases:
                await one.close()


async def test_our_own_store_keeps_the_contract(tmp_path: Path) -> None:
    async def open_store() -> SqliteRunStore:
        return SqliteRunStore(tmp_path / "runs.sqlite")

    await check_run_store(open_store)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
async def test_a_store_with_a_bug_does_not(
    kind: Callable[..., SqliteRunStore], tmp_path: Path
) -> None:
    async def open_store() -> SqliteRunStore:
        return kind(tmp_path / "runs.sqlite")

    with pytest.raises(AssertionError, match=BROKEN[kind]):
        await check_run_store(open_store)
