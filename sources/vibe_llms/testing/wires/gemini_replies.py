"""Chunks of Gemini's replies, for the fake servers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Events = list[dict[str, Any]]

MODEL = "gemini-3.8-flash"
RESPONSE = "resp-1"


def chunk(*parts: Mapping[str, Any], finish: str = "", **members: Any) -> dict[str, Any]:
    """Return a chunk with these parts; `members` are those of the whole chunk."""
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    head: dict[str, Any] = {"candidates": [candidate], "usageMetadata": usage(1)}
    return {**head, "modelVersion": MODEL, "responseId": RESPONSE, **members}


def usage(output: int, *, prompt: int = 9, cached: int = 0, thoughts: int = 0) -> dict[str, int]:
    """Return token counts; the prompt's include the cached ones, the output's not the thoughts."""
    counts = {"promptTokenCount": prompt, "candidatesTokenCount": output}
    counts |= {"cachedContentTokenCount": cached} if cached else {}
    counts |= {"thoughtsTokenCount": thoughts} if thoughts else {}
    return {**counts, "totalTokenCount": prompt + output + thoughts}


def text(words: str, signature: str = "", **members: Any) -> dict[str, Any]:
    """Return a part of text; with `thought=True`, of a thought."""
    signed = {"thoughtSignature": signature} if signature else {}
    return {"text": words, **members, **signed}


def call(
    name: str, arguments: Mapping[str, Any], identity: str = "", signature: str = ""
) -> dict[str, Any]:
    """Return a part that calls a tool."""
    made = {"id": identity} if identity else {}
    signed = {"thoughtSignature": signature} if signature else {}
    return {"functionCall": {**made, "name": name, "args": arguments}, **signed}


def reply(*chunks: Mapping[str, Any], finish: str = "STOP", thoughts: int = 0) -> Events:
    """Return a reply whose last chunk has the finish reason and the usage."""
    *before, last = [dict(one) for one in chunks] or [chunk()]
    (candidate,) = last["candidates"]
    last["candidates"] = [{**candidate, "finishReason": finish}]
    last["usageMetadata"] = usage(5, thoughts=thoughts)
    return [*before, last]


def text_reply(*chunks: str) -> Events:
    """Return a reply of text, with an empty signed text at its end."""
    return reply(*(chunk(text(one)) for one in chunks), chunk(text("", "U0lHTkVE")))


def tools_reply(*calls: tuple[str, str]) -> Events:
    """Return a reply that calls tools in parallel; only the first call is signed."""
    made = [
        call(name, json.loads(arguments), f"call-{number}", "" if number else "Q0FMTA==")
        for number, (name, arguments) in enumerate(calls)
    ]
    return reply(*(chunk(one) for one in made), chunk(text("")))


def gather(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the same reply as one object."""
    parts: list[dict[str, Any]] = []
    whole: dict[str, Any] = {}
    candidate: dict[str, Any] = {}
    for one in chunks:
        whole |= {name: value for name, value in one.items() if name != "candidates"}
        for found in one.get("candidates") or ():
            candidate |= {name: value for name, value in found.items() if name != "content"}
            for part in (found.get("content") or {}).get("parts") or ():
                _append(parts, part)
    if not candidate and not parts:
        return whole
    content = {"parts": parts, "role": "model"} if parts else {"role": "model"}
    return {"candidates": [{"content": content, **candidate}], **whole}


def _append(parts: list[dict[str, Any]], part: Mapping[str, Any]) -> None:
    """Add a part; text continues unsigned text of the same kind."""
    plain = set(part) <= {"text", "thought"}
    if plain and not part["text"]:
        return
    if plain and parts and set(parts[-1]) == set(part):
        parts[-1] = {**part, "text": parts[-1]["text"] + part["text"]}
    else:
        parts.append(dict(part))
