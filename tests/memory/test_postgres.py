"""Memory in PostgreSQL: what only a database can do wrong. The rest is its contract."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.fakes.postgres import TestDatabase, access_cluster
from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import ConfigurationError, StorageError, StorageUnavailable
from vibe_llms.memory.changes import HeldScope
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Role, Scope
from vibe_llms.memory.postgres import PostgresMemory
from vibe_llms.memory.settings import MemorySettings, produce_memory
from vibe_llms.memory.watching import watch
from vibe_llms.storage.postgres.backend import PostgresBackend
from vibe_llms.storage.postgres.blocking import BlockingDatabase
from vibe_llms.storage.postgres.settings import PostgresSettings

ADA = Scope.of_user("ada")
TABLES = ("scopes", "entries", "stats", "vectors", "snapshots")


@pytest.fixture
def database(place: TestDatabase) -> Iterator[BlockingDatabase]:
    made = BlockingDatabase(PostgresSettings(dsn=place.dsn, connect_seconds=2))
    yield made
    made.close()


@pytest.fixture
async def memory(database: BlockingDatabase) -> AsyncIterator[Memory]:
    made = Memory(PostgresMemory(database, "ada", lock_seconds=60))
    yield made
    await made.close()


HOLD = """
import asyncio, sys, time
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Entry, Scope
from vibe_llms.memory.postgres import PostgresMemory
from vibe_llms.storage.postgres.blocking import BlockingDatabase
from vibe_llms.storage.postgres.settings import PostgresSettings

def hold(held):
    (old,) = held.entries
    held.delete(held.read(old))
    held.add(Entry(content="Half", identity="half", scope=held.scope, created=old.created))
    print("held", flush=True)
    time.sleep(600)

memory = Memory(PostgresMemory(BlockingDatabase(PostgresSettings(dsn=sys.argv[1])), "ada",
    lock_seconds=60))
asyncio.run(memory.change(Scope.of_user("ada"), hold))
"""


async def test_a_process_that_is_killed_in_a_change_leaves_what_was_before(
    memory: Memory, place: TestDatabase
) -> None:
    whole = await memory.add("Ada keeps bees.", scope=ADA)
    command = [sys.executable, "-c", textwrap.dedent(HOLD), place.dsn]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "held\n"
        # Readers see what was before, and a writer waits.
        assert [one.entry for one in await memory.search("bees", scopes=[ADA])] == [whole]
        waiting = asyncio.create_task(memory.add("Ada drinks tea.", scope=ADA))
        process.send_signal(signal.SIGKILL)
    added = await asyncio.wait_for(waiting, 60)
    assert await memory.survey(ADA) == [whole, added]
    assert [one.deleted for one in await memory.status()] == [0]


def test_the_policies_show_and_take_no_row_of_another_user(
    place: TestDatabase, database: BlockingDatabase
) -> None:
    async def fill() -> None:
        memory = Memory(PostgresMemory(database, "ada", lock_seconds=60))
        await memory.add("Ada keeps bees.", scope=ADA)
        with database.transaction("ada") as connection:
            connection.execute(
                "insert into vibe.memory_vectors values ('ada', 'm', 'd', '[1,0]'); "
            )
            connection.execute(
                "insert into vibe.memory_snapshots values ('ada', 'user-ada', 'f', 'm', 'p')"
            )
        await memory.close()

    asyncio.run(fill())

    def count(user: str, table: str) -> int:
        with psycopg.connect(place.dsn) as connection:
            connection.execute("select set_config('vibe.user', %s, true)", (user,))
            rows = connection.execute(f"select from vibe.memory_{table}".encode()).fetchall()
        return len(rows)

    assert {table: count("ada", table) for table in TABLES} == dict.fromkeys(TABLES, 1)
    for user in ("ben", ""):
        assert {table: count(user, table) for table in TABLES} == dict.fromkeys(TABLES, 0)
    with psycopg.connect(place.dsn) as connection:
        connection.execute("select set_config('vibe.user', 'ben', true)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(
                "insert into vibe.memory_scopes (owner, scope, change, erased) "
                "values ('ada', 'global', 1, 1)"
            )


async def test_a_database_that_is_away_loses_nothing(memory: Memory, place: TestDatabase) -> None:
    await memory.add("Ada keeps bees.", scope=ADA)
    try:
        access_cluster().execute("alter role app connection limit 0")
        access_cluster().execute(
            f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{place.name}'"
        )
        for work in (
            lambda: memory.add("Ada drinks tea.", scope=ADA),
            lambda: memory.recall("bees", scopes=[ADA], seconds=5),
            lambda: memory.forget("bees", scopes=[ADA]),
        ):
            with pytest.raises(StorageUnavailable):
                await work()
    finally:
        access_cluster().execute("alter role app connection limit -1")
    await memory.add("Ada drinks tea.", scope=ADA)
    found = await memory.recall("bees tea", scopes=[ADA], seconds=5)
    assert len(found) == 2


def test_only_the_row_of_a_scope_is_not_waited_for(database: BlockingDatabase) -> None:
    rows = PostgresMemory(database, "ada", lock_seconds=1)
    for _ in range(2):
        with rows.changing(ADA), database.transaction("ada") as connection:
            assert connection.execute("show lock_timeout").fetchone() == ("0",)


async def test_an_answer_takes_three_statements_and_a_change_is_read_alone(
    memory: Memory, database: BlockingDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        await memory.add(f"Ada keeps {number} bees.", scope=ADA)
    await memory.search("bees", scopes=[ADA])
    statements: list[object] = []
    execute = psycopg.Connection.execute

    def count(self: object, query: object, *arguments: object, **named: object) -> object:
        statements.append(query)
        return execute(self, query, *arguments, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(psycopg.Connection, "execute", count)
    assert len(await memory.search("bees", scopes=[ADA])) == 10
    # The user, what is new, and the entries.
    assert len(statements) == 3
    read: list[int] = []
    survey = PostgresMemory.survey_news

    def listen(self: PostgresMemory, scope: Scope, seen: int) -> object:
        found = survey(self, scope, seen)
        read.append(len(found[2]))
        return found

    monkeypatch.setattr(PostgresMemory, "survey_news", listen)
    other = Memory(PostgresMemory(database, "ada", lock_seconds=60))
    await other.add("Ben keeps wasps.", scope=ADA)
    read.clear()
    assert len(await memory.search("wasps", scopes=[ADA])) == 1
    assert read == [1]
    await other.close()


async def test_what_was_forgotten_meanwhile_is_known_to_one_who_learns_from_it(
    memory: Memory, database: BlockingDatabase
) -> None:
    talk = Scope.of_conversation("talk")
    turn = await memory.add("I keep bees.", scope=talk, role=Role.USER)
    other = Memory(PostgresMemory(database, "ada", lock_seconds=60))
    await other.forget("bees")

    def has_forgotten(held: HeldScope) -> bool:
        return held.has_forgotten(turn)

    assert await memory.change(ADA, has_forgotten)
    await other.close()


async def test_a_damaged_row_is_reported_and_the_others_are_found(
    database: BlockingDatabase, place: TestDatabase
) -> None:
    reported: list[str] = []
    memory = Memory(PostgresMemory(database, "ada", lock_seconds=60), notify=reported.append)
    await memory.add("Ada keeps bees.", scope=ADA)
    await memory.add("Ada drinks tea.", scope=ADA)
    access_cluster().execute(
        "update vibe.memory_entries set data = 'no entry', "
        "change = nextval('vibe.memory_changes') where encode(data, 'escape') like '%tea%'",
        place.name,
    )
    access_cluster().execute(
        "update vibe.memory_scopes set change = currval('vibe.memory_changes') "
        "from (select nextval('vibe.memory_changes')) as next",
        place.name,
    )
    for _ in range(2):
        assert len(await memory.search("bees tea", scopes=[ADA])) == 1
    assert len(reported) == 1
    assert "user-ada/facts/" in reported[0]
    (status,) = await memory.status()
    assert len(status.damaged) == 1
    await memory.close()


async def test_what_needs_files_says_so(home: Path, place: TestDatabase, memory: Memory) -> None:
    home.mkdir()
    (home / "config.toml").write_text(f"{place.table}[memory]\nversioning = true\n")
    configuration = load_configuration()
    backend: Any = PostgresBackend(configuration)
    with pytest.raises(ConfigurationError, match="versioning needs files"):
        produce_memory(configuration, MemorySettings(versioning=True), backend=backend)
    made = produce_memory(configuration, MemorySettings(), backend=backend, user="ben")
    assert made.store.address == "PostgreSQL, user ben"
    assert await made.survey() == []
    await made.close()
    await backend.close()
    with pytest.raises(StorageError, match="has no files"):
        async with watch(memory):
            pass
