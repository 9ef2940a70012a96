"""`RunFile`: the SQLite file of runs and budgets, accessed from a dedicated thread."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from msgspec import Struct

from vibe_llms.base.configuration import Configuration
from vibe_llms.base.databases import explain_failure, open_database
from vibe_llms.base.exceptions import StorageError, VibeLlmsError
from vibe_llms.base.folders import make_folder
from vibe_llms.storage.mounts import find_network_mount

T = TypeVar("T")

_VERSION = 4
#: Added in version 4. Client data may be large, and to find a row in `runs`, SQLite reads each row
#: that it compares in full. A run with a body has its outline in `runs`; in a purged body, `prompt`
#: and `opening` are null.
_BODIES = """
create table bodies (
    user text not null, run text not null, recipe blob not null, origin blob not null,
    prompt blob, opening blob, primary key (user, run)
);
create index ended on runs (updated) where status in ('completed', 'failed', 'cancelled');
create index by_conversation on runs (user, conversation)
"""
_TABLES = f"""
create table runs (
    user text not null, identity text not null, conversation text not null, status text not null,
    epoch integer not null, until real not null, cancelling integer not null,
    created real not null, updated real not null, recipe blob not null, prompt blob not null,
    opening blob not null, details blob, state blob not null, origin blob not null,
    reason text not null, error text not null, kind text not null, primary key (user, identity)
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
) without rowid;
create table questions (
    user text not null, run text not null, identity text not null, data blob not null,
    answer blob, primary key (user, run, identity)
) without rowid;
{_BODIES}
"""


class _Job(Struct):
    """A database operation and the future of its caller."""

    work: Callable[[sqlite3.Connection], Any]
    done: asyncio.Future[Any]
    writes: bool
    durable: bool
    result: Any = None
    error: Exception | None = None

    def run(self, database: sqlite3.Connection) -> None:
        """Do the work; undo its writes if it fails."""
        database.execute("savepoint job")
        try:
            self.result = self.work(database)
        except (VibeLlmsError, sqlite3.Error, OverflowError) as error:
            if not database.in_transaction:
                # SQLite has rolled back the whole transaction.
                raise
            database.execute("rollback to job")
            if isinstance(error, OverflowError):
                error = StorageError(f"a number cannot be stored: {error}")
            self.error = error
        database.execute("release job")


class RunFile:
    """The SQLite file, opened on first use; the statements in `added` are run after opening.

    Work that arrives during a commit waits and is committed together.
    """

    def __init__(self, path: Path, *, lock_seconds: float, added: Sequence[str] = ()) -> None:
        self._path = path
        self._lock_seconds = lock_seconds
        self._added = added
        self._database: sqlite3.Connection | None = None
        # One thread keeps statements in order, and the event loop never waits for the disk.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="runs")
        self._waiting: list[_Job] = []
        self._batch: Future[None] | None = None
        self._closed = False

    def exists(self) -> bool:
        """Return True if the file exists."""
        return self._path.exists()

    async def close(self) -> None:
        """Close the file; may be called twice."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        while self._batch is not None:
            await asyncio.wait([asyncio.wrap_future(self._batch)])

        def work() -> None:
            if self._database is not None:
                self._database.close()

        await loop.run_in_executor(self._thread, work)
        self._thread.shutdown()

    async def write(self, work: Callable[[sqlite3.Connection], T], *, durable: bool = True) -> T:
        """Commit the work, completely or not at all, and return its result."""
        return await self._do(work, writes=True, durable=durable)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of read-only work."""
        return await self._do(work)

    async def _do(
        self,
        work: Callable[[sqlite3.Connection], T],
        *,
        writes: bool = False,
        durable: bool = False,
    ) -> T:
        if self._closed:
            raise StorageError("the runs are closed", path=str(self._path))
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Job(work, done, writes, durable))
        if self._batch is None:
            self._begin()
        return await done

    def _begin(self) -> None:
        jobs = [job for job in self._waiting if not job.done.done()]
        self._waiting.clear()
        loop = asyncio.get_running_loop()

        def report(batch: Future[None]) -> None:
            # Called in the thread, so that a busy event loop is notified in its next iteration.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._end, jobs, batch)

        self._batch = self._thread.submit(self._work, jobs)
        self._batch.add_done_callback(report)

    def _end(self, jobs: Sequence[_Job], batch: Future[None]) -> None:
        self._batch = None
        failure = batch.exception()
        for job in jobs:
            if job.done.done():
                continue
            if (error := failure or job.error) is None:
                job.done.set_result(job.result)
            elif isinstance(error, sqlite3.Error):
                job.done.set_exception(explain_failure(error, "runs", self._path))
            else:
                job.done.set_exception(error)
        if self._waiting:
            self._begin()

    def _work(self, jobs: Sequence[_Job]) -> None:
        """Run several jobs in one transaction."""
        database = self._open()
        durable = any(job.durable for job in jobs)
        database.execute(f"pragma synchronous = {'full' if durable else 'normal'}")
        database.execute("begin immediate" if any(job.writes for job in jobs) else "begin")
        # Commits, or rolls back on an exception.
        with database:
            for job in jobs:
                job.run(database)

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            make_folder(self._path.parent)
            if kind := find_network_mount(self._path.parent):
                raise StorageError(
                    f"runs and budgets are not safe on a network file system ({kind}); set "
                    "VIBE_LLMS_HOME to a folder on a local disk",
                    path=str(self._path),
                )
            self._database = open_database(
                self._path,
                version=_VERSION,
                tables=_TABLES,
                upgrades={3: _BODIES},
                seconds=self._lock_seconds,
                pragmas=("journal_mode = wal",),
            )
            for statement in self._added:
                self._database.execute(statement)
        return self._database


def find_file(configuration: Configuration) -> Path:
    """Return the path of the file with the runs and budgets of all users."""
    return configuration.places.data / "server" / "runs.sqlite"


def inspect_runs(path: Path, seconds: float) -> Sequence[str]:
    """Return the problems of a file of runs, opened read-only; `sqlite3.Error` if unreadable."""
    address = f"file:{quote(str(path))}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=seconds)) as database:
        (version,) = database.execute("pragma user_version").fetchone()
        if version not in (0, 3, _VERSION):
            return [f"made by another version of vibe-llms ({version}; this one has {_VERSION})"]
        found = [row[0] for row in database.execute("pragma quick_check")]
        return [] if found == ["ok"] else found
