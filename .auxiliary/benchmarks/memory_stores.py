"""The stores that the benchmarks of memory run over: files, or a PostgreSQL of their own."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.interfaces import MemoryStore
from vibe_llms.memory.postgres import PostgresMemory
from vibe_llms.storage.postgres.blocking import BlockingDatabase
from vibe_llms.storage.postgres.settings import PostgresSettings

STORES = ("files", "postgres")
#: The store of a user, opened anew each time.
OpenStore: TypeAlias = Callable[[str], MemoryStore]


@contextmanager
def stores(name: str) -> Iterator[OpenStore]:
    """A function that opens the memory of a user, in a place that is removed after the block."""
    if name == "files":
        with tempfile.TemporaryDirectory() as folder:
            yield lambda user: MemoryFiles(Path(folder) / user, durable=False)
        return
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.fakes.postgres import temporary_database

    with temporary_database() as made:
        database = BlockingDatabase(PostgresSettings(dsn=made.dsn, statement_seconds=600))
        yield lambda user: PostgresMemory(database, user, lock_seconds=60)
        database.close()
