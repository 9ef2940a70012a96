"""Limits of users for a minute: errors and headers in each dialect, runs, and several servers."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from tests.fakes.postgres import temporary_database
from tests.runs.spender import REPLIES, TEXT, USED
from tests.server.conftest import serving
from tests.server.processes import ServerProcess, prepare, serving_processes
from vibe_llms.base.configuration import Places, RateLimit, load_configuration
from vibe_llms.runs.budgets import produce_budget_store
from vibe_llms.runs.rates import RateState
from vibe_llms.storage.backends import opened_backend
from vibe_llms.storage.user_stores import produce_users

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
HELLO = [{"role": "user", "content": "Hello"}]
#: A request in each dialect that serves turns, with little text and a bounded reply.
BODIES: Mapping[str, Mapping[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 100},
    MESSAGES: {"messages": HELLO, "max_tokens": 100},
    RESPONSES: {"input": "Hello", "max_output_tokens": 100},
}


def body_of(path: str, **more: Any) -> dict[str, Any]:
    return {"model": "scripted/demo", **BODIES[path], **more}


def headers_of(answer: httpx2.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if "ratelimit" in name}


def age(home: Path, seconds: float) -> None:
    """Let the requests of the last minute be older."""
    with sqlite3.connect(home / "server" / "runs.sqlite") as database:
        database.execute("update rates set entered = entered - ?", (seconds,))
    database.close()


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_openai_clients_get_the_headers_and_the_error(home: Path, path: str) -> None:
    limits = {"requests-per-minute": 2, "tokens-per-minute": 100_000}
    async with serving(home, limits=limits) as served, served.http("ada") as ada:
        answers = [await ada.post(path, json=body_of(path)) for _ in range(3)]
    assert [one.status_code for one in answers] == [200, 200, 429]
    left = [one.headers["x-ratelimit-remaining-requests"] for one in answers]
    assert left == ["1", "0", "0"]
    first, _, refused = answers
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-limit-tokens"] == "100000"
    assert 90_000 < int(first.headers["x-ratelimit-remaining-tokens"]) < 100_000
    assert first.headers["x-ratelimit-reset-requests"] == "1m0s"
    assert first.headers["x-ratelimit-reset-tokens"] == "1m0s"
    assert 50 < int(refused.headers["retry-after"]) <= 60
    assert refused.headers["x-ratelimit-reset-requests"].endswith("s")
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert (
        "the limit of the user 'ada' is reached: the last minute has 2 of 2 requests"
        in (error["message"])
    )


async def test_anthropic_clients_get_theirs(home: Path) -> None:
    limits = {"requests-per-minute": 1, "tokens-per-minute": 100_000}
    before = datetime.now(UTC) - timedelta(seconds=1)
    async with serving(home, limits=limits) as served, served.http("ada") as ada:
        answers = [await ada.post(MESSAGES, json=body_of(MESSAGES)) for _ in range(2)]
    assert [one.status_code for one in answers] == [200, 429]
    first, refused = answers
    found = headers_of(first)
    assert found["anthropic-ratelimit-requests-limit"] == "1"
    assert found["anthropic-ratelimit-requests-remaining"] == "0"
    assert found["anthropic-ratelimit-tokens-limit"] == "100000"
    reset = datetime.fromisoformat(found["anthropic-ratelimit-tokens-reset"])
    assert before + timedelta(seconds=60) <= reset <= before + timedelta(seconds=75)
    assert not any(name.startswith("x-") for name in found)
    assert 50 < int(refused.headers["retry-after"]) <= 60
    body = refused.json()
    assert (body["type"], body["error"]["type"]) == ("error", "rate_limit_error")
    assert body["error"]["details"] == {"error_code": "rate_limit_exceeded"}


async def test_a_stream_has_the_headers_too(home: Path) -> None:
    async with (
        serving(home, limits={"requests-per-minute": 1}) as served,
        served.http("ada") as ada,
    ):
        first = await ada.post(CHAT, json=body_of(CHAT, stream=True))
        refused = await ada.post(CHAT, json=body_of(CHAT, stream=True))
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    assert "x-ratelimit-limit-tokens" not in first.headers
    assert (first.status_code, refused.status_code) == (200, 429)


async def test_without_limits_there_are_no_headers_and_no_tables(home: Path) -> None:
    limits = {"users": {"eve": {"requests-per-minute": 1}}}
    async with serving(home, limits=limits) as served, served.http("ada") as ada:
        answer = await ada.post(CHAT, json=body_of(CHAT))
        assert (await ada.get("/api/budgets")).json() == {"budgets": []}
    assert (answer.status_code, headers_of(answer)) == (200, {})
    with sqlite3.connect(home / "server" / "runs.sqlite") as database:
        tables = {name for (name,) in database.execute("select name from sqlite_master")}
    database.close()
    assert not {"rates", "budgets"} & tables


@pytest.mark.parametrize("path", BODIES)
async def test_a_request_larger_than_the_limit_is_not_retried(home: Path, path: str) -> None:
    limits = {"tokens-per-minute": 500}
    async with serving(home, limits=limits) as served, served.http("ada") as ada:
        refused = await ada.post(path, json=body_of(path))
    assert (refused.status_code, refused.headers.get("retry-after")) == (413, None)
    assert "is 500 tokens per minute, and this request alone may need" in refused.text
    assert "request_too_large" in refused.text


async def test_the_official_clients_raise_and_retry(home: Path) -> None:
    async with (
        serving(home, limits={"requests-per-minute": 1}) as served,
        served.openai("ada") as ada,
        served.anthropic("eve") as eve,
    ):
        await ada.chat.completions.create(**body_of(CHAT))
        await eve.messages.create(**body_of(MESSAGES))
        with pytest.raises(openai.RateLimitError) as of_ada:
            await ada.with_options(max_retries=0).chat.completions.create(**body_of(CHAT))
        with pytest.raises(anthropic.RateLimitError) as of_eve:
            await eve.with_options(max_retries=0).messages.create(**body_of(MESSAGES))
        assert of_ada.value.code == "rate_limit_exceeded"
        assert "the last minute has 1 of 1 requests" in str(of_eve.value)
        with pytest.raises(openai.RateLimitError):
            async with ada.with_options(max_retries=0).responses.stream(**body_of(RESPONSES)) as _:
                pass
        # They wait for as long as they are told, which is enough, and not much too long.
        age(home, 58)
        began = time.monotonic()
        await ada.with_options(max_retries=1).chat.completions.create(**body_of(CHAT))
        await eve.with_options(max_retries=1).messages.create(**body_of(MESSAGES))
    assert time.monotonic() - began < 20


async def test_users_have_their_own_minutes_and_see_them(home: Path) -> None:
    limits = {"requests-per-minute": 5, "users": {"eve": {"requests-per-minute": 1}, "zoe": {}}}
    async with (
        serving(home, limits=limits) as served,
        served.http("ada") as ada,
        served.http("eve") as eve,
        served.http("zoe") as zoe,
    ):
        found = [(await one.post(CHAT, json=body_of(CHAT))).status_code for one in (eve, eve)]
        assert found == [200, 429]
        found = [(await one.post(CHAT, json=body_of(CHAT))).status_code for one in (ada, zoe)]
        assert found == [200, 200]
        (of_eve,) = (await eve.get("/api/budgets")).json()["budgets"]
        (of_ada,) = (await ada.get("/api/budgets")).json()["budgets"]
        assert (await zoe.get("/api/budgets")).json() == {"budgets": []}
    wanted = {"user": "eve", "agent": "", "period": "minute", "unit": "requests", "ends": None}
    assert of_eve == {**wanted, "limit": 1, "spent": 1, "reserved": 0, "left": 0}
    assert (of_ada["user"], of_ada["spent"], of_ada["left"]) == ("ada", 1, 4)


async def test_a_run_waits_for_the_minute(home: Path) -> None:
    async with (
        serving(home, limits={"requests-per-minute": 1}) as served,
        served.http("ada") as ada,
    ):
        assert (await ada.post(CHAT, json=body_of(CHAT))).status_code == 200
        body = body_of(RESPONSES, background=True)
        url = f"{RESPONSES}/{(await ada.post(RESPONSES, json=body)).json()['id']}"
        async with asyncio.timeout(20):
            await wait_for_release(home)
        assert (await ada.get(url)).json()["status"] in ("queued", "in_progress")
        age(home, 60)
        with sqlite3.connect(home / "server" / "runs.sqlite") as database:
            database.execute("update runs set until = 0 where status = 'queued'")
        database.close()
        async with asyncio.timeout(20):
            while (state := (await ada.get(url)).json()["status"]) != "completed":
                assert state in ("queued", "in_progress"), state
                await asyncio.sleep(0.05)


async def wait_for_release(home: Path) -> None:
    """Wait until the run is deferred for most of a minute."""
    while True:
        with sqlite3.connect(home / "server" / "runs.sqlite") as database:
            found = database.execute(
                "select until from runs where status = 'queued' and epoch > 0"
            ).fetchall()
        database.close()
        if found and found[0][0] > time.time() + 40:
            return
        await asyncio.sleep(0.02)


async def storm(
    home: Path, servers: Sequence[ServerProcess], keys: Sequence[str], count: int
) -> Sequence[Counter[int]]:
    """The statuses of so many requests of each user, sent to all servers at once."""
    more = httpx2.Limits(max_connections=None)
    body = {"model": "scripted/bank", "messages": [{"role": "user", "content": TEXT}]}

    async def ask(http: httpx2.AsyncClient, key: str, number: int) -> int:
        url = servers[number % len(servers)].url + CHAT
        headers = {"authorization": f"Bearer {key}"}
        answer = await http.post(url, json={**body, "max_tokens": 1000}, headers=headers)
        if answer.status_code == 429:
            assert 1 <= int(answer.headers["retry-after"]) <= 60, answer.text
        return answer.status_code

    async with httpx2.AsyncClient(timeout=120, limits=more) as http:
        found = await asyncio.gather(
            *(ask(http, key, number) for number in range(count) for key in keys)
        )
    return [Counter(found[place :: len(keys)]) for place in range(len(keys))]


async def read_rates(home: Path, user: str, limit: RateLimit) -> RateState:
    configuration = load_configuration(Places.under(home), environment={})
    async with opened_backend(configuration) as backend:
        store = produce_budget_store(backend)
        try:
            (state,) = await store.read_rates({user: limit})
        finally:
            await store.close()
    return state


async def add_users(home: Path, *names: str) -> Sequence[str]:
    """The keys of new users."""
    configuration = load_configuration(Places.under(home), environment={})
    async with opened_backend(configuration) as backend:
        users = produce_users(backend)
        return [await users.add(name) for name in names]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_storm_on_several_servers_never_exceeds_the_limits(
    tmp_path: Path, kind: str
) -> None:
    home = tmp_path / "home"
    if kind == "postgres":
        with temporary_database() as place:
            archive = {"module": "vibe_llms.storage.postgres", "dsn": place.dsn}
            await check_storm(home, 3, archive=archive)
    else:
        await check_storm(home, 2)


async def check_storm(home: Path, servers: int, **tables: Any) -> None:
    limit = RateLimit(requests_per_minute=1000, tokens_per_minute=7 * 23_000)
    prepare(
        home,
        REPLIES,
        limits={
            "requests-per-minute": 5,
            "users": {"eve": {"tokens-per-minute": limit.tokens_per_minute}},
        },
        budgets={"wait-seconds": 0, "tokens": 1_000_000_000},
        server={"user-turns": 200},
        **tables,
    )
    keys = await add_users(home, "ada", "eve")
    async with serving_processes(home, servers) as running:
        ada, eve = await storm(home, running, keys, 24)
    assert ada == {200: 5, 429: 19}
    # Seven would fit if all reservations had been settled first.
    assert 1 <= eve[200] <= 7, eve
    assert eve[200] + eve[429] == 24
    state = await read_rates(home, "eve", limit)
    assert (state.tokens, state.reserved) == (eve[200] * USED, 0)
