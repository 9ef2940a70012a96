"""Cache of vectors by model and digest of the text, so that each is computed only once.

The file is derived: it may be removed at any time, and is rebuilt if it is damaged or of another
version. It contains no text. `forget` and `retain` leave no trace of removed vectors, not even in
free pages of the file.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import threading
import time
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from vibe_llms.base.cross_loop_lock import CrossLoopLock
from vibe_llms.base.databases import open_database
from vibe_llms.base.exceptions import StorageError
from vibe_llms.base.folders import make_folder, storage_errors
from vibe_llms.base.locks import locked
from vibe_llms.embedding.interfaces import Embedder, LoadingEmbedder, VectorStore
from vibe_llms.embedding.pace import Pace
from vibe_llms.messages.contents import repair_text

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

#: Folder next to those of the entries and the index.
EMBEDDINGS = "embeddings"
FILE = "vectors.sqlite"
#: Maximum bytes of vectors; beyond that the oldest are removed.
LIMIT_BYTES = 512 * 1024 * 1024
#: Increased when the tables change; the byte order is part of it.
_VERSION = 2 + (sys.byteorder == "big")
_CHECK_BYTES = 4
#: Minimum and maximum number of texts embedded and stored at a time.
_BATCH, _MOST = 256, 8192
#: Digests per query; SQLite allows somewhat more.
_ASKED = 500

_TABLES = """
create table models (key integer primary key, name text unique not null);
create table vectors (
    key integer primary key autoincrement, model integer not null, digest blob not null,
    vector blob not null, unique (model, digest));
create index vectors_digest on vectors (digest)
"""
_SELECT = """
select digest, vector from vectors
where model = (select key from models where name = ?) and digest in (MARKS)
"""


def digest_text(text: str) -> bytes:
    """Return the digest that identifies the vector of a text."""
    return hashlib.sha256(repair_text(text).encode()).digest()[:16]


class CachedEmbedder:
    """Embedder that embeds each text once, for all processes.

    Vectors of entries are stored; vectors of questions are not. If storing fails, for example on a
    full disk, it works without.
    """

    def __init__(self, embedder: Embedder, cache: VectorStore) -> None:
        self._embedder = embedder
        self._cache = cache
        #: Number of texts after which their vectors are stored and other tasks run.
        self.pace = Pace(_BATCH, _MOST)
        self._turn = CrossLoopLock()

    @property
    def model(self) -> str:
        """Name under which its vectors are stored."""
        return self._embedder.model

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        """Return a vector for each text; see `vibe_llms.embedding.interfaces.Embedder`.

        If it fails partway, the vectors made by then are kept.
        """
        if question:
            return await self._embedder.embed(texts, question=True)
        digests = [*map(digest_text, texts)]
        left = iter(dict(zip(digests, texts, strict=True)).items())
        found: dict[bytes, array[float]] = {}
        sizes: set[int] = set()
        while batch := dict(islice(left, self.pace.count)):
            async with self._turn:
                some = await self._embed(batch)
            found.update(some)
            sizes.update(map(len, some.values()))
            if len(sizes) > 1:
                # Another model now has this name.
                await self.discard()
                return await self._embedder.embed(texts)
        return [found[digest] for digest in digests]

    async def load(self) -> None:
        """Load its model now, if it loads one into this process."""
        if isinstance(self._embedder, LoadingEmbedder):
            await self._embedder.load()

    async def discard(self) -> None:
        """Remove the stored vectors of its model, if the disk allows it."""
        with suppress(StorageError):
            await asyncio.to_thread(self._cache.discard, self.model)

    async def close(self) -> None:
        """Close the embedder; safe to call twice."""
        await self._embedder.close()

    async def _embed(self, texts: Mapping[bytes, str]) -> Mapping[bytes, array[float]]:
        known = await asyncio.to_thread(self._cache.read, self.model, list(texts))
        missing = [digest for digest in texts if digest not in known]
        if not missing:
            return known
        epoch, begun = self._cache.epoch, time.monotonic()
        vectors = await self._embedder.embed([texts[digest] for digest in missing])
        made = dict(zip(missing, vectors, strict=True))
        await asyncio.to_thread(self._cache.write, self.model, made, epoch)
        self.pace.note(time.monotonic() - begun)
        return {**known, **made}


class EmbeddingCache:
    """File of vectors in a folder; safe to use from several threads and processes.

    Without a folder, nothing is stored.
    """

    def __init__(
        self, folder: Path | None, *, limit_bytes: int = LIMIT_BYTES, lock_seconds: float = 10.0
    ) -> None:
        self._folder = folder or Path(os.devnull)
        self._keeps = folder is not None
        self._path = self._folder / FILE
        self._limit_bytes = limit_bytes
        self._lock_seconds = lock_seconds
        self._lock = threading.Lock()
        #: Number of removals: vectors begun before one may be of removed texts.
        self.epoch = 0

    def exists(self) -> bool:
        """Return True if the file exists."""
        return os.path.lexists(self._path)

    def read(self, model: str, digests: Sequence[bytes]) -> dict[bytes, array[float]]:
        """Return the existing vectors of these digests, or none if the file cannot be read."""
        if not self.exists():
            return {}
        with suppress(StorageError):
            # The next writer, which holds the lock, rebuilds a damaged file.
            return self._attempt(lambda database: _read(database, model, digests), again=False)
        return {}

    def read_size(self, model: str) -> int | None:
        """Return the dimension of a model's vectors, or `None` if none are stored."""
        statement = (
            "select length(vector) from vectors "
            "where model = (select key from models where name = ?) limit 1"
        )

        def read(database: sqlite3.Connection) -> int | None:
            row = database.execute(statement, [model]).fetchone()
            return None if row is None else (row[0] - _CHECK_BYTES) // array("f").itemsize

        with suppress(StorageError):
            return self._attempt(read, again=False) if self.exists() else None
        return None

    def write(
        self, model: str, vectors: Mapping[bytes, array[float]], epoch: int | None = None
    ) -> None:
        """Store vectors if possible, removing the oldest if there are too many.

        Vectors started in another `epoch` are not stored: their texts may be forgotten.
        """
        with self._lock, suppress(StorageError):
            if self._keeps and epoch in (None, self.epoch):
                self._change(lambda database: _write(database, model, vectors, self._limit_bytes))

    def discard(self, model: str) -> None:
        """Remove the vectors of a model."""
        statement = "delete from vectors where model = (select key from models where name = ?)"
        self._remove(lambda database: database.execute(statement, [model]))

    def forget(self, digests: Iterable[bytes]) -> None:
        """Remove the vectors of digests; raise `StorageError` on failure.

        Copies of some digests may stay until `retain` is called.
        """
        values = [(digest,) for digest in digests]
        self._remove(
            lambda database: database.executemany("delete from vectors where digest = ?", values)
        )

    def retain(self, digests: Iterable[bytes]) -> None:
        """Remove all vectors except those of these digests; raise `StorageError` on failure.

        The file is rewritten, since SQLite leaves copies of digests where rows have moved.
        """
        values = [(digest,) for digest in digests]

        def work(database: sqlite3.Connection) -> None:
            database.execute("create temp table kept (digest blob primary key) without rowid")
            database.executemany("insert or ignore into kept values (?)", values)
            database.execute("delete from vectors where digest not in (select digest from kept)")

        self._remove(work, anew=True)

    def _remove(self, work: Callable[[sqlite3.Connection], object], *, anew: bool = False) -> None:
        with self._lock:
            self.epoch += 1
            if self.exists():
                self._change(work, anew=anew)

    def _change(self, work: Callable[[sqlite3.Connection], object], *, anew: bool = False) -> None:
        def change(database: sqlite3.Connection) -> None:
            database.execute("begin immediate")
            work(database)
            database.execute("commit")
            if anew:
                self._write_anew(database)

        with storage_errors(self._folder):
            make_folder(self._folder)
            with locked(self._folder, seconds=self._lock_seconds):
                self._attempt(change)

    def _attempt(self, work: Callable[[sqlite3.Connection], T], *, again: bool = True) -> T:
        """Run `work`; if the file is damaged, run it `again` with a new one, under the lock.

        Raise `StorageError` for other errors.
        """
        import sqlite3

        damages = (
            *(sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR),
            *(sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_CONSTRAINT),
        )
        with storage_errors(self._path):
            try:
                with closing(self._open()) as database:
                    return work(database)
            except sqlite3.Error as error:
                code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
                if not again or code not in damages:
                    raise StorageError(f"cannot be used: {error}", path=str(self._path)) from error
            self._discard()
            return self._attempt(work, again=False)

    def _open(self) -> sqlite3.Connection:
        return open_database(
            self._path,
            version=_VERSION,
            tables=_TABLES,
            seconds=self._lock_seconds,
            # Deleted data is overwritten, and the file shrinks.
            pragmas=("secure_delete = on", "auto_vacuum = full"),
            any_thread=True,
        )

    def _write_anew(self, database: sqlite3.Connection) -> None:
        import sqlite3

        try:
            database.execute("vacuum")
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_FULL:
                raise
            # No room for two copies, and the file is only derived.
            self._discard()

    def _discard(self) -> None:
        # The journal first: another process would use it for a new file.
        for suffix in ("-journal", ""):
            with suppress(FileNotFoundError):
                os.unlink(f"{self._path}{suffix}")


def _read(
    database: sqlite3.Connection, model: str, digests: Sequence[bytes]
) -> dict[bytes, array[float]]:
    found: dict[bytes, array[float]] = {}
    for start in range(0, len(digests), _ASKED):
        asked = digests[start : start + _ASKED]
        marks = ", ".join("?" * len(asked))
        statement = _SELECT.replace("MARKS", marks)
        rows = database.execute(statement, [model, *asked])
        for digest, data in rows:
            vector = _unpack(digest, data)
            if vector is not None:
                found[digest] = vector
    return found


def _write(
    database: sqlite3.Connection,
    model: str,
    vectors: Mapping[bytes, array[float]],
    limit_bytes: int,
) -> None:
    database.execute("insert or ignore into models (name) values (?)", [model])
    (key,) = database.execute("select key from models where name = ?", [model]).fetchone()
    rows = [(key, digest, _pack(digest, vector)) for digest, vector in vectors.items()]
    database.executemany(
        "insert or replace into vectors (model, digest, vector) values (?, ?, ?)", rows
    )
    if rows:
        most = max(limit_bytes // len(rows[0][2]), 1)
        # Keys only grow, so those far below the last one are the oldest.
        database.execute(
            "delete from vectors where key <= (select max(key) from vectors) - ?", [most]
        )


def _pack(digest: bytes, vector: array[float]) -> bytes:
    data = vector.tobytes()
    return data + zlib.crc32(digest + data).to_bytes(_CHECK_BYTES, "big")


def _unpack(digest: object, data: object) -> array[float] | None:
    """Return the vector of a row, or `None` if it is damaged or belongs to another digest."""
    if not isinstance(digest, bytes) or not isinstance(data, bytes):
        return None
    numbers, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
    if not numbers or zlib.crc32(digest + numbers).to_bytes(_CHECK_BYTES, "big") != check:
        return None
    vector = array("f")
    if len(numbers) % vector.itemsize:
        return None
    vector.frombytes(numbers)
    return vector
