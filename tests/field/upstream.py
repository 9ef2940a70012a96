"""A provider's server that answers with given bytes, and the plain reply of each dialect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from tests.fakes.bedrock import encode_event
from tests.fakes.bedrock_replies import text_reply
from tests.fakes.raw_server import RawServer, Reply, say
from tests.field.cases import Dialect

SSE, LINES = "text/event-stream", "application/x-ndjson"
#: Content types of streams, where they are not server-sent events.
KINDS = {"ollama": LINES, "bedrock": "application/vnd.amazon.eventstream"}
ANSWER = "second answer"
_USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}


def respond(
    status: int, content_type: str, body: bytes, headers: Mapping[str, str] | None = None
) -> Reply:
    """Return a whole HTTP reply."""
    sent = {"content-type": content_type, "content-length": str(len(body)), **(headers or {})}
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in sent.items()]
    return say("\r\n".join([*lines, "", ""]).encode() + body)


def bodies_of(server: RawServer) -> list[Any]:
    """Return the JSON bodies of the requests that a server received."""
    parts = [request.partition(b"\r\n\r\n")[2] for request in server.requests]
    return [json.loads(part) for part in parts if part]


def plain(dialect: Dialect, text: str = ANSWER) -> bytes:
    """Return a streamed reply that is one text."""
    return _PLAIN[dialect](text)


def plain_whole(text: str = ANSWER) -> bytes:
    """Return an unstreamed reply of Chat Completions that is one text."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    head = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    return json.dumps({**head, "choices": [choice], "usage": _USAGE}).encode()


def _events(*values: Mapping[str, Any], named: bool = True) -> bytes:
    return b"".join(
        (f"event: {value['type']}\n" if named else "").encode()
        + f"data: {json.dumps(value)}\n\n".encode()
        for value in values
    )


def _chat(text: str) -> bytes:
    def chunk(delta: Mapping[str, Any], reason: str | None, **more: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {"id": "x", "choices": [choice], **more}

    chunks = (
        chunk({"role": "assistant", "content": text}, None),
        chunk({}, "stop"),
        {"id": "x", "choices": [], "usage": _USAGE},
    )
    return _events(*chunks, named=False) + b"data: [DONE]\n\n"


def _responses(text: str) -> bytes:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"id": "m2", "type": "message", "role": "assistant", "status": "completed"}
    base = {"id": "r2", "object": "response", "created_at": 1, "model": "m", "error": None}
    usage = {"input_tokens": 9, "output_tokens": 2, "total_tokens": 11}
    where = {"item_id": "m2", "output_index": 0, "content_index": 0}
    done = {**item, "content": [part]}
    return _events(
        {"type": "response.created", "response": {**base, "status": "in_progress", "output": []}},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **where, "part": {**part, "text": ""}},
        {"type": "response.output_text.delta", **where, "delta": text},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {
            "type": "response.completed",
            "response": {**base, "status": "completed", "output": [done], "usage": usage},
        },
    )


def _messages(text: str) -> bytes:
    head = {"id": "b", "type": "message", "role": "assistant", "model": "m", "content": []}
    usage = {"input_tokens": 9, "output_tokens": 0}
    message = {**head, "stop_reason": None, "stop_sequence": None, "usage": usage}
    return _events(
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": text},
        },
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 2},
        },
        {"type": "message_stop"},
    )


def _ollama(text: str) -> bytes:
    base = {"model": "m", "created_at": "2026-01-01T00:00:00Z"}
    end = {"done": True, "done_reason": "stop", "prompt_eval_count": 9, "eval_count": 2}
    lines = (
        {**base, "message": {"role": "assistant", "content": text}, "done": False},
        {**base, "message": {"role": "assistant", "content": ""}, **end},
    )
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _bedrock(text: str) -> bytes:
    return b"".join(map(encode_event, text_reply(text)))


def frame(dialect: Dialect, payload: str) -> bytes:
    """Return the bytes of a stream that was written by hand."""
    if dialect != "bedrock":
        return payload.encode()
    lines = (line for line in payload.split("\n") if line.strip())
    return b"".join(encode_event(json.loads(line)) for line in lines)


def _gemini(text: str) -> bytes:
    candidate = {"content": {"role": "model", "parts": [{"text": text}]}, "index": 0}
    usage = {"promptTokenCount": 9, "candidatesTokenCount": 2, "totalTokenCount": 11}
    last = {"candidates": [{**candidate, "finishReason": "STOP"}], "usageMetadata": usage}
    return _events(last, named=False)


_PLAIN = {
    "chat": _chat,
    "responses": _responses,
    "messages": _messages,
    "ollama": _ollama,
    "bedrock": _bedrock,
    "gemini": _gemini,
}
