"""Vectors of passages: the nearest are found, what is gone is not, what is stored comes back."""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from tests.fakes.embedders import likeness
from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.embedding import vectors
from vibe_llms.embedding.vectors import VectorIndex

DIMENSIONS = 12


def draw(chance: random.Random, dimensions: int = DIMENSIONS) -> array[float]:
    values = [chance.gauss(0, 1) for _ in range(dimensions)]
    length = sum(value * value for value in values) ** 0.5
    return array("f", (value / length for value in values))


def fill(
    count: int, chance: random.Random, *, batch: int = 50
) -> tuple[VectorIndex, dict[int, list[array[float]]]]:
    """An index of entries with one to three vectors each, and the same in a table."""
    index = VectorIndex("model")
    known = {number: [draw(chance) for _ in range(1 + number % 3)] for number in range(count)}
    numbers = list(known)
    for start in range(0, count, batch):
        index.add({number: known[number] for number in numbers[start : start + batch]})
    return index, known


def rank(
    known: Mapping[int, Sequence[array[float]]], question: array[float], count: int
) -> list[int]:
    """The nearest entries, by comparing all."""
    cosines = {
        number: max(likeness(question, one) for one in some) for number, some in known.items()
    }
    return sorted(cosines, key=cosines.__getitem__, reverse=True)[:count]


@pytest.mark.parametrize("stored", [False, True])
def test_the_nearest_entries_are_found_with_their_cosines(stored: bool) -> None:
    chance = random.Random(1)
    index, known = fill(300, chance)
    for number in chance.sample(sorted(known), 100):
        index.remove(number)
        del known[number]
    if stored:
        index = VectorIndex.decode(index.encode())
    assert (len(index), index.model, index.dimension) == (200, "model", DIMENSIONS)
    assert index.numbers == known.keys()
    for _ in range(50):
        question = draw(chance)
        wanted = rank(known, question, 8)
        found = index.search(question, 8)
        # Entries with many near passages may leave room for fewer others.
        assert list(found) == wanted[: len(found)]
        assert len(found) >= 4
        exact = index.score(question, [*wanted, 10**6])
        assert list(exact) == wanted
        for number, cosine in found.items():
            assert cosine == pytest.approx(exact[number], abs=1e-5)
            best = max(likeness(question, one) for one in known[number])
            assert cosine == pytest.approx(best, abs=1e-5)
        assert index.read(wanted[0]).shape == (len(known[wanted[0]]), DIMENSIONS)
    assert index.read(10**6) is None


@pytest.mark.parametrize("flat", [100, 10_000])
def test_the_cosines_of_all_passages_are_known_together(
    monkeypatch: pytest.MonkeyPatch, flat: int
) -> None:
    monkeypatch.setattr(vectors, "FLAT", flat)
    chance = random.Random(7)
    index, known = fill(200, chance)
    for number in list(known)[::3]:
        index.remove(number)
        index.remove(number)
        del known[number]
    known[1] = [draw(chance)]
    index.add({1: known[1]})
    for one in (index, VectorIndex.decode(index.encode())):
        question = draw(chance)
        every = [likeness(question, vector) for some in known.values() for vector in some]
        total, count = one.sum_up(question)
        assert total == pytest.approx(sum(every), abs=1e-3)
        assert count == len(every)
    for number in known:
        index.remove(number)
    assert index.sum_up(draw(chance)) == (0.0, 0)


def test_of_many_vectors_nearly_all_of_the_nearest_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vectors, "FLAT", 300)
    chance = random.Random(2)
    index, known = fill(3000, chance, batch=250)
    hits = 0
    for other in (index, VectorIndex.decode(index.encode())):
        assert len(other) == 3000
        for _ in range(20):
            question = draw(chance)
            hits += len({*rank(known, question, 5)} & {*other.search(question, 5)})
            number = chance.randrange(3000)
            exact = other.score(known[number][0], [number])
            assert exact[number] == pytest.approx(1, abs=1e-5)
            other.add({})
    assert hits > 0.85 * 200
    # What is added later is found as well, and what has gone is not.
    late = draw(chance)
    index.add({9000: [late]})
    assert next(iter(index.search(late, 3))) == 9000
    index.remove(9000)
    assert 9000 not in index.search(late, 3)


@pytest.mark.parametrize("flat", [100, 10_000])
def test_nothing_of_vectors_that_are_gone_is_stored(
    monkeypatch: pytest.MonkeyPatch, flat: int
) -> None:
    monkeypatch.setattr(vectors, "FLAT", flat)
    index, known = fill(300, random.Random(6))
    gone = {number: known.pop(number) for number in list(known)[::7]}
    for number in gone:
        index.remove(number)
    for _ in range(2):
        data = index.encode()
        assert not any(one.tobytes() in data for some in gone.values() for one in some)
        assert all(one.tobytes() in data for some in known.values() for one in some)
        index = VectorIndex.decode(data)
        for number, (first, *_) in known.items():
            assert index.score(first, [number])[number] == pytest.approx(1, abs=1e-5)


def test_deleted_vectors_take_no_place_among_the_results() -> None:
    chance = random.Random(11)
    index = VectorIndex("model")
    question = draw(chance)
    index.add({number: [question] for number in range(200)})
    index.add({200: [array("f", (*question[:6], *draw(chance)[6:]))]})
    for number in range(200):
        index.remove(number)
    assert set(index.search(question, 10)) == {200}


def test_the_vectors_of_a_number_may_change() -> None:
    chance = random.Random(3)
    index = VectorIndex("model")
    old, new = draw(chance), draw(chance)
    index.add({1: [old], 2: [draw(chance)]})
    index.remove(1)
    index.add({1: [new]})
    for one in (index, VectorIndex.decode(index.encode())):
        assert one.search(new, 1) == {1: pytest.approx(1, abs=1e-5)}
        assert one.search(old, 2)[1] == pytest.approx(likeness(old, new), abs=1e-5)


def test_an_empty_index_finds_nothing_and_is_stored() -> None:
    index = VectorIndex.decode(VectorIndex("model").encode())
    assert (index.model, len(index), index.search(array("f", [1.0]), 3)) == ("model", 0, {})
    index.add({})
    assert index.fits(array("f", [1.0]))


def test_bytes_that_are_no_index_are_refused() -> None:
    index, _ = fill(20, random.Random(4))
    data = index.encode()
    stored = msgspec.msgpack.decode(data, type=vectors._Stored)
    lies = [
        b"x",
        data[:-10],
        msgspec.msgpack.encode(msgspec.structs.replace(stored, owners=b"")),
        msgspec.msgpack.encode(msgspec.structs.replace(stored, dimension=7)),
        msgspec.msgpack.encode(msgspec.structs.replace(stored, total=b"")),
        msgspec.msgpack.encode(msgspec.structs.replace(stored, searcher=b"nonsense")),
    ]
    for lie in lies:
        with pytest.raises(ValueError):
            VectorIndex.decode(lie)


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'vibe-llms\[memory\]'"):
        VectorIndex("model").add({1: [array("f", [1.0])]})
