"""Budgets at servers: several processes serve one home, and one of them is killed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.runs.spender import REPLIES, TEXT, USED
from tests.server.planted import SPENDING
from tests.server.processes import ServerProcess, prepare, serving_processes
from vibe_llms.base.configuration import Budget, Places, load_configuration
from vibe_llms.runs.accounts import Account, Amount, Balance
from vibe_llms.runs.budgets import produce_budget_store
from vibe_llms.runs.sqlite_budgets import SqliteBudgetStore
from vibe_llms.storage.backends import open_backend
from vibe_llms.storage.users import find_users

STALLED = {"replies": [{"when": ".", "parts": [{"text": ["Yes ", "no "]}, {"stall": True}]}]}


def begin(home: Path, script: Any, budget: Budget) -> str:
    """Write the configuration; returns the key of the user."""
    prepare(
        home,
        script,
        budgets={"tokens": budget.tokens, "period": budget.period, "wait-seconds": 120},
        server={"user-turns": 200},
        # A server that does not come to renew a reservation in time is taken for dead, and the
        # reservation is charged in full: no machine is so slow.
        runs={"lease-seconds": 300},
    )
    return find_users(load_configuration(Places.under(home), environment={})).add("ada")


async def read_balance(home: Path, budget: Budget, *, later: bool = False) -> Balance:
    """What is spent and reserved, perhaps once all reservations of dead processes are over."""
    store = produce_budget_store(
        open_backend(load_configuration(Places.under(home), environment={}))
    )
    try:
        if later:
            assert isinstance(store, SqliteBudgetStore)
            await store.run(lambda database: database.execute("update reservations set until = 0"))
        (balance,) = await store.read([Account("ada", budget)])
    finally:
        await store.close()
    return balance


def body_of(**more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": TEXT}]
    return {"model": "scripted/bank", "messages": messages, "max_tokens": 1000, **more}


async def ask(http: httpx2.AsyncClient, servers: Sequence[ServerProcess], number: int) -> int:
    """The status of one of many requests."""
    url = servers[number % len(servers)].url + "/v1/chat/completions"
    return (await http.post(url, json=body_of())).status_code


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(timeout=120, limits=limits) as client:
        yield client


async def spend(home: Path, http: httpx2.AsyncClient, count: int, *, bug: str = "") -> None:
    """Send so many requests to two servers of a home whose budget is for a quarter of them."""
    budget = Budget(tokens=count // 4 * USED, period="total")
    http.headers["authorization"] = f"Bearer {begin(home, REPLIES, budget)}"
    async with serving_processes(home, 2, bug=bug) as servers:
        found = Counter(await asyncio.gather(*(ask(http, servers, one) for one in range(count))))
    assert found[200] <= count // 4, "too much was spent"
    assert found[200] >= 0.9 * (count // 4), found
    assert found[200] + found[429] == count, found
    assert await read_balance(home, budget) == Balance(Amount(found[200] * USED), Amount())


@pytest.mark.storm
async def test_requests_to_2_servers_never_spend_more_than_the_budget(
    tmp_path: Path, http: httpx2.AsyncClient, rounds: Callable[[int, int], int]
) -> None:
    await spend(tmp_path / "home", http, rounds(40, 200))
    for bug, planted in [*SPENDING.items()][: rounds(0, 1)]:
        with pytest.raises(AssertionError, match=planted.found):
            await spend(tmp_path / bug, http, 200, bug=bug)


async def test_what_a_killed_server_had_sent_is_charged_in_full(
    home: Path, http: httpx2.AsyncClient
) -> None:
    budget = Budget(tokens=50 * USED, period="total")
    http.headers["authorization"] = f"Bearer {begin(home, STALLED, budget)}"
    async with serving_processes(home, 1) as (server,):
        url = f"{server.url}/v1/chat/completions"
        async with http.stream("POST", url, json=body_of(stream=True)) as found:
            assert await anext(found.aiter_lines())
            await server.kill()
    before = await read_balance(home, budget)
    after = await read_balance(home, budget, later=True)
    assert before.spent == Amount()
    assert before.reserved.tokens > 20_000
    assert (after.spent, after.reserved) == (before.reserved, Amount())
