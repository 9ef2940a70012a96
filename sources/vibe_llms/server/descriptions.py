"""Conversion of JSON from other programs to text, for models that cannot read the original."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

#: Members that are mere counters, opaque to all but their vendor, or not text.
_HIDDEN = frozenset(
    {
        *("cache_control", "caller", "citations", "data", "encrypted_content", "encrypted_index"),
        *("encrypted_stdout", "id", "signature", "status", "tool_use_id", "type"),
    }
)
#: Members whose names add nothing to their values.
_UNLABELED = frozenset({"content", "output", "summary", "text"})


def describe_json(value: Any) -> str:
    r"""Return the texts in a JSON value, one a line, with the names of members if they help.

    >>> describe_json([{"type": "web_search_result", "title": "A", "url": "b", "data": "c"}])
    'title: A\nurl: b'
    """
    return "\n".join(line for line in _survey_lines(value) if line.strip())


def _survey_lines(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, member in value.items():
            if key not in _HIDDEN:
                yield from _survey_lines(member, "" if key in _UNLABELED else key)
    elif isinstance(value, list):
        for item in value:
            yield from _survey_lines(item, name)
    elif value is not None:
        yield f"{name}: {value}" if name else str(value)
