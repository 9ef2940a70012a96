"""Anthropic's Messages, on the server's side: replies, counts of tokens, the list of models.

Source: the types of anthropic 2.12.0 and https://platform.claude.com/docs/en/api/errors (2026-11).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

from vibe_llms.messages.canisters import StopReason, SupervisorCanister, Usage
from vibe_llms.testing.listening import HttpAnswer, ReceivedRequest
from vibe_llms.testing.wires.anthropic_messages import MessagesReader, WireMessage, read_texts, sign
from vibe_llms.testing.wires.anthropic_replies import (
    Events,
    begin,
    describe,
    end,
    text_block,
    thinking_block,
    tool_block,
)
from vibe_llms.testing.wires.core import (
    AskedReply,
    Catalogue,
    RefusedRequest,
    ScriptedFailure,
    answer_json,
    convert,
    decode,
    encode_event,
    estimate_tokens,
    label,
    parse_arguments,
    produce_invoker,
)

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
MODELS = "/v1/models"
STOP_REASONS: dict[str, str] = {
    StopReason.FINISHED: "end_turn",
    StopReason.INVOCATIONS: "tool_use",
    StopReason.LENGTH: "max_tokens",
    StopReason.REFUSED: "refusal",
    StopReason.PAUSED: "pause_turn",
}
#: Status and type of each error of a script.
ERRORS = {
    "refused": (400, "invalid_request_error"),
    "context-overflow": (400, "invalid_request_error"),
    "credential-refused": (401, "authentication_error"),
    "payment-required": (402, "billing_error"),
    "model-unavailable": (404, "not_found_error"),
    "too-large": (413, "request_too_large"),
    "rate-limited": (429, "rate_limit_error"),
    "overloaded": (529, "overloaded_error"),
}
_TYPES = {
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    500: "api_error",
    504: "timeout_error",
}
_HEADERS = {"request-id": "req_fake"}


class _Tool(Struct):
    name: str
    description: str = ""
    input_schema: dict[str, Any] | None = None


class _Body(Struct):
    model: str
    messages: list[WireMessage]
    system: str | list[dict[str, Any]] = ""
    tools: list[_Tool] = []
    stream: bool | None = False
    max_tokens: int | None = None


class AnthropicWire:
    """The interface whose requests have the header `anthropic-version`."""

    name = "anthropic"

    def claims(self, request: ReceivedRequest) -> bool:
        """Return True if the request has Anthropic's headers, or its path."""
        return (
            "anthropic-version" in request.headers
            or "x-api-key" in request.headers
            or urlsplit(request.path).path.startswith(MESSAGES)
        )

    def authorize(self, request: ReceivedRequest, key: str) -> None:
        """Check the key in `authorization` or `x-api-key`."""
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        given = bearer or request.headers.get("x-api-key", "")
        if not given:
            raise RefusedRequest("x-api-key header is required", error="credential-refused")
        if given != key:
            raise RefusedRequest("invalid x-api-key", error="credential-refused")
        if "anthropic-version" not in request.headers:
            raise RefusedRequest("anthropic-version: header is required")

    def asks(self, request: ReceivedRequest) -> bool:
        """Return True if the request asks for a message."""
        return request.method == "POST" and urlsplit(request.path).path == MESSAGES

    def read(self, request: ReceivedRequest) -> AskedReply:
        """Return the conversation of a request."""
        body = decode(request)
        typed = convert(body, _Body)
        if _is_counted(request):
            pass
        elif typed.max_tokens is None:
            raise RefusedRequest("max_tokens: Field required")
        elif typed.max_tokens < 1:
            raise RefusedRequest("max_tokens: Input should be greater than or equal to 1")
        if not typed.messages:
            raise RefusedRequest("messages: at least one message is required")
        reader = MessagesReader(typed.model)
        if typed.system:
            reader.canisters.append(SupervisorCanister(contents=read_texts(typed.system, "system")))
        for index, message in enumerate(typed.messages):
            reader.add(message, f"messages.{index}")
        reader.conclude()
        return AskedReply(
            interface=self.name,
            model=typed.model,
            canisters=tuple(reader.canisters),
            invokers=tuple(
                produce_invoker(tool.name, tool.description, tool.input_schema or {})
                for tool in typed.tools
            ),
            streaming=bool(typed.stream),
            body=body,
            label=label(request),
        )

    def narrate(self, asked: AskedReply, usage: Usage) -> _Narrator:
        """Return the narrator of a message."""
        return _Narrator(asked, usage)

    def answer(self, request: ReceivedRequest, catalogue: Catalogue) -> HttpAnswer:
        """Answer with a count of tokens, the list of models, or one of them."""
        address = urlsplit(request.path)
        if request.method == "POST" and address.path == COUNT:
            asked = self.read(request)
            catalogue.require(asked.model)
            count = estimate_tokens(asked.canisters, asked.invokers)
            return answer_json({"input_tokens": count}, headers=_HEADERS)
        if request.method == "GET" and address.path == MODELS:
            return _list_models(catalogue.models, parse_qs(address.query))
        if request.method == "GET" and address.path.startswith(f"{MODELS}/"):
            name = address.path.removeprefix(f"{MODELS}/")
            catalogue.require(name)
            return answer_json(_list(name), headers=_HEADERS)
        raise RefusedRequest(f"Not found: {address.path}", status=404)

    def refuse(self, failure: ScriptedFailure) -> HttpAnswer:
        """Return an error object, with the status of its type."""
        status, kind, message = _name(failure)
        error = {"type": kind, "message": message}
        body = {"type": "error", "error": error, "request_id": _HEADERS["request-id"]}
        return answer_json(body, status=status, headers=_HEADERS)


class _Narrator:
    headers: Mapping[str, str] = {"content-type": "text/event-stream; charset=utf-8", **_HEADERS}

    def __init__(self, asked: AskedReply, usage: Usage) -> None:
        self._asked = asked
        self._usage = usage
        self._content: list[dict[str, Any]] = []
        self._arguments: dict[int, Sequence[str]] = {}

    def begin(self) -> Iterable[bytes]:
        """Return the empty message, and a ping."""
        return self._encode(
            begin(identity=self._identity, model=self._asked.model, usage=self._count(1))
        )

    def say(self, chunks: Sequence[str], *, reasoning: bool) -> Iterable[bytes]:
        """Return a block of text, or of thinking with its signature."""
        text, index = "".join(chunks), len(self._content)
        if not reasoning:
            self._content.append({"type": "text", "text": text})
            return self._encode(text_block(index, *chunks))
        signature = sign(self._asked.model, text)
        self._content.append({"type": "thinking", "thinking": text, "signature": signature})
        return self._encode(thinking_block(index, *chunks, signature=signature))

    def call(self, name: str, pieces: Sequence[str]) -> Iterable[bytes]:
        """Return a block of the type `tool_use`."""
        index = len(self._content)
        self._arguments[index] = pieces
        call = self._asked.name_call("toolu_", index)
        self._content.append({"type": "tool_use", "id": call, "name": name})
        return self._encode(tool_block(index, name, "", *pieces, call=call))

    def fail(self, failure: ScriptedFailure) -> Iterable[bytes]:
        """Return an event of the type `error`."""
        if failure.error == "malformed":
            return [b'event: content_block_delta\ndata: {"type":"content_block_\n\n']
        _, kind, message = _name(failure)
        return self._encode([{"type": "error", "error": {"type": kind, "message": message}}])

    def end(self, reason: str) -> Iterable[bytes]:
        """Return the stop reason and the usage."""
        return self._encode(end(STOP_REASONS.get(reason, reason), self._count()))

    def whole(self, reason: str) -> Any:
        """Return the message."""
        content = [
            {**item, "input": parse_arguments(self._arguments[index])}
            if index in self._arguments
            else item
            for index, item in enumerate(self._content)
        ]
        native = STOP_REASONS.get(reason, reason)
        return describe(self._identity, self._asked.model, content, native, self._count())

    @property
    def _identity(self) -> str:
        return f"msg_{self._asked.label}"

    def _encode(self, events: Events) -> Iterable[bytes]:
        return map(encode_event, events)

    def _count(self, output: int | None = None) -> dict[str, Any]:
        usage = self._usage
        whole = usage.output_tokens + usage.reasoning_tokens
        return {
            "input_tokens": usage.uncached_input_tokens,
            "cache_creation_input_tokens": usage.cache_write_tokens,
            "cache_read_input_tokens": usage.cache_read_tokens,
            "output_tokens": whole if output is None else output,
            "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        }


def _name(failure: ScriptedFailure) -> tuple[int, str, str]:
    """Return the status, type and message of an error."""
    status, kind = ERRORS.get(failure.error, (500, "api_error"))
    if failure.status is not None and failure.status != status:
        status = failure.status
        kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    words = failure.message
    if failure.error == "context-overflow":
        words = f"prompt is too long: 208310 tokens > 200000 maximum ({words})"
    return status, kind, words


def _list_models(models: Sequence[str], query: Mapping[str, Sequence[str]]) -> HttpAnswer:
    start = 0
    if (after := query.get("after_id", [""])[0]) in models:
        start = list(models).index(after) + 1
    limit = query.get("limit", ["20"])[0]
    page = models[start : start + (int(limit) if limit.isdecimal() else 20)]
    return answer_json(
        {
            "data": [_list(name) for name in page],
            "has_more": start + len(page) < len(models),
            "first_id": page[0] if page else None,
            "last_id": page[-1] if page else None,
        },
        headers=_HEADERS,
    )


def _list(name: str) -> dict[str, Any]:
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": "2026-01-01T00:00:00Z",
    }


def _is_counted(request: ReceivedRequest) -> bool:
    return urlsplit(request.path).path == COUNT
