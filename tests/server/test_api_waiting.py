"""Calls and questions that wait, over all conversations, and tools that are always allowed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import FunctionType
from typing import Any

import httpx2
import pytest

from tests.server.conftest import Served, serving
from tests.server.test_api_runs import ASKING, wait_for
from vibe_llms.memory import ensemble

CALL = '{ invocation = "memory/delete_memories", arguments = { query = "WHAT" } }'
REPLY = "[[replies]]\nparts = [PARTS]\n"
LONG = "tea " * 1000


def script(*replies: str) -> str:
    """Replies with calls of the tool, each with one argument, or with a text."""
    written = []
    for reply in replies:
        calls = ", ".join(CALL.replace("WHAT", one) for one in reply.split("|"))
        written.append(REPLY.replace("PARTS", calls if reply else '{ text = "Done." }'))
    return "\n".join(written)


def configure(home: Path) -> dict[str, Any]:
    """Agents whose tools ask."""
    home.mkdir(exist_ok=True)
    scripts = {
        "asker": ASKING,
        "once": script(LONG, ""),
        "twice": script("tea", "rye", "", "oak", ""),
        "both": script("tea|rye", "oak", ""),
    }
    for name, text in scripts.items():
        (home / f"{name}.toml").write_text(text)
    return {
        "providers": {
            "scripted": {"scripts": {name: str(home / f"{name}.toml") for name in scripts}}
        },
        "agents": {
            "asker": {"model": "scripted/asker", "ensembles": ["user"]},
            **{
                name: {"model": f"scripted/{name}", "tools": ["delete_memory"]}
                for name in ("once", "twice", "both")
            },
        },
    }


@pytest.fixture
async def served(home: Path) -> AsyncIterator[Served]:
    """A server with agents whose tools ask."""
    async with serving(home, **configure(home)) as server:
        yield server


async def start(http: httpx2.AsyncClient, status: str = "waiting", **order: Any) -> Any:
    """Start a run and wait until it has a status."""
    run = (await http.post("/api/runs", json={"prompt": "Please.", **order})).json()
    await wait_for(http, run["id"], status)
    return run


async def waits(http: httpx2.AsyncClient) -> Any:
    """What waits."""
    return (await http.get("/api/waiting")).json()


async def decide(http: httpx2.AsyncClient, call: Any, **decision: Any) -> httpx2.Response:
    """Decide on a call that waits."""
    body = {"invocation": call["invocation"], "allowed": True, **decision}
    return await http.post(f"/api/runs/{call['run']}/decide", json=body)


async def test_all_that_waits_is_listed_with_its_full_arguments(served: Served) -> None:
    async with served.http() as http, served.http("eve") as eve:
        assert await waits(http) == {"calls": [], "questions": []}
        first = await start(http, model="once")
        second = await start(http, model="asker")
        name = {"name": "About tea"}
        await http.patch(f"/api/conversations/{second['conversation']}", json=name)
        listed = await waits(http)
        assert await waits(eve) == {"calls": [], "questions": []}
        ((call,), (question,)) = listed["calls"], listed["questions"]
        assert json.loads(call["arguments"]) == {"query": LONG}
        assert (call["run"], call["conversation"]) == (first["id"], first["conversation"])
        assert (call["title"], call["name"]) == ("Please.", "memory/delete_memories")
        assert (call["source"], call["ensemble"], call["each_time"]) == (
            "ensemble",
            "memory",
            False,
        )
        assert call["reason"]
        assert (question["run"], question["title"]) == (second["id"], "About tea")
        assert [one["name"] for one in question["fields"]] == ["answer"]
        await decide(http, call)
        answer = {"question": question["id"], "values": {"answer": "Green."}}
        await http.post(f"/api/runs/{second['id']}/answer", json=answer)
        for run in (first, second):
            await wait_for(http, run["id"], "completed")
        assert await waits(http) == {"calls": [], "questions": []}


async def test_a_tool_that_is_always_allowed_asks_no_more_in_the_conversation(
    served: Served,
) -> None:
    async with served.http() as http:
        run = await start(http, model="twice")
        (call,) = (await waits(http))["calls"]
        made = await decide(http, call, always=True)
        assert made.json() == {"invocation": call["invocation"], "allowed": True, "always": True}
        await wait_for(http, run["id"], "completed")
        # Nor in a later run of the conversation, but in another one.
        await start(http, "completed", model="twice", conversation=run["conversation"])
        await start(http, "waiting", model="twice")
        assert len((await waits(http))["calls"]) == 1


async def test_a_tool_that_is_allowed_once_asks_again(served: Served) -> None:
    async with served.http() as http:
        run = await start(http, model="twice")
        for _ in range(2):
            await wait_for(http, run["id"], "waiting")
            (call,) = (await waits(http))["calls"]
            assert (await decide(http, call)).json()["always"] is False
        await wait_for(http, run["id"], "completed")


async def test_the_other_calls_of_an_always_allowed_tool_wait_no_more(served: Served) -> None:
    async with served.http() as http:
        run = await start(http, model="both")
        first, _ = (await waits(http))["calls"]
        await decide(http, first, always=True)
        await wait_for(http, run["id"], "completed")
        approvals = (await http.get(f"/api/runs/{run['id']}")).json()["approvals"]
    assert [one["allowed"] for one in approvals] == [True, True]


async def test_a_tool_whose_definition_has_changed_asks_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = configure(home)
    async with serving(home, **tables) as served, served.http() as http:
        run = await start(http, model="twice")
        (call,) = (await waits(http))["calls"]
        await decide(http, call, always=True)
        await wait_for(http, run["id"], "completed")
        key = served.keys["local"]
    known = ensemble.MemoryEnsemble._delete_memories
    changed = FunctionType(known.__code__, known.__globals__, argdefs=known.__defaults__)
    changed.__annotations__, changed.__doc__ = known.__annotations__, "Delete everything."
    monkeypatch.setattr(ensemble.MemoryEnsemble, "_delete_memories", changed)
    async with serving(home, **tables) as served:
        served.keys["local"] = key
        async with served.http() as http:
            await start(http, model="twice", conversation=run["conversation"])
            assert len((await waits(http))["calls"]) == 1


async def test_a_denied_tool_is_not_allowed_always(served: Served) -> None:
    async with served.http() as http:
        await start(http, model="twice")
        (call,) = (await waits(http))["calls"]
        refused = await decide(http, call, allowed=False, always=True)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "always")
        assert len((await waits(http))["calls"]) == 1
