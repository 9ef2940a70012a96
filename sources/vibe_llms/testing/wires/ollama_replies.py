"""Lines of Ollama's replies, for the fake servers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Events = list[dict[str, Any]]

MODEL = "qwen3:8b"
CREATED = "2026-01-01T00:00:00Z"


def line(content: str = "", **members: Any) -> dict[str, Any]:
    """Return a line of a reply; `thinking` and `tool_calls` belong to its message."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    for name in ("thinking", "tool_calls"):
        if name in members:
            message[name] = members.pop(name)
    head = {"model": MODEL, "created_at": CREATED}
    return {**head, "message": message, "done": False, **members}


def end(reason: str | None = "stop", **members: Any) -> dict[str, Any]:
    """Return the last line of a reply."""
    reported = {} if reason is None else {"done_reason": reason}
    return {**line(), "done": True, **reported, "total_duration": 9, **members}


def call(name: str, arguments: Mapping[str, Any], identity: str = "", index: int = 0) -> Any:
    """Return a call, without an id as from older servers if none is given."""
    made = {"function": {"index": index, "name": name, "arguments": arguments}}
    return {"id": identity, **made} if identity else made


def text_reply(*chunks: str) -> Events:
    """Return a reply of text."""
    return [*(line(chunk) for chunk in chunks), end()]


def tools_reply(*calls: tuple[str, str]) -> Events:
    """Return a reply that calls tools in parallel, by names and arguments."""
    made = [call(name, json.loads(arguments)) for name, arguments in calls]
    return [line(tool_calls=made), end()]


def gather(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the same reply as one object."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for one in lines:
        part = one.get("message") or {}
        message["content"] += part.get("content") or ""
        if part.get("thinking"):
            message["thinking"] = message.get("thinking", "") + part["thinking"]
        if part.get("tool_calls"):
            message["tool_calls"] = [*message.get("tool_calls", []), *part["tool_calls"]]
    return {**lines[-1], "message": message}
