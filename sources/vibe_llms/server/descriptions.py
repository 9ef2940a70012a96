"""Describes JSON of other programs as text, for models that cannot take it as what it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

#: Members that only number something, only its vendor can read, or are not text.
_HIDDEN = frozenset(
    {
        *("cache_control", "caller", "citations", "data", "encrypted_content", "encrypted_index"),
        *("encrypted_stdout", "id", "signature", "status", "tool_use_id", "type"),
    }
)
#: Members whose names say nothing about their values.
_PLAIN = frozenset({"content", "output", "summary", "text"})


def describe_json(value: Any) -> str:
    r"""Return the texts in a JSON value, one a line, with the names of members where they help.

    >>> describe_json([{"type": "web_search_result", "title": "A", "url": "b", "data": "c"}])
    'title: A\nurl: b'
    """
    return "\n".join(line for line in _survey_lines(value) if line.strip())


def _survey_lines(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, member in value.items():
            if key not in _HIDDEN:
                yield from _survey_lines(member, "" if key in _PLAIN else key)
    elif isinstance(value, list):
        for item in value:
            yield from _survey_lines(item, name)
    elif value is not None:
        yield f"{name}: {value}" if name else str(value)
