"""JSON that a typed decoder refuses, made fit: lone surrogates, halves of pairs, foreign forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard, TypeVar, get_args, get_origin

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from vibe_llms.messages.canisters import InvocationCanister
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.pieces import compact

S = TypeVar("S", bound=Struct)

# Python reads deeper JSON than a function of its own can walk without running out of its stack.
_DEEPEST = 200
_NOTHING = (b"", b"null", b"false", b"{}", b'""', b"[]")


class TextJoiner:
    """Text that comes in pieces, with the halves of a surrogate pair put together again."""

    def __init__(self) -> None:
        self._carry = ""

    @property
    def waiting(self) -> bool:
        """Whether half a pair is waiting."""
        return bool(self._carry)

    def join(self, text: str) -> str:
        """What can be passed on so far; half a pair at the end waits for its other half."""
        if self._carry:
            text, self._carry = self._carry + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._carry = text[:-1], text[-1]
        return repair_text(text)

    def conclude(self) -> str:
        """What was still waiting, as U+FFFD."""
        rest, self._carry = self._carry, ""
        return repair_text(rest)


def parse_object(data: bytes | str) -> dict[str, Any]:
    """A JSON object as Python reads it, lone surrogates and all; `ValueError` if it is none."""
    value = parse_value(data)
    if not isinstance(value, dict):
        raise ValueError("it is no object")  # noqa: TRY004
    return value


def parse_value(data: bytes | str) -> Any:
    """JSON as Python reads it, lone surrogates and all; `ValueError` if it is none."""
    import json

    try:
        value = json.loads(data, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    _check_depth(value)
    return value


def unwrap_arguments(text: str) -> str:
    r"""Return the arguments of a call; an object within a JSON text is taken out of it.

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
    """Return True if the arguments of a call are a whole JSON object."""
    text = unwrap_arguments(text)
    return bool(text.strip()) and InvocationCanister(name="", arguments=text).parsed is not None


def says_something(raw: Raw | UnsetType) -> TypeGuard[Raw]:
    """Return True unless a member is missing, null, false, or empty."""
    return raw is not UNSET and bytes(raw).strip() not in _NOTHING


def keep_json(raw: bytes) -> Raw:
    """JSON that can be kept and sent back: compact, in UTF-8; `ValueError` if it is none."""
    try:
        raw.decode()
        return Raw(compact(raw))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def escape(value: object) -> Raw:
    """JSON of a value that Python has read, in which lone surrogates are replaced."""
    import json

    return Raw(json.dumps(repair(value), ensure_ascii=False, separators=(",", ":")).encode())


def repair(value: object) -> object:
    """A value that Python has read from JSON, with lone surrogates replaced at every depth."""
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
    """Return an object that Python has read as a struct, member by member.

    A member of a wrong type counts as missing if it has a default. Raises `ValueError` or
    `TypeError` if it has none, since what the struct is about would be lost.
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


def _check_depth(value: object) -> None:
    """`ValueError` if values are nested deeper than `repair` may go."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise ValueError("it is nested too deeply")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
