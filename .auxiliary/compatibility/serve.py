"""`vibe-llms serve` with a witness: `python serve.py REPORT [OPTION]...`

The witness makes requests answerable. The suites of OpenAI's and Anthropic's packages are written
for a server that knows the description of the interface and answers any request with its examples.
They name responses that do not exist, and leave out what a model needs. What they hold in such
places is exchanged for something real before the server reads it; see `PLACEHOLDERS`. Nothing that
the server answers is changed.

The provider of the model `upstream/thinker` runs next to it; see `thinker.py`.

It also holds every body and event of `/v1/responses` to the specification of Open Responses. The
REPORT, in JSON, is written at the end.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import openresponses_types.types as specification
from openai.types.responses import ResponseOutputItem, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter, ValidationError
from thinker import Upstream

from vibe_llms.cli.main import main
from vibe_llms.server import running
from vibe_llms.server.application import Application
from vibe_llms.server.exchanges import Receive, Scope, Send

RESPONSES = "/v1/responses"
COMPACT = f"{RESPONSES}/compact"
COMPLETIONS = "/v1/chat/completions"
#: The limits that the suite of OpenAI has as examples, which no model can keep to.
_EMPTY_LIMIT = re.compile(rb'("max_(?:completion_)?tokens"): ?0\b')
#: Identities of responses that do not exist: each is exchanged for that of a new response.
PLACEHOLDERS = (
    "response_id",
    "previous_response_id",
    "resp_123",
    "resp_677efb5139a88190b512bc3fef8e535d",
)
#: What a request of a response has no use for here: there are neither conversations beside the
#: responses, which cannot be given together with one anyway, nor prompts that are kept elsewhere.
UNKNOWN = ("conversation", "prompt")
_NAMED = re.compile(rf"(?<={RESPONSES}/)({'|'.join(PLACEHOLDERS)})(?=/|$)")
_EVENTS: Mapping[str, type[BaseModel]] = {
    str(*cast("Any", kind.model_fields["type"].annotation)): kind
    for name, kind in vars(specification).items()
    if name.endswith("StreamingEvent")
}

#: The items of the specification. OpenAI defines more of them, and more events; those are held to
#: its package.
_ITEMS = ("compaction", "function_call", "function_call_output", "message", "reasoning")
_OPENAI_ITEMS: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)
_OPENAI_EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


class Witness:
    """What was seen of the interface Responses."""

    def __init__(self) -> None:
        self.counts = {"bodies": 0, "events": 0, "errors": 0}
        self.problems: list[str] = []

    def see(self, method: str, path: str, status: int, media_type: str, body: bytes) -> None:
        """Hold the answer to a request to the specification."""
        try:
            if media_type.startswith("text/event-stream"):
                for event in _read_events(body):
                    self._see_event(event)
            elif status >= 400:
                specification.ErrorPayload.model_validate(json.loads(body)["error"])
                self.counts["errors"] += 1
            elif path == COMPACT:
                specification.CompactResource.model_validate(json.loads(body))
                self.counts["bodies"] += 1
            elif method != "DELETE" and not path.endswith(("/input_items", "/input_tokens")):
                _check_response(json.loads(body))
                self.counts["bodies"] += 1
        except (ValidationError, KeyError) as error:
            self.problems.append(f"{method} {path}: {error}")

    def _see_event(self, event: dict[str, Any]) -> None:
        self.counts["events"] += 1
        if event["type"].startswith("x:") or _is_ours(event.get("item", {})):
            return
        if event["type"] not in _EVENTS or not _is_standard(event.get("item", {})):
            _OPENAI_EVENTS.validate_python(event)
            return
        if "response" in event:
            _check_response(event["response"])
            event = {**event, "response": _leave_ours_out(event["response"])}
        _EVENTS[event["type"]].model_validate(event)


def _read_events(body: bytes) -> Iterator[dict[str, Any]]:
    for line in body.decode().splitlines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def _check_response(response: dict[str, Any]) -> None:
    for item in response["output"]:
        if not (_is_ours(item) or _is_standard(item)):
            _OPENAI_ITEMS.validate_python(item)
    specification.ResponseResource.model_validate(_leave_ours_out(response))


def _leave_ours_out(response: dict[str, Any]) -> dict[str, Any]:
    """A response without the items that extend the specification, whose types begin with `x:`.

    Items and tools that OpenAI alone defines go too. The schema of a reply goes as well: the
    specification says that it is null, and OpenAI's clients require it.
    """
    form = {**response["text"]["format"]}
    if "schema" in form:
        form["schema"] = None
    output = [item for item in response["output"] if _is_standard(item)]
    tools = [tool for tool in response["tools"] if tool.get("type") == "function"]
    text = {**response["text"], "format": form}
    return {**response, "output": output, "tools": tools, "text": text}


def _is_standard(item: Mapping[str, Any]) -> bool:
    return item.get("type") in {None, *_ITEMS}


def _is_ours(item: Mapping[str, Any]) -> bool:
    return str(item.get("type", "")).startswith("x:")


WITNESS = Witness()


class WatchedApplication(Application):
    """The application behind the witness."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http" and (scope["method"], scope["path"]) == ("POST", COMPLETIONS):
            body = _EMPTY_LIMIT.sub(rb"\1:1000", await _read(receive))
            scope, receive = _give(scope, receive, body)
        if scope["type"] != "http" or not scope["path"].startswith(RESPONSES):
            await super().__call__(scope, receive, send)
            return
        if _NAMED.search(scope["path"]):
            made = await self._make_response(scope)
            scope = {**scope, "path": _NAMED.sub(made, scope["path"])}
        elif scope["path"] in (RESPONSES, COMPACT) and scope["method"] == "POST":
            body = await self._exchange(scope, await _read(receive))
            scope, receive = _give(scope, receive, body)
        status, media_type, seen = 0, "", bytearray()

        async def watch(message: Any) -> None:
            nonlocal status, media_type
            if message["type"] == "http.response.start":
                status = message["status"]
                media_type = dict(message["headers"]).get(b"content-type", b"").decode()
            seen.extend(message.get("body", b""))
            await send(message)

        await super().__call__(scope, receive, watch)
        # A stream that the client has left may end within an event.
        whole = bytes(seen).rpartition(b"\n\n")[0] if "event-stream" in media_type else bytes(seen)
        if status:
            WITNESS.see(scope["method"], scope["path"], status, media_type, whole)

    async def _exchange(self, scope: Scope, body: bytes) -> bytes:
        """The body of a request with something real in place of what is not."""
        request = json.loads(body)
        for name in UNKNOWN:
            request.pop(name, None)
        request.setdefault("input", "string")
        if request.get("previous_response_id") in PLACEHOLDERS:
            request["previous_response_id"] = await self._make_response(scope)
        return json.dumps(request).encode()

    async def _make_response(self, scope: Scope) -> str:
        """The identity of a new response of the user who asks."""
        answered = bytearray()

        async def keep(message: Any) -> None:
            answered.extend(message.get("body", b""))

        path = {"method": "POST", "path": RESPONSES, "query_string": b""}
        given = _give({**scope, **path}, _wait_forever, b'{"input": "string"}')
        await super().__call__(*given, keep)
        return str(json.loads(answered)["id"])


async def _read(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


def _give(scope: Scope, receive: Receive, body: bytes) -> tuple[Scope, Receive]:
    """A request with another body."""
    given = False

    async def give() -> Mapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body}

    headers = [pair for pair in scope["headers"] if pair[0] != b"content-length"]
    length = (b"content-length", str(len(body)).encode())
    return {**scope, "headers": [*headers, length]}, give


async def _wait_forever() -> Mapping[str, Any]:
    import asyncio

    await asyncio.Event().wait()
    raise AssertionError


if __name__ == "__main__":
    report, sys.argv[1:] = Path(sys.argv[1]), ["serve", *sys.argv[2:]]
    vars(running)["Application"] = WatchedApplication
    try:
        with Upstream() as upstream:
            os.environ["VIBE_LLMS_PROVIDERS__UPSTREAM__BASE_URL"] = upstream.openai_url
            os.environ["UPSTREAM_API_KEY"] = upstream.key
            main()
    finally:
        report.write_text(json.dumps({"counts": WITNESS.counts, "problems": WITNESS.problems}))
