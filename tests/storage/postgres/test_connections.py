"""A database whose host vanishes: nothing waits for it for longer than its settings say."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from tests.fakes.passage import Passage, open_passage
from tests.fakes.postgres import TestDatabase
from vibe_llms.base.exceptions import StorageUnavailable
from vibe_llms.runs.interfaces import Lease
from vibe_llms.runs.news import News
from vibe_llms.runs.postgres import PostgresRunStore
from vibe_llms.storage.postgres.blocking import BlockingDatabase
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.settings import PostgresSettings

_SILENT = "has not answered for 0.8 s"


@pytest.fixture
def passage() -> Iterator[Passage]:
    with open_passage() as made:
        yield made


@pytest.fixture
def settings(place: TestDatabase, passage: Passage) -> PostgresSettings:
    dsn = passage.dsn(place)
    return PostgresSettings(dsn=dsn, connections=1, connect_seconds=0.5, statement_seconds=0.3)


@pytest.fixture
async def database(settings: PostgresSettings) -> AsyncIterator[Database]:
    database = Database(settings)
    yield database
    await database.close()


async def fetch(database: Database, passage: Passage) -> None:
    passage.silent = True
    await database.fetch("ada", "select 1")


async def send_much(database: Database, passage: Passage) -> None:
    passage.silent = True
    await database.fetch("ada", "select length(%s::bytea)", (bytes(30_000_000),))


async def begin(database: Database, passage: Passage) -> None:
    passage.silent = True
    async with database.transaction("ada"):
        pass


async def execute(database: Database, passage: Passage) -> None:
    async with database.transaction("ada") as connection:
        passage.silent = True
        await connection.execute("select 1")


async def commit(database: Database, passage: Passage) -> None:
    async with database.transaction("ada"):
        passage.silent = True


@pytest.mark.parametrize("work", [fetch, send_much, begin, execute, commit])
async def test_a_statement_that_is_not_answered_ends(
    work: Callable[[Database, Passage], Awaitable[None]], database: Database, passage: Passage
) -> None:
    await database.prepare()
    async with asyncio.timeout(20):
        with pytest.raises(StorageUnavailable, match=_SILENT):
            await work(database, passage)
        passage.silent = False
        assert await database.fetch("ada", "select 1") == [(1,)]


def test_a_thread_that_gets_no_answer_goes_on(settings: PostgresSettings, passage: Passage) -> None:
    database = BlockingDatabase(settings)

    def fail(*, early: bool) -> None:
        passage.silent = early
        with database.transaction("ada") as connection:
            passage.silent = True
            connection.execute("select 1")

    for early in (False, True):
        with database.transaction("ada"):
            passage.silent = False
        begun = time.monotonic()
        with pytest.raises(StorageUnavailable, match=_SILENT):
            fail(early=early)
        assert time.monotonic() - begun < 10
        passage.silent = False
    database.close()


async def test_a_lease_is_not_lost_for_a_connection_that_is_silent(
    place: TestDatabase, passage: Passage
) -> None:
    settings = PostgresSettings(dsn=passage.dsn(place), connect_seconds=0.5, statement_seconds=60)
    database = Database(settings)
    store = PostgresRunStore(database)
    lease = Lease("ada", "run", 1)
    assert await store.renew([lease], 1) == [lease]
    passage.silent = True
    async with asyncio.timeout(10):
        with pytest.raises(StorageUnavailable, match=r"has not answered for 2\.5 s"):
            await store.renew([lease], 1)
    await store.close()
    await database.close()


async def test_who_listens_knows_when_nothing_can_be_heard(
    database: Database, passage: Passage
) -> None:
    store = PostgresRunStore(database)
    store.listen(News())
    async with asyncio.timeout(20):
        while not store.hears:
            await asyncio.sleep(0.01)
        passage.silent = True
        while store.hears:
            await asyncio.sleep(0.01)
        passage.silent = False
        while not store.hears:
            await asyncio.sleep(0.01)
    await store.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux has all of them")
async def test_the_system_notices_a_host_that_vanished_unless_the_dsn_says_when(
    place: TestDatabase, passage: Passage
) -> None:
    names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    for dsn, expected in (
        (passage.dsn(place), [5, 5, 2, 15_000]),
        (passage.dsn(place, keepalives_idle="77", tcp_user_timeout="9000"), [77, 5, 2, 9_000]),
    ):
        database = Database(PostgresSettings(dsn=dsn))
        blocking = BlockingDatabase(database.settings)
        async with database.transaction("ada") as connection:
            assert read_options(connection.pgconn.socket, names) == expected
        with blocking.transaction("ada") as other:
            assert read_options(other.pgconn.socket, names) == expected
        await database.close()
        blocking.close()


def read_options(descriptor: int, names: tuple[str, ...]) -> list[int]:
    with socket.socket(fileno=socket.dup(descriptor)) as own:
        return [own.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
