"""Lenient reading of other programs' JSON: what is missing or of another type is empty."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Raw

from vibe_llms.base.nesting import is_deeper
from vibe_llms.importing.messages import ExportedPart
from vibe_llms.messages.contents import (
    Issuer,
    NativeContent,
    NativePayload,
    ReasoningContent,
    TextualContent,
    repair_text,
)

#: Deeper JSON is not stored, because no program could read it again.
_DEEPEST = 200
#: Times in milliseconds are larger than this, those in seconds smaller until the year 5138.
_MILLISECONDS_FROM = 1e11


def read_string(value: object, *keys: str) -> str:
    """Return the first text under these keys that is not empty, without lone surrogates.

    Without keys, the value itself.
    """
    found = [value] if not keys else [read_object(value).get(key) for key in keys]
    return next((repair_text(one) for one in found if isinstance(one, str) and one), "")


def read_identity(value: object, *keys: str) -> str:
    """Return the first id under these keys, which may be a number too."""
    for key in keys:
        found = read_object(value).get(key)
        if isinstance(found, str | int) and not isinstance(found, bool) and str(found):
            return repair_text(str(found))
    return ""


def read_object(value: object, *keys: str) -> Mapping[str, Any]:
    """Return the object that the keys lead to, or an empty one."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def read_list(value: object, *keys: str) -> Sequence[Any]:
    """Return the list that the keys lead to, or an empty one."""
    *first, last = keys
    found = read_object(value, *first).get(last)
    return found if isinstance(found, list) else ()


def read_objects(value: object, *keys: str) -> Iterator[Mapping[str, Any]]:
    """Yield the objects in the list that the keys lead to."""
    yield from (one for one in read_list(value, *keys) if isinstance(one, dict))


def read_count(value: object, *keys: str) -> int:
    """Return the number that the keys lead to, or 0."""
    *first, last = keys
    found = read_object(value, *first).get(last)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 0


def read_time(value: object) -> datetime | None:
    """Return a time in UTC: ISO 8601, or seconds, milliseconds or finer since 1970.

    >>> read_time("2026-11-26T10:00:00Z") == read_time(1795687200) == read_time(1795687200000)
    True
    >>> read_time("soon"), read_time(float("inf")), read_time(None)
    (None, None, None)
    """
    try:
        if isinstance(value, str):
            found = datetime.fromisoformat(value)
            return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            seconds = float(value)
            while abs(seconds) > _MILLISECONDS_FROM:
                seconds /= 1000
            return datetime.fromtimestamp(seconds, UTC) if seconds > 0 else None
    except (ValueError, OverflowError, OSError):
        pass
    return None


def write_json(value: object) -> str:
    """Return a value as JSON text, without lone surrogates."""
    return repair_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def write_arguments(value: object) -> str:
    """Return the arguments of a call as the text of a JSON object."""
    if isinstance(value, str):
        return repair_text(value) or "{}"
    return "{}" if value is None else write_json(value)


def speak(text: object) -> tuple[ExportedPart, ...]:
    """Return a text as a part, or nothing if it is empty."""
    found = read_string(text)
    return (TextualContent(found),) if found.strip() else ()


def think(text: object, native: NativePayload | None = None) -> tuple[ExportedPart, ...]:
    """Return a reasoning as a part, which is never sent, or nothing if there is none."""
    found = read_string(text)
    if not found.strip() and native is None:
        return ()
    return (ReasoningContent(found, native=native),)


class NativeParts:
    """Maker of parts that the importer does not understand, stored under its name.

    They are sent to no provider, because none has its name.
    """

    def __init__(self, module: str, row: str) -> None:
        self._module = module
        self._row = row

    def keep(self, value: object, label: str, model: str = "") -> tuple[ExportedPart, ...]:
        """Return a part that contains a value unchanged, or only its label if it is too deep."""
        return (NativeContent(label=label or "unknown", native=self.encode(value, model)),)

    def encode(self, value: object, model: str = "") -> NativePayload | None:
        """Return a value as a payload, or None if it is nested too deeply."""
        if is_deeper(value, _DEEPEST):
            return None
        issuer = Issuer(self._module, self._row, model or "unknown")
        return NativePayload(issuer, Raw(write_json(value).encode()))
