"""The OpenAPI document: all endpoints, described by the types that they read and write."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from vibe_llms.base.meta import __version__
from vibe_llms.server.dialects import AnthropicFailure, OpenAIFailure
from vibe_llms.server.forms import FORM
from vibe_llms.server.operations import ANY, JSON, ApiOperation, ServerEndpoint, UserEndpoint

Endpoints: TypeAlias = Mapping[str, Mapping[str, ApiOperation]]
Json: TypeAlias = dict[str, Any]

_EVENTS = "text/event-stream"
_PARAMETER = re.compile(r"\{(\w+)(?:\.\.\.)?\}")
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "api-key": {"type": "apiKey", "in": "header", "name": "api-key"},
}
_FAILURES = (OpenAIFailure, AnthropicFailure)
_ABOUT = (
    "Conversations, memory, files and runs of a user, below `/api`, and the interfaces of OpenAI "
    "and Anthropic, below `/v1`. Replies of those are described where they were first defined."
)


def encode_document(endpoints: Endpoints) -> bytes:
    """Encode the OpenAPI document as JSON."""
    return msgspec.json.encode(describe_endpoints(endpoints))


def describe_endpoints(endpoints: Endpoints) -> Json:
    """Return the OpenAPI document."""
    every = [one for methods in endpoints.values() for one in methods.values()]
    types = [*dict.fromkeys(kind for one in every for kind in _survey_types(one)), *_FAILURES]
    found, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    schemas = dict(zip(types, found, strict=True))
    # Members of a query become parameters instead of schemas.
    queries = {
        kind: components.pop(schemas[kind]["$ref"].rpartition("/")[2])
        for kind in types
        if kind in {one.query for one in every}
    }
    paths = {
        _PARAMETER.sub(r"{\1}", path): {
            method.lower(): {
                **_describe(one, schemas),
                "parameters": [
                    *_describe_path(path),
                    *_describe_query(queries.get(one.query, {})),
                    *_describe_headers(one.headers),
                ],
            }
            for method, one in methods.items()
        }
        for path, methods in endpoints.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "vibe-llms", "version": __version__, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "security": [{name: []} for name in _KEYS],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _KEYS},
    }


def _survey_types(endpoint: ApiOperation) -> Iterator[Any]:
    one = endpoint
    for kind in (one.query, one.body, one.form, one.reply, one.events, one.failure):
        if kind is not None and kind is not bytes:
            yield kind


def _describe(endpoint: ApiOperation, schemas: Mapping[Any, Json]) -> Json:
    assert isinstance(endpoint, UserEndpoint | ServerEndpoint)
    kinds = [endpoint.failure] if endpoint.failure is not None else _FAILURES
    failure = _write_content(JSON, {"anyOf": [schemas[kind] for kind in kinds]})
    summary, _, rest = (inspect.getdoc(endpoint.handler) or "").partition("\n")
    described: Json = {
        "operationId": endpoint.handler.__name__,
        "summary": summary.strip(),
        "responses": {
            str(endpoint.status): {
                "description": "The request succeeded.",
                "content": _describe_reply(endpoint, schemas),
            },
            "4XX": {"description": "The request was refused.", "content": failure},
            "5XX": {"description": "The server or a provider failed.", "content": failure},
        },
    }
    if endpoint.acknowledges:
        described["responses"]["202"] = {"description": "The message was received.", "content": {}}
    if endpoint.ranges:
        part = {"description": "The part that was requested.", "content": _write_content(ANY, {})}
        described["responses"]["206"] = part
    if rest.strip():
        described["description"] = rest.strip()
    if isinstance(endpoint, ServerEndpoint) and endpoint.keyless:
        described["security"] = []
    if endpoint.body is bytes:
        described["requestBody"] = {"required": True, "content": _write_content(ANY, {})}
    elif endpoint.form is not None:
        content = _write_content(FORM, schemas[endpoint.form])
        described["requestBody"] = {"required": True, "content": content}
    elif endpoint.body is not None:
        content = _write_content(JSON, schemas[endpoint.body])
        described["requestBody"] = {"required": True, "content": content}
    return described


def _describe_reply(endpoint: ApiOperation, schemas: Mapping[Any, Json]) -> Json:
    content: Json = {}
    if endpoint.reply is not None:
        content |= _write_content(JSON, schemas[endpoint.reply])
    elif endpoint.events is None:
        content |= _write_content(endpoint.media, {})
    if endpoint.events is not None:
        # Before OpenAPI 3.2, tools take the schema of a stream as that of each event.
        data: Json = {
            "type": "string",
            "contentMediaType": JSON,
            "contentSchema": schemas[endpoint.events],
        }
        if endpoint.last:
            data = {"anyOf": [data, {"const": endpoint.last}]}
        members = {"id": {"type": "string"}, "event": {"type": "string"}, "data": data}
        event = {"type": "object", "properties": members, "required": ["data"]}
        content |= _write_content(_EVENTS, event)
    return content


def _describe_path(path: str) -> Iterator[Json]:
    for name in _PARAMETER.findall(path):
        schema = {"type": "string", "minLength": 1}
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _describe_query(query: Json) -> Iterator[Json]:
    for name, schema in query.get("properties", {}).items():
        required = name in query.get("required", ())
        yield {"name": name, "in": "query", "required": required, "schema": schema}


def _describe_headers(headers: Mapping[str, str]) -> Iterator[Json]:
    for name, about in headers.items():
        yield {
            "name": name,
            "in": "header",
            "required": False,
            "description": about,
            "schema": {"type": "string"},
        }


def _write_content(media: str, schema: Json) -> Json:
    return {media: {"schema": schema}}
