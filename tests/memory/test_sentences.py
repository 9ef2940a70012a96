"""Sentences are found where a reader sees them end, whatever a text holds, and in time."""

# ruff: noqa: RUF001  (marks and letters of many scripts are what this is about)
from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibe_llms.memory.sentences import is_ended, split_sentences

SENTENCES = {
    "plain": ["One thing.", "Another one!", "And a third?", "and so on"],
    "small letters": ["i live in rome.", "what is the time?", "i am 42.", "my cat is 3."],
    "titles": ["Dr. Who met Mrs. Hall and St. John.", "Sra. Paz and Mme. Curie came.", "Yes."],
    "latin abbreviations": ["It is big, e.g. Paris, i.e. not small, cf. Rome.", "So it is."],
    "german abbreviations": ["Das ist z. B. Tee, d.h. u.a. warm, bzw. heiß.", "Nr. 5 lebt."],
    "other abbreviations": ["Dat is bijv. thee.", "Es la Sra. Gil.", "È il dott. Neri."],
    "etc. in between": ["Tea, milk etc. are there.", "Tea, milk, etc.", "All are there."],
    "companies": ["Acme Inc. has it.", "It is of Acme Ltd.", "They sold it."],
    "numbers that are counted": ["No. 5 is alive.", "No.", "It is not.", "See fig. 3 on p. 7."],
    "initials": ["J. R. R. Tolkien wrote it.", "George W. Bush read it.", "So do I.", "Then go."],
    "states": ["The U.S. Army came at 5 p.m. on Monday.", "It left at 6 a.m.", "We saw it."],
    "decimals": ["It costs $3.50 or 10.000,00.", "Pi is 3.14.", "v1.2.3 is out."],
    "dates": ["Am 3. Mai 2026 war es.", "On 3.5. and 2026.05.03 too.", "The 21. Juli is next."],
    "times": ["It was 12.30.", "Or 14:05."],
    "addresses": ["See https://a.example/b.c?d=e!f.", "Or a.example, x.y@z.example.", "Then go."],
    "files": ["Open main.py and ../a.toml.", "Then run it."],
    "ellipses": ["well... perhaps.", "I was… tired.", "Oh…", "And then...", "Yes."],
    "many marks": ["Really?!", "No!!!", "Why??", "So."],
    "quotes": ['"Really?" she asked.', '"Yes."', "\u201cGo.\u201d", "(So it is.)", "Good."],
    "guillemets": ["« Vraiment ? » dit-elle.", "Oui."],
    "markdown": ["**Really.**", "_So it is._", "Yes."],
    "notes": ["It is so.[1]", "It is not.[12]", "Who knows?"],
    "emoji": ["I love it! 😊", "And you? 🎉🎉", "Great!👍🏽", "it is ❤️"],
    "inline code": ["Use `a. b` or `c! d` here.", "Then `e`."],
    "chinese": ["我住在东京。", "你呢？", "很好！", "是的"],
    "japanese": ["これは猫です。", "それは「犬。」です。", "「はい。」", "「いいえ。」"],
    "hindi": ["मैं दिल्ली में रहता हूँ।", "आप कहाँ हैं?"],
    "arabic": ["كيف حالك؟", "أنا بخير.", "شكرا۔", "نعم"],
    "spanish": ["¿Vives aquí?", "¡Sí!", "¿Y tú?"],
    "russian": ["Я живу в Риме.", "А ты?", "Да!"],
}  # fmt: skip


@pytest.mark.parametrize("kind", SENTENCES)
def test_sentences_are_separated(kind: str) -> None:
    spaceless = kind in ("chinese", "japanese")
    assert split_sentences(("" if spaceless else " ").join(SENTENCES[kind])) == SENTENCES[kind]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        (" \n\t\n", []),
        ("...", ["..."]),
        (" One.  Two!\nThree ", ["One.", "Two!", "Three"]),
        ("A heading\n\nand a text", ["A heading", "and a text"]),
        ("# A\r\n\r\nB\rC\u2028D", ["# A", "B", "C", "D"]),
        ("- tea\n* milk. And rum\n  - ice", ["- tea", "* milk.", "And rum", "- ice"]),
        ("1. Milk\n2. Eggs\n10. Tea\na. ice", ["1. Milk", "2. Eggs", "10. Tea", "a. ice"]),
        ("I like it. 1. is", ["I like it.", "1. is"]),
        ("```py\na. b! c\n\nd\n```\nHi. Ho", ["```py\na. b! c\n\nd\n```", "Hi.", "Ho"]),
        ("~~~\na. b\n```\n~~~ \nHi", ["~~~\na. b\n```\n~~~", "Hi"]),
        # What is never closed is no code.
        ("```py\naa. b\nc", ["```py", "aa.", "b", "c"]),
        ("an `odd. Mark", ["an `odd.", "Mark"]),
        # A line that was cut to a width.
        (
            "My house is in a village that nobody knows,\nbut everybody likes it. I\ndo too.",
            [
                "My house is in a village that nobody knows,\nbut everybody likes it.",
                "I",
                "do too.",
            ],
        ),
        (
            "These are the things that I like most of all:\ntea\nmilk",
            ["These are the things that I like most of all:", "tea", "milk"],
        ),
        ("x" * 50 + "\na) one\nb) two", ["x" * 50, "a) one", "b) two"]),
    ],
)
def test_lines_lists_and_code_have_their_own(text: str, parts: list[str]) -> None:
    assert split_sentences(text) == parts


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        ("So it is.", True),
        ('"So it is!"', True),
        ("So it is! 😊", True),
        ("そうです。」", True),
        ("So it is", False),
        ("So it is:", False),
        ("", False),
        ("!" + "😊" * 100 + "x", False),
    ],
)
def test_whether_a_text_is_ended(text: str, ended: bool) -> None:
    assert is_ended(text) == ended


@given(st.text(alphabet=" \n.!?…。「」\"')abZ1😊`~*-\u061f\u2028", max_size=80))
def test_nothing_is_lost_changed_or_put_elsewhere(text: str) -> None:
    place = 0
    for part in split_sentences(text):
        assert part == part.strip() != ""
        found = text.find(part, place)
        # Between two sentences is nothing but space.
        assert found >= 0
        assert not text[place:found].strip()
        place = found + len(part)
    assert not text[place:].strip()


@given(st.lists(st.text(alphabet="ab. ?\n", max_size=30), max_size=5))
def test_what_was_split_is_not_split_again(parts: list[str]) -> None:
    for part in split_sentences(" ".join(parts)):
        # Of a wrapped line, the first words may be gone that made it long enough to go on.
        assert "\n" in part or split_sentences(part) == [part]


AWKWARD = (
    ".", " ", "\n", "!?", ".'", ". ", "`", "`x", "```\n", "```a\n~~~ ", "! 😊", "😊", "!  ", "x",
    "。」", "。 ", "Dr. ", "a.", ".[1", ".[1]", "z. ", "A. ", "1. ", "... a", ".\"", "! »",
    "so it goes " * 5 + "\n",
)  # fmt: skip


def seconds_of(split: Callable[[str], object], text: str) -> float:
    """The shortest of some times: what else the machine does only adds to it."""
    spans: list[float] = []
    for _ in range(3):
        begun = time.process_time()
        split(text)
        spans.append(time.process_time() - begun)
    return min(spans)


def grows_too_fast(split: Callable[[str], object], piece: str, length: int) -> bool:
    """Whether eight times the text takes more than three times as long as it may."""
    begin = "x" if piece.isspace() else ""
    short = seconds_of(split, begin + piece * (length // 8 // len(piece)) + "x")
    long = seconds_of(split, begin + piece * (length // len(piece)) + "x")
    return long > 24 * max(short, 0.002)


@pytest.mark.slow
@pytest.mark.storm
@pytest.mark.parametrize("piece", AWKWARD)
def test_the_time_grows_with_the_length_and_no_faster(
    piece: str, rounds: Callable[[int, int], int]
) -> None:
    assert not grows_too_fast(split_sentences, piece, rounds(40_000, 1_000_000))


@pytest.mark.slow
def test_a_splitter_that_looks_twice_would_be_detected() -> None:
    assert grows_too_fast(re.compile(r"[.!?]+['\"]*\s+").split, ".", 4_000)
