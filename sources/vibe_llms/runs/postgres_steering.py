"""`PostgresSteering`: the messages that users add to runs, in PostgreSQL."""

# ruff: noqa: S608  (all of it is made of constants)
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.codecs import encode_canister
from vibe_llms.runs import postgres_statements as statements
from vibe_llms.runs import rules
from vibe_llms.runs.interfaces import Lease, RequestKey, RunStatus, read_steering_line
from vibe_llms.storage.postgres.database import Connection, Database, clean_text

_PLACE = "owner = %(owner)s and run = %(run)s"
#: Locks the run, so that its worker cannot decide to end it in between.
_LOCK = """
select status, cancelling from vibe.runs
where owner = %(owner)s and identity = %(run)s for no key update
"""
_ENDING = f"select ending is not null from vibe.run_recipes where {_PLACE}"
INSERT = """
insert into vibe.run_steering (owner, run, identity, data, request, digest)
select %(owner)s, %(run)s, one.identity, one.data, %(request)s::bytea, %(steering_digest)s::bytea
from unnest(%(identities)s::text[], %(lines)s::bytea[]) with ordinality one (identity, data, place)
where exists (select from vibe.runs where owner = %(owner)s and identity = %(run)s)
order by one.place
"""
#: SQL condition that a message is not sent, and that its worker, if any, will not send it.
_FREE = """
(state = 'queued' or state = 'taken' and exists (
    select from vibe.runs
    where owner = %(owner)s and identity = %(run)s
    and status in ('completed', 'failed', 'cancelled')
))
"""
_QUEUED = f"select data from vibe.run_steering where {_PLACE} and {_FREE} order by place"
_UNSENT = f"select data, state from vibe.run_steering where {_PLACE} and state <> 'sent'"
_KNOWN = f"select data, digest from vibe.run_steering where {_PLACE} and request = %(request)s"
_SAME = f"select from vibe.run_steering where {_PLACE} and identity = %(message)s"
_WAITING = f"""
select count(*), coalesce(sum(octet_length(data)), 0)::bigint
from vibe.run_steering where {_PLACE} and state <> 'sent'
"""
_TAKE = f"update vibe.run_steering set state = 'taken' where {_PLACE} and state = 'queued'"
_TAKE_BACK = f"""
delete from vibe.run_steering where {_PLACE} and identity = %(message)s and {_FREE}
returning data
"""
_SETTLE = f"""
with held as materialized ({statements.SHARE_LEASE}),
settled as (
    update vibe.run_steering set state = 'sent'
    where {_PLACE} and identity = %(message)s and exists (select from held)
)
select from held
"""
_END = f"update vibe.run_recipes set ending = %(ending)s where {_PLACE}"


class PostgresSteering:
    """The part of `PostgresRunStore` for messages that users add to runs."""

    _database: Database

    async def steer(
        self, user: str, run: str, message: UserCanister, request: RequestKey | None = None
    ) -> UserCanister:
        """Queue a message; see `RunDecisions.steer`."""
        values = {"owner": user, "run": clean_text(run), **write_steering([message], request)}
        async with self._database.transaction(user) as connection:
            rows = await _fetch(connection, _LOCK, values)
            if not rows:
                raise rules.not_found(run)
            ((status, cancelling),) = rows
            if request is not None:
                for data, digest in await _fetch(connection, _KNOWN, values):
                    rules.require_same(request, digest)
                    return read_steering_line(data)
            # A statement sees what was committed before it, so the query must follow the lock.
            ((ending,),) = await _fetch(connection, _ENDING, values)
            rules.require_steerable(run, RunStatus(status), ending=cancelling or ending)
            if await _fetch(connection, _SAME, values | {"message": message.identity}):
                raise rules.added_before(run, message.identity)
            ((waiting, size),) = await _fetch(connection, _WAITING, values)
            rules.require_queue_room(run, waiting, size, len(values["lines"][0]))
            await connection.execute(INSERT.encode(), values)
        return message

    async def survey_steering(self, user: str, run: str) -> Sequence[UserCanister]:
        """Return the messages of a run that can be taken back, in order."""
        values = {"owner": user, "run": clean_text(run)}
        rows = await self._database.fetch(user, _QUEUED, values)
        return [read_steering_line(data) for (data,) in rows]

    async def take_back(self, user: str, run: str, message: str) -> UserCanister:
        """Remove a queued message; see `RunDecisions.take_back`."""
        values = {"owner": user, "run": clean_text(run), "message": clean_text(message)}
        for (data,) in await self._database.fetch(user, _TAKE_BACK, values):
            return read_steering_line(data)
        raise rules.not_queued(run, message)

    async def take_steering(self, lease: Lease) -> Sequence[UserCanister]:
        """Return the queued messages and mark them; see `RunWriter.take_steering`."""
        place = {"owner": lease.user, "run": lease.run}
        query = f"{_UNSENT} order by place"
        rows: Sequence[Any] = await self._database.fetch(lease.user, query, place)
        if any(state == "queued" for _, state in rows):
            async with self._database.transaction(lease.user) as connection:
                await lock_lease(connection, lease)
                await connection.execute(_TAKE.encode(), place)
                rows = await _fetch(connection, query, place)
        return [read_steering_line(data) for data, _ in rows]

    async def settle_steering(self, lease: Lease, message: str) -> None:
        """Mark a message as sent; see `RunWriter.settle_steering`."""
        values = {**name_lease(lease), "message": message}
        if not await self._database.fetch(lease.user, _SETTLE, values):
            raise rules.lost(lease)

    async def close_steering(self, lease: Lease, reason: str, *, anyway: bool) -> bool:
        """Accept no more messages unless some are not sent; see `RunWriter.close_steering`."""
        values = {
            "owner": lease.user,
            "run": lease.run,
            "ending": msgspec.json.encode((reason, "", "")),
        }
        async with self._database.transaction(lease.user) as connection:
            await lock_lease(connection, lease)
            if not anyway and await _fetch(connection, f"{_UNSENT} limit 1", values):
                return False
            await connection.execute(_END.encode(), values)
        return True


def write_steering(
    messages: Sequence[UserCanister], request: RequestKey | None = None
) -> dict[str, Any]:
    """Return the values of messages for `INSERT`."""
    return {
        "identities": [one.identity for one in messages],
        "lines": [*map(encode_canister, messages)],
        "request": None if request is None else request.key.encode("utf-8", "surrogatepass"),
        "steering_digest": None if request is None else request.digest,
    }


def name_lease(lease: Lease) -> dict[str, Any]:
    """Return the values that name a lease in statements."""
    return {"owner": lease.user, "run": lease.run, "epoch": lease.epoch}


async def lock_lease(connection: Connection, lease: Lease) -> bool:
    """Lock a run until the transaction ends; return True if it is being cancelled."""
    rows = await _fetch(connection, statements.LOCK_LEASE, name_lease(lease))
    if not rows:
        raise rules.lost(lease)
    return bool(rows[0][0])


async def list_queued(connection: Connection, place: Mapping[str, str]) -> Sequence[UserCanister]:
    """Return the messages of a run that can be taken back, in order."""
    return [read_steering_line(data) for (data,) in await _fetch(connection, _QUEUED, place)]


async def _fetch(connection: Connection, query: str, values: Any) -> list[Any]:
    cursor = connection.cursor(binary=True)
    await cursor.execute(query.encode(), values)
    return await cursor.fetchall()
