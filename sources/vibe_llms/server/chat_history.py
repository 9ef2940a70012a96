"""Rewriting of Chat Completions requests with forms that `chat_requests` does not know.

Clients made for other servers send parts, calls, and tools in those servers' forms. They are
converted to known forms if possible, and to text in the history otherwise. Unknown parts of new
input are left unchanged, to be rejected later.
"""

from __future__ import annotations

from typing import Any

import msgspec

from vibe_llms.server.descriptions import describe_json
from vibe_llms.server.reading import find_last_reply, get_member

_KNOWN = frozenset({"file", "image_url", "input_audio", "refusal", "text"})
_TEXTS = frozenset({"input_text", "output_text", "summary_text"})
#: Types of reasoning parts, which only the model that wrote them can read.
_THOUGHTS = frozenset({"reasoning", "reasoning_content", "redacted_thinking", "thinking"})
_TOOL_ROLES = ("function", "tool")


def rewrite_request(given: Any) -> Any:
    """Return the JSON of a request with known forms only, if possible."""
    if not isinstance(given, dict) or not isinstance(messages := given.get("messages"), list):
        return given
    last = find_last_reply(get_member(one, "role") for one in messages)
    rewritten = [
        _rewrite_message(one, place, new=place > last) for place, one in enumerate(messages)
    ]
    # LM Studio uses -1 for no limit.
    limits = {"max_tokens", "max_completion_tokens"}
    kept = {key: value for key, value in given.items() if key not in limits or value != -1}
    return {**kept, "messages": rewritten}


def _rewrite_message(message: Any, place: int, *, new: bool) -> Any:
    if not isinstance(message, dict):
        return message
    changed = dict(message)
    content = message.get("content")
    if isinstance(content, dict):
        content = [content]
    if isinstance(content, list):
        # Results of tools may hold any type.
        new = new and message.get("role") not in _TOOL_ROLES
        content = [part for one in content if (part := _rewrite_part(one, new=new)) is not None]
    elif content is not None and not isinstance(content, str):
        content = msgspec.json.encode(content).decode()
    changed["content"] = content
    if isinstance(calls := message.get("tool_calls"), list):
        changed["tool_calls"] = [
            _rewrite_call(one, f"call_{place}_{index}") for index, one in enumerate(calls)
        ]
    if isinstance(one := message.get("function_call"), dict):
        changed["function_call"] = {**one, "arguments": _write(one.get("arguments"))}
    for name in ("name", "refusal"):
        if not isinstance(changed.get(name), str):
            changed.pop(name, None)
    return changed


def _rewrite_part(part: Any, *, new: bool) -> Any:
    """Return a part in a known form, or None if it is empty."""
    if isinstance(part, str):
        return _text(part)
    kind = get_member(part, "type")
    match kind:
        case "image_url" if isinstance(url := part.get("image_url"), str):
            return {"type": kind, "image_url": {"url": url}}
        case "input_image" if isinstance(url := part.get("image_url"), str):
            return {"type": "image_url", "image_url": {"url": url}}
        case "image" if get_member(source := part.get("source"), "type") == "base64":
            url = f"data:{source.get('media_type')};base64,{source.get('data')}"
            return {"type": "image_url", "image_url": {"url": url}}
        case "image" if get_member(source := part.get("source"), "type") == "url":
            return {"type": "image_url", "image_url": {"url": source.get("url")}}
        case "input_file":
            return {"type": "file", "file": part}
        case "text":
            return _text(part.get("text") or "")
        case str() if kind in _TEXTS:
            return _text(part.get("text") or "")
        case str() if kind in _THOUGHTS:
            return None
        case str() if kind in _KNOWN or new:
            return part
        case None if isinstance(text := get_member(part, "text"), str):
            return _text(text)
        case _ if new:
            return part
    described = describe_json(part)
    return _text(f"[{kind}]\n{described}" if kind else described) if described else None


def _rewrite_call(call: Any, name: str) -> Any:
    if not isinstance(call, dict):
        return call
    if not isinstance(call.get("id"), str) or not call["id"]:
        call = {**call, "id": name}
    if isinstance(function := call.get("function"), dict):
        written = _write(function.get("arguments"))
        return {**call, "function": {**function, "arguments": written}}
    return call


def _write(arguments: Any) -> str:
    """Return arguments as text; some clients send the object itself."""
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return msgspec.json.encode(arguments).decode()


def _text(text: Any) -> dict[str, str]:
    return {"type": "text", "text": text}
