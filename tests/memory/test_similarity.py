"""Which facts repeat each other, and which are alike enough to ask about, by words and vectors."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from math import sqrt
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from msgspec import Struct

from tests.fakes.embedders import WordsEmbedder
from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.memory.entries import Entry
from vibe_llms.memory.similarity import (
    LARGEST,
    find_alike_by_vectors,
    find_alike_by_words,
    find_mean,
    find_repeats,
    rank,
)

WHEN = datetime(2026, 5, 4, tzinfo=UTC)
BAR = 0.7


class Pair(Struct, forbid_unknown_fields=True):
    half: Literal["tuning", "held-out"]
    same: bool
    one: str
    other: str


class Pairs(Struct, forbid_unknown_fields=True):
    pairs: list[Pair]


def read_pairs() -> list[Pair]:
    path = Path(__file__).with_name("data") / "pairs.toml"
    return msgspec.toml.decode(path.read_bytes(), type=Pairs).pairs


def produce(texts: Sequence[str], speakers: Sequence[str] = ()) -> list[Entry]:
    """Facts that are as important as each other, the first of them the newest."""
    said = speakers or [""] * len(texts)
    return [
        Entry(content=text, identity=f"e{n}", created=WHEN - timedelta(days=n), speaker=speaker)
        for n, (text, speaker) in enumerate(zip(texts, said, strict=True))
    ]


def repeats(texts: Sequence[str], speakers: Sequence[str] = ()) -> list[list[int]]:
    return [group for group in find_repeats(produce(texts, speakers)) if len(group) > 1]


async def embed(texts: Sequence[str]) -> Sequence[array[float]]:
    return await WordsEmbedder().embed(texts)


def test_no_pair_that_says_different_things_is_a_repeat() -> None:
    different = [pair for pair in read_pairs() if not pair.same]
    assert len(different) == 110
    assert [pair for pair in different if repeats([pair.one, pair.other])] == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Ada likes tea.", "ada likes TEA"),
        ("The code is 102.", "The code is “102”"),
    ],
)
def test_case_and_punctuation_make_no_other_fact(one: str, other: str) -> None:
    assert repeats([one, "The moon", other]) == [[0, 2]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Ada eats fish.", "Ada doesn't eat fish."),
        ("Ada writes C.", "Ada writes C++."),
        ("It is 5 degrees.", "It is -5 degrees."),
        ("The shelf is 6' high.", 'The shelf is 6" high.'),
        ("Ada moved to Porto.", "Ada moved to Porto?"),
        ("Ada moved to Porto.", "What Ben made up:\nAda moved to Porto."),
    ],
)
def test_what_changes_the_sense_makes_another_fact(one: str, other: str) -> None:
    assert repeats([one, other]) == []


def test_facts_of_different_speakers_are_kept_apart() -> None:
    assert repeats(["I like tea"] * 4, ["Ada", "", "Ben", "Ben"]) == [[0, 1], [2, 3]]


def test_the_first_by_importance_and_time_leads() -> None:
    old = Entry(content="Tea.", identity="a", created=WHEN, importance=0.9)
    new = Entry(content="Tea.", identity="b", created=WHEN + timedelta(days=1))
    newer = Entry(content="Tea.", identity="c", created=WHEN + timedelta(days=2))
    assert sorted([new, old, newer], key=rank) == [old, newer, new]


def test_words_find_facts_that_share_the_rare_ones() -> None:
    texts = ["Tom is grey", "The moon", "Tom is grey and 3", "Ada likes tea", "A grey Tom"]
    assert find_alike_by_words(texts, 0.5) == [[0, 2, 4]]
    assert find_alike_by_words(texts, 0.99) == [[0, 2, 4]]
    assert find_alike_by_words(["Tom is grey", "Tom is grim"], 0.5) == []
    assert find_alike_by_words(["", "?!", "the"], 0.0) == []


def test_most_pairs_that_share_words_are_asked_about() -> None:
    pairs = read_pairs()
    texts = [text for pair in pairs for text in (pair.one, pair.other)]
    groups = [set(group) for group in find_alike_by_words(texts, BAR)]
    found = [n for n in range(len(pairs)) if any({2 * n, 2 * n + 1} <= one for one in groups)]
    assert len([n for n in found if pairs[n].same]) >= 30


def test_groups_have_a_limit_and_many_facts_that_are_alike_are_found_at_once() -> None:
    texts = [f"Ada likes green tea on mountain{n % 100}" for n in range(2000)]
    groups = find_alike_by_words([*texts, *texts[:50]], 0.3)
    assert [len(group) for group in groups] == [LARGEST] * 100


async def test_vectors_find_what_is_alike() -> None:
    texts = [
        "Ada keeps many bees near a forest",
        "The moon is far away from us",
        "near a forest Ada keeps her many bees",
    ]
    assert find_alike_by_vectors(await embed(texts), 0.75) == [[0, 2]]


async def test_many_vectors_are_compared_block_by_block() -> None:
    texts = [f"thing{number} lies on shelf{number}" for number in range(600)]
    vectors = await embed([*texts, "On shelf7 thing7 lies, too"])
    assert find_alike_by_vectors(vectors, 0.75) == [[7, 600]]
    same = await embed(["Ada keeps bees"] * 50)
    assert [len(group) for group in find_alike_by_vectors(same, 0.75)] == [20, 20, 10]


def test_a_fact_of_several_sentences_lies_in_the_midst_of_them() -> None:
    one, other = array("f", [1.0, 0.0]), array("f", [0.0, 1.0])
    assert find_mean([one]) is one
    assert [*find_mean([one, other])] == pytest.approx([sqrt(0.5), sqrt(0.5)])
    assert [*find_mean([one, array("f", [-1.0, 0.0])])] == [0.0, 0.0]


async def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'vibe-llms\[memory\]'"):
        find_alike_by_vectors([array("f", [1.0])], 0.75)
