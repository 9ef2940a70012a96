"""Reader for the contract's objects, answers and tool calls, in a complete reply."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Raw, Struct

from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.contract.markers import (
    ARGUMENTS,
    CALLS,
    FINALS,
    MARK,
    NAMES,
    NESTED,
    IsKnown,
    spell,
)
from vibe_llms.providers.pieces import compact

_STRUCTURE = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|$)|[{}\[\]]', re.DOTALL)
_NAME = re.compile(r'"(?:name|tool|tool_name)"\s*:\s*"([^"\\]{1,200})"')
_TYPE = re.compile(r'"type"\s*:\s*"([^"\\]{1,200})"')
_DECODER = msgspec.json.Decoder(dict[str, Raw])
_MISSING = Raw(b"null")


class WrittenCall(Struct, frozen=True):
    """Tool call as the model wrote it: the tool's name, and its arguments as JSON text."""

    name: str
    arguments: str


class FinalAnswer(Struct, frozen=True):
    """Text from the model to the user."""

    text: str


Item: TypeAlias = WrittenCall | FinalAnswer


class FormBroken(ValueError):
    """Error for a reply that breaks the form of the contract; its message is for the model."""


class FormForeign(ValueError):
    """Error for a reply that does not try to follow the contract."""


def read_items(text: str, is_known: IsKnown) -> Sequence[Item]:
    """Read the answers and calls in a text that contains nothing else.

    Marks around and between the objects are ignored. Raise `FormBroken` if an object is incomplete
    or has text next to it, and `FormForeign` if the text does not try to follow the form.

    >>> read_items('{"type": "tool_call", "name": "add", "arguments": {"a": 1}}', bool)
    [WrittenCall(name='add', arguments='{"a": 1}')]
    """
    items: list[Item] = []
    position = 0
    while (position := skip_marks(text, position)) < len(text):
        end = _find_end(text, position) if text[position] == "{" else None
        if text[position] != "{" and items:
            raise FormBroken("it contains text outside the JSON")
        if end is None:
            raise FormBroken("the JSON is not complete")
        try:
            items += _read_object(text[position:end], is_known)
        except FormForeign:
            if items:
                raise FormBroken("it contains more JSON than the form") from None
            raise
        position = end
    return items


def skip_marks(text: str, position: int = 0) -> int:
    """Return the position of the first character that is not part of a mark."""
    while found := MARK.match(text, position):
        position = found.end()
    return position


def find_rest(text: str) -> int | None:
    """Find the end of an object, given its text after one of its values."""
    end = _find_end("{" + text, 0)
    return None if end is None else end - 1


def find_name(text: str, is_known: IsKnown) -> str | None:
    """Return the tool's name in a call that was cut off, or None if it is missing."""
    found = _NAME.search(text)
    return found[1] if found else find_tool_as_type(text, is_known)


def find_tool_as_type(text: str, is_known: IsKnown) -> str | None:
    """Return the name of a tool that an object has as its type, or None."""
    return next((found[1] for found in _TYPE.finditer(text) if is_known(found[1])), None)


def _find_end(text: str, position: int) -> int | None:
    """Find the end of the object that begins at a position."""
    depth = 0
    for found in _STRUCTURE.finditer(text, position):
        match found[0]:
            case "{" | "[":
                depth += 1
            case "}" | "]":
                depth -= 1
                if depth == 0:
                    return found.end()
    return None


def _read_object(text: str, is_known: IsKnown) -> Sequence[Item]:
    try:
        members = _DECODER.decode(repair_text(text))
        # Raw values may hold invalid JSON; a call runs only if the whole object is valid.
        msgspec.json.decode(repair_text(text))
    except (ValueError, RecursionError) as error:
        raise FormBroken(f"it is not valid JSON: {error}") from error
    if any(key in members for key in NESTED):
        return _read_message(members, is_known)
    return (_read_item(members, is_known),)


def _read_message(members: Mapping[str, Raw], is_known: IsKnown) -> Sequence[Item]:
    """Read a reply in the form of a message of Chat Completions: its content and its calls."""
    said = _text_of(members.get("content"))
    items: list[Item] = [FinalAnswer(said)] if said else []
    for key in NESTED:
        raw = bytes(members.get(key, _MISSING))
        calls = {b"[": raw, b"{": b"[" + raw + b"]"}.get(raw[:1], b"[]")
        for call in msgspec.json.decode(calls, type=list[Raw]):
            if bytes(call)[:1] != b"{":
                raise FormBroken("a tool call must be an object")
            try:
                items.append(_read_item(_DECODER.decode(call), is_known))
            except FormForeign:
                raise FormBroken('a tool call must have the "name" of the tool') from None
    if not items:
        raise FormForeign
    return items


def _read_item(members: Mapping[str, Raw], is_known: IsKnown) -> Item:
    kind = spell(_text_of(members.get("type")) or "")
    if kind in FINALS:
        if "content" not in members:
            raise FormBroken('a final answer must have "content"')
        return FinalAnswer(_say(members["content"]))
    inner = members.get("function", _MISSING)
    if bytes(inner)[:1] == b"{" and (kind in CALLS or not kind):
        members = _DECODER.decode(inner)
    name = next((found for key in NAMES if (found := _text_of(members.get(key)))), "")
    if kind in CALLS:
        if not name:
            raise FormBroken('a tool call must have the "name" of the tool')
        return WrittenCall(name, _read_arguments(members))
    if kind:
        return _read_tool_as_type(members, is_known)
    if members.keys() == {"content"} and (said := _text_of(members["content"])) is not None:
        return FinalAnswer(said)
    if name and any(key in members for key in ARGUMENTS):
        if not is_known(name):
            raise FormBroken(f"tool {name!r} not found")
        return WrittenCall(name, _read_arguments(members))
    raise FormForeign


def _read_tool_as_type(members: Mapping[str, Raw], is_known: IsKnown) -> WrittenCall:
    name = _text_of(members["type"]) or ""
    if not is_known(name):
        raise FormForeign
    if len(members) > 1 and not any(key in members for key in ARGUMENTS):
        raise FormBroken('a tool call must have its "arguments" as an object')
    return WrittenCall(name, _read_arguments(members))


def _read_arguments(members: Mapping[str, Raw]) -> str:
    raw = next((members[key] for key in ARGUMENTS if key in members), _MISSING)
    text = bytes(raw).decode().strip()
    if text == "null":
        return "{}"
    # Some models write the object as a string; its text is checked like other arguments.
    said = _text_of(raw)
    return text if said is None else said.strip() or "{}"


def _say(content: Raw) -> str:
    """Return the text of an answer; other values are written as JSON."""
    said = _text_of(content)
    if said is not None:
        return said
    text = compact(bytes(content)).decode()
    return "" if text == "null" else text


def _text_of(raw: Raw | None) -> str | None:
    """Return a value that is a string, or None."""
    if raw is None:
        return None
    value = msgspec.json.decode(raw)
    return value if isinstance(value, str) else None
