"""`PostgresContents`: the contents of all users, in the database or, if they are large, elsewhere.

What needs a content says so in `vibe.content_uses`, in the transaction that makes it need it. That
locks the row of the content, and so does `collect` before it deletes one: a content that a message
refers to is never deleted, at whatever moment another server collects.

While the object store is away, the contents of messages are kept in the database: what a model has
answered was paid for. `return_displaced` moves them to where they belong.
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

from vibe_llms.credentials import get_logger
from vibe_llms.exceptions import (
    ContentDamaged,
    ContentMissing,
    StorageError,
    StorageUnavailable,
    VibeLlmsError,
)
from vibe_llms.files import describe_size
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.contents import Reference
from vibe_llms.storage.deposits import GRACE_SECONDS, Deposit, references_of, separate
from vibe_llms.storage.objects import ObjectStore
from vibe_llms.storage.postgres.database import Connection, Database

T = TypeVar("T")
_LOGGER = get_logger("vibe_llms.storage")

#: What one statement carries to the database at most, and what one value may be.
_STATEMENT_BYTES = 32 * 1024**2
_LARGEST_VALUE = 512 * 1024**2
#: What is larger is stored before messages are added, whose transaction holds rows of others.
_MOST_TOGETHER = 1024**2
#: How many contents are looked at, or deleted, in one transaction.
_BATCH = 500
#: How many objects of one request are read or written at once.
_PARALLEL = 16
#: A put starts again if its content was collected in between, which a grace of seconds allows.
_ATTEMPTS = 3
#: For how long messages do not try an object store that was away: each try may take half a minute.
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
#: What the database keeps for the object store; see the index on it.
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


class Prepared(Struct, frozen=True):
    """Canisters whose large contents are stored; `PostgresContents.store` stores the others.

    `stored` is how they are stored, `kept` how they are kept in memory.
    """

    stored: tuple[Canister, ...]
    kept: tuple[Canister, ...]
    deposits: Sequence[Deposit] = ()
    uploaded: AbstractSet[str] = frozenset()
    references: Sequence[Reference] = ()


class PostgresContents:
    """Contents by user and hash; large ones go to an object store, if there is one.

    Methods with a connection work within the caller's transaction.
    """

    def __init__(
        self, database: Database, *, inline_bytes: int, objects: ObjectStore | None = None
    ) -> None:
        self.database = database
        self.objects = objects
        self._inline_bytes = inline_bytes
        # Each collection holds a connection for as long as the object store takes to delete.
        self._collection = asyncio.Lock()
        self._away_until = -inf

    async def prepare(self, user: str, canisters: Sequence[Canister]) -> Prepared:
        """Separate canisters from their contents, and store those that are not for the database.

        While the object store is away, the database keeps them.
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
        return Prepared(stored, kept, small, uploaded, tuple(references.values()))

    async def store(
        self, connection: Connection, user: str, prepared: Prepared, holder: str
    ) -> None:
        """Store the contents of canisters for a holder, such as `conversation/ID`.

        `ContentMissing` if a canister refers to something else that is not there.
        """
        await self._put_small(connection, user, prepared.deposits)
        missing = await self._use(connection, user, prepared.references, holder)
        if not missing.isdisjoint(prepared.uploaded):
            raise _collected()
        _require_none(missing)

    async def use(
        self, connection: Connection, user: str, references: Sequence[Reference], holder: str
    ) -> None:
        """Keep contents for a holder until it is released; `ContentMissing` if one is not there."""
        _require_none(await self._use(connection, user, references, holder))

    async def release(
        self, connection: Connection, user: str, holder: str, *, before: datetime
    ) -> None:
        """End the uses of a holder; what nothing else needs goes with the next collection.

        What was put again after the time `before` keeps its grace period.
        """
        await connection.execute(_RELEASE, {"owner": user, "holder": holder, "before": before})

    async def put(self, user: str, data: bytes, mimetype: str = "") -> Reference:
        """Store bytes; without a use, they may be collected after an hour."""
        deposit = await asyncio.to_thread(Deposit.from_bytes, data, mimetype)
        await self.put_all(user, [deposit])
        return deposit.reference

    async def put_all(self, user: str, deposits: Sequence[Deposit]) -> None:
        """Store several deposits; returns when they are durable.

        What is there already is not written twice; damage is repaired, and the grace period begins
        anew.
        """
        if small := await self._put_large(user, deposits):
            async with self.database.transaction(user) as connection:
                await self._put_small(connection, user, small)

    async def load(self, user: str, reference: Reference) -> bytes:
        """The bytes of a reference, checked against its hash."""
        return (await self.load_all(user, [reference]))[reference.hash]

    async def load_all(self, user: str, references: Sequence[Reference]) -> Mapping[str, bytes]:
        """The bytes of references, by their hashes, which they are checked against.

        `ContentMissing` or `ContentDamaged` if some are missing or different.
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
        """The contents that are stored, of those with these hashes; the bytes are not read."""
        rows = await self.database.fetch(
            user,
            "select hash, size from vibe.contents where owner = %s and hash = any(%s) and present",
            (user, [*digests]),
        )
        return {digest: Reference(digest, size) for digest, size in rows}

    async def survey(self, user: str) -> Sequence[Reference]:
        """All contents of a user."""
        rows = await self.database.fetch(
            user,
            "select hash, size from vibe.contents where owner = %s and present order by hash",
            (user,),
        )
        return [Reference(digest, size) for digest, size in rows]

    async def collect(self, user: str, *, grace_seconds: float = GRACE_SECONDS) -> Sequence[str]:
        """Delete the contents that nothing uses; returns their hashes.

        Those that were put within the grace period are kept, by the clock of the database. One
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
        """Move what the database keeps for the object store there; all users' contents.

        `StorageUnavailable` if the object store is still away.
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
        """The hashes of those that are not there; what is there is kept for the holder."""
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
        """Delete unused contents; returns the hashes of those that were not in use by then.

        They stop being present first: then none is present whose object is gone, at whatever moment
        this ends.
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
        """Store what belongs into the object store; returns the rest.

        With `displace`, the database keeps it while the object store is away.
        """
        small: list[Deposit] = []
        large: dict[str, Deposit] = {}
        for one in deposits:
            if self.objects is not None and one.reference.size >= self.objects.least_bytes:
                large[one.reference.hash] = one
            elif one.reference.size > _LARGEST_VALUE:
                raise StorageError(
                    f"a content of {describe_size(one.reference.size)} is too large for the "
                    "database; [archive.contents] names a store for large ones"
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
        """Write objects, and say so; returns the hashes of those that were not collected before.

        The row comes first: then there is no object without a row, at whatever moment this ends.
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
                _LOGGER.warning("until it takes them, the database keeps contents: %s", error)
            self._away_until = time.monotonic() + _AWAY_SECONDS
            await self._displace(user, large)
            return hashes
        self._away_until = -inf
        times = [created[digest] for digest in hashes]
        rows = await self.database.fetch(user, _ARRIVED, {**values, "created": times})
        return [digest for (digest,) in rows]

    async def _displace(self, user: str, large: Mapping[str, Deposit]) -> None:
        """Keep in the database what is for the object store."""
        async with self.database.transaction(user) as connection:
            await self._put_small(connection, user, [*large.values()], displaced=True)

    def _require_objects(self) -> ObjectStore:
        if self.objects is None:
            raise StorageError(
                "this content is in an object store, and [archive.contents] names none"
            )
        return self.objects


async def _gather(attempts: Iterator[Awaitable[T]]) -> Sequence[T]:
    """What all of them return, a few at a time; if one fails, those that had begun have ended."""
    results: list[T] = []
    while batch := [*islice(attempts, _PARALLEL)]:
        for result in await asyncio.gather(*batch, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            results.append(result)
    return results


async def _lock(connection: Connection, values: Mapping[str, Any]) -> Sequence[str]:
    """Lock contents that are old; those that someone is about to use or to put are left out."""
    cursor = await connection.execute(_LOCK, values)
    return [digest for (digest,) in await cursor.fetchall()]


def _batches(deposits: Sequence[Deposit]) -> Iterator[Sequence[Deposit]]:
    """Each deposit once, in the order in which everyone locks their rows, in parts of some size."""
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
                f"the content {digest[:12]}… does not have its hash any more; "
                "restore it from a backup"
            )


def _collected() -> StorageUnavailable:
    return StorageUnavailable("a content was collected before it was used; try again")


def _require_none(missing: AbstractSet[str]) -> None:
    for digest in missing:
        raise ContentMissing(
            f"the message refers to {digest[:12]}…, which is not in the store; "
            "store it first: await archive.put(data)"
        )


def _missing(digest: str) -> ContentMissing:
    return ContentMissing(
        f"a message refers to the content {digest[:12]}…, but it is not in the store; "
        "restore it from a backup"
    )
