"""`PostgresContents`: the contents of all users, in the database or, if large, in an object store.

A transaction that adds a reference to a content records the use in `vibe.content_uses`. That locks
the content's row, as `collect` does before it deletes one. So a content that a message refers to is
never deleted, even if another server collects at the same time.

During an outage of the object store, the database keeps the contents of messages, because a model's
answer has been paid for. `return_displaced` moves them to the object store.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from itertools import islice
from math import inf
from typing import Any, TypeVar

from msgspec import Struct

from vibe_llms.base.credentials import get_logger
from vibe_llms.base.exceptions import (
    ContentDamaged,
    ContentMissing,
    StorageError,
    StorageUnavailable,
    VibeLlmsError,
)
from vibe_llms.base.files import describe_size
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.contents import Reference
from vibe_llms.storage.deposits import GRACE_SECONDS, Deposit, references_of, separate
from vibe_llms.storage.objects import ObjectStore
from vibe_llms.storage.postgres.database import Connection, Database

T = TypeVar("T")
_LOGGER = get_logger("vibe_llms.storage")

#: Limits in bytes of the contents in one statement, and of one value.
_STATEMENT_BYTES = 32 * 1024**2
_LARGEST_VALUE = 512 * 1024**2
#: Maximum bytes stored in the transaction that adds messages, during which others wait for rows.
_MOST_TOGETHER = 1024**2
#: Number of contents that one transaction checks or deletes.
_BATCH = 500
#: Number of objects of one request that are read or written at once.
_PARALLEL = 16
#: Number of attempts of a put, which starts again if its content was collected in between. That is
#: possible with a grace period of only seconds.
_ATTEMPTS = 3
#: Seconds for which messages skip an unavailable object store. Each attempt may take 30 seconds.
_AWAY_SECONDS = 60.0

_PUT = """
insert into vibe.contents as held (owner, hash, size, data, present, displaced)
select %(owner)s, hash, octet_length(data), data, true, %(displaced)s
from unnest(%(hashes)s::text[], %(data)b::bytea[]) as given (hash, data)
on conflict (owner, hash) do update set
    stored = clock_timestamp(),
    present = true,
    displaced = held.displaced or excluded.displaced,
    -- The same bytes are not written again; others are damaged.
    data = case when held.data is distinct from excluded.data then excluded.data else held.data end
"""
_ANNOUNCE = """
insert into vibe.contents as held (owner, hash, size, present)
select %(owner)s, hash, size, false
from unnest(%(hashes)s::text[], %(sizes)s::bigint[]) as given (hash, size)
on conflict (owner, hash) do update set stored = clock_timestamp()
returning hash, created
"""
_ARRIVED = """
update vibe.contents as held
set present = true, data = null, displaced = false, stored = clock_timestamp()
from unnest(%(hashes)s::text[], %(created)s::timestamptz[]) as given (hash, created)
where owner = %(owner)s and held.hash = given.hash and held.created = given.created
returning held.hash
"""
_USE = """
with held as (
    select hash, size from vibe.contents
    where owner = %(owner)s and hash = any(%(hashes)s) and present
    for key share
), used as (
    insert into vibe.content_uses (owner, holder, hash)
    select %(owner)s, %(holder)s, hash from held
    on conflict do nothing
)
select hash, size from held
"""
_RELEASE = """
with gone as (
    delete from vibe.content_uses where owner = %(owner)s and holder = %(holder)s returning hash
)
update vibe.contents as held set stored = '-infinity'
from gone where owner = %(owner)s and held.hash = gone.hash and stored <= %(before)s
"""
_UNUSED = "not exists (select from vibe.content_uses u where u.owner = c.owner and u.hash = c.hash)"
_CANDIDATES = f"""
select hash from vibe.contents c
where owner = %(owner)s and hash > %(after)s and stored < %(before)s and {_UNUSED}
order by hash limit %(batch)s
"""  # noqa: S608  (of constants)
_LOCK = """
select hash from vibe.contents
where owner = %(owner)s and hash = any(%(hashes)s) and stored < %(before)s
order by hash for update skip locked
"""
_DOOM = f"""
update vibe.contents c set present = false, data = null
where owner = %(owner)s and hash = any(%(hashes)s) and {_UNUSED}
"""  # noqa: S608
_DELETE = f"""
delete from vibe.contents c
where owner = %(owner)s and hash = any(%(hashes)s) and not present and {_UNUSED}
returning hash
"""  # noqa: S608
#: Contents that the database keeps for the object store. An index covers this condition.
_DISPLACED = "displaced and data is not null"
_SURVEY_DISPLACED = f"""
select hash, size from vibe.contents
where owner = %(owner)s and hash > %(after)s and {_DISPLACED}
order by hash limit %(batch)s
"""  # noqa: S608
_LOAD_DISPLACED = f"""
select data from vibe.contents
where owner = %(owner)s and hash = %(hash)s and {_DISPLACED}
"""  # noqa: S608


class PreparedCanisters(Struct, frozen=True):
    """Canisters whose large contents are stored. `PostgresContents.store` stores the others.

    `stored` is their stored form, and `kept` their form in memory.
    """

    stored: tuple[Canister, ...]
    kept: tuple[Canister, ...]
    deposits: Sequence[Deposit] = ()
    uploaded: AbstractSet[str] = frozenset()
    references: Sequence[Reference] = ()


class PostgresContents:
    """Contents by user and hash. Large ones go to an object store, if configured.

    Methods with a connection work within the caller's transaction.
    """

    def __init__(
        self, database: Database, *, inline_bytes: int, objects: ObjectStore | None = None
    ) -> None:
        self.database = database
        self.objects = objects
        self._inline_bytes = inline_bytes
        # A collection holds a connection until the object store has deleted its objects.
        self._collection = asyncio.Lock()
        self._away_until = -inf

    async def prepare(self, user: str, canisters: Sequence[Canister]) -> PreparedCanisters:
        """Separate canisters from their contents, and store those that the database does not hold.

        During an outage of the object store, the database keeps them.
        """
        separated = await asyncio.to_thread(
            lambda: [separate(canister, self._inline_bytes) for canister in canisters]
        )
        deposits = [deposit for one in separated for deposit in one.deposits]
        stored = tuple(one.stored for one in separated)
        references = {one.hash: one for canister in stored for one in references_of(canister)}
        small = await self._put_large(user, deposits, displace=True)
        if sum(one.reference.size for one in small) > _MOST_TOGETHER:
            await self.put_all(user, small)
            small = []
        uploaded = {one.reference.hash for one in deposits} - {one.reference.hash for one in small}
        kept = tuple(one.kept for one in separated)
        return PreparedCanisters(stored, kept, small, uploaded, tuple(references.values()))

    async def store(
        self, connection: Connection, user: str, prepared: PreparedCanisters, holder: str
    ) -> None:
        """Store the contents of canisters for a holder, such as `conversation/ID`.

        Raises `ContentMissing` if a canister refers to another content that is missing.
        """
        await self._put_small(connection, user, prepared.deposits)
        missing = await self._use(connection, user, prepared.references, holder)
        if not missing.isdisjoint(prepared.uploaded):
            raise _collected()
        _require_none(missing)

    async def use(
        self, connection: Connection, user: str, references: Sequence[Reference], holder: str
    ) -> None:
        """Keep contents for a holder until it is released, or raise `ContentMissing`."""
        _require_none(await self._use(connection, user, references, holder))

    async def release(
        self, connection: Connection, user: str, holder: str, *, before: datetime
    ) -> None:
        """End the uses of a holder. The next collection deletes contents without other uses.

        Contents that were stored again after the time `before` keep their grace period.
        """
        await connection.execute(_RELEASE, {"owner": user, "holder": holder, "before": before})

    async def put(self, user: str, data: bytes, mimetype: str = "") -> Reference:
        """Store bytes. Without a use, they may be collected after an hour."""
        deposit = await asyncio.to_thread(Deposit.from_bytes, data, mimetype)
        await self.put_all(user, [deposit])
        return deposit.reference

    async def put_all(self, user: str, deposits: Sequence[Deposit]) -> None:
        """Store several deposits durably.

        Existing bytes are not written twice. Damage is repaired, and the grace period starts again.
        """
        if small := await self._put_large(user, deposits):
            async with self.database.transaction(user) as connection:
                await self._put_small(connection, user, small)

    async def load(self, user: str, reference: Reference) -> bytes:
        """Return the bytes of a reference, checked against its hash."""
        return (await self.load_all(user, [reference]))[reference.hash]

    async def load_all(self, user: str, references: Sequence[Reference]) -> Mapping[str, bytes]:
        """Return the bytes of references, keyed by hash and checked against it.

        Raises `ContentMissing` or `ContentDamaged`.
        """
        if not references:
            return {}
        rows = await self.database.fetch(
            user,
            "select hash, data from vibe.contents where owner = %s and hash = any(%s) and present",
            (user, [one.hash for one in references]),
        )
        held: dict[str, bytes | None] = dict(rows)
        if missing := [one.hash for one in references if one.hash not in held]:
            raise _missing(missing[0])
        found = {digest: data for digest, data in held.items() if data is not None}
        if elsewhere := held.keys() - found:
            objects = self._require_objects()
            read = await _gather(objects.read(user, digest) for digest in elsewhere)
            found |= dict(zip(elsewhere, read, strict=True))
        await asyncio.to_thread(_check, found)
        return found

    async def find(self, user: str, digests: Iterable[str]) -> Mapping[str, Reference]:
        """Return the references of stored contents among these hashes without reading the bytes."""
        rows = await self.database.fetch(
            user,
            "select hash, size from vibe.contents where owner = %s and hash = any(%s) and present",
            (user, [*digests]),
        )
        return {digest: Reference(digest, size) for digest, size in rows}

    async def survey(self, user: str) -> Sequence[Reference]:
        """Return references to all contents of a user."""
        rows = await self.database.fetch(
            user,
            "select hash, size from vibe.contents where owner = %s and present order by hash",
            (user,),
        )
        return [Reference(digest, size) for digest, size in rows]

    async def collect(self, user: str, *, grace_seconds: float = GRACE_SECONDS) -> Sequence[str]:
        """Delete unused contents, and return their hashes.

        Contents stored within the grace period, by the clock of the database, are kept. One
        collection runs at a time.
        """
        moment = "select clock_timestamp() - make_interval(secs => %s)"
        async with self._collection:
            ((before,),) = await self.database.fetch(user, moment, (grace_seconds,))
            values = {"owner": user, "before": before, "after": "", "batch": _BATCH}
            collected: list[str] = []
            while candidates := await self._survey_candidates(values):
                collected += await self._remove({**values, "hashes": candidates})
                values["after"] = candidates[-1]
        return collected

    async def return_displaced(self) -> None:
        """Move all users' displaced contents from the database to the object store.

        Raises `StorageUnavailable` if the outage continues.
        """
        if self.objects is None:
            return
        for (user,) in await self.database.fetch("", "select vibe.survey_displaced()"):
            values = {"owner": user, "after": "", "batch": _BATCH}
            while rows := await self.database.fetch(user, _SURVEY_DISPLACED, values):
                for digest, size in rows:
                    await self._return(user, Reference(digest, size))
                values["after"] = rows[-1][0]

    async def _return(self, user: str, reference: Reference) -> None:
        values = {"owner": user, "hash": reference.hash}
        # Another server may have moved it.
        for (data,) in await self.database.fetch(user, _LOAD_DISPLACED, values):
            await self._write(user, {reference.hash: Deposit(reference, data)})

    async def _use(
        self, connection: Connection, user: str, references: Sequence[Reference], holder: str
    ) -> AbstractSet[str]:
        """Keep contents for the holder, and return the hashes of missing ones."""
        if not references:
            return frozenset()
        hashes = [one.hash for one in references]
        cursor = await connection.execute(_USE, {"owner": user, "hashes": hashes, "holder": holder})
        held = dict(await cursor.fetchall())
        return {one.hash for one in references if held.get(one.hash) != one.size}

    async def _survey_candidates(self, values: Mapping[str, Any]) -> Sequence[str]:
        rows = await self.database.fetch(values["owner"], _CANDIDATES, values)
        return [digest for (digest,) in rows]

    async def _remove(self, values: Mapping[str, Any]) -> Sequence[str]:
        """Delete contents, and return the hashes of those that were still unused.

        They are first marked as absent, so that an interruption never leaves a content that is
        marked as present without an object.
        """
        user = values["owner"]
        async with self.database.transaction(user) as connection:
            locked = await _lock(connection, values)
            await connection.execute(_DOOM, {**values, "hashes": locked})
        async with self.database.transaction(user) as connection:
            locked = await _lock(connection, values)
            cursor = await connection.execute(_DELETE, {**values, "hashes": locked})
            removed = sorted(digest for (digest,) in await cursor.fetchall())
            if self.objects is not None and removed:
                await self.objects.remove(user, removed)
        return removed

    async def _put_small(
        self,
        connection: Connection,
        user: str,
        deposits: Sequence[Deposit],
        *,
        displaced: bool = False,
    ) -> None:
        for batch in _batches(deposits):
            values = {
                "owner": user,
                "displaced": displaced,
                "hashes": [one.reference.hash for one in batch],
                "data": [one.data for one in batch],
            }
            await connection.execute(_PUT, values)

    async def _put_large(
        self, user: str, deposits: Iterable[Deposit], *, displace: bool = False
    ) -> Sequence[Deposit]:
        """Store large contents in the object store, and return the rest.

        With `displace`, the database keeps them during an outage of the object store.
        """
        small: list[Deposit] = []
        large: dict[str, Deposit] = {}
        for one in deposits:
            if self.objects is not None and one.reference.size >= self.objects.least_bytes:
                large[one.reference.hash] = one
            elif one.reference.size > _LARGEST_VALUE:
                raise StorageError(
                    f"a content of {describe_size(one.reference.size)} is too large for the "
                    "database; configure a store for large contents in [archive.contents]"
                )
            else:
                small.append(one)
        for _ in range(_ATTEMPTS):
            if not large:
                return small
            for digest in await self._write(user, large, displace=displace):
                del large[digest]
        raise _collected()

    async def _write(
        self, user: str, large: Mapping[str, Deposit], *, displace: bool = False
    ) -> Sequence[str]:
        """Write objects and record them. Return the hashes of those not collected meanwhile.

        The row comes first, so that an interruption never leaves an object without a row.
        """
        objects = self._require_objects()
        hashes = sorted(large)
        sizes = [large[digest].reference.size for digest in hashes]
        displace = displace and max(sizes) <= _LARGEST_VALUE
        if displace and time.monotonic() < self._away_until:
            await self._displace(user, large)
            return hashes
        values = {"owner": user, "hashes": hashes}
        rows = await self.database.fetch(user, _ANNOUNCE, {**values, "sizes": sizes})
        created: dict[str, datetime] = dict(rows)
        try:
            await _gather(objects.write(user, digest, large[digest].data) for digest in hashes)
        except VibeLlmsError as error:
            if not displace:
                raise
            if self._away_until == -inf:
                _LOGGER.warning(
                    "contents are stored in the database until the object store is available: %s",
                    error,
                )
            self._away_until = time.monotonic() + _AWAY_SECONDS
            await self._displace(user, large)
            return hashes
        self._away_until = -inf
        times = [created[digest] for digest in hashes]
        rows = await self.database.fetch(user, _ARRIVED, {**values, "created": times})
        return [digest for (digest,) in rows]

    async def _displace(self, user: str, large: Mapping[str, Deposit]) -> None:
        """Store contents in the database that belong in the object store."""
        async with self.database.transaction(user) as connection:
            await self._put_small(connection, user, [*large.values()], displaced=True)

    def _require_objects(self) -> ObjectStore:
        if self.objects is None:
            raise StorageError(
                "this content is in an object store, but [archive.contents] does not name one"
            )
        return self.objects


async def _gather(attempts: Iterator[Awaitable[T]]) -> Sequence[T]:
    """Return the results of all, running a few at a time. On an error, wait for those running."""
    results: list[T] = []
    while batch := [*islice(attempts, _PARALLEL)]:
        for result in await asyncio.gather(*batch, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            results.append(result)
    return results


async def _lock(connection: Connection, values: Mapping[str, Any]) -> Sequence[str]:
    """Lock contents that are old, except those that another transaction is using or storing."""
    cursor = await connection.execute(_LOCK, values)
    return [digest for (digest,) in await cursor.fetchall()]


def _batches(deposits: Sequence[Deposit]) -> Iterator[Sequence[Deposit]]:
    """Yield the distinct deposits in batches of limited size, in the order of locking rows."""
    batch: list[Deposit] = []
    size = 0
    for _, one in sorted({one.reference.hash: one for one in deposits}.items()):
        if batch and size + one.reference.size > _STATEMENT_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += one.reference.size
    if batch:
        yield batch


def _check(found: Mapping[str, bytes]) -> None:
    for digest, data in found.items():
        if hashlib.sha256(data).hexdigest() != digest:
            raise ContentDamaged(
                f"the content {digest[:12]}… no longer matches its hash; restore it from a backup"
            )


def _collected() -> StorageUnavailable:
    return StorageUnavailable("a content was deleted before it was used; try again")


def _require_none(missing: AbstractSet[str]) -> None:
    for digest in missing:
        raise ContentMissing(
            f"the message refers to {digest[:12]}…, which is not in the store; "
            "store it first: await archive.put(data)"
        )


def _missing(digest: str) -> ContentMissing:
    return ContentMissing(
        f"the content {digest[:12]}…, to which a message refers, is missing from the store; "
        "restore it from a backup"
    )
