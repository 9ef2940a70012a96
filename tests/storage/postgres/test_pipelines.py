"""Statements that are sent at once, beyond what test_database.py asks of transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from tests.fakes.postgres import TestDatabase, access_cluster
from vibe_llms.base.exceptions import LeaseLost, StorageError, StorageUnavailable
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.pipelines import Statement
from vibe_llms.storage.postgres.settings import PostgresSettings


@pytest.fixture(params=[False, True], ids=["prepared", "not prepared"])
async def database(place: TestDatabase, request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    database = Database(PostgresSettings(dsn=place.dsn, connections=2, pooler=request.param))
    yield database
    await database.close()


async def test_values_of_every_kind_come_back_as_they_were(database: Database) -> None:
    moment = datetime(2026, 11, 25, 12, tzinfo=UTC)
    values: dict[str, Any] = {
        "text": "naïve 🐍 % %s $1",
        "data": b"\x00\xff" * 9,
        "number": 2**40,
        "real": 0.25,
        "truth": True,
        "nothing": None,
        "moment": moment,
        "texts": ["a", None, "{}"],
        "numbers": [1, 2**40],
    }
    kinds = ("text", "bytea", "bigint", "float8", "bool", "text", "timestamptz", "text[]")
    names = zip(values, (*kinds, "bigint[]"), strict=True)
    query = "select " + ", ".join(f"%({name})s::{kind}" for name, kind in names) + ", '%%'"
    for _ in range(3):
        assert await database.fetch("ada", query, values) == [(*values.values(), "%")]


async def test_what_is_larger_than_a_socket_holds_goes_both_ways(database: Database) -> None:
    data = bytes(range(256)) * 40_000
    echo = Statement("ada", "select %s::bytea", (data,))
    for answer in await database.run([echo, echo, echo]):
        assert answer.rows == [(data,)]


async def test_many_at_once_get_their_own_answers(database: Database) -> None:
    query = "select vibe.current_user_name(), %s::bigint"

    async def ask(number: int) -> None:
        user = f"user{number % 7}"
        assert await database.fetch(user, query, (number,)) == [(user, number)]

    await asyncio.gather(*(ask(number) for number in range(300)))


async def test_a_statement_works_after_another_has_failed(database: Database) -> None:
    one = Statement("ada", "select 1")
    for _ in range(2):
        for wrong in ("select 1 / 0", "select from from", "select vibe.missing()"):
            with pytest.raises(StorageError):
                await database.run([Statement("ada", wrong), one])
            with pytest.raises(StorageError):
                await database.run([one, Statement("ada", wrong)])
        assert [answer.rows for answer in await database.run([one, one])] == [[(1,)], [(1,)]]


async def test_a_value_that_cannot_be_sent_is_refused_alone(database: Database) -> None:
    wrong = Statement("ada", "select %s::text", ("a\0b",))
    with pytest.raises(StorageError, match="NUL"):
        await database.run([Statement("ada", "select 1"), wrong])
    assert await database.fetch("ada", "select 1") == [(1,)]


async def test_a_transaction_that_is_rolled_back_disturbs_no_statement(database: Database) -> None:
    async def fail() -> None:
        async with database.transaction("ada") as connection:
            await connection.execute("select 1")
            raise ZeroDivisionError

    for _ in range(3):
        assert await database.fetch("ada", "select 1") == [(1,)]
        with pytest.raises(ZeroDivisionError):
            await fail()


async def test_statements_that_differ_each_time_fill_no_memory(database: Database) -> None:
    for number in range(260):
        assert await database.fetch("ada", f"select {number}") == [(number,)]
    rows = await database.fetch("ada", "select count(*) from pg_prepared_statements")
    assert rows[0][0] <= 200


@pytest.mark.parametrize("change", ["deallocate all", "alter table public.changed add more int"])
async def test_what_was_prepared_and_is_not_valid_any_more_is_prepared_again(
    change: str, place: TestDatabase
) -> None:
    database = Database(PostgresSettings(dsn=place.dsn, connections=1))
    access_cluster().execute(
        "create table changed (n int); alter table changed owner to app", place.name
    )
    query = "select * from public.changed"
    await database.fetch("ada", query)
    await database.fetch("ada", change)
    with pytest.raises(StorageUnavailable, match="a connection was closed"):
        await database.fetch("ada", query)
    assert await database.fetch("ada", query) == []
    await database.close()


async def test_a_lost_lease_is_named(database: Database) -> None:
    require = "select vibe.require_lease(%s, %s)"
    await database.fetch("ada", require, (True, "it is gone"))
    with pytest.raises(LeaseLost, match=r"^it is gone$"):
        await database.fetch("ada", require, (False, "it is gone"))


async def test_a_connection_that_the_server_has_ended_is_not_used_again(
    place: TestDatabase, database: Database
) -> None:
    ((process,),) = await database.fetch("ada", "select pg_backend_pid()")
    with psycopg.connect(place.admin_dsn) as admin:
        ended = admin.execute("select pg_terminate_backend(%s, 10000)", (process,)).fetchone()
    assert ended == (True,)
    assert await database.fetch("ada", "select 1") == [(1,)]


async def test_a_statement_that_nobody_waits_for_any_more_is_cancelled(
    place: TestDatabase, database: Database
) -> None:
    query = "select 'slow', pg_sleep(100)"
    running = "select count(*) from pg_stat_activity where state = 'active' and query = %s"

    async def wait_until(number: int) -> None:
        with psycopg.connect(place.admin_dsn, autocommit=True) as admin:
            while admin.execute(running, (query,)).fetchone() != (number,):
                await asyncio.sleep(0.02)

    waiting = asyncio.create_task(database.fetch("ada", query))
    async with asyncio.timeout(20):
        await wait_until(1)
        waiting.cancel()
        await wait_until(0)
    with pytest.raises(asyncio.CancelledError):
        await waiting
