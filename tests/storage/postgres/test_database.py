"""Transactions of one user, over connections that break."""

from __future__ import annotations

import asyncio
import select
import sys
from collections.abc import AsyncIterator

import psycopg
import pytest

from tests.fakes.postgres import TestDatabase, access_cluster, temporary_database
from vibe_llms.base.exceptions import FormatNewer, PackageMissing, StorageError, StorageUnavailable
from vibe_llms.storage.postgres.blocking import BlockingDatabase
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.pipelines import Statement
from vibe_llms.storage.postgres.settings import PostgresSettings


@pytest.fixture
async def database(place: TestDatabase) -> AsyncIterator[Database]:
    database = Database(PostgresSettings(dsn=place.dsn, connect_seconds=2))
    yield database
    await database.close()


async def read_user(database: Database, user: str) -> str | None:
    async with database.transaction(user) as connection:
        row = await (await connection.execute("select vibe.current_user_name()")).fetchone()
    assert row is not None
    return None if row[0] is None else str(row[0])


async def test_a_transaction_has_its_user_and_the_next_one_its_own(database: Database) -> None:
    assert await read_user(database, "ada") == "ada"
    assert await read_user(database, "bob") == "bob"


async def test_an_error_rolls_back_and_the_connection_is_used_again(
    database: Database, place: TestDatabase
) -> None:
    access_cluster().execute(
        "create table counted (n int); grant all on counted to app", place.name
    )

    async def fail() -> None:
        async with database.transaction("ada") as connection:
            await connection.execute("insert into counted values (1)")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with database.transaction("ada") as connection:
        row = await (await connection.execute("select count(*) from counted")).fetchone()
    assert row == (0,)


async def test_statements_that_are_sent_together_are_one_transaction(
    database: Database, place: TestDatabase
) -> None:
    access_cluster().execute(
        "create table counted (n int check (n < 3)); grant all on counted to app", place.name
    )
    count, insert = "select count(*) from counted", "insert into counted values (%s)"
    one, two, three = (Statement("ada", insert, (number,)) for number in (1, 2, 3))
    with pytest.raises(StorageError, match="violates check constraint"):
        await database.run([one, three, two])
    assert await database.fetch("ada", count) == [(0,)]
    me = "select vibe.current_user_name()"
    answers = await database.run([Statement("ada", me), one, two, Statement("bob", me)])
    assert [answers[place].rows for place in (0, 3)] == [[("ada",)], [("bob",)]]
    assert [answer.count for answer in answers] == [1, 1, 1, 1]
    assert await database.fetch("ada", count) == [(2,)]
    assert await database.execute("ada", "delete from counted where n = %s", (1,)) == 1
    with pytest.raises(StorageError, match="syntax error"):
        await database.fetch("ada", "select from from")
    assert await database.fetch("ada", count) == [(1,)]
    with psycopg.connect(place.admin_dsn) as connection:
        row = connection.execute(
            "select count(*) from pg_stat_activity where datname = %s and usename = 'app'",
            (place.name,),
        ).fetchone()
    assert row == (1,), "an error cost a connection"


async def test_statements_that_are_cancelled_leave_no_connection_in_disorder(
    database: Database,
) -> None:
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await database.fetch("ada", "select pg_sleep(30)")
        assert await database.fetch("bob", "select vibe.current_user_name()") == [("bob",)]


async def test_connections_that_broke_are_replaced(database: Database, place: TestDatabase) -> None:
    ended = "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
    ended += f"where datname = '{place.name}'"
    assert await read_user(database, "ada") == "ada"
    access_cluster().execute(ended)
    assert await read_user(database, "ada") == "ada"
    access_cluster().execute(ended)
    assert await database.fetch("ada", "select 1") == [(1,)]


async def test_a_program_that_stops_within_a_transaction_loses_its_locks(
    database: Database,
) -> None:
    limit = "idle_in_transaction_session_timeout"

    async def stop() -> None:
        async with database.transaction("ada") as connection:
            row = await (await connection.execute(f"show {limit}".encode())).fetchone()
            assert row == ("5s",)
            await connection.execute(f"set local {limit} = 50".encode())
            # Until the server ends it.
            await asyncio.to_thread(select.select, [connection.pgconn.socket], [], [], 60)
            await connection.execute("select 1")

    with pytest.raises(StorageUnavailable, match="idle-in-transaction timeout"):
        await stop()
    shown = f"select current_setting('{limit}')"
    assert await database.fetch("ada", shown) == [("0",)], "it outlived the transaction"


async def test_a_database_that_is_away_is_named_and_comes_back(place: TestDatabase) -> None:
    access_cluster().execute("alter role app connection limit 0")
    database = Database(PostgresSettings(dsn=place.dsn, connect_seconds=0.5))
    try:
        with pytest.raises(StorageUnavailable, match="too many connections for role"):
            await read_user(database, "ada")
        access_cluster().execute("alter role app connection limit -1")
        assert await read_user(database, "ada") == "ada"
    finally:
        access_cluster().execute("alter role app connection limit -1")
        await database.close()


async def test_a_database_that_is_not_migrated_says_what_to_do() -> None:
    with temporary_database(bare=True) as place:
        database = Database(PostgresSettings(dsn=place.dsn))
        try:
            with pytest.raises(StorageError, match="vibe-llms archive migrate"):
                await read_user(database, "ada")
        finally:
            await database.close()


async def test_a_database_of_a_newer_version_is_refused(place: TestDatabase) -> None:
    with psycopg.connect(place.admin_dsn) as connection:
        connection.execute("insert into vibe.migrations values (9999, 'later', 1)")
    database = Database(PostgresSettings(dsn=place.dsn))
    try:
        assert await read_user(database, "ada") == "ada"
    finally:
        await database.close()
    with psycopg.connect(place.admin_dsn) as connection:
        connection.execute("update vibe.migrations set least = 9999 where number = 9999")
    database = Database(PostgresSettings(dsn=place.dsn))
    try:
        with pytest.raises(FormatNewer, match="newer version"):
            await read_user(database, "ada")
    finally:
        await database.close()


async def test_a_connection_in_use_is_closed_after_its_transaction(
    database: Database, place: TestDatabase
) -> None:
    async with database.transaction("ada"):
        await database.close()
    left = "select from pg_stat_activity where datname = %s and usename = 'app'"
    with psycopg.connect(place.admin_dsn, autocommit=True) as connection:
        # The process behind a connection ends a moment after it.
        async with asyncio.timeout(20):
            while connection.execute(left, (place.name,)).rowcount:
                await asyncio.sleep(0.02)


async def test_without_the_package_it_is_named(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(PackageMissing, match=r"vibe-llms\[postgres\]"):
        await read_user(database, "ada")
    with pytest.raises(PackageMissing), BlockingDatabase(database.settings).transaction("ada"):
        pass
