"""Followers and workers learn of what other processes do, by listening or by looking."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import psycopg
import pytest

from tests.fakes.postgres import TestDatabase, temporary_database
from tests.runs.test_postgres import begin, record
from vibe_llms.base.configuration import RunSettings
from vibe_llms.runs import run as runs
from vibe_llms.runs.events import MessageCompleted, RunEnded, encode_event, first_cursor
from vibe_llms.runs.interfaces import Lease, RunStatus, RunStore
from vibe_llms.runs.news import News
from vibe_llms.runs.postgres import PostgresRunStore
from vibe_llms.runs.run import Run
from vibe_llms.runs.sqlite import SqliteRunStore
from vibe_llms.runs.steering import end_cancelled
from vibe_llms.runs.worker import RunWorker
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.settings import PostgresSettings

_NEVER = 600.0


async def refuse(*_: Any) -> NoReturn:
    raise AssertionError("this process works on no run")


@asynccontextmanager
async def opened(place: TestDatabase, **settings: Any) -> AsyncIterator[PostgresRunStore]:
    database = Database(PostgresSettings(dsn=place.dsn, connect_seconds=2, **settings))
    store = PostgresRunStore(database)
    try:
        yield store
    finally:
        await store.close()
        await database.close()


async def hearing(store: RunStore) -> None:
    async with asyncio.timeout(30):
        while not store.hears:
            await asyncio.sleep(0.01)


def follow(store: RunStore, user: str, run: str) -> asyncio.Task[list[int]]:
    worker = RunWorker(store, user, refuse, RunSettings())
    worker.pause()

    async def read() -> list[int]:
        found = await store.access(user, run)
        followed = Run[None](found, store, worker, refuse)
        return [cursor async for cursor, _ in followed.events()]

    return asyncio.create_task(read())


async def work(store: RunStore, lease: Lease) -> list[int]:
    start = first_cursor(lease.epoch)
    for number in range(1, 4):
        event = encode_event(MessageCompleted(f"m{number}"))
        await store.append_events(lease, [(start + number, event)])
        # Longer than messages are held back.
        await asyncio.sleep(0.15)
    end = encode_event(RunEnded("completed"))
    await store.finish(lease, RunStatus.COMPLETED, [(start + 4, end)])
    return [start + number for number in range(1, 5)]


@pytest.mark.parametrize("listening", [True, False])
async def test_a_follower_sees_every_event_of_another_process_once(
    listening: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Hearing of events is the only way to see them here.
    monkeypatch.setattr(runs, "_LISTENING_POLL_SECONDS", _NEVER)
    with temporary_database() as place:
        async with opened(place) as one, opened(place, pooler=not listening) as other:
            lease = await begin(one, "ada")
            followed = follow(other, "ada", lease.run)
            if listening:
                await hearing(other)
            cursors = await work(one, lease)
            async with asyncio.timeout(30):
                assert await followed == cursors
            assert other.hears is listening


async def test_a_follower_of_a_file_looks_for_events(tmp_path: Path) -> None:
    one, other = [SqliteRunStore(tmp_path / "runs.sqlite") for _ in range(2)]
    await one.create(record("ada"), _NEVER)
    followed = follow(other, "ada", "run1")
    async with asyncio.timeout(30):
        assert await work(one, Lease("ada", "run1", 1)) == await followed
    await one.close()
    await other.close()


async def test_a_worker_hears_of_orders_and_of_no_events() -> None:
    news = News()
    with temporary_database() as place:
        async with opened(place) as one, opened(place) as other:
            other.listen(news)
            await hearing(other)
            news.orders.clear()
            lease = await begin(one, "ada")
            async with asyncio.timeout(30):
                await news.orders.wait()
            news.orders.clear()
            with news.expecting(lease.run) as heard:
                await one.append_events(lease, [(first_cursor(1) + 1, b"{}")])
                async with asyncio.timeout(30):
                    await heard.wait()
            assert not news.orders.is_set()
            await one.cancel("ada", lease.run, end_cancelled)
            async with asyncio.timeout(30):
                await news.orders.wait()


async def test_who_listens_again_after_an_outage_looks_at_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vibe_llms.runs.postgres_news._RECONNECT_SECONDS", 0.05)
    news = News()
    with temporary_database() as place:
        async with opened(place) as store:
            store.listen(news)
            await hearing(store)
            news.orders.clear()
            with news.expecting("run1") as heard:
                with psycopg.connect(place.admin_dsn, autocommit=True) as connection:
                    connection.execute(
                        "select pg_terminate_backend(pid) from pg_stat_activity "
                        "where datname = %s and pid <> pg_backend_pid()",
                        (place.name,),
                    )
                async with asyncio.timeout(30):
                    await heard.wait()
                    await news.orders.wait()
            await hearing(store)


async def test_messages_are_sent_together_and_not_too_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[list[tuple[str, str]]] = []
    with temporary_database() as place:
        async with opened(place) as store:
            take = store._news._take

            def taking() -> list[tuple[str, str]]:
                found = [*take()]
                sent.extend([found] if found else [])
                return found

            monkeypatch.setattr(store._news, "_take", taking)
            store._news.tell_events("run0")
            await asyncio.sleep(0)
            for number in range(1, 151):
                store._news.tell_events(f"run{number}")
                store._news.tell_events(f"run{number}")
    first, rest = sent
    assert first == [("vibe_run_events", "run0")]
    assert [len(message.split()) for _, message in rest] == [100, 50]
