"""The lexical index against a slow one that spells the same formula out."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from vibe_llms.memory import lexical
from vibe_llms.memory.lexical import (
    BEFORE,
    BEHIND,
    K1,
    LABEL,
    NONE,
    B,
    LexicalIndex,
    rarity_of,
)

WORDS = [f"w{number}" for number in range(40)]


class Reference:
    """Every entry spelled out: words, labels and neighbours, in plain lists."""

    def __init__(self) -> None:
        self.words: dict[int, list[str]] = {}
        self.labels: dict[int, set[str]] = {}
        self.before: dict[int, int] = {}

    def window(self, number: int) -> tuple[dict[str, float], float]:
        """What an entry's words weigh, and how long its text is with what was said before it."""
        weights: dict[str, float] = {}

        def count(words: list[str], share: float) -> None:
            for word, times in Counter(words).items():
                weights[word] = weights.get(word, 0.0) + share * times

        count(self.words[number], 1.0)
        size = float(len(self.words[number]))
        before = number
        for share in BEFORE:
            if before not in self.before:
                break
            before = self.before[before]
            count(self.words[before], share)
            size += share * len(self.words[before])
        behind = {one: other for other, one in self.before.items()}
        after = number
        for share in BEHIND:
            if after not in behind:
                break
            after = behind[after]
            count(self.words[after], share)
        for name in self.labels[number]:
            weights[name] = weights.get(name, 0.0) + LABEL
        return weights, size

    def score(self, rarities: dict[str, float]) -> dict[int, float]:
        windows = {number: self.window(number) for number in self.words}
        average = sum(size for _, size in windows.values()) / len(windows)
        scores: dict[int, float] = {}
        for number, (weights, size) in windows.items():
            for word, rarity in rarities.items():
                if weight := weights.get(word, 0.0):
                    part = weight / (weight + K1 * (1 - B + B * size / average))
                    scores[number] = scores.get(number, 0.0) + rarity * part
        return scores


def build(chance: random.Random, count: int) -> tuple[LexicalIndex, Reference]:
    index, reference = LexicalIndex(), Reference()
    last = NONE
    for _ in range(count):
        words = chance.choices(
            WORDS, [1 / (rank + 1) for rank in range(40)], k=chance.randint(0, 9)
        )
        labels = set(chance.sample(WORDS, chance.randint(0, 2)))
        number = index.add(words, labels)
        reference.words[number], reference.labels[number] = words, labels
        if last != NONE and chance.random() < 0.7:
            index.link(last, number)
            reference.before[number] = last
        last = number
    for number in chance.sample(range(count), count // 5):
        index.remove(number)
        del reference.words[number], reference.labels[number]
        reference.before = {
            one: other for one, other in reference.before.items() if number not in (one, other)
        }
    return index, reference


def differ(seed: int) -> bool:
    """Whether the index scores otherwise than the reference."""
    chance = random.Random(seed)
    index, reference = build(chance, chance.randint(2, 60))
    if chance.random() < 0.5:
        index = LexicalIndex.decode(index.encode())
    if not reference.words:
        return bool(index.score({"w0": 1.0}))
    for _ in range(5):
        asked = {word: chance.random() + 0.1 for word in chance.sample(WORDS, chance.randint(1, 6))}
        expected = pytest.approx(reference.score(asked), rel=1e-4)
        if index.score(asked) != expected:
            return True
        some = set(chance.sample(sorted(reference.words), (len(reference.words) + 1) // 2))
        part = {number: one for number, one in reference.score(asked).items() if number in some}
        if index.assess(asked, some) != pytest.approx(part, rel=1e-4):
            return True
    return False


def test_scores_equal_those_of_a_slow_index() -> None:
    assert not any(differ(seed) for seed in range(150))


def test_an_index_that_counts_windows_wrongly_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LexicalIndex, "_measure", lambda self, number: None)
    assert any(differ(seed) for seed in range(150))


def test_the_shortcut_for_many_candidates_keeps_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(4)
    index = LexicalIndex()
    vocabulary = [f"v{number}" for number in range(2000)]
    shares = [1 / (rank + 5) for rank in range(2000)]
    for _ in range(2000):
        index.add(chance.choices(vocabulary, shares, k=12), ())
    shortened = 0
    for _ in range(60):
        words = chance.choices(vocabulary[:300], k=6)
        rarities = {word: rarity_of(index.frequency(word), index.count) for word in words}
        monkeypatch.setattr(lexical, "_MANY", 10**9)
        full = index.score(rarities)
        monkeypatch.setattr(lexical, "_MANY", 20)
        monkeypatch.setattr(lexical, "BEST", 5)
        quick = index.score(rarities)
        shortened += len(quick) < len(full)
        best = sorted(full, key=full.__getitem__, reverse=True)[:5]
        assert [quick.get(one) for one in best] == pytest.approx([full[one] for one in best])
    assert shortened > 5


def test_a_shortcut_that_begins_too_early_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexical, "_MANY", 1)
    monkeypatch.setattr(lexical, "BEST", 1)
    monkeypatch.setattr("heapq.nlargest", lambda count, values: [1e9])
    index = LexicalIndex()
    index.add(["rare"] + ["x"] * 50, ())
    index.add(["a", "b", "c"], ())
    assert set(index.score({"rare": 2.1, "a": 1.0, "b": 1.0, "c": 1.0})) == {0}


def test_a_word_is_worth_something_however_many_entries_are_gone() -> None:
    index = LexicalIndex()
    for _ in range(900):
        index.add(["tea"], ["tea"])
    for number in range(895):
        index.remove(number)
    assert index.frequency("tea") == index.count == 5
    assert rarity_of(index.frequency("tea"), index.count) > 0
    assert set(index.score({"tea": 1.0})) == set(range(895, 900))
    assert not index.wasteful
    for _ in range(200):
        index.remove(index.add(["tea"], ()))
    assert index.wasteful


def test_the_words_of_what_is_gone_are_not_stored() -> None:
    index = LexicalIndex()
    index.add(["secret", "tea"], ["hidden", "may"])
    index.add(["tea"], ["may"])
    for one in (index, LexicalIndex.decode(index.encode())):
        one.remove(0)
        data = one.encode()
        assert b"secret" not in data
        assert b"hidden" not in data
        assert set(LexicalIndex.decode(data).score({"tea": 1.0, "may": 1.0})) == {1}


def test_bytes_that_are_no_index_are_refused() -> None:
    index = LexicalIndex()
    index.add(["tea"], ())
    stored = msgspec.msgpack.decode(index.encode(), type=lexical.Stored)
    stored.live = b""
    for data in (b"", b"x", msgspec.msgpack.encode(stored)):
        with pytest.raises(ValueError):
            LexicalIndex.decode(data)


def test_an_empty_index_finds_nothing() -> None:
    assert LexicalIndex().score({"tea": 1.0}) == {}
    assert LexicalIndex().frequency("tea") == 0


def test_removing_twice_counts_once_and_long_texts_are_counted_to_a_limit() -> None:
    index = LexicalIndex()
    number = index.add(["tea"] * 70_000, ())
    index.remove(number)
    index.remove(number)
    assert (index.count, len(index)) == (0, 1)


def test_only_those_among_the_best_are_looked_at_once_no_other_can_be() -> None:
    index = LexicalIndex()
    for number in range(4000):
        words = ["rare"] * (3 if number < 200 else 1) + ["tea"] if number < 3500 else ["tea"]
        index.add(words, ["may"] if number % 2 else [])
    index.link(0, 1)
    index.link(1, 2)
    rarities = {"rare": 5.0, "tea": 0.1, "may": 0.2}
    scores = index.score(rarities)
    assert set(scores) == set(range(3500))
    rare = index.score({"rare": 5.0})
    whole = index.assess(rarities, range(4000))
    assert all(scores[number] == pytest.approx(whole[number]) for number in range(200))
    assert all(scores[number] == pytest.approx(rare[number]) for number in range(200, 3500))
    assert whole[300] > rare[300]
    assert set(whole) == set(range(4000))
