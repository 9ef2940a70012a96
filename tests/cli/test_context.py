"""The bars of `/context`, which tell what fills the context window."""

from __future__ import annotations

import pytest

from vibe_llms.cli.context import draw_context
from vibe_llms.conversations.context_use import ContextUse


def draw(columns: int) -> list[str]:
    parts = {"tools": 21_900, "talk": 1_234_567}
    use = ContextUse(tokens=1_256_467, window=2_000_000, parts=parts, messages=9)
    return draw_context(use, columns).splitlines()[1:4]


@pytest.mark.parametrize("columns", [80, 40, 29])
def test_bars_fill_the_line_and_no_more(columns: int) -> None:
    bars = draw(columns)
    assert all("█" in one for one in bars[:2])
    assert all(len(one) < columns for one in bars)
    assert [one[:22] for one in bars] == [
        "tools           21,900", "talk         1,234,567", "free           743,533"
    ]  # fmt: skip


@pytest.mark.parametrize("columns", [28, 20, 16])
def test_a_narrow_terminal_gets_numbers_without_bars(columns: int) -> None:
    assert draw(columns) == ["tools: 21,900", "talk: 1,234,567", "free: 743,533"]
