"""Runs that answer a stored conversation again, or a fork of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.server.conftest import Served, serving
from tests.server.test_api_runs import SCRIPT, read_events, wait_for
from vibe_llms.runs.core import Runs
from vibe_llms.runs.run import Run

KEY = {"idempotency-key": "draft-1"}


async def start(served: Served, **order: Any) -> str:
    """Run a turn to its end; returns the identity of its conversation."""
    async with served.http() as http:
        reply = await http.post("/api/runs", json=order)
        assert reply.status_code == 201, reply.text
        events = await read_events(served, reply.json()["id"])
    assert events[-1][1] == {"event": "ended", "status": "completed"}
    return str(reply.json()["conversation"])


async def read(http: httpx2.AsyncClient, conversation: str) -> list[dict[str, Any]]:
    """The messages of a conversation."""
    shown: list[dict[str, Any]] = (await http.get(f"/api/conversations/{conversation}")).json()[
        "messages"
    ]
    return shown


async def survey(http: httpx2.AsyncClient) -> list[str]:
    """The identities of all conversations."""
    listed = (await http.get("/api/conversations?superseded=true")).json()["conversations"]
    return sorted(one["id"] for one in listed)


def roles(messages: list[dict[str, Any]]) -> list[str]:
    """The roles of messages."""
    return [one["role"] for one in messages]


async def test_an_edited_message_is_sent_in_a_fork(served: Served) -> None:
    first = await start(served, prompt="One", model="scripted/demo")
    await start(served, prompt="Two", conversation=first)
    async with served.http() as http:
        before = await read(http, first)
        at = before[1]["identity"]
        fork = await start(served, prompt="Deux", conversation=first, fork_at=at)
        assert await read(http, first) == before
        edited = await read(http, fork)
        shown = (await http.get(f"/api/conversations/{fork}")).json()
    assert fork != first
    assert (edited[:2], roles(edited)) == (before[:2], ["user", "assistant"] * 2)
    assert "Deux" in str(edited[2])
    assert shown["forked_from"] == first


async def test_a_first_message_is_edited(served: Served) -> None:
    first = await start(served, prompt="One", model="scripted/demo")
    fork = await start(served, prompt="Un", conversation=first, fork_at="")
    async with served.http() as http:
        edited = await read(http, fork)
        shown = (await http.get(f"/api/conversations/{fork}")).json()
    assert (roles(edited), shown["forked_from"]) == (["user", "assistant"], first)
    assert shown["model"] == "scripted/demo"


async def test_a_message_is_answered_again(served: Served) -> None:
    first = await start(served, prompt="One", model="scripted/demo")
    async with served.http() as http:
        before = await read(http, first)
        fork = await start(served, conversation=first, fork_at=before[0]["identity"])
        again = await read(http, fork)
        assert await survey(http) == sorted([first, fork])
    assert again[0] == before[0]
    assert roles(again) == ["user", "assistant"]
    assert again[1]["identity"] != before[1]["identity"]


async def test_a_fork_takes_the_place_of_the_conversation(served: Served) -> None:
    first = await start(served, prompt="One", model="scripted/demo")
    async with served.http() as http:
        await http.patch(f"/api/conversations/{first}", json={"name": "Numbers"})
        order = {"prompt": "Un", "conversation": first, "fork_at": "", "supersede": True}
        replies = [await http.post("/api/runs", json=order, headers=KEY) for _ in range(3)]
        (fork,) = {one.json()["conversation"] for one in replies}
        await read_events(served, replies[0].json()["id"])
        listed = (await http.get("/api/conversations")).json()["conversations"]
        assert [(one["id"], one["name"]) for one in listed] == [(fork, "Numbers")]
        family = (await http.get(f"/api/conversations/{first}/family")).json()
        original = family["conversations"][0]
        assert (original["id"], original["superseded_by"]) == (first, fork)
        assert original["name"].startswith("Numbers (until 2")
        assert family["siblings"] == {"": [first, fork]}
        # The original goes on when somebody writes to it, and is listed again.
        await start(served, prompt="Two", conversation=first)
        assert len((await http.get("/api/conversations")).json()["conversations"]) == 2


async def test_an_empty_conversation_gives_way_too(served: Served) -> None:
    first = await start(served, prompt="One", model="scripted/demo")
    async with served.http() as http:
        await http.patch(f"/api/conversations/{first}", json={"name": "Numbers"})
        order = {"at": None, "name": "Empty"}
        first = (await http.post(f"/api/conversations/{first}/fork", json=order)).json()["id"]
    fork = await start(served, prompt="Un", conversation=first, fork_at="", supersede=True)
    async with served.http() as http:
        listed = (await http.get("/api/conversations")).json()["conversations"]
    assert (fork, "Empty") in [(one["id"], one["name"]) for one in listed]


async def test_a_fork_that_cannot_run_supersedes_nothing(served: Served) -> None:
    first = await start(served, prompt="One", model="scripted/demo")
    order = {"prompt": "x", "conversation": first, "fork_at": "", "supersede": True}
    async with served.http() as http:
        refused = await http.post("/api/runs", json={**order, "model": "no/such"})
        listed = (await http.get("/api/conversations")).json()["conversations"]
    assert refused.status_code == 404
    assert [one["id"] for one in listed] == [first]


async def test_a_prompt_whose_reply_failed_is_answered(home: Path) -> None:
    home.mkdir()
    (home / "down.toml").write_text('[[replies]]\nparts = [{ error = "unreachable" }]\n')
    providers = {"scripted": {"scripts": {"down": str(home / "down.toml")}}}
    async with serving(home, providers=providers) as served, served.http() as http:
        order = {"model": "scripted/down", "prompt": "x"}
        run = (await http.post("/api/runs", json=order)).json()
        await wait_for(http, run["id"], "failed")
        assert roles(await read(http, run["conversation"])) == ["user"]
        await start(served, conversation=run["conversation"], model="scripted/demo")
        messages = await read(http, run["conversation"])
    assert roles(messages) == ["user", "assistant"]


async def test_a_cancelled_turn_goes_on_with_its_call_and_asks_again(home: Path) -> None:
    home.mkdir()
    (home / "keeper.toml").write_text(SCRIPT)
    providers = {"scripted": {"scripts": {"keeper": str(home / "keeper.toml")}}}
    agents = {"keeper": {"model": "scripted/keeper", "tools": ["delete_memory"]}}
    async with serving(home, providers=providers, agents=agents) as served, served.http() as http:
        run = (await http.post("/api/runs", json={"model": "keeper", "prompt": "x"})).json()
        await wait_for(http, run["id"], "waiting")
        await http.post(f"/api/runs/{run['id']}/cancel")
        await wait_for(http, run["id"], "cancelled")
        order = {"conversation": run["conversation"]}
        again = (await http.post("/api/runs", json=order)).json()["id"]
        await wait_for(http, again, "waiting")
        (call,) = (await http.get(f"/api/runs/{again}")).json()["approvals"]
        assert call["allowed"] is None
        decision = {"invocation": call["invocation"], "allowed": True}
        await http.post(f"/api/runs/{again}/decide", json=decision)
        await read_events(served, again)
        messages = await read(http, run["conversation"])
    assert roles(messages) == ["user", "invocation", "result", "assistant"]
    assert "That is settled." in str(messages[-1])


async def test_a_repeated_request_makes_one_fork_and_one_run(served: Served) -> None:
    first = await start(served, prompt="One", model="scripted/demo")
    async with served.http() as http:
        order = {"prompt": "Un", "conversation": first, "fork_at": ""}
        posts = [http.post("/api/runs", json=order, headers=KEY) for _ in range(5)]
        replies = await asyncio.gather(*posts)
        assert {one.status_code for one in replies} == {201}
        assert len({one.json()["id"] for one in replies}) == 1
        await read_events(served, replies[0].json()["id"])
        assert await survey(http) == sorted([first, replies[0].json()["conversation"]])
        other = await http.post("/api/runs", json={**order, "prompt": "Eins"}, headers=KEY)
        assert other.status_code == 422
        assert len(await survey(http)) == 2


@pytest.mark.parametrize("emptied", [False, True])
async def test_a_server_that_dies_before_the_run_leaves_one_fork(
    served: Served, monkeypatch: pytest.MonkeyPatch, emptied: bool
) -> None:
    first = await start(served, prompt="One", model="scripted/demo")
    began = Runs.start
    deaths = 2

    async def die(self: Runs, *arguments: Any, **options: Any) -> Run:
        nonlocal deaths
        if deaths:
            deaths -= 1
            raise RuntimeError("the server dies here")
        return await began(self, *arguments, **options)

    monkeypatch.setattr(Runs, "start", die)
    async with served.http() as http:
        at = "" if emptied else (await read(http, first))[1]["identity"]
        order = {"prompt": "Un", "conversation": first, "fork_at": at}
        for _ in range(2):
            died = await http.post("/api/runs", json=order, headers=KEY)
            assert died.status_code == 500
        (left,) = {*await survey(http)} - {first}
        run = (await http.post("/api/runs", json=order, headers=KEY)).json()
        await read_events(served, run["id"])
        assert run["conversation"] == left
        assert len(await survey(http)) == 2
        assert roles(await read(http, left))[-2:] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("order", "status"),
    [
        ({"conversation": "CONVERSATION"}, 400),
        ({"conversation": "CONVERSATION", "fork_at": ""}, 400),
        ({"conversation": "CONVERSATION", "fork_at": "unknown"}, 404),
        ({"conversation": "CONVERSATION", "fork_at": "", "prompt": " "}, 400),
        ({"conversation": "CONVERSATION", "fork_at": "", "prompt": "x", "model": "no/such"}, 404),
        ({"conversation": "CONVERSATION", "fork_at": "", "files": ["unknown"], "prompt": "x"}, 404),
        ({"conversation": "CONVERSATION", "output": {}}, 400),
        ({"conversation": "CONVERSATION", "supersede": True, "prompt": "x"}, 400),
        ({"fork_at": "", "prompt": "x"}, 400),
        ({"model": "scripted/demo"}, 400),
    ],
)
async def test_a_wrong_order_leaves_no_fork(
    served: Served, order: dict[str, Any], status: int
) -> None:
    first = await start(served, prompt="One", model="scripted/demo")
    filled = {k: first if v == "CONVERSATION" else v for k, v in order.items()}
    async with served.http() as http:
        for headers in ({}, KEY):
            reply = await http.post("/api/runs", json=filled, headers=headers)
            assert reply.status_code == status, reply.text
        assert await survey(http) == [first]
        assert len((await http.get("/api/runs")).json()["runs"]) == 1


async def test_a_user_with_too_many_runs_gets_no_fork(home: Path) -> None:
    home.mkdir()
    (home / "slow.toml").write_text("[[replies]]\nparts = [{ stall = true }]\n")
    scripts = {"slow": str(home / "slow.toml")}
    tables: dict[str, Any] = {
        "server": {"user-turns": 1},
        "providers": {"scripted": {"scripts": scripts}},
    }
    async with serving(home, **tables) as served, served.http() as http:
        first = await start(served, prompt="One", model="scripted/demo")
        await http.post("/api/runs", json={"model": "scripted/slow", "prompt": "x"})
        order = {"prompt": "Un", "conversation": first, "fork_at": ""}
        refused = await http.post("/api/runs", json=order, headers=KEY)
        listed = (await http.get("/api/conversations")).json()["conversations"]
    assert refused.status_code == 429
    assert not [one for one in listed if one["forked_from"]]
