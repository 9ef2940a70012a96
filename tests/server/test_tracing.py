"""The spans of served requests: within the client's, and around those of their turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from tests.server.conftest import Served, serving
from tests.server.test_api_runs import SCRIPT, wait_for
from tests.test_telemetry import CONVERSATION, Recording, of
from vibe_llms.server import core

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {
    "model": "scripted/demo",
    "messages": [{"role": "user", "content": "Hello"}],
}
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Recording:
    """What a server records whose configuration enables telemetry."""
    recording = Recording()
    monkeypatch.setattr(core, "produce_tracer", lambda _: recording.tracer)
    return recording


@pytest.fixture
async def traced(home: Path, recording: Recording) -> AsyncIterator[Served]:
    async with serving(home, telemetry={"enabled": True}) as server:
        yield server


@pytest.mark.parametrize("stream", [False, True])
async def test_the_span_of_a_turn_lies_within_that_of_its_request(
    traced: Served, recording: Recording, stream: bool
) -> None:
    async with traced.http() as client:
        await client.post(CHAT, json={**HELLO, "stream": stream})
    await recording.settle()
    assert recording.tree == [
        f"POST {CHAT}",
        f"POST {CHAT} > invoke_agent",
        f"POST {CHAT} > invoke_agent > chat demo",
        f"POST {CHAT} > invoke_agent > chat demo > attempt",
    ]
    (conversation,) = {of(span)[CONVERSATION] for span in recording.spans}
    async with traced.session() as session:
        (stored,) = await session.survey_conversations()
    assert stored.identity == conversation
    served = recording.one(f"POST {CHAT}")
    assert served.kind is SpanKind.SERVER
    assert of(served)["http.route"] == CHAT
    assert of(served)["http.response.status_code"] == 200


async def test_the_span_of_a_client_is_continued(traced: Served, recording: Recording) -> None:
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1"}
    async with traced.http() as client:
        await client.post(CHAT, json=HELLO, headers=headers)
        await client.get("/v1/models/none", headers={"traceparent": "nonsense"})
    await recording.settle()
    first, *_, last = recording.spans
    assert first.context is not None
    assert first.parent is not None
    assert f"{first.parent.span_id:016x}" == SPAN
    assert {f"{one.context.trace_id:032x}" for one in recording.spans[:4] if one.context} == {TRACE}
    assert first.context.trace_state.get("vendor") == "1"
    assert last.name == "GET /v1/models/{model...}"
    assert last.parent is None


async def test_a_stored_response_lies_within_the_request_that_began_it(
    traced: Served, recording: Recording
) -> None:
    async with traced.http() as client:
        body = {"model": "scripted/demo", "input": "Hello", "background": True}
        for _ in range(2):
            identity = (await client.post("/v1/responses", json=body)).json()["id"]
            path = f"/v1/responses/{identity}"
            async with asyncio.timeout(30):
                while (await client.get(path)).json()["status"] != "completed":
                    await asyncio.sleep(0.01)
    await recording.settle()
    spans = zip(recording.spans, recording.tree, strict=True)
    turns = [one for one, path in spans if path == "POST /v1/responses > invoke_agent"]
    assert len({one.context.trace_id for one in turns if one.context}) == 2
    assert "POST /v1/responses > invoke_agent > chat demo > attempt" in recording.tree
    assert "GET /v1/responses/{response}" in recording.tree
    assert not any("GET /v1/responses/{response} > invoke_agent" in one for one in recording.tree)


async def test_a_response_that_waits_for_room_lies_within_the_request_that_began_it(
    home: Path, recording: Recording
) -> None:
    home.mkdir()
    (home / "stall.toml").write_text("[[replies]]\nparts = [{ stall = true }]\n")
    scripts = {"scripts": {"stall": str(home / "stall.toml")}}
    tables: dict[str, Any] = {
        "server": {"parallel-runs": 1},
        "providers": {"scripted": scripts},
        "telemetry": {"enabled": True},
    }
    async with serving(home, **tables) as served, served.http() as client:

        async def begin(model: str, span: str) -> str:
            body = {"model": model, "input": "Hello", "background": True}
            headers = {"traceparent": f"00-{TRACE}-{span}-01"}
            return str(
                (await client.post("/v1/responses", json=body, headers=headers)).json()["id"]
            )

        first = await begin("scripted/stall", "0" * 15 + "1")
        waiting = [await begin("scripted/demo", "0" * 15 + number) for number in "23"]
        for identity in waiting:
            shown = (await client.get(f"/v1/responses/{identity}")).json()
            assert shown["status"] == "queued"
        await client.post(f"/v1/responses/{first}/cancel")
        async with asyncio.timeout(30):
            for identity in waiting:
                while (await client.get(f"/v1/responses/{identity}")).json()["status"] == "queued":
                    await asyncio.sleep(0.01)
    # Each turn lies within its own request, which lies within the span of its client.
    spans = {one.context.span_id: one for one in recording.spans if one.context}
    turns = [one for one in recording.spans if one.name == "invoke_agent"]
    requests = [spans[one.parent.span_id] for one in turns if one.parent]
    assert {one.name for one in requests} == {"POST /v1/responses"}
    clients = [one.parent.span_id for one in requests if one.parent]
    assert sorted(clients) == [1, 2, 3]


async def test_a_server_that_continues_a_run_continues_the_trace_of_its_request(
    home: Path, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    begins = "[[replies]]\n[[replies.parts]]\ntext = 'It is '\n"
    (home / "stall.toml").write_text(f"{begins}[[replies.parts]]\nstall = true\n")
    (home / "talk.toml").write_text(f"{begins}[[replies.parts]]\ntext = 'done.'\n")

    def tables(script: str) -> dict[str, Any]:
        scripted = {"scripts": {"talk": str(home / f"{script}.toml")}}
        return {
            "server": {"shutdown-seconds": 0.2},
            "providers": {"scripted": scripted},
            "telemetry": {"enabled": True},
        }

    async with serving(home, **tables("stall")) as served, served.http() as client:
        body = {"model": "scripted/talk", "prompt": "x"}
        run = (await client.post("/api/runs", json=body)).json()["id"]
    continued = Recording()
    monkeypatch.setattr(core, "produce_tracer", lambda _: continued.tracer)
    async with serving(home, **tables("talk")) as another:
        another.keys |= served.keys
        async with another.http() as client:
            await wait_for(client, run, "completed")
    turn = continued.one("invoke_agent")
    request = recording.one("POST /api/runs").context
    assert turn.parent
    assert request
    assert (turn.parent.trace_id, turn.parent.span_id) == (request.trace_id, request.span_id)


async def test_each_span_about_a_run_has_its_conversation(home: Path, recording: Recording) -> None:
    home.mkdir()
    (home / "keeper.toml").write_text(SCRIPT)
    tables: dict[str, Any] = {
        "providers": {"scripted": {"scripts": {"keeper": str(home / "keeper.toml")}}},
        "agents": {"keeper": {"model": "scripted/keeper", "ensembles": ["memory"]}},
        "telemetry": {"enabled": True},
    }
    async with serving(home, **tables) as served, served.http() as client:
        body = {"model": "keeper", "prompt": "x"}
        run = (await client.post("/api/runs", json=body)).json()
        path = f"/api/runs/{run['id']}"
        await wait_for(client, run["id"], "waiting")
        (call,) = (await client.get(path)).json()["approvals"]
        decision = {"invocation": call["invocation"], "allowed": True}
        await client.post(f"{path}/decide", json=decision)
        await client.get(f"{path}/events")
        await client.get(f"/api/conversations/{run['conversation']}")
        await client.get("/api/conversations/none")
    *known, unknown = recording.spans
    assert {of(one).get(CONVERSATION) for one in known} == {run["conversation"]}
    assert CONVERSATION not in of(unknown)
    # What goes on because of a decision lies within the request that made it.
    assert "POST /api/runs > invoke_agent keeper" in recording.tree
    assert "POST /api/runs/{run}/decide > invoke_agent keeper" in recording.tree


async def test_a_failed_request_says_its_status_and_nothing_of_its_content(
    home: Path, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(home, telemetry={"enabled": True}, budgets={"tokens": 1}) as served:

        def fail(*_: object) -> None:
            raise RuntimeError("the horse of Troy")

        async with served.http() as client:
            assert (await client.post(CHAT, json=HELLO)).status_code == 429
            monkeypatch.setattr("vibe_llms.server.turns.check_calls", fail)
            assert (await client.post(CHAT, json=HELLO)).status_code == 500
    refused, failed = (one for one in recording.spans if one.name == f"POST {CHAT}")
    assert refused.status.status_code is StatusCode.UNSET
    assert (failed.status.status_code, of(failed)["error.type"]) == (StatusCode.ERROR, "500")
    assert all("horse" not in str(one.to_json()) for one in recording.spans)
