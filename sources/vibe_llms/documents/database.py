"""SQLite file of an index: private, shared by processes, and replaced when it is damaged.

Its data is derived from documents. If the file cannot be used, because the disk is full or another
process keeps it locked, the index continues in memory with the data that is still readable.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from vibe_llms.base.databases import IN_MEMORY, open_database
from vibe_llms.base.exceptions import StorageError
from vibe_llms.base.folders import make_folder, storage_errors
from vibe_llms.base.locks import locked

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

FILE = "index.sqlite"
#: Maximum number of values in a statement; SQLite allows at least this many.
_ASKED = 30_000
#: Increase when the tables, the chunks, or the words in them change.
VERSION = 4

_TABLES = """
create table documents (
    key integer primary key, hash text unique not null, head blob not null, size integer not null,
    first integer not null, last integer not null, used real not null);
create table texts (
    key integer primary key, document integer not null, start integer not null, text text not null);
create index texts_of_document on texts (document, start);
create table chunks (
    number integer primary key, start integer not null, end integer not null, breaks blob not null,
    words text not null);
create table vectors (document integer primary key, model text not null, data blob not null);
create table files (
    collection text not null, path text not null, size integer not null, modified integer not null,
    hash text not null, problem text not null, primary key (collection, path));
create virtual table postings using fts5 (
    words, content='', detail=none, columnsize=0, tokenize='ascii')
"""


class DocumentDatabase:
    """Connection to the file in a folder, or to a database in memory without a folder.

    Thread-safe; threads work one at a time. `notify` is called once when the file is given up.
    """

    def __init__(
        self, folder: Path | None, *, lock_seconds: float, notify: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._path = None if folder is None else folder / FILE
        self._lock_seconds = lock_seconds
        self._notify = notify
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        self._inode = 0

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of `work`, which runs again if the database had to be replaced."""
        return self._run(work, "begin")

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of `work`, whose changes are applied completely or not at all."""
        return self._run(work, "begin immediate")

    def clean(self) -> None:
        """Remove deleted data from the log too, unless another process is reading it."""
        import sqlite3

        with self._lock, suppress(sqlite3.Error):
            if self._database is not None:
                self._database.execute("pragma wal_checkpoint (truncate)")

    def close(self) -> None:
        """Close the file. The next use opens it again."""
        with self._lock:
            self._close()

    def _run(self, work: Callable[[sqlite3.Connection], T], begin: str) -> T:
        import sqlite3

        damages = (
            *(sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR),
            *(sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_CONSTRAINT),
        )
        with self._lock:
            try:
                return self._attempt(work, begin)
            except (sqlite3.Error, msgspec.DecodeError, StorageError) as error:
                problem = error
            if isinstance(problem, msgspec.DecodeError):
                code = sqlite3.SQLITE_CORRUPT
            else:
                code = getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            if self._path is None:
                raise StorageError(f"the index in memory: {problem}") from problem
            if not isinstance(problem, StorageError) and code in damages:
                try:
                    self._discard()
                    return self._attempt(work, begin)
                except (sqlite3.Error, StorageError) as error:
                    problem = error
            self._continue_in_memory(problem)
            return self._attempt(work, begin)

    def _attempt(self, work: Callable[[sqlite3.Connection], T], begin: str) -> T:
        database = self._open()
        with _transaction(database, begin):
            return work(database)

    def _open(self) -> sqlite3.Connection:
        if self._path is None or self._folder is None:
            if self._database is None:
                self._database = open_database(
                    IN_MEMORY, version=VERSION, tables=_TABLES, seconds=0, any_thread=True
                )
            return self._database
        if self._database is not None and _inode_of(self._path) == self._inode:
            return self._database
        # The file is new, or another process replaced a damaged one.
        self._close()
        with storage_errors(self._folder):
            make_folder(self._folder)
            self._database = open_database(
                self._path,
                version=VERSION,
                tables=_TABLES,
                seconds=self._lock_seconds,
                # Overwrite deleted data, because it may be private.
                pragmas=("journal_mode = wal", "secure_delete = on"),
                any_thread=True,
            )
        self._inode = _inode_of(self._path)
        return self._database

    def _discard(self) -> None:
        """Remove the file, unless another process has replaced it."""
        assert self._folder is not None
        inode = self._inode
        self._close()
        with storage_errors(self._folder), locked(self._folder, seconds=self._lock_seconds):
            if inode in (0, _inode_of(self._folder / FILE)):
                # Remove the log first, because SQLite would apply it to a new file.
                for suffix in ("-wal", "-shm", ""):
                    with suppress(FileNotFoundError):
                        os.unlink(self._folder / f"{FILE}{suffix}")

    def _continue_in_memory(self, problem: Exception) -> None:
        """Continue in memory with the data that is still readable."""
        import sqlite3

        memory = open_database(
            IN_MEMORY, version=VERSION, tables=_TABLES, seconds=0, any_thread=True
        )
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.backup(memory)
        self._close()
        self._path, self._database = None, memory
        self._notify(f"the index of documents is in memory only: {problem}")

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database, self._inode = None, 0


@contextmanager
def _transaction(database: sqlite3.Connection, begin: str) -> Iterator[None]:
    database.execute(begin)
    try:
        yield
        database.execute("commit")
    finally:
        if database.in_transaction:
            database.execute("rollback")


def _inode_of(path: Path) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def divide(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the values in parts that fit into a statement."""
    for start in range(0, len(values), _ASKED):
        yield values[start : start + _ASKED]
