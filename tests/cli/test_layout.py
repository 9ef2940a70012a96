"""Text laid out in cells: nothing is lost, nothing is wider than it may be, whatever the script."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibe_llms.cli.layout import cut, draw_columns, fold, pad, width, wrap

FAMILY = "👩‍👩‍👧"
PIECES = ["a", "word", " ", "  ", "日本", "e\u0301", FAMILY, "❤️", "🇮🇹", "\n", "-", "ﷺ", "ก็"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@pytest.mark.parametrize(
    ("text", "cells"),
    [("", 0), ("abc", 3), ("日本", 4), ("e\u0301", 1), ("❤️", 2), ("🎉", 2), (FAMILY, 6)],
)
def test_a_text_is_as_wide_as_the_widest_terminal_draws_it(text: str, cells: int) -> None:
    assert width(text) == cells


@given(TEXTS, st.integers(0, 30))
def test_a_cut_text_fits_and_is_the_beginning(text: str, cells: int) -> None:
    shown = cut(text, cells)
    assert width(shown) <= cells or shown == text == ""
    assert text.startswith(shown.removesuffix("…"))
    if width(text) <= cells:
        assert shown == text


@given(TEXTS, st.integers(8, 30))
def test_wrapped_lines_fit_and_hold_all_words(text: str, cells: int) -> None:
    lines = wrap(text, cells)
    assert all(width(line) <= cells for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@given(TEXTS, st.integers(8, 30))
def test_folded_lines_fit_and_hold_all_characters(text: str, cells: int) -> None:
    lines = fold(text, cells)
    assert all(width(line) <= cells for line in lines)
    assert "".join(lines) == text.replace("\n", "")


@given(TEXTS, st.integers(0, 30))
def test_a_padded_text_takes_its_cells(text: str, cells: int) -> None:
    assert width(pad(text, cells)) == max(width(text), cells)
    assert pad(text, cells).rstrip() == text.rstrip()


def test_a_list_goes_on_under_its_beginning() -> None:
    assert wrap("  one two three", 9) == ["  one two", "  three"]
    assert wrap("-o one two three", 8, "   ") == ["-o one", "   two", "   three"]
    assert wrap(" " * 30 + "deep words", 10) == ["deep words"]
    assert wrap(" " * 30, 10) == [""]
    assert fold("\tx", 8) == ["    x"]


def test_columns_are_aligned_by_cells() -> None:
    rows = [("日本", "one"), ("a", "two"), ("b",)]
    assert draw_columns(rows) == ["日本  one", "a     two", "b"]
    assert draw_columns([]) == []


def test_a_last_column_without_room_goes_below() -> None:
    rows = [("/memory [on|off]", "show what is recalled"), ("/exit", "leave")]
    assert draw_columns(rows, 24) == [
        "/memory [on|off]",
        "    show what is",
        "    recalled",
        "/exit             leave",
    ]
    assert draw_columns(rows, 34)[:2] == ["/memory [on|off]  show what is", " " * 18 + "recalled"]


@pytest.mark.parametrize(
    "piece", ["x", "日", "a ", " ", "日 ", "a\u0301", "👩\u200d", "\u0301", "-"]
)
def test_a_text_ten_times_as_long_takes_ten_times_as_long(piece: str) -> None:
    def measure(count: int) -> float:
        begun = time.process_time()
        wrap(piece * count, 40)
        fold(piece * count, 40)
        cut(piece * count, 40)
        return time.process_time() - begun

    measure(10)
    assert measure(20_000) < 40 * max(measure(2_000), 0.005)
