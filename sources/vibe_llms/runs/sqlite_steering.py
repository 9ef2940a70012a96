"""`SqliteSteering`: the messages that users add to runs, in the SQLite file of runs."""

# ruff: noqa: S608  (all of it is made of constants)
from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.codecs import encode_canister
from vibe_llms.runs import rules
from vibe_llms.runs.database import RunFile
from vibe_llms.runs.interfaces import Lease, RequestKey, RunStatus, read_steering_line

#: A table with row numbers, because messages may be large; these are the order of arrival. The
#: state is `queued`, `taken` when the worker begins to send a message, or `sent`. The request is
#: the client's idempotency key, if any.
TABLE = """
create table if not exists steering (
    place integer primary key autoincrement, user text not null, run text not null,
    identity text not null, state text not null default 'queued', data blob not null,
    request text, digest blob, unique (user, run, identity), unique (user, run, request)
)
"""
_PLACE = "user = ? and run = ?"
#: SQL condition that a message is not sent, and that its worker, if any, will not send it.
_FREE = """
(state = 'queued' or state = 'taken' and exists (
    select 1 from runs where runs.user = steering.user and runs.identity = steering.run
    and status in ('completed', 'failed', 'cancelled')
))
"""
#: SQL condition that a worker still has a run.
LEASED = "user = ? and identity = ? and epoch = ? and status = 'running'"


class SqliteSteering(RunFile):
    """The part of `SqliteRunStore` for messages that users add to runs."""

    async def steer(
        self, user: str, run: str, message: UserCanister, request: RequestKey | None = None
    ) -> UserCanister:
        """Queue a message; see `RunDecisions.steer`."""
        data = encode_canister(message)

        def work(database: sqlite3.Connection) -> UserCanister:
            row = database.execute(
                "select status, cancelling, reason from runs where user = ? and identity = ?",
                (user, run),
            ).fetchone()
            if row is None:
                raise rules.not_found(run)
            if request is not None and (known := _find_message(database, user, run, request)):
                return known
            status, cancelling, reason = row
            rules.require_steerable(run, RunStatus(status), ending=bool(cancelling or reason))
            place = user, run, message.identity
            same = f"select 1 from steering where {_PLACE} and identity = ?"
            if database.execute(same, place).fetchone() is not None:
                raise rules.added_before(run, message.identity)
            waiting, size = database.execute(
                f"select count(*), coalesce(sum(length(data)), 0) from steering "
                f"where {_PLACE} and state <> 'sent'",
                (user, run),
            ).fetchone()
            rules.require_queue_room(run, waiting, size, len(data))
            insert_steering(database, user, run, [(message.identity, data)], request)
            return message

        return await self.write(work)

    async def survey_steering(self, user: str, run: str) -> Sequence[UserCanister]:
        """Return the messages of a run that can be taken back, in order."""
        return await self.run(lambda database: list_queued(database, user, run))

    async def take_back(self, user: str, run: str, message: str) -> UserCanister:
        """Remove a queued message; see `RunDecisions.take_back`."""

        def work(database: sqlite3.Connection) -> UserCanister:
            row = database.execute(
                f"delete from steering where {_PLACE} and identity = ? and {_FREE} returning data",
                (user, run, message),
            ).fetchone()
            if row is None:
                raise rules.not_queued(run, message)
            return read_steering_line(row[0])

        return await self.write(work)

    async def take_steering(self, lease: Lease) -> Sequence[UserCanister]:
        """Return the queued messages and mark them; see `RunWriter.take_steering`."""
        place = lease.user, lease.run

        def read(database: sqlite3.Connection) -> Sequence[tuple[bytes, str]]:
            return database.execute(
                f"select data, state from steering where {_PLACE} and state <> 'sent' "
                "order by place",
                place,
            ).fetchall()

        def take(database: sqlite3.Connection) -> Sequence[tuple[bytes, str]]:
            check_lease(database, lease)
            database.execute(
                f"update steering set state = 'taken' where {_PLACE} and state = 'queued'", place
            )
            return read(database)

        # Usually there is none, and no lock is needed.
        rows = await self.run(read)
        if any(state == "queued" for _, state in rows):
            rows = await self.write(take)
        return [read_steering_line(data) for data, _ in rows]

    async def settle_steering(self, lease: Lease, message: str) -> None:
        """Mark a message as sent; see `RunWriter.settle_steering`."""

        def work(database: sqlite3.Connection) -> None:
            check_lease(database, lease)
            database.execute(
                f"update steering set state = 'sent' where {_PLACE} and identity = ?",
                (lease.user, lease.run, message),
            )

        await self.write(work)

    async def close_steering(self, lease: Lease, reason: str, *, anyway: bool) -> bool:
        """Accept no more messages unless some are not sent; see `RunWriter.close_steering`."""

        def work(database: sqlite3.Connection) -> bool:
            check_lease(database, lease)
            left = database.execute(
                f"select 1 from steering where {_PLACE} and state <> 'sent'",
                (lease.user, lease.run),
            ).fetchone()
            if left is not None and not anyway:
                return False
            database.execute(
                "update runs set reason = ? where user = ? and identity = ?",
                (reason, lease.user, lease.run),
            )
            return True

        return await self.write(work, durable=False)


def check_lease(database: sqlite3.Connection, lease: Lease) -> None:
    """Raise `LeaseLost` if another worker has the run."""
    key = lease.user, lease.run, lease.epoch
    if not database.execute(f"select 1 from runs where {LEASED}", key).fetchone():
        raise rules.lost(lease)


def list_queued(database: sqlite3.Connection, user: str, run: str) -> Sequence[UserCanister]:
    """Return the messages of a run that can be taken back, in order."""
    query = f"select data from steering where {_PLACE} and {_FREE} order by place"
    return [read_steering_line(data) for (data,) in database.execute(query, (user, run))]


def insert_steering(
    database: sqlite3.Connection,
    user: str,
    run: str,
    lines: Collection[tuple[str, bytes]],
    request: RequestKey | None = None,
) -> None:
    """Queue messages, each given as its identity and its line."""
    key = (None, None) if request is None else (request.key, request.digest)
    database.executemany(
        "insert into steering (user, run, identity, data, request, digest) "
        "values (?, ?, ?, ?, ?, ?)",
        ((user, run, *line, *key) for line in lines),
    )


def _find_message(
    database: sqlite3.Connection, user: str, run: str, request: RequestKey
) -> UserCanister | None:
    query = f"select data, digest from steering where {_PLACE} and request = ?"
    for data, digest in database.execute(query, (user, run, request.key)):
        rules.require_same(request, digest)
        return read_steering_line(data)
    return None
