"""Limits of users for a minute: what a turn counts, when it waits, and what a crash leaves."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomli_w

from tests.fakes.postgres import temporary_database
from tests.runs.test_postgres_clocks import clock
from tests.runs.test_storms import ROOT
from vibe_llms import open_session
from vibe_llms.base.configuration import (
    Budget,
    BudgetSettings,
    LimitSettings,
    Places,
    RateLimit,
    load_configuration,
)
from vibe_llms.base.exceptions import (
    BudgetExceeded,
    ConfigurationError,
    LimitExceeded,
    LimitTooLow,
)
from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.controls import Controls
from vibe_llms.runs.accounts import Account, Amount, BudgetStore, Claim
from vibe_llms.runs.budgets import Budgets, RequestSpending
from vibe_llms.runs.postgres_budgets import PostgresBudgetStore
from vibe_llms.runs.rates import RateState, reporting_rates
from vibe_llms.runs.sqlite_budgets import SqliteBudgetStore
from vibe_llms.session.core import Session
from vibe_llms.storage.postgres import pipelines
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.settings import PostgresSettings

USER = "anna"
MODEL: Any = SimpleNamespace(provider="scripted", name="one")


@asynccontextmanager
async def opened(
    path: Path, *, wait_seconds: float = 0, budget: int | None = None, **limit: Any
) -> AsyncIterator[tuple[Budgets, Callable[[], RequestSpending]]]:
    """Budgets without a limit of their own, and a function that begins a turn."""
    budgets = Budgets(
        SqliteBudgetStore(path / "runs.sqlite"),
        BudgetSettings(tokens=budget, wait_seconds=wait_seconds),
        lambda _: "",
        user=USER,
        limits=LimitSettings(**limit),
        lease_seconds=60,
    )
    try:
        yield budgets, lambda: budgets.produce_spending({})
    finally:
        await budgets.close()


async def read(budgets: Budgets) -> RateState:
    (state,) = await budgets.store.read_rates({USER: budgets.limit})
    return state


async def ask(spending: RequestSpending, used: int | None = None, *, least: int = 100) -> None:
    """Make one request of a turn, with an estimate of 1,000 tokens by default."""
    await spending.reserve(MODEL, 1000 - least, least, least=least)
    await spending.send()
    await spending.record_usage(None if used is None else Usage(used))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of SQLite's stores, which tests set."""
    moment = [1_000_000_000.0]
    monkeypatch.setattr(time, "time", lambda: moment[0])
    return moment


async def test_a_turn_counts_as_one_request_and_with_all_its_tokens(tmp_path: Path) -> None:
    async with opened(tmp_path, requests_per_minute=2, tokens_per_minute=5000) as (budgets, begin):
        turn = begin()
        for _ in range(3):
            await ask(turn, 100)
        state = await read(budgets)
        assert (state.requests, state.tokens, state.reserved) == (1, 300, 0)
        assert (state.requests_left, state.tokens_left) == (1, 4700)


async def test_a_retry_counts_its_tokens_and_no_request(tmp_path: Path) -> None:
    async with opened(tmp_path, requests_per_minute=1, tokens_per_minute=5000) as (budgets, begin):
        turn = begin()
        await ask(turn)
        await turn.send()
        await turn.record_usage(Usage(70))
        state = await read(budgets)
        assert (state.requests, state.tokens) == (1, 1070)


async def test_a_request_that_is_not_sent_gives_all_back(tmp_path: Path) -> None:
    async with opened(tmp_path, requests_per_minute=1, tokens_per_minute=5000) as (budgets, begin):
        turn = begin()
        await turn.reserve(MODEL, 900, 100, least=100)
        assert ((await read(budgets)).requests, (await read(budgets)).reserved) == (1, 1000)
        await turn.close()
        assert ((await read(budgets)).requests, (await read(budgets)).tokens) == (0, 0)
        await ask(begin())


async def test_a_reservation_that_ends_before_it_is_sent_counts_once(tmp_path: Path) -> None:
    limits = {"requests_per_minute": 1, "tokens_per_minute": 1500}
    async with opened(tmp_path, budget=100_000, **limits) as (budgets, begin):
        turn = begin()
        await turn.reserve(MODEL, 900, 100, least=100)
        store = budgets.store
        assert isinstance(store, SqliteBudgetStore)
        await store.write(lambda database: database.execute("update reservations set until = 0"))
        await turn.send()
        assert ((await read(budgets)).requests, (await read(budgets)).tokens) == (1, 1000)
        await turn.record_usage(Usage(40))
        assert (await read(budgets)).tokens == 40
        (balance,) = await store.read([Account(USER, budgets.settings)])
        assert balance.spent.tokens == 40


async def test_the_window_slides_and_says_when_a_request_fits(
    tmp_path: Path, now: list[float]
) -> None:
    async with opened(tmp_path, requests_per_minute=3) as (_, begin):
        for _ in range(3):
            await ask(begin())
            now[0] += 10
        with pytest.raises(LimitExceeded, match="the last minute has 3 of 3 requests") as caught:
            await ask(begin())
        assert caught.value.retry_after == pytest.approx(30)
        assert caught.value.user == USER
        now[0] += 29.9
        with pytest.raises(LimitExceeded):
            await ask(begin())
        now[0] += 0.2
        await ask(begin())
        with pytest.raises(LimitExceeded) as caught:
            await ask(begin())
        assert caught.value.retry_after == pytest.approx(9.9)


async def test_the_wait_for_tokens_is_until_enough_have_left(
    tmp_path: Path, now: list[float]
) -> None:
    async with opened(tmp_path, tokens_per_minute=2500) as (_, begin):
        for used in (900, 200, 1000):
            await ask(begin(), used)
            now[0] += 10
        # 2,100 of 2,500 are used; 600 have to leave, and the first request has 900.
        with pytest.raises(LimitExceeded, match="may need 1,000") as caught:
            await ask(begin())
        assert caught.value.retry_after == pytest.approx(30)
        now[0] += 30.1
        await ask(begin(), 1000)
        # Now 200 are not enough.
        with pytest.raises(LimitExceeded) as caught:
            await ask(begin())
        assert caught.value.retry_after == pytest.approx(19.9)


@pytest.mark.parametrize("seed", range(5))
async def test_no_minute_has_more_than_the_limit(
    tmp_path: Path, now: list[float], seed: int
) -> None:
    chance = random.Random(seed)
    sent: deque[tuple[float, int]] = deque()
    granted = 0
    async with opened(tmp_path, requests_per_minute=8, tokens_per_minute=5000) as (_, begin):
        for _ in range(150):
            now[0] += chance.choice([0, 0.5, 3, 20])
            used = chance.randint(0, 1000)
            try:
                await ask(begin(), used)
            except LimitExceeded as error:
                # After the wait, it fits.
                now[0] += (error.retry_after or 0) + 0.001
                await ask(begin(), used)
            granted += 1
            sent.append((now[0], used))
            while sent[0][0] <= now[0] - 60:
                sent.popleft()
            assert len(sent) <= 8
            assert sum(tokens for _, tokens in sent) <= 5000
    assert granted == 150


async def test_a_request_that_never_fits_is_told_apart(tmp_path: Path) -> None:
    async with opened(tmp_path, tokens_per_minute=999) as (_, begin):
        with pytest.raises(LimitTooLow, match="is 999 tokens per minute, and this") as caught:
            await ask(begin())
        assert caught.value.retry_after is None
        # A reply that need not be so long becomes shorter.
        assert await begin().reserve(MODEL, 500, 8000, least=None) == 499


async def test_a_request_waits_for_estimates_of_others(tmp_path: Path) -> None:
    async with opened(tmp_path, wait_seconds=30, tokens_per_minute=1500) as (budgets, begin):
        first = begin()
        await first.reserve(MODEL, 900, 100, least=100)
        await first.send()
        second = asyncio.ensure_future(ask(begin(), 10))
        while not budgets._waiting.locked():
            await asyncio.sleep(0)
        await first.record_usage(Usage(20))
        await asyncio.wait_for(second, 10)
        assert (await read(budgets)).tokens == 30


async def test_a_turn_that_has_begun_waits_for_the_minute(
    tmp_path: Path, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vibe_llms.runs.budgets._PATIENT_SECONDS", 0.01)
    async with opened(tmp_path, tokens_per_minute=1500) as (_, begin):
        turn = begin()
        await ask(turn, 1000)
        later = asyncio.ensure_future(ask(turn, 1000))
        # Another turn is refused at once.
        with pytest.raises(LimitExceeded):
            await ask(begin())
        assert not later.done()
        now[0] += 61
        await asyncio.wait_for(later, 10)


async def test_a_clock_that_is_set_back_does_not_lock_a_user_out(
    tmp_path: Path, now: list[float]
) -> None:
    async with opened(tmp_path, requests_per_minute=1) as (_, begin):
        await ask(begin())
        now[0] -= 3600
        await ask(begin())


async def test_a_killed_process_holds_nothing_longer_than_a_minute(tmp_path: Path) -> None:
    stalled = {"replies": [{"when": ".", "parts": [{"text": ["Yes ", "no "]}, {"stall": True}]}]}
    (tmp_path / "stall.toml").write_text(tomli_w.dumps(stalled))
    configuration = {
        "limits": {"requests-per-minute": 1, "tokens-per-minute": 10_000},
        "providers": {"scripted": {"scripts": {"stall": "stall.toml"}}},
    }
    (tmp_path / "config.toml").write_text(tomli_w.dumps(configuration))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.runs.spender", str(tmp_path), "stall"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"begun\n"
    process.kill()
    await process.wait()
    limit = RateLimit(requests_per_minute=1, tokens_per_minute=10_000)
    store = SqliteBudgetStore(tmp_path / "server" / "runs.sqlite")
    try:
        (state,) = await store.read_rates({"local": limit})
        assert (state.requests, state.tokens == state.reserved > 1000) == (1, True)
        await store.write(
            lambda database: database.execute("update rates set entered = entered - 61")
        )
        (state,) = await store.read_rates({"local": limit})
        assert (state.requests, state.tokens) == (0, 0)
    finally:
        await store.close()


@asynccontextmanager
async def session(path: Path, **tables: Any) -> AsyncIterator[Session]:
    async with open_session(home=path, configuration=tables) as one:
        yield one


async def test_a_limit_of_requests_leaves_extras_and_lengths_alone(tmp_path: Path) -> None:
    extras: Any = {"extras": {"scripted": {"anything": 1}}}
    async with session(tmp_path, limits={"requests-per-minute": 1}) as one:
        conversation = await one.begin("scripted/demo", save=False)
        with reporting_rates() as report:
            await conversation.converse("Hello!", controls=Controls(**extras))
        assert report.state is not None
        assert report.state.requests_left == 0
        with pytest.raises(LimitExceeded, match="1 of 1 requests"):
            await conversation.converse("Hello!")
    async with session(tmp_path / "other", limits={"tokens-per-minute": 100_000}) as one:
        conversation = await one.begin("scripted/demo", save=False)
        with pytest.raises(Exception, match="'extras' cannot be sent under a budget"):
            await conversation.converse("Hello!", controls=Controls(**extras))


async def test_a_budget_is_told_before_a_limit(tmp_path: Path) -> None:
    tables: Mapping[str, Any] = {
        "budgets": {"tokens": 10, "period": "day"},
        "limits": {"requests-per-minute": 1},
    }
    async with session(tmp_path, **tables) as one:
        conversation = await one.begin("scripted/demo", save=False)
        for _ in range(2):
            with pytest.raises(BudgetExceeded, match="the budget of the user"):
                await conversation.converse("Hello!")


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"requests-per-minute": 0}, r"\[limits\], key 'requests-per-minute'"),
        ({"tokens-per-minute": -1}, r"\[limits\], key 'tokens-per-minute'"),
        ({"requests": 5}, "requests"),
        ({"users": {"anna": {"requests-per-minute": "many"}}}, "limits.users"),
    ],
)
def test_a_limit_that_cannot_be_is_an_error(
    tmp_path: Path, limits: Mapping[str, Any], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        load_configuration(Places.under(tmp_path), overrides={"limits": limits})


async def count_round_trips(store: BudgetStore, claim: Claim, monkeypatch: Any) -> int:
    counted = 0
    run = pipelines.Pipeline.run
    with monkeypatch.context() as patch:
        from psycopg import AsyncCursor

        execute = AsyncCursor.execute

        async def counting(*given: Any, **more: Any) -> Any:
            nonlocal counted
            counted += 1
            return await execute(*given, **more)

        async def piping(*given: Any, **more: Any) -> Any:
            nonlocal counted
            counted += 1
            return await run(*given, **more)

        patch.setattr(AsyncCursor, "execute", counting)
        patch.setattr(pipelines.Pipeline, "run", piping)
        assert not (await store.reserve(claim, 60)).refused
        await store.send(claim.user, claim.identity)
        await store.record_usage(claim.user, claim.identity, Amount(5))
    return counted


async def test_a_limit_beside_a_budget_needs_no_more_round_trips(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = RateLimit(requests_per_minute=5, tokens_per_minute=5000)
    account = Account(USER, Budget(tokens=100_000))

    def claim(identity: str, limit: RateLimit) -> Claim:
        return Claim(
            identity=identity,
            user=USER,
            accounts=(account,),
            base=Amount(10),
            unit=0,
            least=1,
            most=10,
            limit=limit,
        )

    with temporary_database() as place:
        database = Database(PostgresSettings(dsn=place.dsn))
        store = PostgresBudgetStore(database)
        await store.reserve(claim("first", RateLimit()), 60)
        without = await count_round_trips(store, claim("second", RateLimit()), monkeypatch)
        together = await count_round_trips(store, claim("third", limit), monkeypatch)
        await database.close()
    assert together == without > 3


async def test_the_clock_is_that_of_the_database() -> None:
    limit = RateLimit(requests_per_minute=1)
    base: dict[str, Any] = {
        "user": USER,
        "accounts": (),
        "base": Amount(10),
        "unit": 0,
        "least": 1,
        "most": 10,
    }
    with temporary_database() as place:
        databases = [Database(PostgresSettings(dsn=place.dsn)) for _ in range(2)]
        first, second = map(PostgresBudgetStore, databases)
        await first.reserve(Claim(identity="one", limit=limit, **base), 60)
        with clock(hours=2):
            grant = await second.reserve(Claim(identity="two", limit=limit, **base), 60)
        assert grant.rate is not None
        assert grant.rate.wait is not None
        assert 50 < grant.rate.wait <= 60
        await databases[0].execute(
            USER, "update vibe.rates set entered = entered - '61 s'::interval"
        )
        with clock(hours=-2):
            assert not (
                await second.reserve(Claim(identity="two", limit=limit, **base), 60)
            ).refused
        rows = await databases[0].fetch(USER, "select identity from vibe.rates")
        assert rows == [("two",)]
        assert list(await first.survey_users()) == [USER]
        for one in databases:
            await one.close()


def test_entries_that_are_over_are_deleted(tmp_path: Path, now: list[float]) -> None:
    async def work() -> None:
        async with opened(tmp_path, requests_per_minute=1) as (_, begin):
            for _ in range(3):
                await ask(begin())
                now[0] += 61

    asyncio.run(work())
    with sqlite3.connect(tmp_path / "runs.sqlite") as database:
        assert database.execute("select count(*) from rates").fetchone() == (1,)
    database.close()
