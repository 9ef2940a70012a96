"""`RunFile`: the SQLite file of runs and budgets, used from a thread of its own."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from vibe_llms.exceptions import StorageError
from vibe_llms.storage.databases import open_database
from vibe_llms.storage.files import make_folder

T = TypeVar("T")

_VERSION = 1
_TABLES = """
create table runs (
    user text not null, identity text not null, conversation text not null, status text not null,
    epoch integer not null, until real not null, cancelling integer not null,
    created real not null, updated real not null, recipe blob not null, prompt blob not null,
    opening blob not null, details blob, vouched blob not null, origin blob not null,
    error text not null, kind text not null, primary key (user, identity)
) without rowid;
create unique index active on runs (user, conversation)
    where status in ('queued', 'running', 'waiting');
create index claimable on runs (status, until) where status in ('queued', 'running');
create index newest on runs (user, created);
create table events (
    user text not null, run text not null, cursor integer not null, data blob not null,
    primary key (user, run, cursor)
) without rowid;
create table calls (
    user text not null, run text not null, invocation text not null, epoch integer not null,
    primary key (user, run, invocation)
) without rowid;
create table approvals (
    user text not null, run text not null, invocation text not null, data blob not null,
    allowed integer, explanation text not null, primary key (user, run, invocation)
) without rowid
"""


class RunFile:
    """The file, opened on first use; `added` are statements that are run then."""

    def __init__(self, path: Path, *, lock_seconds: float, added: Sequence[str] = ()) -> None:
        self._path = path
        self._lock_seconds = lock_seconds
        self._added = added
        self._database: sqlite3.Connection | None = None
        # One thread: its statements are in order, and the loop never waits for a disk.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="runs")
        self._closed = False

    def exists(self) -> bool:
        """Whether anything was ever kept."""
        return self._path.exists()

    async def close(self) -> None:
        """Close what is open; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()

        def work() -> None:
            if self._database is not None:
                self._database.close()

        await loop.run_in_executor(self._thread, work)
        self._thread.shutdown()

    async def write(self, work: Callable[[sqlite3.Connection], T], *, durable: bool = True) -> T:
        """The result of work in one transaction."""

        def write(database: sqlite3.Connection) -> T:
            database.execute(f"pragma synchronous = {'full' if durable else 'normal'}")
            database.execute("begin immediate")
            # Commits, or rolls back if the work fails.
            with database:
                return work(database)

        return await self.run(write)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The result of work with the database, in its thread."""
        if self._closed:
            raise StorageError("the runs are closed", path=str(self._path))

        def run() -> T:
            try:
                return work(self._open())
            except sqlite3.Error as error:
                raise StorageError(f"runs: {error}", path=str(self._path)) from error

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            make_folder(self._path.parent)
            self._database = open_database(
                self._path,
                version=_VERSION,
                tables=_TABLES,
                seconds=self._lock_seconds,
                pragmas=("journal_mode = wal",),
            )
            for statement in self._added:
                self._database.execute(statement)
        return self._database
