"""Errors in the form of the interface that a client speaks, from a real server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import pytest

from tests.server.conftest import Served, serving
from vibe_llms.server.dialects import ANTHROPIC, OPENAI
from vibe_llms.server.failures import ClientFailure


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (409, "conflict_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_a_status_has_its_word_for_anthropics_clients(status: int, kind: str) -> None:
    failure = ClientFailure(status=status, message="no", code="c", param="messages[0]")
    event = ANTHROPIC.write_failure(failure, "req_1")
    head, _, data = event.partition(b"\n")
    assert head == b"event: error"
    assert msgspec.json.decode(data.removeprefix(b"data: ").strip()) == {
        "type": "error",
        "error": {"type": kind, "message": "messages[0]: no", "details": {"error_code": "c"}},
        "request_id": "req_1",
    }


def test_openais_clients_get_their_form() -> None:
    failure = ClientFailure(status=400, message="no", code="c", param="messages[0]")
    event = OPENAI.write_failure(failure, "req_1")
    assert event == (
        b'data: {"error":{"message":"no","type":"invalid_request_error",'
        b'"param":"messages[0]","code":"c"}}\n\n'
    )


async def test_unknown_paths_and_keys_are_refused_in_the_dialect_of_the_path(
    served: Served,
) -> None:
    async with served.http() as client:
        unknown = await client.get("/v1/messages/none")
        other = await client.get("/v1/messagesnone")
        wrong = await client.post("/v1/messages", headers={"authorization": "Bearer x"})
        versioned = await client.get("/v1/none", headers={"anthropic-version": "2026-10-21"})
    for response, status, kind in (
        (unknown, 404, "not_found_error"),
        (wrong, 401, "authentication_error"),
        (versioned, 404, "not_found_error"),
    ):
        assert response.status_code == status
        assert response.json()["type"] == "error"
        assert response.json()["error"]["type"] == kind
        assert response.json()["request_id"] == response.headers["request-id"]
    assert other.json()["error"]["code"] == "unknown_url"
    assert other.headers["x-request-id"].startswith("req_")


async def test_the_official_client_reads_an_error(served: Served) -> None:
    async with anthropic.AsyncAnthropic(
        api_key="wrong", base_url=served.url, max_retries=0
    ) as client:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            await client.models.list()
    assert (caught.value.type, caught.value.error_code) == (
        "authentication_error",
        "invalid_api_key",
    )
    assert caught.value.request_id


async def test_a_stream_that_takes_too_long_ends_with_an_error_of_its_dialect(home: Path) -> None:
    home.mkdir()
    (home / "slow.toml").write_text("[[replies]]\nparts = [{ text = 'begin' }, { stall = true }]\n")
    rows = {"scripted": {"scripts": {"slow": str(home / "slow.toml")}}}
    said = {"messages": [{"role": "user", "content": "Hello"}]}
    bodies: dict[str, Any] = {
        "/v1/chat/completions": said,
        "/v1/messages": {"max_tokens": 9, **said},
        "/v1/responses": {"input": "Hello", "store": False},
    }
    async with (
        serving(home, server={"turn-seconds": 3}, providers=rows) as served,
        served.http() as http,
    ):

        async def ask(path: str, **headers: str) -> list[dict[str, Any]]:
            body = {"model": "scripted/slow", "stream": True, **bodies[path]}
            text = (await http.post(path, json=body, headers=headers)).text
            data = [line.removeprefix("data: ") for line in text.splitlines()]
            return [json.loads(line) for line in data if line.startswith("{")]

        chat, messages, responses, repeatable = await asyncio.gather(
            *map(ask, bodies), ask("/v1/chat/completions", **{"idempotency-key": "1"})
        )
        (run,) = (await http.get("/api/runs")).json()["runs"]
        await http.post(f"/api/runs/{run['id']}/cancel")
    for events in (chat, repeatable):
        assert "begin" in str(events[:-1])
        assert events[-1]["error"]["code"] == "turn_timeout"
    assert messages[-1]["error"]["type"] == "timeout_error"
    assert responses[-1]["type"] == "response.failed"
    assert "turn-seconds" in responses[-1]["response"]["error"]["message"]
    # Only its client has stopped waiting for it.
    assert run["status"] == "running"
