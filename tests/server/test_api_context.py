"""What fills the window of a conversation, and its compaction, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.server.conftest import Served, serving

TALK = "All is well. " * 30
SUMMARY = "## Goal\\nBuild a boat.\\n## Instructions that still hold\\n- Never use tar."
ORDER = "This message is from the program"


def write_script(window: int = 100_000, summary: str = f'text = "{SUMMARY}"') -> str:
    return (
        f"context-tokens = {window}\n"
        f'[[replies]]\nwhen = "{ORDER}"\nparts = [{{ {summary} }}]\n'
        f'[[replies]]\nwhen = "."\nparts = [{{ text = "{TALK}" }}]\n'
    )


SCRIPTS = {
    "sailor": write_script(),
    "small": write_script(1_400),
    "slow": write_script(summary="stall = true"),
    "broken": write_script(summary='error = "overloaded"'),
    "failing": write_script(1_400).replace('when = "."', 'when = "^Message"')
    + '[[replies]]\nwhen = "^xx"\nparts = [{ error = "overloaded" }]\n',
    "waiting": '[[replies]]\nwhen = "."\nparts = [{ stall = true }]\n',
}


@pytest.fixture
async def served(home: Path) -> AsyncIterator[Served]:
    """A server with models that summarize, slowly or not at all."""
    home.mkdir()
    for name, script in SCRIPTS.items():
        (home / f"{name}.toml").write_text(script)
    scripts = {name: str(home / f"{name}.toml") for name in SCRIPTS}
    async with serving(
        home, providers={"scripted": {"scripts": scripts, "retries": 0}}, stream={"retries": 0}
    ) as server:
        yield server


async def converse(http: httpx2.AsyncClient, model: str, turns: int) -> str:
    """Hold a conversation of runs; returns its identity."""
    identity = None
    for number in range(turns):
        order = {"model": f"scripted/{model}", "prompt": f"Message {number}."}
        run = (await http.post("/api/runs", json={**order, "conversation": identity})).json()
        identity = run["conversation"]
        async with asyncio.timeout(30):
            while (await http.get(f"/api/runs/{run['id']}")).json()["status"] != "completed":
                await asyncio.sleep(0.02)
    assert identity is not None
    return str(identity)


async def read_messages(http: httpx2.AsyncClient, identity: str) -> list[dict[str, Any]]:
    shown = (await http.get(f"/api/conversations/{identity}")).json()
    messages: list[dict[str, Any]] = shown["messages"]
    return messages


async def test_the_context_is_shown_and_compacted_and_no_message_is_lost(served: Served) -> None:
    async with served.http() as http:
        identity = await converse(http, "sailor", 8)
        said = await read_messages(http, identity)
        place = f"/api/conversations/{identity}"
        before = (await http.get(f"{place}/context")).json()
        assert before["parts"]["talk"] == before["tokens"]
        assert (before["window"], before["known"], before["messages"]) == (100_000, True, 16)
        assert before["free"] == 100_000 - before["tokens"]
        assert (before["covered"], before["compact_at"]) == (0, 80_000)

        made = (await http.post(f"{place}/compact", json={"focus": "the tide"})).json()["digest"]
        after = (await http.get(f"{place}/context")).json()
        stored = await read_messages(http, identity)
    assert "- Never use tar." in made["text"]
    assert made["after"] < made["before"]
    assert made["usage"]["output_tokens"] > 0
    assert stored[:-1] == said
    assert (stored[-1]["role"], stored[-1]["identity"]) == ("digest", made["id"])
    assert (made["first"], made["last"] in {one["identity"] for one in said}) == (
        said[0]["identity"],
        True,
    )
    assert after["tokens"] < before["tokens"]
    assert after["covered"] == 1 + [one["identity"] for one in said].index(made["last"])
    assert after["parts"]["digest"] > 0


async def test_a_body_is_not_needed_and_a_short_conversation_has_no_digest(served: Served) -> None:
    async with served.http() as http:
        identity = await converse(http, "sailor", 1)
        place = f"/api/conversations/{identity}/compact"
        reply = await http.post(place)
        assert (reply.status_code, reply.json()) == (200, {"digest": None})
        refused = await http.post(place, json={"focus": 3})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "focus")
        assert (await http.post(place, json={"fokus": ""})).status_code == 400


async def test_the_conversation_of_another_user_is_not_found(served: Served) -> None:
    async with served.http() as http, served.http("eve") as eve:
        identity = await converse(http, "sailor", 6)
        place = f"/api/conversations/{identity}"
        assert (await eve.get(f"{place}/context")).status_code == 404
        assert (await eve.post(f"{place}/compact")).status_code == 404
        assert len(await read_messages(http, identity)) == 12
        # A prefix is not an identity.
        assert (await http.get(f"{place[:-1]}/context")).status_code == 404


async def test_a_conversation_with_a_run_is_not_compacted(served: Served) -> None:
    async with served.http() as http:
        identity = await converse(http, "sailor", 6)
        order = {"model": "scripted/waiting", "prompt": "Go on.", "conversation": identity}
        run = (await http.post("/api/runs", json=order)).json()
        refused = await http.post(f"/api/conversations/{identity}/compact")
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "conversation_busy"
        assert "run" in refused.json()["error"]["message"]
        await http.post(f"/api/runs/{run['id']}/cancel")


async def test_a_client_that_disconnects_leaves_no_digest(served: Served) -> None:
    async with served.http() as http:
        identity = await converse(http, "slow", 6)
        said = await read_messages(http, identity)
        with pytest.raises(httpx2.ReadTimeout):
            await http.post(f"/api/conversations/{identity}/compact", timeout=1)
        async with asyncio.timeout(10):
            while "vibe_llms_running_turns 0.0" not in (await http.get("/metrics")).text:
                await asyncio.sleep(0.05)
        assert await read_messages(http, identity) == said


async def test_a_provider_that_fails_is_an_error(served: Served) -> None:
    async with served.http() as http:
        identity = await converse(http, "broken", 6)
        failed = await http.post(f"/api/conversations/{identity}/compact")
        assert failed.status_code == 502
        assert len(await read_messages(http, identity)) == 12


async def test_followers_of_a_run_hear_of_a_digest(served: Served) -> None:
    async with served.http() as http:
        identity = await converse(http, "small", 12)
        runs = (await http.get("/api/runs?limit=100")).json()["runs"]
        heard = "".join([(await http.get(f"/api/runs/{one['id']}/events")).text for one in runs])
        roles = [one["role"] for one in await read_messages(http, identity)]
    assert '"subject":"context"' in heard
    assert "compacted from about" in heard
    assert "digest" in roles


async def chat(
    http: httpx2.AsyncClient, model: str, said: list[dict[str, str]], turns: int, **given: Any
) -> httpx2.Response:
    """Continue a history that the client holds; returns the last response."""
    for number in range(turns):
        said.append({"role": "user", "content": f"Message {number}."})
        body = {"model": f"scripted/{model}", "messages": said, **given}
        reply = await http.post("/v1/chat/completions", json=body)
        if reply.status_code == 200:
            said.append(reply.json()["choices"][0]["message"])
        if reply.status_code != 200 or number + 1 == turns:
            return reply
    raise AssertionError(turns)


async def survey(http: httpx2.AsyncClient) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await http.get("/api/conversations")).json()["conversations"]
    return listed


async def count_summaries(http: httpx2.AsyncClient) -> int:
    """The digests that a model wrote, in all conversations."""
    stored = [
        one for listed in await survey(http) for one in await read_messages(http, listed["id"])
    ]
    return sum(one["role"] == "digest" and "provenance" in one for one in stored)


async def test_a_history_that_only_the_client_knows_is_not_compacted(served: Served) -> None:
    known = {"role": "assistant", "content": TALK}
    past = [one for n in range(14) for one in ({"role": "user", "content": f"No. {n}"}, known)]
    async with served.http() as http:
        for _ in range(2):
            refused = await chat(http, "small", [*past], 1)
            assert refused.status_code == 400
            assert refused.json()["error"]["code"] == "context_length_exceeded"
        assert (await survey(http)) == []
        refused = await chat(http, "small", [*past], 1, store=False)
        assert refused.json()["error"]["code"] == "context_length_exceeded"


async def test_a_history_that_the_server_knows_is_compacted_once_and_not_with_each_request(
    served: Served,
) -> None:
    said: list[dict[str, str]] = []
    async with served.http() as http:
        assert (await chat(http, "small", said, 20)).status_code == 200
        [listed] = await survey(http)
        made = await count_summaries(http)
        assert 1 <= made <= 8
        roles = [one["role"] for one in await read_messages(http, listed["id"])]
        assert roles.count("user") == 20


async def test_a_digest_after_the_last_reply_stays_in_the_same_conversation(
    served: Served,
) -> None:
    said: list[dict[str, str]] = []
    async with served.http() as http, served.openai() as client:
        await chat(http, "sailor", said, 8)
        [listed] = await survey(http)
        place = f"/api/conversations/{listed['id']}/compact"
        assert (await http.post(place)).json()["digest"]
        reply = await chat(http, "sailor", said, 1)
        assert len(await survey(http)) == 1
        assert reply.json()["usage"]["prompt_tokens"] < 1_000

        response = None
        for number in range(8):
            response = await client.responses.create(
                model="scripted/sailor",
                input=f"Number {number}.",
                previous_response_id=None if response is None else response.id,
            )
        assert response is not None
        assert response.usage is not None
        whole = response.usage.input_tokens
        [listed, _] = await survey(http)
        place = f"/api/conversations/{listed['id']}/compact"
        assert (await http.post(place)).json()["digest"]
        for stored in (False, True):
            later = await client.responses.create(
                model="scripted/sailor",
                input="And now?",
                previous_response_id=response.id,
                store=stored,
            )
            assert later.usage is not None
            assert later.usage.input_tokens < whole * 0.7
        assert len(await survey(http)) == 2


async def test_the_digest_of_a_turn_that_failed_stays(served: Served) -> None:
    said: list[dict[str, str]] = []
    async with served.http() as http:
        await chat(http, "failing", said, 6)
        [listed] = await survey(http)
        before = await read_messages(http, listed["id"])
        history = [*said, {"role": "user", "content": "x" * 1_500}]
        body = {"model": "scripted/failing", "messages": history}
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 502
        after = await read_messages(http, listed["id"])
    assert after[: len(before)] == before
    assert [one["role"] for one in after[len(before) :]] == ["digest"]
