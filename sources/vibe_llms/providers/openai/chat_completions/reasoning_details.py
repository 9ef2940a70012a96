"""The member `reasoning_details`: reasoning in typed parts, which are sent back unchanged.

Source: https://openrouter.ai/docs/guides/best-practices/reasoning-tokens (2026-11): the parts are
sent back in their order; pieces of a stream with one index are one part.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

#: Members whose pieces are joined; of others, the last value that is not null counts.
_JOINED = ("text", "summary", "data")


def merge_details(pieces: Iterable[Any]) -> list[dict[str, Any]]:
    """Join the pieces of a stream to parts.

    >>> merge_details([{"index": 0, "text": "a"}, {"index": 0, "text": "b", "signature": "s"}])
    [{'index': 0, 'text': 'ab', 'signature': 's'}]
    """
    parts: list[_Part] = []
    by_index: dict[str, list[_Part]] = {}
    for piece in pieces:
        if not isinstance(piece, dict):
            continue
        index = piece.get("index")
        known = [] if index is None else by_index.setdefault(repr(index), [])
        part = next((one for one in known if one.takes(piece)), None)
        if part is None:
            part = _Part(piece)
            parts.append(part)
            known.append(part)
        else:
            part.grow(piece)
    return [part.produce() for part in parts]


def read_text(details: Iterable[Any]) -> str:
    """Return the text of the parts, for servers that send it nowhere else."""
    words = (
        part.get("text") or part.get("summary") or "" for part in details if isinstance(part, dict)
    )
    return "".join(word for word in words if isinstance(word, str))


class _Part:
    def __init__(self, piece: dict[str, Any]) -> None:
        self._members = dict(piece)
        self._texts: dict[str, list[str]] = {}

    def takes(self, piece: dict[str, Any]) -> bool:
        """Return True if a piece with the same index continues this part."""
        members = self._members
        return all(piece.get(name) in (None, members.get(name)) for name in ("type", "id"))

    def grow(self, piece: dict[str, Any]) -> None:
        for name, value in piece.items():
            before = self._members.get(name)
            if name in _JOINED and isinstance(before, str) and isinstance(value, str):
                self._texts.setdefault(name, [before]).append(value)
            elif value is not None or name not in self._members:
                self._members[name] = value
                self._texts.pop(name, None)

    def produce(self) -> dict[str, Any]:
        return {**self._members, **{name: "".join(one) for name, one in self._texts.items()}}
