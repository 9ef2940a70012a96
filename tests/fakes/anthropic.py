"""A strict fake of Anthropic's Messages interface.

Every request is validated with the official package's own request types, nothing besides them being
allowed at any depth, and then with the rules that the real server is known to enforce: roles,
answered calls, untouched thinking, no empty text, where system text may be, how many cache marks
there may be. What breaks one is answered with 400 and remembered in `refusals`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qs, urlsplit

from anthropic.types.content_block_param import ContentBlockParam
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import (
    MessageCreateParamsNonStreaming,
    MessageCreateParamsStreaming,
)
from anthropic.types.text_block_param import TextBlockParam
from anthropic.types.tool_union_param import ToolUnionParam

from tests.fakes import strict
from tests.fakes.server import HttpAnswer, ReceivedRequest
from tests.fakes.strict import Events, Refused, StrictServer, decode, dump, encode_event, validate
from vibe_llms.testing.wires.anthropic_replies import (
    text_reply,
)

VERSION = "2026-10-21"
KEY = "sk-ant-test-0123456789abcdefghijklmnop"
_LONGEST_REQUEST = 32_000_000
_LONGEST_TITLE = 500
_MOST_CACHE_MARKS = 4
_SMALLEST_BUDGET = 1024
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_THINKING = ("thinking", "redacted_thinking")


@dataclass
class Issued:
    """What a server has said and recognises when it is sent back.

    `signatures` are the signatures and data of thinking, with the model and the words that they
    cover; `blocks` are all blocks; `pauses` are the last blocks of replies that paused.
    """

    signatures: dict[str, str] = field(default_factory=dict)
    blocks: set[str] = field(default_factory=set)
    pauses: set[str] = field(default_factory=set)

    def remember(self, content: Sequence[Mapping[str, Any]], model: str, reason: str = "") -> None:
        for item in content:
            self.blocks.add(dump(item))
            if item["type"] == "thinking":
                self.signatures[item["signature"]] = dump([model, item["thinking"]])
            elif item["type"] == "redacted_thinking":
                self.signatures[item["data"]] = dump([model, ""])
        if reason == "pause_turn":
            self.pauses.add(dump(content[-1]))


class FakeAnthropic(StrictServer):
    """The server; the list of models comes in pages of `page_size`."""

    def __init__(self, *, key: str = KEY) -> None:
        super().__init__(key)
        self.issued = Issued()
        self.accepts_system_messages = True
        self.count: Any = 7
        self.models: Sequence[Mapping[str, Any]] = ()
        self.page_size = 1000

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        if request.headers.get("authorization") != f"Bearer {self.key}":
            return failure(401, "authentication_error", "invalid x-api-key")
        if request.headers.get("anthropic-version") != VERSION:
            return failure(400, "invalid_request_error", "anthropic-version: unknown")
        address = urlsplit(request.path)
        if address.path == "/v1/models":
            return self._list_models(parse_qs(address.query))
        if address.path not in ("/v1/messages", "/v1/messages/count_tokens"):
            return failure(404, "not_found_error", f"no {address.path}")
        if len(request.body) > _LONGEST_REQUEST:
            return failure(413, "request_too_large", "Request exceeds the maximum size")
        try:
            check_request(request, self.issued, system_messages=self.accepts_system_messages)
        except Refused as error:
            self.refusals.append(str(error))
            return failure(400, "invalid_request_error", str(error))
        if address.path == "/v1/messages/count_tokens":
            if isinstance(self.count, HttpAnswer):
                return self.count
            return answer_json({"input_tokens": self.count})
        reply = self.next_reply(request, lambda: text_reply("Hello."))
        if isinstance(reply, HttpAnswer):
            return reply
        message = accumulate(reply)
        self.issued.remember(message["content"], request.json["model"], message["stop_reason"])
        if request.json.get("stream"):
            return stream(reply)
        return answer_json(message)

    def _list_models(self, query: Mapping[str, Sequence[str]]) -> HttpAnswer:
        names = [model["id"] for model in self.models]
        start = names.index(query["after_id"][0]) + 1 if "after_id" in query else 0
        size = min(self.page_size, int(query.get("limit", ["20"])[0]))
        page = self.models[start : start + size]
        return answer_json(
            {
                "data": list(page),
                "has_more": start + size < len(names),
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
            }
        )


def failure(
    status: int, kind: str, message: str = "m", *, headers: Mapping[str, str] | None = None
) -> HttpAnswer:
    """An error as the server sends it."""
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}
    answer = answer_json(body, status=status)
    answer.headers.update(headers or {})
    return answer


def answer_json(body: Any, *, status: int = 200) -> HttpAnswer:
    """A whole body, with its length."""
    return strict.answer_json(body, status=status, request_id="req_1")


def stream(events: Events, **faults: Any) -> HttpAnswer:
    """Events as a stream, each as an HTTP chunk of its own."""
    return stream_bytes([*map(encode_event, events)], **faults)


def stream_bytes(chunks: Sequence[bytes], **faults: Any) -> HttpAnswer:
    """The bytes of a stream in these chunks."""
    headers = {"content-type": "text/event-stream; charset=utf-8", "request-id": "req_1"}
    return HttpAnswer(200, headers, chunks, **faults)


def accumulate(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The whole message that the official package makes of events, as its server would send it."""
    from anthropic.lib.streaming._messages import accumulate_event

    known = {"message_start", "message_delta", "message_stop"}
    known |= {"content_block_start", "content_block_delta", "content_block_stop"}
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in events:
        if event["type"] in known:
            # Its type is that of an event already decoded; a mapping it decodes itself.
            decoded: Any = event
            snapshot = accumulate_event(event=decoded, current_snapshot=snapshot, json_bufs=buffers)
    # Blocks that the package does not know are no reason to warn.
    message: dict[str, Any] = snapshot.model_dump(exclude_unset=True, warnings=False)
    return message


def check_request(
    request: ReceivedRequest, issued: Issued, *, system_messages: bool = True
) -> None:
    """Raise `Refused` for what the real server would not accept."""
    body = _decode(request.body)
    counting = request.path == "/v1/messages/count_tokens"
    _check_types(body, issued, counting=counting)
    messages = body["messages"]
    if not messages:
        raise Refused("messages: at least one message is required")
    _check_marks(body)
    _check_tools(body)
    _check_thinking(body)
    for text in body.get("stop_sequences") or ():
        if not text.strip():
            raise Refused("stop_sequences: each stop sequence must contain non-whitespace")
    for item in body.get("system") or ():
        _check_text(item, "system")
    _check_roles(messages, issued, system_messages)
    _check_citations(messages, schema="format" in (body.get("output_config") or {}))
    calls: dict[str, None] = {}
    seen: set[str] = set()
    for index, message in enumerate(messages):
        last = index + 1 == len(messages)
        calls = _check_message(message, calls, seen, issued, body["model"])
        _check_server_tools(message, paused=last)
    if calls:
        raise Refused(f"tool_use ids were found without tool_result blocks: {list(calls)}")


def _decode(data: bytes) -> dict[str, Any]:
    # What a model wrote as arguments is its own affair.
    body = decode(data, free="input")
    if not isinstance(body.get("messages"), list):
        raise Refused("messages: Field required")
    for owner, member in ((body, "system"), *((item, "content") for item in body["messages"])):
        if isinstance(text := owner.get(member), str):
            owner[member] = [{"type": "text", "text": text}]
    return body


def _check_types(body: Mapping[str, Any], issued: Issued, *, counting: bool) -> None:
    kind: Any = MessageCreateParamsNonStreaming
    if counting:
        kind = MessageCountTokensParams
    elif body.get("stream"):
        kind = MessageCreateParamsStreaming
    validate(kind, {**body, "messages": []})
    for message in body["messages"]:
        if set(message) != {"role", "content"}:
            raise Refused(f"messages: {set(message)}: Extra inputs are not permitted")
        if message["role"] not in ("user", "assistant", "system"):
            raise Refused(f"messages: there is no role {message['role']!r}")
        if message["role"] == "system":
            validate(TextBlockParam, *message["content"])
        else:
            # What it has said itself a newer server knows better than the package installed here.
            said = message["role"] == "assistant"
            content = message["content"]
            new = [item for item in content if not (said and dump(item) in issued.blocks)]
            validate(ContentBlockParam, *new)
    validate(ToolUnionParam, *(body.get("tools") or ()))


def _blocks(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    blocks = [*(body.get("system") or ()), *(body.get("tools") or ())]
    for message in body["messages"]:
        blocks += message["content"]
    return blocks


def _check_marks(body: Mapping[str, Any]) -> None:
    marked = [item for item in _blocks(body) if item.get("cache_control")]
    if len(marked) > _MOST_CACHE_MARKS:
        raise Refused(f"A maximum of 4 blocks with cache_control may be provided: {len(marked)}")


def _check_tools(body: Mapping[str, Any]) -> None:
    tools = body.get("tools") or ()
    names = [tool["name"] for tool in tools if "name" in tool]
    for name in names:
        if not _NAME.fullmatch(name):
            raise Refused(f"tools.name: {name!r} should match '^[a-zA-Z0-9_-]{{1,64}}$'")
    if len(set(names)) != len(names):
        raise Refused("tools: Tool names must be unique.")
    choice = body.get("tool_choice")
    if choice and not tools:
        raise Refused("tool_choice may only be specified while providing tools")
    if choice and choice["type"] == "tool" and choice["name"] not in names:
        raise Refused(f"Tool {choice['name']!r} not found in provided tools")
    thinking = (body.get("thinking") or {}).get("type")
    if choice and choice["type"] in ("any", "tool") and thinking == "enabled":
        raise Refused("Thinking may not be enabled when tool_choice forces tool use.")


def _check_thinking(body: Mapping[str, Any]) -> None:
    thinking = body.get("thinking") or {}
    if thinking.get("type") != "enabled":
        return
    budget = thinking["budget_tokens"]
    if budget < _SMALLEST_BUDGET:
        raise Refused("thinking.budget_tokens: Input should be greater than or equal to 1024")
    if "max_tokens" in body and budget >= body["max_tokens"]:
        raise Refused("`max_tokens` must be greater than `thinking.budget_tokens`")
    # A run of calls and results is one turn of the assistant's, which has to begin with thinking.
    # Whether other words next to the results begin another run is not known: both are checked.
    for parted in (False, True):
        begins, calls = None, False
        for message in body["messages"]:
            kinds = {item["type"]: None for item in message["content"]}
            ends = "tool_result" not in kinds or (parted and len(kinds) > 1)
            if message["role"] == "user" and ends:
                begins = None
            elif message["role"] == "assistant":
                begins = begins or next(iter(kinds))
                calls = "tool_use" in kinds
        if calls and begins is not None and begins not in _THINKING:
            raise Refused(
                f"Expected `thinking` or `redacted_thinking`, but found `{begins}`. When "
                "`thinking` is enabled, a final `assistant` message must start with a thinking "
                "block"
            )


def _check_text(item: Mapping[str, Any], place: str) -> None:
    if not item["text"].strip():
        raise Refused(f"{place}: text content blocks must contain non-whitespace text")


def _check_roles(
    messages: Sequence[Mapping[str, Any]], issued: Issued, system_messages: bool
) -> None:
    if messages[0]["role"] != "user":
        raise Refused('messages: first message must use the "user" role')
    for before, after in pairwise(messages):
        if before["role"] == after["role"]:
            raise Refused(f"messages: roles must alternate, but found two {after['role']!r}")
        if after["role"] == "system" and before["role"] != "user":
            raise Refused("messages: a system message must follow a user message")
        if before["role"] == "system" and after["role"] != "assistant":
            raise Refused("messages: a system message must be followed by an assistant turn")
    if not system_messages and any(message["role"] == "system" for message in messages):
        raise Refused("messages: this model does not support role 'system'")
    last = messages[-1]
    if last["role"] == "assistant" and dump(last["content"][-1]) not in issued.pauses:
        raise Refused("This model does not support assistant message prefill.")


def _check_citations(messages: Sequence[Mapping[str, Any]], *, schema: bool) -> None:
    documents = [item for message in messages for item in _documents(message["content"])]
    enabled = {bool((item.get("citations") or {}).get("enabled")) for item in documents}
    if len(enabled) > 1:
        raise Refused("citations must be enabled on all or none of the documents")
    if schema and True in enabled:
        raise Refused("citations cannot be enabled with output_config.format")
    for item in documents:
        if not 0 < len(item.get("title") or "-") <= _LONGEST_TITLE:
            raise Refused("document.title: String should have at most 500 characters")


def _documents(content: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for item in content:
        if item["type"] == "document":
            found.append(item)
        elif item["type"] == "tool_result":
            found += _documents(item.get("content") or ())
    return found


def _check_server_tools(message: Mapping[str, Any], *, paused: bool) -> None:
    """Tools that the server runs return in the same message, or wait for a call of ours."""
    running: dict[str, str] = {}
    for item in message["content"]:
        if item["type"] == "server_tool_use":
            running[item["id"]] = item["name"]
        elif item["type"].endswith("_tool_result"):
            running.pop(item["tool_use_id"], None)
        elif item["type"] == "tool_use":
            running.pop((item.get("caller") or {}).get("tool_id", ""), None)
    if running and not paused:
        identity, name = next(iter(running.items()))
        raise Refused(
            f"`{name}` tool use with id `{identity}` was found without a corresponding "
            f"`{name}_tool_result` block"
        )


def _check_message(
    message: Mapping[str, Any],
    calls: Mapping[str, None],
    seen: set[str],
    issued: Issued,
    model: str,
) -> dict[str, None]:
    """The calls that the next message has to answer."""
    role, content = message["role"], message["content"]
    if not content:
        raise Refused("messages: content must not be empty")
    made: dict[str, None] = {}
    answered: dict[str, None] = {}
    for item in content:
        match item["type"]:
            case "text":
                _check_text(item, "messages")
            case "image" | "document":
                _check_source(item)
            case "thinking" | "redacted_thinking":
                _check_signature(item, issued, model)
            case "tool_use":
                if role != "assistant":
                    raise Refused("tool_use blocks can only be in assistant messages")
                if not _NAME.fullmatch(item["id"]) or not _NAME.fullmatch(item["name"]):
                    raise Refused(f"tool_use: bad id or name {item['id']!r} {item['name']!r}")
                if item["id"] in seen:
                    raise Refused(f"tool_use ids must be unique: {item['id']}")
                seen.add(item["id"])
                made[item["id"]] = None
            case "tool_result":
                if role != "user":
                    raise Refused("tool_result blocks can only be in user messages")
                if item["tool_use_id"] not in calls or item["tool_use_id"] in answered:
                    raise Refused(f"unexpected tool_use_id in tool_result: {item['tool_use_id']}")
                if any(other["type"] != "tool_result" for other in content[: len(answered)]):
                    raise Refused("tool_result blocks must come first")
                answered[item["tool_use_id"]] = None
                for part in item.get("content") or ():
                    if part["type"] == "text":
                        _check_text(part, "tool_result")
                    else:
                        _check_source(part)
    if set(answered) != set(calls):
        missing = set(calls) - set(answered)
        raise Refused(f"tool_use ids were found without tool_result blocks: {missing}")
    if list(answered) != list(calls):
        raise Refused("tool_result blocks are not in the order of the calls")
    if role == "assistant" and content[-1]["type"] in _THINKING:
        raise Refused("The final block in an assistant message cannot be `thinking`.")
    return made


def _check_signature(item: Mapping[str, Any], issued: Issued, model: str) -> None:
    if item["type"] == "thinking":
        if issued.signatures.get(item["signature"]) != dump([model, item["thinking"]]):
            raise Refused("thinking blocks cannot be modified: Invalid `signature`")
    elif issued.signatures.get(item["data"]) != dump([model, ""]):
        raise Refused("redacted_thinking: Invalid `data`")


def _check_source(item: Mapping[str, Any]) -> None:
    source = item["source"]
    match source["type"]:
        case "base64":
            try:
                data = base64.b64decode(source["data"], validate=True)
            except ValueError as error:
                raise Refused(f"{item['type']}.source.base64: invalid base64 data") from error
            if not data:
                raise Refused(f"{item['type']}.source.base64: the data is empty")
        case "url":
            if not source["url"].startswith(("http://", "https://")):
                raise Refused(f"{item['type']}.source.url: only http(s) addresses are read")
        case "text":
            if not source["data"]:
                raise Refused("document.source.text: the data is empty")
        case "content":
            for part in source["content"]:
                if part["type"] == "text":
                    _check_text(part, "document")
                else:
                    _check_source(part)
