"""The depth of decoded JSON, which recursion must not follow without a limit."""

from __future__ import annotations


def is_deeper(value: object, levels: int) -> bool:
    """Return True if containers are nested in more than this many levels.

    >>> is_deeper([[1]], 2), is_deeper({"a": [[1]]}, 2)
    (False, True)
    """
    level = [value]
    for _ in range(levels + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True
