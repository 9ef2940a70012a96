"""Characters that hide, move or reorder text: all of Unicode, and the writing that needs some."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibe_llms.cli.characters import is_hidden
from vibe_llms.cli.terminal import VisibleText, escape_json, visible

EVERYTHING = range(sys.maxunicode + 1)
#: Signs that are drawn, although Unicode counts them among the formats.
DRAWN = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"


def hides(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


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
