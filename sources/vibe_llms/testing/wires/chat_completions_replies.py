"""Chunks of OpenAI's Chat Completions, for the fake servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Events = list[dict[str, Any]]

HEAD: Mapping[str, Any] = {"id": "chatcmpl-1", "created": 1, "model": "m"}
USAGE: Mapping[str, Any] = {
    "prompt_tokens": 20,
    "completion_tokens": 9,
    "total_tokens": 29,
    "prompt_tokens_details": {"cached_tokens": 12, "cache_write_tokens": 3, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 4, "audio_tokens": 0},
}
#: First delta of a reply.
OPENING: Mapping[str, Any] = {"role": "assistant", "content": "", "refusal": None}


def chunk(
    delta: Mapping[str, Any] | None = None,
    finish: str | None = None,
    *,
    usage: Mapping[str, Any] | None = None,
    head: Mapping[str, Any] = HEAD,
) -> dict[str, Any]:
    """Return one chunk; a chunk with usage has no choices."""
    choices = [{"index": 0, "delta": dict(delta or {}), "logprobs": None, "finish_reason": finish}]
    return {
        **head,
        "object": "chat.completion.chunk",
        "choices": [] if usage else choices,
        "usage": dict(usage) if usage else None,
    }


def text_chunks(*texts: str, member: str = "content", head: Mapping[str, Any] = HEAD) -> Events:
    """Return chunks of text, or of another member."""
    return [chunk({member: text}, head=head) for text in texts]


def call_chunks(
    index: int, name: str, *arguments: str, call: str = "", head: Mapping[str, Any] = HEAD
) -> Events:
    """Return a tool call in chunks, of which only the first has its id and name."""
    function = {"name": name, "arguments": ""}
    first = {
        "index": index,
        "id": call or f"call_{index}",
        "type": "function",
        "function": function,
    }
    pieces = [{"index": index, "function": {"arguments": piece}} for piece in arguments]
    return [chunk({"tool_calls": [piece]}, head=head) for piece in (first, *pieces)]


def chat_reply(
    *parts: str | Sequence[Mapping[str, Any]],
    finish: str = "stop",
    usage: Mapping[str, Any] | None = USAGE,
) -> Events:
    """Return the chunks of a reply; each text is a chunk of its own."""
    events = [chunk(OPENING)]
    for part in parts:
        events += text_chunks(part) if isinstance(part, str) else [dict(one) for one in part]
    events.append(chunk({}, finish))
    return [*events, chunk(usage=usage)] if usage else events


def chat_tools(*calls: tuple[str, str]) -> Events:
    """Return a reply that calls tools in parallel, by names and arguments."""
    parts = [call_chunks(index, name, arguments) for index, (name, arguments) in enumerate(calls)]
    return chat_reply(*parts, finish="tool_calls")


def complete(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the same reply as one object."""
    said: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    calls: dict[int, dict[str, Any]] = {}
    finish, usage = None, None
    for event in events:
        usage = event["usage"] or usage
        for choice in event["choices"]:
            finish = choice["finish_reason"] or finish
            for member, value in choice["delta"].items():
                if member == "tool_calls":
                    for piece in value:
                        _add_piece(calls, piece)
                elif member == "annotations":
                    said[member] = [*said.get(member, ()), *value]
                elif member != "role" and value:
                    said[member] = (said.get(member) or "") + value
    if calls:
        said["tool_calls"] = [calls[index] for index in sorted(calls)]
    choice = {"index": 0, "message": said, "logprobs": None, "finish_reason": finish}
    head = {name: events[0][name] for name in HEAD}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}


def _add_piece(calls: dict[int, dict[str, Any]], piece: Mapping[str, Any]) -> None:
    known = calls.setdefault(piece["index"], {"function": {"name": "", "arguments": ""}})
    known.update({k: v for k, v in piece.items() if k not in ("index", "function")})
    for member, value in (piece.get("function") or {}).items():
        known["function"][member] += value
