"""Repair of JSON that a typed decoder refuses: lone surrogates, halves of pairs, foreign forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard, TypeVar, get_args, get_origin

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from vibe_llms.base.nesting import is_deeper
from vibe_llms.messages.canisters import InvocationCanister
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.pieces import compact

S = TypeVar("S", bound=Struct)

# Python reads deeper JSON than a recursive function can walk without exhausting its stack.
_MAX_DEPTH = 200
_NOTHING = (b"", b"null", b"false", b"{}", b'""', b"[]")


class TextJoiner:
    """Joiner of pieces of text that puts the halves of surrogate pairs together again."""

    def __init__(self) -> None:
        self._carry = ""

    @property
    def waiting(self) -> bool:
        """True if half a pair is waiting."""
        return bool(self._carry)

    def join(self, text: str) -> str:
        """Add text and return what can be passed on; half a pair at the end is held back."""
        if self._carry:
            text, self._carry = self._carry + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._carry = text[:-1], text[-1]
        return repair_text(text)

    def conclude(self) -> str:
        """Return what was held back, as U+FFFD."""
        rest, self._carry = self._carry, ""
        return repair_text(rest)


def parse_object(data: bytes | str) -> dict[str, Any]:
    """Parse a JSON object with Python, keeping lone surrogates; raise `ValueError` if invalid."""
    value = parse_value(data)
    if not isinstance(value, dict):
        raise ValueError("it is not an object")  # noqa: TRY004
    return value


def parse_value(data: bytes | str) -> Any:
    """Parse JSON with Python, keeping lone surrogates; raise `ValueError` if it is invalid."""
    import json

    try:
        value = json.loads(data, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if is_deeper(value, _MAX_DEPTH):
        raise ValueError("it is nested too deeply")
    return value


def unwrap_arguments(text: str) -> str:
    r"""Return the arguments of a call; an object within a JSON string is taken out of it.

    >>> unwrap_arguments('"{\\"a\\": 1}"')
    '{"a": 1}'
    """
    if text.lstrip()[:1] != '"':
        return text
    try:
        inner = parse_value(text)
        return inner if isinstance(inner, str) and parse_object(inner) else text
    except ValueError:
        return text


def is_object(text: str) -> bool:
    """Return True if the arguments of a call are a complete JSON object."""
    text = unwrap_arguments(text)
    return bool(text.strip()) and InvocationCanister(name="", arguments=text).parsed is not None


def says_something(raw: Raw | UnsetType) -> TypeGuard[Raw]:
    """Return True unless a member is missing, null, false, or empty."""
    return raw is not UNSET and bytes(raw).strip() not in _NOTHING


def keep_json(raw: bytes) -> Raw:
    """Return JSON that can be stored and sent back, in compact UTF-8, or raise `ValueError`."""
    try:
        raw.decode()
        return Raw(compact(raw))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def escape(value: object) -> Raw:
    """Encode a value that Python has read as JSON, with lone surrogates replaced."""
    import json

    return Raw(json.dumps(repair(value), ensure_ascii=False, separators=(",", ":")).encode())


def repair(value: object) -> object:
    """Replace lone surrogates at every depth of a value that Python has read from JSON."""
    match value:
        case str():
            return repair_text(value)
        case list():
            return [repair(item) for item in value]
        case dict():
            return {repair_text(key): repair(item) for key, item in value.items()}
        case _:
            return value


def convert_members(value: Mapping[str, Any], kind: type[S]) -> S:
    """Convert an object that Python has read to a struct, member by member.

    A member of a wrong type counts as missing if it has a default. If it has none, raise
    `ValueError` or `TypeError`, because essential data would be lost.
    """
    taken: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.encode_name not in value:
            continue
        try:
            taken[field.name] = _convert_member(value[field.encode_name], field.type)
        except (ValueError, TypeError):
            if field.required:
                raise
    return kind(**taken)


def _convert_member(value: object, kind: Any) -> Any:
    if kind is Raw:
        return escape(value)
    choices = get_args(kind) if get_origin(kind) is not list else ()
    inner = [one for one in choices if one is not type(None)] or [kind]
    if isinstance(value, dict) and len(inner) == 1:
        (one,) = inner
        if isinstance(one, type) and issubclass(one, Struct):
            return convert_members(value, one)
    if isinstance(value, list) and len(inner) == 1 and get_origin(inner[0]) is list:
        (of,) = get_args(inner[0])
        return [_convert_member(item, of) for item in value]
    return msgspec.convert(value, kind, strict=False)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
