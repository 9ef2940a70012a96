"""The stream of changes: of one user, of this process and of others, without gaps."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.server.conftest import Served, serving
from tests.server.test_api_runs import SCRIPT, wait_for
from vibe_llms.server import changes

ALL = {"change": "all"}


class Changes:
    """The events of a stream."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.last = ""

    async def take(self) -> Any:
        """The next event."""
        async with asyncio.timeout(20):
            async for line in self._lines:
                if line.startswith("id: "):
                    self.last = line.removeprefix("id: ")
                elif line.startswith("data: "):
                    return json.loads(line.removeprefix("data: "))
        return None

    async def await_change(self, **wanted: Any) -> list[Any]:
        """The events up to the one that has these members."""
        found: list[Any] = []
        while not found or not wanted.items() <= found[-1].items():
            found.append(await self.take())
            assert found[-1] is not None
        return found


@asynccontextmanager
async def follow(http: httpx2.AsyncClient, last: str | None = None) -> AsyncIterator[Changes]:
    """Follow the changes after an event."""
    headers = {} if last is None else {b"last-event-id": last.encode("latin-1")}
    async with http.stream("GET", "/api/changes", headers=headers) as response:
        assert response.status_code == 200
        yield Changes(response.aiter_lines())


async def start(http: httpx2.AsyncClient, **order: Any) -> Any:
    """Start a run."""
    return (await http.post("/api/runs", json={"prompt": "x", **order})).json()


async def test_what_runs_and_what_it_says_is_a_change(served: Served) -> None:
    async with served.http() as http, follow(http) as stream:
        assert await stream.take() == ALL
        run = await start(http, model="scripted/demo")
        conversation = run["conversation"]
        known = {"change": "run", "id": run["id"], "conversation": conversation}
        seen = await stream.await_change(**known, status="completed")
        seen += await stream.await_change(id=conversation) if len(seen) < 2 else []
    assert {"change": "conversation", "id": conversation, "removed": False} in seen
    assert {(*sorted(one),) for one in seen} <= {
        ("change", "conversation", "id", "status"),
        ("change", "id", "removed"),
    }


async def test_changes_by_another_process_are_told(served: Served) -> None:
    async with served.session() as session, served.http() as http, follow(http) as stream:
        assert await stream.take() == ALL
        conversation = await session.begin("scripted/demo")
        await conversation.converse("Hello")
        one = conversation.identity
        await stream.await_change(change="conversation", id=one, removed=False)
        await session.archive.revise(one, name="Renamed")
        await stream.await_change(change="conversation", id=one, removed=False)
        run = await session.start(conversation, "Again")
        await stream.await_change(change="run", id=run.identity, status="completed")
        await session.remove(one)
        await stream.await_change(change="conversation", id=one, removed=True)


async def test_a_follower_that_comes_back_misses_nothing(served: Served) -> None:
    async with served.http() as http:
        async with follow(http) as stream:
            assert await stream.take() == ALL
            before = stream.last
        # Nobody follows now.
        async with served.session() as session:
            conversation = await session.begin("scripted/demo")
            await conversation.converse("Hello")
            one = conversation.identity
        async with follow(http, before) as stream:
            assert await stream.take() == {"change": "conversation", "id": one, "removed": False}
            after = stream.last
            await session.archive.revise(one, name="Renamed")
            await stream.await_change(id=one)
        async with follow(http, after) as stream:
            assert (await stream.take())["id"] == one
        other = [before.replace("-", "-9"), f"{before[:-1]}²", before + "9" * 5000]
        for unknown in ("", "x-1", *other):
            async with follow(http, unknown) as stream:
                assert await stream.take() == ALL


async def test_a_follower_that_is_too_late_loads_everything_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "_MOST_KEPT", 2)
    async with served.http() as http, served.session() as session:
        async with follow(http) as stream:
            assert await stream.take() == ALL
            before = stream.last
        for _ in range(3):
            await (await session.begin("scripted/demo")).converse("Hello")
        async with follow(http, before) as stream:
            assert await stream.take() == ALL
            assert stream.last.endswith("-3")


async def test_a_decision_on_one_of_two_calls_is_a_change(home: Path) -> None:
    home.mkdir()
    call = '{ invocation = "memory/delete_memories", arguments = { query = "tea" } }'
    two = SCRIPT.replace(call, f"{call}, {call.replace('tea', 'rye')}")
    (home / "keeper.toml").write_text(two)
    providers = {"scripted": {"scripts": {"keeper": str(home / "keeper.toml")}}}
    agents = {"keeper": {"model": "scripted/keeper", "tools": ["delete_memory"]}}
    async with serving(home, providers=providers, agents=agents) as served, served.http() as http:
        run = await start(http, model="keeper")
        await wait_for(http, run["id"], "waiting")
        calls = (await http.get(f"/api/runs/{run['id']}")).json()["approvals"]
        assert len(calls) == 2
        async with follow(http) as stream:
            assert await stream.take() == ALL
            decision = {"invocation": calls[0]["invocation"], "allowed": True}
            await http.post(f"/api/runs/{run['id']}/decide", json=decision)
            await stream.await_change(change="run", id=run["id"], status="waiting")


async def test_changes_of_another_user_are_not_told(served: Served) -> None:
    async with served.http("ada") as ada, served.http("eve") as eve, follow(ada) as hers:
        assert await hers.take() == ALL
        async with follow(eve, hers.last) as stream:
            # A cursor of another user is unknown.
            assert await stream.take() == ALL
            run = await start(ada, model="scripted/demo")
            await hers.await_change(change="run", id=run["id"], status="completed")
            own = await start(eve, model="scripted/demo")
            seen = await stream.await_change(change="run", id=own["id"], status="completed")
    assert {one["id"] for one in seen} <= {own["id"], own["conversation"]}


async def test_a_server_that_ends_does_not_wait_for_followers(home: Path) -> None:
    async with serving(home) as served, served.http() as http, follow(http) as stream:
        assert await stream.take() == ALL
        begun = time.monotonic()
        served.running.end()
        assert await stream.take() is None
        assert time.monotonic() - begun < 3
