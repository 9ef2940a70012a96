"""Transactions of threads, under the rules of those of tasks."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from tests.fakes.postgres import TestDatabase, access_cluster, temporary_database
from vibe_llms.base.exceptions import StorageError, StorageUnavailable
from vibe_llms.storage.postgres.blocking import BlockingDatabase
from vibe_llms.storage.postgres.settings import PostgresSettings


@pytest.fixture
def database(place: TestDatabase) -> Iterator[BlockingDatabase]:
    made = BlockingDatabase(PostgresSettings(dsn=place.dsn, connections=2, connect_seconds=1))
    yield made
    made.close()


def read_user(database: BlockingDatabase, user: str) -> object:
    with database.transaction(user) as connection:
        row = connection.execute("select vibe.current_user_name()").fetchone()
    assert row is not None
    return row[0]


def test_a_transaction_has_its_user_and_the_next_one_its_own(database: BlockingDatabase) -> None:
    assert read_user(database, "ada") == "ada"
    assert read_user(database, "bob") == "bob"
    with database.transaction("ada") as outer:
        with database.transaction("ada") as inner:
            assert inner is outer
        with database.transaction("bob") as other:
            assert other is not outer
        assert read_user(database, "ada") == "ada"


def test_a_thread_has_as_long_between_two_statements_as_for_one(
    database: BlockingDatabase,
) -> None:
    with database.transaction("ada") as connection:
        row = connection.execute("show idle_in_transaction_session_timeout").fetchone()
    assert row == ("30s",)


def test_an_error_rolls_back_the_whole_transaction(
    database: BlockingDatabase, place: TestDatabase
) -> None:
    access_cluster().execute(
        "create table counted (n int); grant all on counted to app", place.name
    )

    def fail() -> None:
        with database.transaction("ada") as outer:
            outer.execute("insert into counted values (1)")
            with database.transaction("ada") as inner:
                inner.execute("insert into counted values (1)")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with database.transaction("ada") as connection:
        assert connection.execute("select count(*) from counted").fetchone() == (0,)


def test_connections_that_broke_are_replaced_and_threads_wait_for_one(
    database: BlockingDatabase, place: TestDatabase
) -> None:
    assert read_user(database, "ada") == "ada"
    access_cluster().execute(
        f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{place.name}'"
    )
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda _: read_user(database, "ada"), range(20))) == {"ada"}
    # All are in use, for longer than a thread waits.
    barrier = Barrier(3)

    def hold() -> None:
        with database.transaction("ada"):
            barrier.wait(60)
            barrier.wait(60)

    with ThreadPoolExecutor(2) as threads:
        held = [threads.submit(hold) for _ in range(2)]
        barrier.wait(60)
        with pytest.raises(StorageUnavailable, match="all 2 connections"):
            read_user(database, "ada")
        barrier.wait(60)
        for one in held:
            one.result()


def test_a_database_that_is_not_migrated_is_refused() -> None:
    with temporary_database(bare=True) as place:
        database = BlockingDatabase(PostgresSettings(dsn=place.admin_dsn))
        with pytest.raises(StorageError, match="vibe-llms archive migrate"):
            read_user(database, "ada")
        database.close()
