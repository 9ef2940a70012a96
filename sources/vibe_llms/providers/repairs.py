"""JSON that a typed decoder refuses, made fit: lone surrogates, halves of pairs, foreign forms."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.pieces import compact

# Python reads deeper JSON than a function of its own can walk without running out of its stack.
_DEEPEST = 200


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


def parse_object(data: bytes) -> dict[str, Any]:
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
