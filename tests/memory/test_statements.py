"""A statement that stands within another one is included only where it is still said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.memory.test_likeness import merged
from tests.memory.test_wordings import Pair, read_pairs
from vibe_llms.memory import statements as statements_module
from vibe_llms.memory.merging import merge_contents
from vibe_llms.memory.statements import includes, is_turned, is_turning, read_statement


def read(text: str) -> tuple[str, ...]:
    return read_statement(text.split(), asked=text.endswith("?"))


@pytest.mark.parametrize(
    ("whole", "part", "included"),
    [
        ("ada likes tea", "ada likes tea", True),
        ("ada likes tea with honey", "ada likes tea", True),
        ("ada likes tea and cake", "ada likes tea", True),
        ("- ada likes tea", "ada likes tea", True),
        ("our cat likes tea", "the cat likes tea", True),
        ("ada likes tea tea", "ada likes tea", True),
        ("ada likes tea towels", "ada likes tea", False),
        ("ada likes tea with", "ada likes tea", False),
        ("ada likes tea and nothing else", "ada likes tea", False),
        ("ada likes tea in a dream", "ada likes tea", False),
        ("ada likes tea and doesn't drink it", "ada likes tea", False),
        ("ben moots ada likes tea", "ada likes tea", False),
        ("2 ada likes tea", "ada likes tea", False),
        ("ada likes tea ?", "ada likes tea", False),
        ("ada likes green tea", "ada likes tea", False),
        ("ben moots ada likes tea and ada likes tea", "ada likes tea", False),
        ("ada likes tea and ben moots ada likes tea", "ada likes tea", True),
        ("ada likes tea", "tea", True),
        ("ada never likes tea", "tea", False),
    ],
)
def test_what_stands_around_a_statement_decides(whole: str, part: str, included: bool) -> None:
    assert includes(read(whole), read(part)) is included
    turned = is_turned(read(part), [read(whole)])
    assert turned is (not included and read(part) != ("tea",) and "green" not in whole)


def test_one_that_says_it_is_enough() -> None:
    wholes = [read("ben moots ada likes tea"), read("ada likes tea with honey")]
    assert not is_turned(read("ada likes tea"), wholes)
    assert is_turned(read("ada likes tea"), wholes[:1])
    assert not is_turned(read("ada likes tea"), [])


def test_a_question_is_no_statement_and_articles_do_not_count() -> None:
    assert read_statement(["the", "cat"], asked=False) == ("cat",)
    assert read_statement(["the", "cat"], asked=True) == ("cat", "?")
    assert read_statement(["the"], asked=True) == ()


@pytest.mark.parametrize(
    "word",
    ["not", "isn't", "pretends", "denied", "imagining", "guesses", "almost", "behauptet", "kaum"],
)
def test_words_that_change_the_sense_are_known_in_their_forms(word: str) -> None:
    assert is_turning(word)
    assert not is_turning("tea")


_SENTENCES = st.lists(st.sampled_from(["ada", "tea", "with", "not", "our", "-"]), max_size=4)


@given(_SENTENCES, _SENTENCES, _SENTENCES, _SENTENCES, _SENTENCES)
def test_what_is_included_in_a_part_is_included_in_the_whole(
    part: list[str], before: list[str], behind: list[str], first: list[str], last: list[str]
) -> None:
    part = ["ben", *part]
    middle = [*before, *part, *behind]
    whole = [*first, *middle, *last]
    assert includes(part, part)
    if includes(middle, part) and includes(whole, middle):
        assert includes(whole, part)


def find_swallowed() -> list[Pair]:
    """The pairs that say different things, and of which one swallows the other."""
    return [
        pair
        for pair in read_pairs()
        if not pair.same
        and (merged([pair]) or merge_contents(pair.one, pair.other) in (pair.one, pair.other))
    ]


def test_no_statement_is_swallowed_by_one_that_says_otherwise() -> None:
    assert find_swallowed() == []


def test_a_look_at_the_words_alone_would_be_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements_module, "_leaves", lambda *_: True)
    assert len(find_swallowed()) >= 15


def test_pairs_of_which_one_says_more_are_still_merged() -> None:
    within = [
        pair
        for pair in read_pairs()
        if pair.same and merge_contents(pair.one, pair.other) in (pair.one, pair.other)
    ]
    assert len(within) == 33
    assert len([pair for pair in within if merged([pair])]) >= 31
