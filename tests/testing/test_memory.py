"""The contract of a store of memory: ours keep it, and stores with a bug do not."""

from __future__ import annotations

import asyncio
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import cycle
from pathlib import Path

import pytest

from tests.fakes.pooler import pooled
from tests.fakes.postgres import ROLE, access_cluster, temporary_database
from vibe_llms.base.locks import LockTimeout
from vibe_llms.memory.entries import Scope
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.places import FileStat
from vibe_llms.memory.postgres import PostgresMemory, PostgresVectors, RowScanner
from vibe_llms.storage.postgres.blocking import BlockingConnection, BlockingDatabase
from vibe_llms.storage.postgres.settings import PostgresSettings
from vibe_llms.testing import check_memory_store


class Blind(PostgresMemory):
    """A row that was erased is never missed."""

    def survey_news(self, scope: Scope, seen: int) -> tuple[int, bool, Mapping[str, FileStat]]:
        change, whole, rows = super().survey_news(scope, seen)
        return change, whole and seen < 0, rows


class Unlocked(PostgresMemory):
    """Every process may change a scope at any time."""

    def _lock_row(
        self, connection: BlockingConnection, scope: Scope, patience: LockTimeout
    ) -> bool:
        other = BlockingDatabase(self._database.settings)
        with other.transaction(self._user) as passing:
            super()._lock_row(passing, scope, patience)
        other.close()
        return True


class Shared(PostgresMemory):
    """All users have one memory."""

    def __init__(self, database: BlockingDatabase, user: str, *, lock_seconds: float) -> None:
        super().__init__(database, "everyone", lock_seconds=lock_seconds)


class Trusting(PostgresMemory):
    """What a process has seen of its own change counts, although it was rolled back."""

    def produce_scanner(self, scope: Scope) -> RowScanner:
        class Scanner(RowScanner):
            def rescan_later(self) -> None:
                pass

        return Scanner(self, scope)


class Clinging(PostgresMemory):
    """The vectors of what is forgotten stay."""

    def __init__(self, database: BlockingDatabase, user: str, *, lock_seconds: float) -> None:
        class Vectors(PostgresVectors):
            def forget(self, digests: Iterable[bytes]) -> None:
                pass

            retain = forget

        super().__init__(database, user, lock_seconds=lock_seconds)
        self.vectors = Vectors(database, user)


class Forgetful(PostgresMemory):
    """Vectors are not kept for others."""

    def __init__(self, database: BlockingDatabase, user: str, *, lock_seconds: float) -> None:
        class Vectors(PostgresVectors):
            def read(self, model: str, digests: Sequence[bytes]) -> dict[bytes, array[float]]:
                return {}

        super().__init__(database, user, lock_seconds=lock_seconds)
        self.vectors = Vectors(database, user)


class Crowded(PostgresMemory):
    """Any number of processes deduplicate."""

    @contextmanager
    def deduplicating(self, scope: Scope, *, seconds: float) -> Iterator[None]:
        yield


class Vague(PostgresMemory):
    """The time of deduplication is lost."""

    def write_last(self, scope: Scope, last: datetime) -> None:
        super().write_last(scope, last.replace(microsecond=0))


@pytest.fixture
def databases() -> Iterator[tuple[BlockingDatabase, BlockingDatabase]]:
    """One database, as two servers see it."""
    with temporary_database() as made:
        settings = PostgresSettings(dsn=made.dsn)
        both = BlockingDatabase(settings), BlockingDatabase(settings)
        yield both
        for one in both:
            one.close()


async def test_files_keep_the_contract(tmp_path: Path) -> None:
    await check_memory_store(lambda user: MemoryFiles(tmp_path / user, durable=False))


async def test_rows_keep_the_contract(
    databases: tuple[BlockingDatabase, BlockingDatabase],
) -> None:
    servers = cycle(databases)
    await check_memory_store(lambda user: PostgresMemory(next(servers), user, lock_seconds=60))


async def test_rows_keep_the_contract_behind_a_pooler() -> None:
    with temporary_database() as place, tempfile.TemporaryDirectory(dir="/tmp") as folder:
        sockets = access_cluster().socket
        async with pooled(Path(folder), sockets, ROLE, place.name) as (dsn, pooler):
            database = BlockingDatabase(PostgresSettings(dsn=dsn, pooler=True))

            def check() -> None:
                # Its loop is not that of the pooler.
                asyncio.run(
                    check_memory_store(lambda user: PostgresMemory(database, user, lock_seconds=60))
                )
                database.close()

            await asyncio.to_thread(check)
            assert len({*pooler.used}) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "complaint"),
    [
        (Blind, "another process has a forgotten entry in its index"),
        (Unlocked, "rivals lost or repeated facts|changed while another"),
        (Shared, "a new memory finds entries|another user's memory|listed"),
        (Trusting, "after a failed change"),
        (Clinging, "a vector of a forgotten entry is kept"),
        (Forgetful, "a vector of a forgotten entry is kept, or another|same vectors again"),
        (Crowded, "two processes deduplicate"),
        (Vague, "the time of deduplication differs"),
    ],
)
async def test_a_bug_is_found(
    databases: tuple[BlockingDatabase, BlockingDatabase],
    bug: type[PostgresMemory],
    complaint: str,
) -> None:
    servers = cycle(databases)
    with pytest.raises(AssertionError, match=complaint):
        await check_memory_store(lambda user: bug(next(servers), user, lock_seconds=60))
