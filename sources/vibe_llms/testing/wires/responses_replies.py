"""Items of OpenAI's Responses, for the fake servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Events = list[dict[str, Any]]

USAGE: Mapping[str, Any] = {
    "input_tokens": 50,
    "input_tokens_details": {"cached_tokens": 30, "cache_write_tokens": 5},
    "output_tokens": 9,
    "output_tokens_details": {"reasoning_tokens": 4},
    "total_tokens": 59,
}
_CALL = "response.function_call_arguments"
_SUMMARY = "response.reasoning_summary"


def message(*texts: str, phase: str | None = None, **part: Any) -> dict[str, Any]:
    """Return a message with a part for each text."""
    content = [
        {"type": "output_text", "text": text, "annotations": [], "logprobs": [], **part}
        for text in texts
    ]
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
    return {**item, "content": content, **({"phase": phase} if phase else {})}


def refusal(text: str) -> dict[str, Any]:
    """Return a message in which the model refuses."""
    return {**message(), "content": [{"type": "refusal", "refusal": text}]}


def reasoning(*summaries: str, encrypted: str | None = "ENC==") -> dict[str, Any]:
    """Return reasoning with its encrypted content."""
    summary = [{"type": "summary_text", "text": text} for text in summaries]
    item = {"id": "rs_1", "type": "reasoning", "summary": summary}
    return {**item, "encrypted_content": encrypted} if encrypted else item


def function_call(name: str, arguments: str, call: str = "call_1") -> dict[str, Any]:
    """Return a call of a function."""
    return {
        "id": f"fc_{call}",
        "type": "function_call",
        "call_id": call,
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }


def response(*output: Mapping[str, Any], status: str = "completed", **more: Any) -> dict[str, Any]:
    """Return a response object."""
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": status,
        "output": [dict(item) for item in output],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": USAGE,
        "error": None,
        "incomplete_details": None,
        **more,
    }


def begin(**more: Any) -> Events:
    """Return the events before the first item."""
    begun = response(status="in_progress", **{**more, "usage": None})
    return [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]


def response_reply(
    *output: Mapping[str, Any], status: str = "completed", pieces: int = 3, **more: Any
) -> Events:
    """Return the events of a response, with each text in up to `pieces` pieces."""
    events = begin(**more)
    for index, item in enumerate(output):
        events += item_events(index, item, pieces)
    whole = response(*output, status=status, **more)
    events.append({"type": f"response.{status}", "response": whole})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def item_events(index: int, item: Mapping[str, Any], pieces: int | Sequence[str] = 3) -> Events:
    """Return the events of one item; `pieces` is a number, or the pieces of its only text."""
    place = {"item_id": item["id"], "output_index": index}
    begun = {**item, "status": "in_progress"} if "status" in item else dict(item)
    between: Events = []
    match item["type"]:
        case "message":
            begun["content"] = []
            for number, part in enumerate(item["content"]):
                between += _part_events({**place, "content_index": number}, part, pieces)
        case "reasoning":
            begun["summary"] = []
            if "encrypted_content" in begun:
                begun["encrypted_content"] = "PART"
            for number, part in enumerate(item["summary"]):
                at = {**place, "summary_index": number}
                empty = {**part, "text": ""}
                between.append({"type": f"{_SUMMARY}_part.added", **at, "part": empty})
                between += _deltas(f"{_SUMMARY}_text.delta", at, part["text"], pieces)
                between.append({"type": f"{_SUMMARY}_text.done", **at, "text": part["text"]})
                between.append({"type": f"{_SUMMARY}_part.done", **at, "part": dict(part)})
        case "function_call":
            begun["arguments"] = ""
            arguments = item["arguments"]
            between += _deltas(f"{_CALL}.delta", place, arguments, pieces)
            done = {"name": item["name"], "arguments": arguments}
            between.append({"type": f"{_CALL}.done", **place, **done})
        case kind:
            between.append({"type": f"response.{kind}.in_progress", **place})
    return [
        {"type": "response.output_item.added", "output_index": index, "item": begun},
        *between,
        {"type": "response.output_item.done", "output_index": index, "item": dict(item)},
    ]


def _part_events(
    place: Mapping[str, Any], part: Mapping[str, Any], pieces: int | Sequence[str]
) -> Events:
    refused = part["type"] == "refusal"
    member = "refusal" if refused else "text"
    kind = "response.refusal" if refused else "response.output_text"
    more: dict[str, Any] = {} if refused else {"logprobs": []}
    begun = {**part, member: ""} | ({} if refused else {"annotations": []})
    annotations = [
        {
            "type": "response.output_text.annotation.added",
            **place,
            "annotation_index": number,
            "annotation": annotation,
        }
        for number, annotation in enumerate(part.get("annotations") or ())
    ]
    return [
        {"type": "response.content_part.added", **place, "part": begun},
        *({**one, **more} for one in _deltas(f"{kind}.delta", place, part[member], pieces)),
        *annotations,
        {"type": f"{kind}.done", **place, member: part[member], **more},
        {"type": "response.content_part.done", **place, "part": dict(part)},
    ]


def _deltas(kind: str, place: Mapping[str, Any], text: str, pieces: int | Sequence[str]) -> Events:
    parts = cut(text, pieces) if isinstance(pieces, int) else pieces
    return [{"type": kind, **place, "delta": part} for part in parts]


def cut(text: str, pieces: int) -> list[str]:
    """Split a text into at most `pieces` pieces."""
    size = max(-(-len(text) // pieces), 1)
    return [text[start : start + size] for start in range(0, len(text), size)]
