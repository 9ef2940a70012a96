"""Events of Anthropic's Messages, for the fake servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Events = list[dict[str, Any]]

#: Usage in the first event of a reply; the last one counts the output.
USAGE: Mapping[str, Any] = {
    "input_tokens": 20,
    "output_tokens": 1,
    "cache_creation_input_tokens": 100,
    "cache_read_input_tokens": 900,
}


def block(index: int, start: Mapping[str, Any], *deltas: Mapping[str, Any]) -> Events:
    """Return the events of one content block."""
    return [
        {"type": "content_block_start", "index": index, "content_block": dict(start)},
        *({"type": "content_block_delta", "index": index, "delta": dict(d)} for d in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text_block(index: int, *chunks: str) -> Events:
    """Return a block of text."""
    deltas = ({"type": "text_delta", "text": chunk} for chunk in chunks)
    return block(index, {"type": "text", "text": ""}, *deltas)


def thinking_block(index: int, *chunks: str, signature: str = "SIG==") -> Events:
    """Return a block of signed thinking."""
    return block(
        index,
        {"type": "thinking", "thinking": "", "signature": ""},
        *({"type": "thinking_delta", "thinking": chunk} for chunk in chunks),
        {"type": "signature_delta", "signature": signature},
    )


def tool_block(index: int, name: str, *chunks: str, call: str = "") -> Events:
    """Return a tool call whose arguments come in chunks of JSON."""
    start = {"type": "tool_use", "id": call or f"toolu_{index}", "name": name, "input": {}}
    deltas = ({"type": "input_json_delta", "partial_json": chunk} for chunk in chunks)
    return block(index, start, *deltas)


def begin(*, identity: str = "msg_1", model: str = "m", usage: Mapping[str, Any] = USAGE) -> Events:
    """Return the events before the first block."""
    message = describe(identity, model, [], None, usage)
    return [{"type": "message_start", "message": message}, {"type": "ping"}]


def end(reason: str, usage: Mapping[str, Any], **delta: Any) -> Events:
    """Return the events after the last block."""
    ending = {"stop_reason": reason, "stop_sequence": None, **delta}
    return [
        {"type": "message_delta", "delta": ending, "usage": dict(usage)},
        {"type": "message_stop"},
    ]


def describe(
    identity: str,
    model: str,
    content: Sequence[Mapping[str, Any]],
    reason: str | None,
    usage: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a message as one object."""
    return {
        "id": identity,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": list(content),
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": dict(usage),
    }


def reply(
    *blocks: Sequence[Mapping[str, Any]],
    stop_reason: str = "end_turn",
    usage: Mapping[str, Any] | None = None,
    **delta: Any,
) -> Events:
    """Return the events of a reply of several blocks."""
    content = [dict(event) for events in blocks for event in events]
    return [*begin(), *content, *end(stop_reason, {"output_tokens": 42, **(usage or {})}, **delta)]


def text_reply(*chunks: str) -> Events:
    """Return a reply of one block of text."""
    return reply(text_block(0, *chunks))


def tools_reply(*calls: tuple[str, str]) -> Events:
    """Return a reply that calls tools in parallel, by names and arguments."""
    blocks = [tool_block(i, name, arguments) for i, (name, arguments) in enumerate(calls)]
    return reply(*blocks, stop_reason="tool_use")
