"""Compares responses with the OpenAPI document of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from functools import cache
from typing import Any

import jsonschema

from vibe_llms.server.endpoints import ENDPOINTS, OTHER, match_path
from vibe_llms.server.openapi import describe_endpoints

DOCUMENT = describe_endpoints(ENDPOINTS)
FAILURE = {
    "anyOf": [
        {"$ref": "#/components/schemas/OpenAIFailure"},
        {"$ref": "#/components/schemas/AnthropicFailure"},
        {"$ref": "#/components/schemas/McpFailure"},
    ]
}
EVENTS = "text/event-stream"


class Recorded:
    """A response as the server sent it."""

    def __init__(self, method: str, path: str) -> None:
        self.method = method
        self.path = path
        self.status = 0
        self.media = ""
        self.body = bytearray()
        self.whole = False

    def take(self, message: MutableMapping[str, Any]) -> None:
        """Note a message of ASGI."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.media = dict(message["headers"]).get(b"content-type", b"").decode()
        else:
            self.body += message.get("body", b"")
            self.whole = not message.get("more_body", False)

    def compare(self) -> Iterator[str]:
        """What of it the document does not say."""
        if self.method in ("OPTIONS", "HEAD") or self.status in (0, 304) or not self.whole:
            return
        said = f"{self.method} {self.path} {self.status}"
        content = find_content(self.method, self.path, self.status)
        if self.status == 202 and not content and not self.body:
            return
        media = self.media.partition(";")[0]
        known = {name.partition(";")[0]: one for name, one in content.items()}
        if "*/*" in known:
            return
        if media not in known:
            yield f"{said}: {media} is not described"
        elif media == "application/json":
            yield from complain(said, json.loads(self.body), known[media]["schema"])
        elif media == EVENTS:
            data = known[media]["schema"]["properties"]["data"]
            kinds = data.get("anyOf", [data])
            allowed = {"anyOf": [kinds[0]["contentSchema"], FAILURE]}
            last = {one["const"] for one in kinds[1:]}
            for line in bytes(self.body).decode().splitlines():
                text = line.removeprefix("data: ")
                if text != line and text not in last:
                    yield from complain(said, json.loads(text), allowed)


def find_content(method: str, path: str, status: int) -> dict[str, Any]:
    """What the document says of the body of a response."""
    known, _ = match_path(path)
    if known == OTHER or method not in ENDPOINTS[known]:
        return {"application/json": {"schema": FAILURE}} if 400 <= status < 500 else {}
    responses = DOCUMENT["paths"][known.replace("...}", "}")][method.lower()]["responses"]
    found = responses.get(str(status)) or responses.get(f"{status // 100}XX", {"content": {}})
    content: dict[str, Any] = found["content"]
    return content


def complain(said: str, value: Any, schema: dict[str, Any]) -> Iterator[str]:
    """How a value differs from a schema."""
    for error in access_validator(json.dumps(schema)).iter_errors(value):
        yield f"{said}: {error.message} at {error.json_path}"


@cache
def access_validator(schema: str) -> jsonschema.Draft202012Validator:
    """What validates a schema, within the document."""
    whole = {**json.loads(schema), "components": DOCUMENT["components"]}
    return jsonschema.Draft202012Validator(whole)
