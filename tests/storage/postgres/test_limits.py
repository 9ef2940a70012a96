"""Servers of one database count their requests to a provider together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from tests.fakes.postgres import TestDatabase
from vibe_llms.base.exceptions import RateLimited
from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.events import Notice
from vibe_llms.providers import limits
from vibe_llms.providers.limits import Limiter
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.limits import PostgresWindow
from vibe_llms.storage.postgres.settings import PostgresSettings


@pytest.fixture
async def windows(place: TestDatabase) -> AsyncIterator[list[PostgresWindow]]:
    databases = [Database(PostgresSettings(dsn=place.dsn, connect_seconds=2)) for _ in range(3)]
    yield [PostgresWindow(one) for one in databases]
    for one in databases:
        await one.close()


def age(place: TestDatabase, seconds: float) -> None:
    """Let time pass for all that was sent."""
    with psycopg.connect(place.admin_dsn, autocommit=True) as connection:
        connection.execute(
            "update vibe.limited_requests set sent = sent - make_interval(secs => %s)", (seconds,)
        )


async def test_of_requests_at_once_so_many_pass_as_the_limit_allows(
    windows: list[PostgresWindow],
) -> None:
    found = await asyncio.gather(
        *(windows[number % 3].enter("row", 1, 5, None) for number in range(12))
    )
    numbers = [number for number, _, _ in found if number is not None]
    assert len(numbers) == len({*numbers}) == 5
    waits = [(seconds, asked) for number, seconds, asked in found if number is None]
    assert all(0 < seconds <= 60 and not asked for seconds, asked in waits)
    # Another row has limits of its own.
    assert (await windows[0].enter("other", 1, 1, None))[0] is not None


async def test_tokens_count_for_a_minute_as_they_were_used(
    windows: list[PostgresWindow], place: TestDatabase
) -> None:
    one, other, _ = windows
    first, *_ = await one.enter("row", 60, None, 100)
    assert first is not None
    assert (await other.enter("row", 60, None, 100))[0] is None
    await one.record_usage("row", first, 10)
    second, *_ = await other.enter("row", 60, None, 100)
    assert second is not None
    assert (await one.enter("row", 31, None, 100))[0] is None
    age(place, 61)
    # What exceeds the whole limit passes when nothing else counts, and then nothing else does.
    assert (await one.enter("row", 500, None, 100))[0] is not None
    number, seconds, _ = await other.enter("row", 1, None, 100)
    assert number is None
    assert 50 < seconds <= 60


async def test_a_wait_that_a_provider_asks_for_holds_for_all(
    windows: list[PostgresWindow],
) -> None:
    notices: list[Notice] = []
    one, other = [Limiter("row", requests=100, window=window) for window in windows[:2]]
    await one.enter(1, notices.append, 1)
    one.pause(600)
    await one.close()
    with pytest.raises(RateLimited, match="asked for a wait of"):
        await other.enter(1, notices.append, 1)
    assert not notices


async def test_a_request_waits_for_those_of_another_server(
    windows: list[PostgresWindow], place: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_POLL_SECONDS", 0.02)
    notices: list[Notice] = []
    one, other = [Limiter("row", requests=1, tokens=100, window=window) for window in windows[:2]]
    spent = await one.enter(50, notices.append, 1)
    waiting = asyncio.ensure_future(other.enter(50, notices.append, 1))
    async with asyncio.timeout(30):
        while not notices:
            await asyncio.sleep(0.01)
    assert "requests of other processes" in notices[0].text
    one.record_usage(spent, Usage(7))
    await one.close()
    with psycopg.connect(place.admin_dsn) as connection:
        counted = connection.execute("select tokens from vibe.limited_requests").fetchall()
    assert counted == [(7,)]
    assert not waiting.done()
    age(place, 61)
    async with asyncio.timeout(30):
        await waiting


async def test_while_the_database_is_away_the_limits_hold_for_each_server(
    place: TestDatabase,
) -> None:
    database = Database(PostgresSettings(dsn=f"{place.dsn}&port=1", connect_seconds=0.5))
    ignored: list[Any] = []
    limiter = Limiter("row", requests=1, window=PostgresWindow(database))
    spent = await limiter.enter(1, ignored.append, 1)
    limiter.record_usage(spent, Usage(5))
    await limiter.close()
    waiting = asyncio.ensure_future(limiter.enter(1, ignored.append, 1))
    await asyncio.wait([waiting], timeout=0.1)
    assert not waiting.done()
    waiting.cancel()
    await database.close()


async def test_no_role_reads_what_is_counted(place: TestDatabase) -> None:
    with (
        psycopg.connect(place.dsn, autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("select * from vibe.limited_requests")
