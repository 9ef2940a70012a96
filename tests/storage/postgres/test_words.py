"""The words of a text as PostgreSQL stores and seeks them."""

from __future__ import annotations

import pytest

from vibe_llms.storage.postgres import words
from vibe_llms.storage.postgres.words import Query, encode_query, encode_words, has_phrases


def test_words_have_the_places_where_they_are() -> None:
    assert encode_words("ada", "The river, the stone.") == "'@ada' 'the':1,3 'river':2 'stone':4"
    assert encode_words("o'b\\", "") == "'@o''b\\\\'"


def test_a_word_has_only_so_many_places_and_the_last_is_the_largest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(words, "_POSITIONS_PER_WORD", 3)
    monkeypatch.setattr(words, "_LAST_POSITION", 4)
    assert encode_words("ada", "a a a a b c") == "'@ada' 'a':1,2,3 'b':4 'c':4"


def test_what_a_vector_cannot_hold_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each word takes its bytes, two for a place, and four more.
    for largest, held in (
        (18, "'@ada' 'aaa':1 'bbb':2"),
        (17, "'@ada' 'aaa':1"),
        (8, "'@ada'"),
    ):
        monkeypatch.setattr(words, "_VECTOR_BYTES", largest)
        assert encode_words("ada", "aaa bbb") == held
    monkeypatch.setattr(words, "_VECTOR_BYTES", 13)
    assert encode_words("ada", "aaa aaa bbb") == "'@ada' 'aaa':1,2"
    monkeypatch.setattr(words, "_VECTOR_BYTES", 10)
    assert encode_words("ada", "aaa aaa bbb") == "'@ada'"


@pytest.mark.parametrize("letter", ["a", "é", "ж"])
def test_a_long_word_is_cut_alike_wherever_it_is(letter: str) -> None:
    bare = "e" if letter == "é" else letter
    for length, kept in ((499, 499), (500, 500), (501, 500), (900, 500)):
        text = f"{letter * length} b"
        assert encode_words("ada", text) == f"'@ada' '{bare * kept}':1 'b':2"
        query = encode_query("ada", [letter * length])
        assert query == Query(f"'@ada' & '{bare * kept}'", f"'{bare * kept}'", [])


def test_scripts_without_spaces_are_kept_in_pairs_too() -> None:
    assert encode_words("ada", "東京a京") == "'@ada' '東':1 '京':2,5 '東京':3 'a':4"
    query = encode_query("ada", ["東京"])
    assert query == Query("'@ada' & '東' & '京' & '東京'", "'東' & '京' & '東京'", [" 東 京 "])


def test_words_that_follow_each_other_are_sought_so() -> None:
    query = encode_query("ada", ["stone-river", "A", "a"])
    assert query == Query(
        "'@ada' & 'stone' & 'river' & 'a'", "'stone' & 'river' & 'a'", [" stone river "]
    )
    assert query is not None
    assert has_phrases("A stone. River!", query)
    assert not has_phrases("river stone a", query)
    assert not has_phrases("stone rivers a", query)
    assert encode_query("ada", ["!?", ""]) is None
    single = encode_query("ada", ["river"])
    assert single is not None
    assert has_phrases("nothing of it", single)
