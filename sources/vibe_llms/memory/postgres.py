"""Memory of one user in PostgreSQL, for several servers.

A row is an entry: the text that its file would have, at the same place within its scope. Rows are
authoritative. Each process has the same index of a scope as for files, and before each answer reads
the rows changed since the last change that it knows. See ADR 77 for the reasons.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from vibe_llms.base.exceptions import ArchiveLocked, MemoryDamaged, StorageError
from vibe_llms.base.locks import LockTimeout
from vibe_llms.memory.entries import Entry, Scope, decode_entry, encode_entry
from vibe_llms.memory.places import DELETED, Difference, FileStat, place_of
from vibe_llms.memory.postgres_journal import PostgresJournal
from vibe_llms.memory.snapshot import FORMAT

if TYPE_CHECKING:
    from vibe_llms.base.configuration import Configuration
    from vibe_llms.storage.postgres.backend import PostgresBackend
    from vibe_llms.storage.postgres.blocking import BlockingConnection, BlockingDatabase

#: Interval at which a thread waiting for a scope checks whether to give up.
_WAIT_MILLISECONDS = 100
#: Rows per query.
_PAGE = 500
_MOST_PLACES = 5_000
#: PostgreSQL limits a value to less than a gigabyte.
_LARGEST_SNAPSHOT = 900_000_000
_POLL_SECONDS = 0.05

_LOCK = "select from vibe.memory_scopes where owner = %s and scope = %s for update"
_CREATE = """
insert into vibe.memory_scopes (owner, scope, change, erased)
select %s, %s, number, number from (select nextval('vibe.memory_changes') as number) as next
on conflict do nothing
"""
_WRITE = """
with bumped as (
    update vibe.memory_scopes set change = nextval('vibe.memory_changes')
    where owner = %(owner)s and scope = %(scope)s returning change)
insert into vibe.memory_entries (owner, scope, place, change, data)
select %(owner)s, %(scope)s, %(place)s, change, %(data)s from bumped
on conflict (owner, scope, place) do update
set change = excluded.change, data = excluded.data,
    written = excluded.written, moved = excluded.moved
"""
_MOVE = """
with bumped as (
    update vibe.memory_scopes set change = nextval('vibe.memory_changes')
    where owner = %(owner)s and scope = %(scope)s returning change)
update vibe.memory_entries as entry
set place = %(target)s, change = bumped.change, moved = clock_timestamp(), data = %(data)s
from bumped
where entry.owner = %(owner)s and entry.scope = %(scope)s and entry.place = %(place)s
"""
_ERASE = """
delete from vibe.memory_entries where owner = %s and scope = %s and place = any(%s)
"""
_NOTE_ERASED = """
update vibe.memory_scopes set change = number, erased = number
from (select nextval('vibe.memory_changes') as number) as next where owner = %s and scope = %s
"""
_READ = """
select place, data from vibe.memory_entries where owner = %s and scope = %s and place = any(%s)
"""
_READ_PAGE = """
select place, data from vibe.memory_entries
where owner = %s and scope = %s and place > %s order by place limit %s
"""
_STAT_MANY = """
select place, size, modified, changed, change from vibe.memory_stats
where owner = %s and scope = %s and place = any(%s)
"""
_SCAN = """
select place, size, modified, changed, change from vibe.memory_stats
where owner = %s and scope = %s and starts_with(place, %s) = %s
"""
_LAST_CHANGE = "select change, erased from vibe.memory_scopes where owner = %s and scope = %s"
_NEWS = """
select place, size, modified, changed, change from vibe.memory_stats
where owner = %s and scope = %s and change > %s
"""
#: If a process dies while deduplicating a scope, others are locked out for this time.
_CLAIM = """
update vibe.memory_scopes set deduplicating_until = clock_timestamp() + interval '15 minutes'
where owner = %s and scope = %s and coalesce(deduplicating_until < clock_timestamp(), true)
returning deduplicating_until
"""
_FORGET = "delete from vibe.memory_vectors where owner = %s and digest = any(%s)"
_RETAIN = "delete from vibe.memory_vectors where owner = %s and digest <> all(%s)"
_DISCARD = "delete from vibe.memory_vectors where owner = %s and model = %s"


class PostgresMemory:
    """Rows of one user; safe to call from any thread.

    All changes made while a scope is held are one transaction.
    """

    has_files = False

    def __init__(self, database: BlockingDatabase, user: str, *, lock_seconds: float) -> None:
        self.vectors = PostgresVectors(database, user)
        self.address = f"PostgreSQL, user {user}"
        self._database = database
        self._user = user
        self._lock_seconds = lock_seconds
        self._damaged: dict[str, str] = {}
        self._reported: set[str] = set()

    @property
    def folder(self) -> Path:
        """Never available: raises `StorageError`."""
        raise StorageError(
            "this memory is in PostgreSQL and has no files to edit, watch, or version; use "
            "`vibe-llms memory export` and `import`"
        )

    @contextmanager
    def changing(
        self, scope: Scope, *, seconds: float | LockTimeout | None = None
    ) -> Iterator[None]:
        """Hold the scope's row within one transaction; others wait or get `ArchiveLocked`."""
        limit = self._lock_seconds if seconds is None else seconds
        patience = limit if isinstance(limit, LockTimeout) else LockTimeout(limit)
        with self._transaction() as connection:
            while not self._lock_row(connection, scope, patience):
                if patience.is_over:
                    raise ArchiveLocked(
                        f"another process locked {scope} for {patience.seconds:g} s; try again"
                    )
            patience.met = True
            yield

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Run several calls of this thread in one transaction."""
        with self._transaction():
            yield

    def place_of(self, entry: Entry) -> str:
        """Return the place of an entry; raise `MemoryInvalid` for an invalid identity."""
        return place_of(entry)

    def write(self, entry: Entry) -> str:
        """Write an entry, replacing an old one; return its place."""
        place = place_of(entry)
        self.rewrite(entry, place)
        return place

    def rewrite(self, entry: Entry, place: str) -> None:
        """Rewrite an entry at its place."""
        values = {**self._key(entry.scope), "place": place, "data": encode_entry(entry)}
        with self._transaction() as connection:
            if connection.execute(_WRITE, values).rowcount != 1:
                raise StorageError(f"{entry.scope} is not locked for writing")

    def delete(self, entry: Entry, place: str, *, replaced_by: str = "") -> None:
        """Move an entry to the deleted ones."""
        target = f"{DELETED}/{place}"
        tombstone = msgspec.structs.replace(entry, replaced_by=replaced_by or entry.replaced_by)
        with self._transaction() as connection:
            connection.execute(_ERASE, (self._user, str(entry.scope), [target]))
            connection.execute(
                _MOVE,
                {
                    **self._key(entry.scope),
                    "place": place,
                    "target": target,
                    "data": encode_entry(tombstone),
                },
            )

    def erase(self, scope: Scope, places: Iterable[str]) -> None:
        """Permanently remove some entries, including deleted ones."""
        with self._transaction() as connection:
            connection.execute(_ERASE, (self._user, str(scope), [*places]))
            connection.execute(_NOTE_ERASED, (self._user, str(scope)))

    def erase_scope(self, scope: Scope) -> None:
        """Permanently remove a scope."""
        self._execute("delete from vibe.memory_scopes where owner = %s and scope = %s", scope)

    def erase_derived(self, scope: Scope) -> None:
        """Do nothing: derived data is removed with the scope."""

    def clear(self, scope: Scope) -> None:
        """Do nothing: transactions leave nothing behind after a crash."""

    def clear_derived(self) -> None:
        """Do nothing: derived data is removed with its scope."""

    def holds(self, scope: Scope, place: str = "") -> bool:
        """Return True if a scope exists, or has an entry at a place."""
        if place:
            return place in self.stat_many(scope, [place])
        rows = self._execute(
            "select from vibe.memory_scopes where owner = %s and scope = %s", scope
        )
        return len(rows) == 1

    def read(self, scope: Scope, place: str) -> Entry:
        """Return the entry at a place; raise `MemoryDamaged` or `FileNotFoundError`."""
        for _, entry in self.read_many(scope, [place]):
            if isinstance(entry, MemoryDamaged):
                raise entry
            return entry
        raise FileNotFoundError(f"{scope}/{place}")

    def read_many(
        self, scope: Scope, places: Collection[str]
    ) -> Iterator[tuple[str, Entry | MemoryDamaged]]:
        """Yield places with their entries or errors, in any order, skipping missing ones."""
        wanted = [*places]
        for start in range(0, len(wanted), _MOST_PLACES):
            for place, data in self._execute(_READ, scope, wanted[start : start + _MOST_PLACES]):
                try:
                    yield place, decode_entry(data, scope, f"{scope}/{place}")
                except MemoryDamaged as error:
                    self._damaged[f"{scope}/{place}"] = str(error)
                    yield place, error

    def read_all(self, scope: Scope) -> Iterator[tuple[str, bytes | None]]:
        """Yield the bytes at all places of a scope."""
        last = ""
        while rows := self._execute(_READ_PAGE, scope, last, _PAGE):
            yield from rows
            last = rows[-1][0]

    def read_parts(self, scope: Scope, place: str) -> Iterator[bytes]:
        """Yield the bytes at a place; a row is read whole."""
        for _, data in self._execute(_READ, scope, [place]):
            yield data

    def take_damaged(self) -> Sequence[str]:
        """Return the errors of unreadable rows, each once."""
        found = [self._damaged.pop(place) for place in sorted(self._damaged)]
        new = [one for one in found if one not in self._reported]
        self._reported.update(new)
        return new

    def survey_scopes(self) -> Sequence[Scope]:
        """Return the existing scopes, in order."""
        with self._transaction() as connection:
            rows = connection.execute(
                "select scope from vibe.memory_scopes where owner = %s", (self._user,)
            ).fetchall()
        return sorted(Scope.parse(name) for (name,) in rows)

    def survey_strays(self) -> Sequence[Path]:
        """Return nothing: other programs leave no files here."""
        return []

    def scan(self, scope: Scope, *, deleted: bool = False) -> Mapping[str, FileStat]:
        """Return the entries of a scope by place, or its deleted ones."""
        rows = self._execute(_SCAN, scope, f"{DELETED}/", deleted)
        return {place.removeprefix(f"{DELETED}/"): FileStat(*stat) for place, *stat in rows}

    def stat_many(self, scope: Scope, places: Collection[str]) -> Mapping[str, FileStat]:
        """Return the same as `scan`, for some places."""
        rows = self._execute(_STAT_MANY, scope, [*places])
        return {place: FileStat(*stat) for place, *stat in rows}

    def survey_news(self, scope: Scope, seen: int) -> tuple[int, bool, Mapping[str, FileStat]]:
        """Return the last change, True if all rows are listed, and the rows since `seen`."""
        with self._transaction():
            change, erased = self.read_change(scope)
            if change == seen:
                return change, False, {}
            whole = erased > seen or not change
            rows = self._execute(_NEWS, scope, -1 if whole else seen)
        return change, whole, {place: FileStat(*stat) for place, *stat in rows}

    def read_change(self, scope: Scope) -> tuple[int, int]:
        """Return the last change of a scope and the last erasure; 0 if it does not exist."""
        rows = self._execute(_LAST_CHANGE, scope)
        return (rows[0][0], rows[0][1]) if rows else (0, 0)

    def produce_scanner(self, scope: Scope) -> RowScanner:
        """Produce a detector of changed rows in a scope."""
        return RowScanner(self, scope)

    def access_snapshots(self, scope: Scope) -> RowSnapshots:
        """Return the stored index of a scope."""
        return RowSnapshots(self._database, self._user, scope)

    def read_last(self, scope: Scope) -> datetime | None:
        """Return the time the facts of a scope were last deduplicated."""
        statement = "select deduplicated from vibe.memory_scopes where owner = %s and scope = %s"
        rows = self._execute(statement, scope)
        return rows[0][0] if rows else None

    def write_last(self, scope: Scope, last: datetime) -> None:
        """Record the time the facts of a scope were last deduplicated."""
        with self._transaction() as connection:
            connection.execute(
                "update vibe.memory_scopes set deduplicated = %s where owner = %s and scope = %s",
                (last, self._user, str(scope)),
            )

    @contextmanager
    def deduplicating(self, scope: Scope, *, seconds: float) -> Iterator[None]:
        """Hold the lease of a scope's deduplication, which expires after 15 minutes."""
        patience = LockTimeout(seconds)
        while not (rows := self._execute(_CLAIM, scope)):
            if patience.is_over:
                raise ArchiveLocked(f"another process is deduplicating {scope}")
            time.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            with self._transaction() as connection:
                connection.execute(
                    "update vibe.memory_scopes set deduplicating_until = null "
                    "where owner = %s and scope = %s and deduplicating_until = %s",
                    (self._user, str(scope), rows[0][0]),
                )

    def close(self) -> None:
        """Do nothing: the backend closes its connections."""

    def _lock_row(
        self, connection: BlockingConnection, scope: Scope, patience: LockTimeout
    ) -> bool:
        """Lock the row of a scope for this transaction; return False if others keep it too long."""
        from psycopg.errors import LockNotAvailable

        milliseconds = str(1 if patience.is_over else _WAIT_MILLISECONDS)
        try:
            with connection.transaction():
                connection.execute("select set_config('lock_timeout', %s, true)", (milliseconds,))
                while not connection.execute(_LOCK, (self._user, str(scope))).rowcount:
                    connection.execute(_CREATE, (self._user, str(scope)))
                connection.execute("set local lock_timeout to default")
        except LockNotAvailable:
            return False
        # The waiting task is gone, so nothing may change.
        return not patience.ended

    def _execute(self, statement: str, scope: Scope, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement about a scope and return its rows."""
        with self._transaction() as connection:
            cursor = connection.execute(statement.encode(), (self._user, str(scope), *values))
            return cursor.fetchall() if cursor.description is not None else []

    @contextmanager
    def _transaction(self) -> Iterator[BlockingConnection]:
        with self._database.transaction(self._user) as connection:
            yield connection

    def _key(self, scope: Scope) -> dict[str, Any]:
        return {"owner": self._user, "scope": str(scope)}


class RowScanner:
    """Rows of a scope, as of the last change that was seen.

    Changes of a scope are numbered in commit order. A deleted row has a number too. After a row was
    erased, all rows are listed.
    """

    def __init__(self, rows: PostgresMemory, scope: Scope) -> None:
        self._rows = rows
        self._scope = scope
        self._seen = -1

    def scan(self, known: Mapping[str, FileStat], *, thorough: bool) -> Difference | None:
        """Return the difference from the `known` files, or `None` if nothing changed."""
        del thorough
        change, whole, rows = self._rows.survey_news(self._scope, self._seen)
        if change == self._seen:
            return None
        self._seen = change
        head = f"{DELETED}/"
        now = {place: stat for place, stat in rows.items() if not place.startswith(head)}
        if whole:
            gone = [place for place in known if place not in now]
        else:
            moved = (place.removeprefix(head) for place in rows if place.startswith(head))
            gone = [place for place in moved if place in known and place not in now]
        return Difference(gone, {one: stat for one, stat in now.items() if known.get(one) != stat})

    def is_listed(self) -> bool:
        """Return True if nothing has changed since the last scan."""
        return self._rows.read_change(self._scope)[0] == self._seen

    def add(self, place: str) -> None:
        """Do nothing: the next scan lists the place."""

    def remove(self, place: str) -> None:
        """Do nothing: the next scan lists the place."""

    def rescan_later(self) -> None:
        """List all rows in the next scan: the ones seen may not have been committed."""
        self._seen = -1

    def reset(self) -> None:
        """Forget all earlier scans."""
        self._seen = -1


class RowSnapshots:
    """Stored index of one scope, shared by all servers."""

    #: For fewer rows, reading them again is faster than storing the index.
    least = 64

    def __init__(self, database: BlockingDatabase, user: str, scope: Scope) -> None:
        self._database = database
        self._user = user
        self._key = (user, str(scope))

    def read(self, wanted: Collection[str]) -> Iterator[tuple[str, Mapping[str, bytes]]]:
        """Read the stored index, if this version understands its format."""
        with self._database.transaction(self._user) as connection:
            # As text, a value takes twice as many bytes, and the server sends less than a gigabyte.
            cursor = connection.cursor(binary=True)
            rows = cursor.execute(
                "select embedder, parts from vibe.memory_snapshots "
                "where owner = %s and scope = %s and format = %s",
                (*self._key, FORMAT),
            ).fetchall()
        for embedder, data in rows:
            parts = msgspec.msgpack.decode(data, type=dict[str, bytes])
            yield embedder, {name: part for name, part in parts.items() if name in wanted}

    def write(self, embedder: str, parts: Mapping[str, bytes]) -> None:
        """Replace the stored index."""
        data = msgspec.msgpack.encode(parts)
        if len(data) > _LARGEST_SNAPSHOT:
            return
        with self._database.transaction(self._user) as connection, connection.transaction():
            connection.execute(
                "insert into vibe.memory_snapshots (owner, scope, format, embedder, parts) "
                "values (%s, %s, %s, %s, %s) on conflict (owner, scope) do update set "
                "format = excluded.format, embedder = excluded.embedder, parts = excluded.parts",
                (*self._key, FORMAT, embedder, data),
            )

    def discard(self) -> None:
        """Remove the stored index."""
        with self._database.transaction(self._user) as connection:
            connection.execute(
                "delete from vibe.memory_snapshots where owner = %s and scope = %s", self._key
            )


class PostgresVectors:
    """Vectors of one user's texts, in a pgvector column; one per text."""

    def __init__(self, database: BlockingDatabase, user: str) -> None:
        self.epoch = 0
        self._database = database
        self._user = user

    def exists(self) -> bool:
        """Return True: checking costs as much as reading."""
        return True

    def read(self, model: str, digests: Sequence[bytes]) -> dict[bytes, array[float]]:
        """Return the existing vectors of these digests, or none if they cannot be read."""
        with suppress(StorageError):
            rows = self._execute(
                "select digest, embedding from vibe.memory_vectors "
                "where owner = %s and model = %s and digest = any(%s)",
                model,
                [*digests],
            )
            return {digest: _decode(text) for digest, text in rows}
        return {}

    def read_size(self, model: str) -> int | None:
        """Return the dimension of a model's vectors, or `None` if there are none."""
        with suppress(StorageError):
            rows = self._execute(
                "select embedding from vibe.memory_vectors where owner = %s and model = %s limit 1",
                model,
            )
            return len(_decode(rows[0][0])) if rows else None
        return None

    def write(
        self, model: str, vectors: Mapping[bytes, array[float]], epoch: int | None = None
    ) -> None:
        """Store vectors if possible, unless they were started in another `epoch`."""
        if epoch not in (None, self.epoch):
            return
        rows = [
            (self._user, model, digest, msgspec.json.encode(vector.tolist()).decode())
            for digest, vector in vectors.items()
        ]
        with suppress(StorageError), self._database.transaction(self._user) as connection:
            connection.cursor().executemany(
                "insert into vibe.memory_vectors (owner, model, digest, embedding) "
                "values (%s, %s, %s, %s) on conflict (owner, model, digest) "
                "do update set embedding = excluded.embedding",
                rows,
            )

    def discard(self, model: str) -> None:
        """Remove the vectors of a model."""
        self._remove(_DISCARD, model)

    def forget(self, digests: Iterable[bytes]) -> None:
        """Remove the vectors of digests; raise `StorageError` on failure."""
        self._remove(_FORGET, [*digests])

    def retain(self, digests: Iterable[bytes]) -> None:
        """Remove all vectors except those of these digests; raise `StorageError` on failure."""
        self._remove(_RETAIN, [*digests])

    def _remove(self, statement: str, value: object) -> None:
        self.epoch += 1
        self._execute(statement, value)

    def _execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._database.transaction(self._user) as connection:
            cursor = connection.execute(statement.encode(), (self._user, *values))
            return cursor.fetchall() if cursor.description is not None else []


def _decode(text: str) -> array[float]:
    """Decode a vector from pgvector's text, which is exact."""
    return array("f", msgspec.json.decode(text, type=list[float]))


class PostgresStores:
    """Factory for the memory of each user of one database."""

    def __init__(self, database: BlockingDatabase) -> None:
        self._database = database

    def open_store(self, user: str, configuration: Configuration) -> PostgresMemory:
        """Open the rows of a user."""
        lock_seconds = configuration.storage.lock_seconds
        return PostgresMemory(self._database, user, lock_seconds=lock_seconds)

    def open_journal(self, user: str, configuration: Configuration) -> PostgresJournal:
        """Open the tickets of a user."""
        del configuration
        return PostgresJournal(self._database, user)

    def close(self) -> None:
        """Close idle connections."""
        self._database.close()


def produce_store(backend: PostgresBackend) -> PostgresStores:
    """Produce the memory of a database."""
    return PostgresStores(backend.blocking)
