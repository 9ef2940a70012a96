"""Reads the objects of the contract, answers and tool calls, from a complete reply."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Raw, Struct

from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.contract.markers import ARGUMENTS, CALLS, FINALS, MARK, NAMES, spell
from vibe_llms.providers.pieces import compact

#: Whether a tool of this name is offered.
IsKnown: TypeAlias = Callable[[str], bool]

_STRUCTURE = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|$)|[{}\[\]]', re.DOTALL)
_NAME = re.compile(r'"(?:name|tool|tool_name)"\s*:\s*"([^"\\]{1,200})"')
_DECODER = msgspec.json.Decoder(dict[str, Raw])
_MISSING = Raw(b"null")


class Call(Struct, frozen=True):
    """A call as the model wrote it: the name of the tool, and its arguments as JSON text."""

    name: str
    arguments: str


class Answer(Struct, frozen=True):
    """What the model says to the person."""

    text: str


Item: TypeAlias = Call | Answer


class FormBroken(ValueError):
    """A reply breaks the form of the contract; the message is for the model."""


class FormForeign(ValueError):
    """A reply does not try to follow the contract."""


def read_items(text: str, is_known: IsKnown) -> Sequence[Item]:
    """The answers and calls in a text, which may contain nothing else.

    Marks around and between the objects are ignored. `FormBroken` if an object is incomplete or has
    text next to it; `FormForeign` if the text does not try to follow the form.

    >>> read_items('{"type": "tool_call", "name": "add", "arguments": {"a": 1}}', bool)
    [Call(name='add', arguments='{"a": 1}')]
    """
    items: list[Item] = []
    position = 0
    while (position := skip_marks(text, position)) < len(text):
        end = _find_end(text, position) if text[position] == "{" else None
        if text[position] != "{" and items:
            raise FormBroken("there is text besides the JSON")
        if end is None:
            raise FormBroken("the JSON is not complete")
        try:
            items.append(_read_item(text[position:end], is_known))
        except FormForeign:
            if items:
                raise FormBroken("there is other JSON besides it") from None
            raise
        position = end
    return items


def skip_marks(text: str, position: int = 0) -> int:
    """The place of the first character that is no mark."""
    while found := MARK.match(text, position):
        position = found.end()
    return position


def find_rest(text: str) -> int | None:
    """The end of the object in which a text begins, after one of its values."""
    end = _find_end("{" + text, 0)
    return None if end is None else end - 1


def find_name(text: str) -> str | None:
    """The tool of a call whose text is cut off, if it is known."""
    found = _NAME.search(text)
    return found[1] if found else None


def _find_end(text: str, position: int) -> int | None:
    """The end of the object that begins at a position."""
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


def _read_item(text: str, is_known: IsKnown) -> Item:
    try:
        members = _DECODER.decode(repair_text(text))
        # A raw value may hold what is no JSON to the letter; a call runs only if all of it is.
        msgspec.json.decode(repair_text(text))
    except (ValueError, RecursionError) as error:
        raise FormBroken(f"it is no valid JSON: {error}") from error
    kind = spell(_text_of(members.get("type")) or "")
    if kind in FINALS:
        if "content" not in members:
            raise FormBroken('a final answer needs its "content"')
        return Answer(_say(members["content"]))
    inner = members.get("function", _MISSING)
    if bytes(inner)[:1] == b"{" and (kind in CALLS or not kind):
        members = _DECODER.decode(inner)
    name = next((found for key in NAMES if (found := _text_of(members.get(key)))), "")
    if kind in CALLS:
        if not name:
            raise FormBroken('a tool call needs the "name" of the tool')
        return Call(name, _read_arguments(members))
    if kind:
        raise FormForeign
    if members.keys() == {"content"} and (said := _text_of(members["content"])) is not None:
        return Answer(said)
    if name and any(key in members for key in ARGUMENTS):
        if not is_known(name):
            raise FormBroken(f"there is no tool {name!r}")
        return Call(name, _read_arguments(members))
    raise FormForeign


def _read_arguments(members: Mapping[str, Raw]) -> str:
    raw = next((members[key] for key in ARGUMENTS if key in members), _MISSING)
    text = bytes(raw).decode().strip()
    if text == "null":
        return "{}"
    # Some write the object as a text; what that holds is judged like any other arguments.
    said = _text_of(raw)
    return text if said is None else said.strip() or "{}"


def _say(content: Raw) -> str:
    """The text of an answer; other values become JSON."""
    said = _text_of(content)
    if said is not None:
        return said
    text = compact(bytes(content)).decode()
    return "" if text == "null" else text


def _text_of(raw: Raw | None) -> str | None:
    """The text of a value, if it is one."""
    if raw is None:
        return None
    value = msgspec.json.decode(raw)
    return value if isinstance(value, str) else None
