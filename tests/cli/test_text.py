"""Text for a terminal: hidden characters of all of Unicode, and text laid out in cells."""

from __future__ import annotations

import json
import sys
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibe_llms.cli.terminal import VisibleText, escape_json
from vibe_llms.cli.text import cut, draw_columns, fold, pad, width, wrap
from vibe_llms.messages.hidden import is_hidden, visible

EVERYTHING = range(sys.maxunicode + 1)
#: Signs that are drawn, although Unicode counts them among the formats.
DRAWN = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"


def hides(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


@pytest.mark.slow
def test_every_character_that_hides_or_drives_is_shown_and_no_other() -> None:
    # A tab keeps each apart from its neighbours.
    shown = visible("\t\t".join(map(chr, EVERYTHING))).split("\t\t")
    pairs = zip(map(chr, EVERYTHING), shown, strict=True)
    changed = {c for c, text in pairs if text != c and c not in "\n\t"}
    hiding = {c for c in map(chr, EVERYTHING) if hides(c)} - {*DRAWN, "\n", "\t"}
    assert hiding <= changed
    rest = changed - hiding
    assert set("\u034f\u115f\u180b\u2800\u3164\ufe00\uffa0\U000e0fff\ufff0") <= rest
    assert {c for c in rest if unicodedata.category(c) not in ("Mn", "Cn")} == {
        *"\u115f\u1160\u2800\u3164\uffa0",  # fillers and a blank
        *"┃┏┗",  # the frame of our own questions
    }


@given(st.text(st.characters(exclude_categories=()), max_size=100))
def test_json_for_a_terminal_is_the_same_json(text: str) -> None:
    for whole in (json.dumps({"a": text}, ensure_ascii=False), json.dumps(text)):
        escaped = escape_json(whole)
        assert json.loads(escaped) == json.loads(whole)
        assert escape_json(escaped) == escaped


@pytest.mark.slow
def test_json_for_a_terminal_holds_nothing_hidden() -> None:
    hidden = "".join(c for c in map(chr, EVERYTHING) if is_hidden(c))
    assert escape_json(json.dumps(f"┃┏┗{hidden}", ensure_ascii=False)).isascii()


@pytest.mark.parametrize(
    "text",
    [
        *("1\ufe0f\u20e3", "☎\ufe0e", "☎\ufe0f", "↔\ufe0f", "👩🏽\u200d🚀", "🏳\ufe0f\u200d🌈"),
        *("葛\U000e0100", "\u1820\u180b", "\u1820\u180e\u1820", "ක්\u200dර", "\u2801\u28ff"),
    ],
)
def test_writing_that_needs_them_keeps_its_joiners_and_selectors(text: str) -> None:
    assert visible(text) == text
    stream = VisibleText()
    assert "".join(stream.feed(c) for c in text) + stream.close() == text
    assert escape_json(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\ufe0f", "a\\ufe0f"),
        ("☎\ufe0f\ufe0f", "☎\ufe0f\\ufe0f"),
        ("a\U000e0100", "a\\U000e0100"),
        ("soft\u00adhyphen", "soft\\u00adhyphen"),
        ("rm\u2800file", "rm file"),
        ("rm\u3164", "rm\\u3164"),
    ],
)
def test_elsewhere_they_are_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(
    st.lists(st.text(st.sampled_from("☎\ufe0f\u200d👩a\u1820\u180e\r\n葛\U000e0100"), max_size=5))
)
def test_text_in_pieces_is_shown_as_the_whole_is(pieces: list[str]) -> None:
    stream = VisibleText()
    assert "".join(map(stream.feed, pieces)) + stream.close() == visible("".join(pieces))


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
