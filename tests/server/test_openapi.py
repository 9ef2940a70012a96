"""The OpenAPI document: it is valid, and describes what the server does."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from tests.server.conftest import Served
from tests.server.described import DOCUMENT, Recorded
from vibe_llms.server.endpoints import ENDPOINTS

SCHEMAS = DOCUMENT["components"]["schemas"]


async def test_the_document_is_served_without_a_key(served: Served) -> None:
    async with served.http() as client:
        client.headers.pop("authorization")
        response = await client.get("/api/openapi.json")
    assert response.json() == json.loads(json.dumps(DOCUMENT))


def test_the_document_has_every_endpoint_and_no_other() -> None:
    described = {
        (path, method.upper()) for path, methods in DOCUMENT["paths"].items() for method in methods
    }
    assert described == {
        (path.replace("...}", "}"), method)
        for path, methods in ENDPOINTS.items()
        for method in methods
    }
    identities = [
        one["operationId"] for methods in DOCUMENT["paths"].values() for one in methods.values()
    ]
    assert len(identities) == len({*identities})


def test_every_schema_is_valid_and_every_reference_leads_to_one() -> None:
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    assert survey_references(DOCUMENT) <= {f"#/components/schemas/{name}" for name in SCHEMAS}


def test_parameters_of_paths_are_those_of_their_operations() -> None:
    for path, methods in DOCUMENT["paths"].items():
        for operation in methods.values():
            names = [one["name"] for one in operation["parameters"] if one["in"] == "path"]
            assert names == re.findall(r"{(\w+)}", path)
            assert operation["summary"].endswith(".")


def test_requests_that_begin_a_turn_or_add_to_one_have_their_headers() -> None:
    found = {
        path: {one["name"] for one in methods["post"]["parameters"] if one["in"] == "header"}
        for path, methods in DOCUMENT["paths"].items()
        if "post" in methods
    }
    once, key = {"Idempotency-Key"}, {"X-Provider-Key"}
    assert {path: headers for path, headers in found.items() if headers} == {
        "/api/runs": once,
        "/api/runs/{run}/steer": once,
        "/openai/deployments/{agent}/chat/completions": once | key,
        "/v1/chat/completions": once | key,
        "/v1/messages": once | key,
        "/api/conversations/{conversation}/compact": key,
        "/v1/messages/count_tokens": key,
        "/v1/responses/compact": key,
        "/v1/responses": once | key,
        "/v1/responses/input_tokens": key,
    }


@pytest.mark.parametrize(
    ("status", "media", "body"),
    [
        (200, "application/json", b'{"runs": [{"id": "a"}]}'),
        (200, "text/html", b"<p>"),
        (204, "application/json", b"{}"),
        (404, "application/json", b'{"problem": "none"}'),
    ],
)
def test_a_response_that_is_not_described_is_found(status: int, media: str, body: bytes) -> None:
    recorded = Recorded("GET", "/api/runs")
    headers = [(b"content-type", media.encode())]
    recorded.take({"type": "http.response.start", "status": status, "headers": headers})
    recorded.take({"type": "http.response.body", "body": body})
    assert [*recorded.compare()] != []


def survey_references(value: Any) -> set[str]:
    """The targets of all references in a value."""
    match value:
        case {"$ref": str(target)}:
            return {target}
        case dict():
            return set().union(*map(survey_references, value.values()))
        case list():
            return set().union(*map(survey_references, value))
    return set()
