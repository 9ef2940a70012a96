"""The depth of decoded JSON."""

from __future__ import annotations

import json

import pytest

from vibe_llms.base.nesting import is_deeper


@pytest.mark.parametrize(
    ("text", "levels", "deeper"),
    [
        ("1", 0, False),
        ("[[]]", 1, False),
        ("[1]", 0, True),
        ("[[1]]", 1, True),
        ("[[1]]", 2, False),
        ('{"a": [{"b": 1}], "c": 2}', 2, True),
        ('{"a": [{"b": 1}], "c": 2}', 3, False),
        ("[" * 900 + "1" + "]" * 900, 899, True),
        ("[" * 900 + "1" + "]" * 900, 900, False),
    ],
)
def test_levels_are_counted_without_recursion(text: str, levels: int, deeper: bool) -> None:
    assert is_deeper(json.loads(text), levels) is deeper
