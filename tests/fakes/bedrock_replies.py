"""Replies of Bedrock's ConverseStream, as events, and what Converse answers in their place."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.fakes.strict import Events

USAGE = {
    "inputTokens": 20,
    "outputTokens": 9,
    "totalTokens": 149,
    "cacheReadInputTokens": 90,
    "cacheWriteInputTokens": 30,
}


_STEPS = {"text", "toolUse", "toolResult", "citation", "reasoningContent"}


def delta(index: int, **members: Any) -> dict[str, Any]:
    """A step of a block."""
    return {"contentBlockDelta": {"contentBlockIndex": index, "delta": members}}


def stop(index: int) -> dict[str, Any]:
    """The end of a block."""
    return {"contentBlockStop": {"contentBlockIndex": index}}


def text_block(index: int, *chunks: str, citations: Sequence[Any] = ()) -> Events:
    """Text, which has no beginning."""
    return [
        *(delta(index, text=chunk) for chunk in chunks),
        *(delta(index, citation=one) for one in citations),
        stop(index),
    ]


def reasoning_block(index: int, *chunks: str, signature: str = "SIG==") -> Events:
    """Reasoning and its signature, which comes alone."""
    signed = [delta(index, reasoningContent={"signature": signature})] if signature else []
    return [
        *(delta(index, reasoningContent={"text": chunk}) for chunk in chunks),
        *signed,
        stop(index),
    ]


def redacted_block(index: int, *pieces: bytes) -> Events:
    """Encrypted reasoning, in pieces."""
    encoded = (base64.b64encode(piece).decode() for piece in pieces)
    return [
        *(delta(index, reasoningContent={"redactedContent": one}) for one in encoded),
        stop(index),
    ]


def tool_block(index: int, name: str, *pieces: str, call: str = "", kind: str = "") -> Events:
    """A call, whose arguments come in pieces."""
    tool = {
        "toolUseId": call or f"tooluse_{index}",
        "name": name,
        **({"type": kind} if kind else {}),
    }
    return [
        {"contentBlockStart": {"contentBlockIndex": index, "start": {"toolUse": tool}}},
        *(delta(index, toolUse={"input": piece}) for piece in pieces),
        stop(index),
    ]


def result_block(index: int, *parts: Mapping[str, Any], call: str) -> Events:
    """The result of a call that Bedrock carries out."""
    head = {"toolUseId": call, "type": "search_result", "status": "success"}
    return [
        {"contentBlockStart": {"contentBlockIndex": index, "start": {"toolResult": head}}},
        *(delta(index, toolResult=[part]) for part in parts),
        stop(index),
    ]


def reply(
    *blocks: Events,
    reason: str = "end_turn",
    usage: Mapping[str, Any] | None = None,
    **more: Any,
) -> Events:
    """A reply of these blocks."""
    return [
        {"messageStart": {"role": "assistant"}},
        *(event for block in blocks for event in block),
        {"messageStop": {"stopReason": reason}},
        {"metadata": {"usage": {**USAGE, **(usage or {})}, "metrics": {"latencyMs": 7}, **more}},
    ]


def text_reply(*chunks: str) -> Events:
    """A reply of text."""
    return reply(text_block(0, *chunks))


def tools_reply(*calls: tuple[str, str]) -> Events:
    """A reply with reasoning and calls."""
    blocks = [
        tool_block(number, name, *(arguments[i : i + 7] for i in range(0, len(arguments), 7)))
        for number, (name, arguments) in enumerate(calls, 1)
    ]
    return reply(reasoning_block(0, "Hm", "."), *blocks, reason="tool_use")


def accumulate(events: Events) -> dict[str, Any]:
    """The whole reply that Converse gives in place of these events."""
    blocks: dict[int, dict[str, Any]] = {}
    whole: dict[str, Any] = {"metrics": {"latencyMs": 7}}
    for event in events:
        ((kind, body),) = event.items()
        match kind:
            case "contentBlockStart":
                ((name, head),) = body["start"].items()
                blocks[body["contentBlockIndex"]] = {name: {**head}, "pieces": []}
            case "contentBlockDelta":
                if not body["delta"].keys() & _STEPS:
                    continue
                _grow(blocks.setdefault(body["contentBlockIndex"], {}), body["delta"])
            case "messageStop":
                whole |= body
            case "metadata":
                whole |= {name: body[name] for name in ("usage", "trace") if name in body}
    content = [_finish(blocks[index]) for index in sorted(blocks)]
    return {**whole, "output": {"message": {"role": "assistant", "content": content}}}


def _grow(block: dict[str, Any], step: Mapping[str, Any]) -> None:
    ((kind, value),) = step.items()
    match kind:
        case "text":
            block["text"] = block.get("text", "") + value
        case "toolUse":
            block["pieces"].append(value["input"])
        case "toolResult":
            block["pieces"] += value
        case "citation":
            block.setdefault("citations", []).append(value)
        case "reasoningContent":
            for name, piece in value.items():
                block.setdefault("reasoning", {}).setdefault(name, []).append(piece)


def _join(parts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The parts of a result, with neighboring texts in one."""
    joined: list[Mapping[str, Any]] = []
    for part in parts:
        if joined and "text" in part and "text" in joined[-1]:
            joined[-1] = {"text": joined[-1]["text"] + part["text"]}
        else:
            joined.append(part)
    return joined


def _finish(block: dict[str, Any]) -> dict[str, Any]:
    match block:
        case {"toolUse": head, "pieces": pieces}:
            try:
                arguments = json.loads("".join(pieces) or "{}")
            except ValueError:
                # They were cut off.
                arguments = {}
            return {"toolUse": {**head, "input": arguments}}
        case {"toolResult": head, "pieces": pieces}:
            return {"toolResult": {**head, "content": _join(pieces)}}
        case {"reasoning": {"redactedContent": pieces}}:
            data = b"".join(base64.b64decode(piece) for piece in pieces)
            return {"reasoningContent": {"redactedContent": base64.b64encode(data).decode()}}
        case {"reasoning": told}:
            joined = {name: "".join(pieces) for name, pieces in told.items()}
            return {"reasoningContent": {"reasoningText": {"text": "", **joined}}}
        case {"citations": citations}:
            content = [{"text": block.get("text", "")}]
            return {"citationsContent": {"content": content, "citations": citations}}
        case _:
            return block
