"""Traces of words: where they count, and the words that every file has."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from vibe_llms.memory.entries import GLOBAL, Entry, encode_entry
from vibe_llms.memory.text_search import examine, fold, holds
from vibe_llms.messages.identities import produce_identity


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("Straße", "STRASSE"),
        ("cafe\u0301 noir", "CAF\u00c9  NOIR"),
        ("over\ntwo lines", "over two LINES"),
    ],
)
def test_case_spaces_and_the_form_of_accents_do_not_matter(written: str, asked: str) -> None:
    assert holds(fold(asked), [written])
    assert not holds(fold(asked + "!"), [written])


@pytest.mark.parametrize(
    "data",
    [
        b"---\nid: one-two\ncreated_at: 2026-01-01\ncategory: xyzzy\n---\n\ntext\n",
        b"---\nid: one-two\ncreated_at: 2026-01-01\nmood: {deep: [XYZZY]}\n---\n\ntext\n",
        b"---\nid: one-two\ncreated_at: 2026-01-01\n# xyzzy\n---\n\ntext\n",
        b"---\nid: one-two\ncreated_at: 2026-01-01\n---\n\nabout Xyzzy\n",
        b"---\nno entry at all, but xyzzy\n",
        b"\xff\xfe xyzzy",
    ],
)
def test_all_text_of_a_file_is_searched(data: bytes) -> None:
    assert holds("xyzzy", examine(data, GLOBAL, "facts/20260101T000000Z__one-two.md")[1])


def test_the_name_of_a_foreign_file_is_looked_at_and_that_of_ours_is_not() -> None:
    assert holds("xyzzy", examine(b"", GLOBAL, "facts/Xyzzy.txt")[1])
    own = "facts/20260101T000000Z__0123abcd.md"
    entry, texts = examine(b"", GLOBAL, own)
    assert entry.identity == "0123abcd"
    assert not holds("0123abcd", texts)


def test_what_every_file_has_in_its_front_matter_is_no_trace() -> None:
    created = datetime(2026, 1, 1, tzinfo=UTC)
    entry = Entry(
        content="Ada keeps bees.", identity=produce_identity(), created=created, category="home"
    )
    data = encode_entry(entry)
    _, texts = examine(data, GLOBAL, "facts/x__y.md")
    assert [word for word in ("memory", "role", "2026", "category") if holds(word, texts)] == []
    assert holds("home", texts)


def test_the_ids_in_a_summary_are_no_trace_and_what_a_person_wrote_there_is() -> None:
    created = datetime(2026, 1, 1, tzinfo=UTC)
    for names, seen in (
        ("471147114711 fe4711123456", False),
        ("471147114711", False),
        ("4711", True),
        ("471147114711 4711", True),
    ):
        entry = Entry(
            content="They met.",
            identity=produce_identity(),
            created=created,
            further={"sums_up": names},
        )
        _, texts = examine(encode_entry(entry), GLOBAL, "summaries/L3/x__y.md")
        assert holds("4711", texts) is seen, names
