"""The member `reasoning_details`: reasoning in typed parts, which go back unchanged.

Source: https://openrouter.ai/docs/guides/best-practices/reasoning-tokens (2026-11): the parts are
sent back in their order; pieces of a stream with one index are one part.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

#: The members whose pieces are joined; of others the last one that is not null counts.
_JOINED = ("text", "summary", "data")


def merge_details(pieces: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the parts that pieces of a stream make.

    >>> merge_details([{"index": 0, "text": "a"}, {"index": 0, "text": "b", "signature": "s"}])
    [{'index': 0, 'text': 'ab', 'signature': 's'}]
    """
    parts: list[dict[str, Any]] = []
    for piece in pieces:
        if not isinstance(piece, dict):
            continue
        index = piece.get("index")
        if index is None:
            known = None
        else:
            known = next((part for part in parts if _continues(part, piece)), None)
        if known is None:
            parts.append(dict(piece))
            continue
        for name, value in piece.items():
            before = known.get(name)
            if name in _JOINED and isinstance(before, str) and isinstance(value, str):
                known[name] = before + value
            elif value is not None or name not in known:
                known[name] = value
    return parts


def read_text(details: Iterable[Any]) -> str:
    """Return the words of the parts, for servers that send them nowhere else."""
    words = (
        part.get("text") or part.get("summary") or "" for part in details if isinstance(part, dict)
    )
    return "".join(word for word in words if isinstance(word, str))


def _continues(part: dict[str, Any], piece: dict[str, Any]) -> bool:
    return bool(
        part.get("index") == piece["index"]
        and piece.get("type") in (None, part.get("type"))
        and piece.get("id") in (None, part.get("id"))
    )
