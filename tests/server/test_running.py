"""How the server ends: requests in flight finish or are told, and nothing holds it up."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.server.conftest import Served, serving
from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.runs import RunStatus
from vibe_llms.server.spaces import UserSpaces

CHAT = "/v1/chat/completions"
#: Longer than any test takes.
LONG = 600
SCRIPTS = {
    "stall": "[[replies]]\nparts = [{ stall = true }]\n",
    "begin": '[[replies]]\nparts = [{ text = "first " }, { stall = true }]\n',
    "endless": f'[[replies]]\nparts = [{{ text = "{"word " * 40_000}" }}]\n',
}


def ask(model: str, *, stream: bool = True) -> dict[str, Any]:
    message = {"role": "user", "content": "Hello"}
    return {"model": f"scripted/{model}", "messages": [message], "stream": stream}


def scripted(home: Path, **server: Any) -> dict[str, Any]:
    """The tables of a server with scripts as models."""
    home.mkdir(exist_ok=True)
    for name, script in SCRIPTS.items():
        (home / f"{name}.toml").write_text(script)
    scripts = {name: str(home / f"{name}.toml") for name in SCRIPTS}
    rows = {"scripted": {"scripts": scripts, "pace-seconds": 0.01}}
    return {"server": server, "providers": rows, "storage": {"durability": "fast"}}


async def wait_for_turn(served: Served) -> None:
    """Until a turn is running."""
    async with served.http() as client, asyncio.timeout(30):
        while "running_turns 1.0" not in (await client.get("/metrics")).text:
            await asyncio.sleep(0.01)


async def is_answered(client: httpx2.AsyncClient) -> bool:
    """Whether the server still answers, that it is not ready."""
    try:
        assert (await client.get("/ready")).status_code == 503
    except httpx2.TransportError:
        return False
    return True


async def test_a_reply_that_is_being_sent_is_finished(home: Path) -> None:
    async with (
        serving(home, **scripted(home, **{"shutdown-seconds": LONG})) as served,
        served.http() as client,
        client.stream("POST", CHAT, json=ask("demo")) as response,
    ):
        lines = response.aiter_lines()
        first = await anext(lines)
        served.running.end()
        rest = [line async for line in lines]
    assert first.startswith("data: ")
    assert "data: [DONE]" in rest
    assert len(rest) > 10


async def test_nothing_is_accepted_while_it_ends(home: Path) -> None:
    async with (
        serving(home, **scripted(home, **{"shutdown-seconds": LONG})) as served,
        served.http() as client,
        client.stream("POST", CHAT, json=ask("begin")) as response,
    ):
        await anext(response.aiter_lines())
        served.running.end()
        async with asyncio.timeout(30), served.http() as other:
            while await is_answered(other):
                pass
        served.running.end()


async def test_a_server_that_ends_leaves_runs_to_others(home: Path) -> None:
    async with (
        serving(home, **scripted(home, **{"shutdown-seconds": LONG})) as served,
        served.http() as client,
        client.stream("POST", CHAT, json=ask("begin")) as response,
        served.session() as session,
    ):
        lines = response.aiter_lines()
        await anext(lines)
        session.access_runs().worker.pause()
        conversation = await session.begin("scripted/demo")
        served.running.end()
        run = await session.start(conversation, "Hello")
        # Longer than until a server looks for runs.
        await asyncio.sleep(0.7)
        assert (await run.access()).status is RunStatus.QUEUED
        await response.aclose()


async def test_requests_that_take_too_long_are_told_that_it_ends(home: Path) -> None:
    tables = scripted(home, **{"shutdown-seconds": 0.5})
    async with serving(home, **tables) as served, served.http() as client:
        waiting = asyncio.create_task(client.post(CHAT, json=ask("stall")))
        await wait_for_turn(served)
        served.running.end()
        refused = await waiting
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["error"]["code"] == "shutting_down"
    assert any(f"{CHAT} 503" in line for line in served.log)


async def test_a_second_call_ends_at_once(home: Path) -> None:
    async with asyncio.timeout(60):
        async with (
            serving(home, **scripted(home, **{"shutdown-seconds": LONG})) as served,
            served.http() as client,
            client.stream("POST", CHAT, json=ask("begin")) as response,
        ):
            lines = response.aiter_lines()
            await anext(lines)
            served.running.end()
            served.running.end()
            with pytest.raises(httpx2.HTTPError):
                async for _ in lines:
                    pass


async def test_what_does_not_close_is_cut_off(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close = UserSpaces.close
    cut_off = False

    async def never(spaces: UserSpaces) -> None:
        nonlocal cut_off
        try:
            await close(spaces)
            await asyncio.Event().wait()
        finally:
            cut_off = True

    monkeypatch.setattr(UserSpaces, "close", never)
    async with asyncio.timeout(60), serving(home, **scripted(home, **{"shutdown-seconds": 0.2})):
        pass
    assert cut_off


async def test_a_client_that_does_not_read_does_not_hold_it_up(home: Path) -> None:
    settings = scripted(home, **{"shutdown-seconds": 0.5})
    settings["providers"]["scripted"]["pace-seconds"] = 0
    async with asyncio.timeout(60), serving(home, **settings) as served:
        host, port = served.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            async with served.http() as client:
                request = client.build_request("POST", CHAT, json=ask("endless"))
            head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
            deaf.sendall(f"POST {CHAT} HTTP/1.1\r\n{head}\r\n".encode() + request.content)
            await wait_for_turn(served)
            served.running.end()
            while served.running._server.server_state.connections:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("row", "table", "key", "words"),
    [
        ({"ensembles": ["pyton"]}, "agents.clerk", "ensembles", "'pyton' not found"),
        ({"ensembles": ["lost"]}, "ensembles.lost", "module", "module 'no.such' not found"),
        ({"optional-ensembles": ["lost"]}, "ensembles.lost", "module", "not found"),
        ({"agents": ["boss"]}, "agents.clerk", "agents", "'boss' not found in"),
        ({"model": "none/such"}, "agents.clerk", "model", "provider 'none' not found"),
        ({"budget": {"tokens": -1}}, "agents.clerk.budget", "tokens", "Expected `int` >= 1"),
        ({"supervisor-file": "gone.md"}, "agents.clerk", "supervisor-file", "cannot be read"),
    ],
)
async def test_a_server_with_a_wrong_agent_does_not_start(
    home: Path, row: Any, table: str, key: str, words: str
) -> None:
    rows = {"lost": {"module": "no.such"}}
    with pytest.raises(ConfigurationError, match=words) as caught:
        async with serving(home, agents={"clerk": row}, ensembles=rows):
            pass
    assert (caught.value.table, caught.value.key) == (table, key)


async def test_what_an_agent_lacks_only_for_now_is_no_reason_not_to_start(home: Path) -> None:
    rows = {
        # It is not in use.
        "lost": {"module": "no.such"},
        "tools": {"module": "vibe_llms.ensembles.mcp", "command": ["/no/such"], "required": True},
    }
    clerks = {"hired": {"model": "anthropic/claude-x", "ensembles": ["tools"]}}
    async with serving(home, agents=clerks, ensembles=rows) as served, served.http() as client:
        assert (await client.get("/health")).status_code == 200
