"""Errors in the form of the interface that a client speaks, from a real server."""

from __future__ import annotations

import anthropic
import msgspec
import pytest

from tests.server.conftest import Served
from vibe_llms.server.dialects import ANTHROPIC, OPENAI
from vibe_llms.server.failures import Failure


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
    failure = Failure(status=status, message="no", code="c", param="messages[0]")
    event = ANTHROPIC.write_failure(failure, "req_1")
    head, _, data = event.partition(b"\n")
    assert head == b"event: error"
    assert msgspec.json.decode(data.removeprefix(b"data: ").strip()) == {
        "type": "error",
        "error": {"type": kind, "message": "messages[0]: no", "details": {"error_code": "c"}},
        "request_id": "req_1",
    }


def test_openais_clients_get_their_form() -> None:
    failure = Failure(status=400, message="no", code="c", param="messages[0]")
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
