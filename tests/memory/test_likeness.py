"""Which facts are found to say the same, by words and by vectors."""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from math import sqrt

import msgspec
import pytest

from tests.fakes.embedders import WordsEmbedder
from tests.memory.test_wordings import Pair, read_pairs
from vibe_llms.exceptions import ConfigurationError
from vibe_llms.memory.entries import Entry
from vibe_llms.memory.lexical import rarity_of
from vibe_llms.memory.likeness import (
    VectorNeighbours,
    WordNeighbours,
    find_groups,
    find_mean,
    rank,
    read_wordings,
)

WHEN = datetime(2026, 5, 4, tzinfo=UTC)
BAR = 0.7


def produce(texts: Sequence[str]) -> list[Entry]:
    """Facts that are as important as each other, the first of them the newest."""
    return [
        Entry(content=text, identity=f"e{number}", created=WHEN - timedelta(days=number))
        for number, text in enumerate(texts)
    ]


def group_by_words(entries: Sequence[Entry], bar: float = BAR) -> list[list[int]]:
    wordings = read_wordings(entries)
    return find_groups(entries, wordings, WordNeighbours(wordings, bar))


async def embed(entries: Sequence[Entry]) -> Sequence[array[float]]:
    return await WordsEmbedder().embed([entry.content for entry in entries])


def merged(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs that are merged when all are in one memory."""
    entries = produce([text for pair in pairs for text in (pair.one, pair.other)])
    groups = [set(group) for group in group_by_words(entries)]
    return [
        pair
        for number, pair in enumerate(pairs)
        if any({2 * number, 2 * number + 1} <= group for group in groups)
    ]


def test_no_pair_that_says_different_things_is_merged() -> None:
    assert merged([pair for pair in read_pairs() if not pair.same]) == []


@pytest.mark.parametrize(("half", "least"), [("tuning", 7), ("held-out", 8)])
def test_pairs_that_say_the_same_in_the_same_words_are_merged(half: str, least: int) -> None:
    same = [pair for pair in read_pairs() if pair.same and pair.half == half]
    assert len(merged(same)) >= least


def test_the_first_by_importance_and_time_leads() -> None:
    old = Entry(content="Tea.", identity="a", created=WHEN, importance=0.9)
    new = Entry(content="Tea.", identity="b", created=WHEN + timedelta(days=1))
    newer = Entry(content="Tea.", identity="c", created=WHEN + timedelta(days=2))
    assert sorted([new, old, newer], key=rank) == [old, newer, new]


def test_a_group_is_what_is_like_its_first_and_has_no_two_that_differ() -> None:
    texts = ["Tom is grey", "Tom is grey and 3", "Tom is grey and 4", "The moon", "Tom is grey!"]
    assert group_by_words(produce(texts), 0.5) == [[0, 1, 4]]


def test_facts_of_different_speakers_are_kept_apart() -> None:
    one, two, three = produce(["I like tea"] * 3)
    entries = [msgspec.structs.replace(one, speaker="Ada"), two]
    assert group_by_words(entries) == [[0, 1]]
    entries.append(msgspec.structs.replace(three, speaker="Ben"))
    assert group_by_words(entries) == [[0, 1]]


def test_what_a_crash_left_beside_its_merger_joins_it_if_all_it_says_is_there() -> None:
    whole = Entry(
        content="Tea is green. The mill in Ghent is red and very old.",
        identity="w",
        created=WHEN,
        merged_from=("e0", "e1", "gone"),
    )
    left, edited = produce(["Tea is green.", "Tea is white."])
    assert group_by_words([whole, left, edited]) == [[0, 1]]
    assert group_by_words([left, whole]) == []


def test_groups_have_a_limit_and_many_repeats_are_found_at_once() -> None:
    groups = group_by_words(produce(["Ada likes green tea"] * 2000))
    assert max(map(len, groups)) == 20
    assert sum(map(len, groups)) == 2000


def test_words_find_what_comparing_all_pairs_finds() -> None:
    chance = random.Random(3)
    words = [f"w{letter}{other}" for letter in "abcdefgh" for other in "klmno"]
    texts = [" ".join(chance.sample(words, chance.randint(1, 6))) for _ in range(300)]
    texts += [f"{text} {chance.choice(words)}" for text in texts[:100]]
    wordings = read_wordings(produce(texts))
    near = WordNeighbours(wordings, BAR)
    for place in range(len(texts)):
        near.add(place)
    sets = [set(wording.words) for wording in wordings]
    worth = {word: rarity_of(sum(word in one for one in sets), len(sets)) ** 2 for word in words}

    def size(some: set[str]) -> float:
        return sum(worth[word] for word in some)

    for place, own in enumerate(sets):
        expected = {
            other
            for other, theirs in enumerate(sets)
            if (own <= theirs or theirs <= own)
            and size(own & theirs) / sqrt(size(own) * size(theirs)) > BAR + 1e-9
        }
        assert set(near.find(place)) >= expected or len(expected) > 20
        assert len(expected) >= 1


async def test_vectors_find_what_is_alike_and_signs_of_difference_keep_it_apart() -> None:
    texts = [
        "Ada keeps many bees near a forest",
        "The moon is far away from us",
        "near a forest Ada keeps her many bees",
        "Ada never keeps many bees near a forest",
    ]
    entries = produce(texts)
    near = VectorNeighbours(await embed(entries), 0.75)
    near.add(0)
    near.add(1)
    assert near.find(2) == [0]
    assert near.find(3) == [0]
    near.remove(0)
    assert near.find(2) == []
    fresh = VectorNeighbours(await embed(entries), 0.75)
    assert find_groups(entries, read_wordings(entries), fresh) == [[0, 2]]


async def test_many_vectors_are_compared_block_by_block() -> None:
    texts = [f"thing{number} lies on shelf{number}" for number in range(600)]
    entries = produce([*texts, "On shelf7 thing7 lies, too"])
    groups = find_groups(
        entries, read_wordings(entries), VectorNeighbours(await embed(entries), 0.75)
    )
    assert groups == [[7, 600]]


def test_a_fact_of_several_sentences_lies_in_the_midst_of_them() -> None:
    one, other = array("f", [1.0, 0.0]), array("f", [0.0, 1.0])
    assert find_mean([one]) is one
    assert [*find_mean([one, other])] == pytest.approx([sqrt(0.5), sqrt(0.5)])
    assert [*find_mean([one, array("f", [-1.0, 0.0])])] == [0.0, 0.0]


async def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'vibe-llms\[memory\]'"):
        VectorNeighbours([array("f", [1.0])], 0.75)
