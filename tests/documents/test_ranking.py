"""How words and meaning near a piece of a document make its score."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from math import exp
from typing import Any

import pytest

from vibe_llms.documents.ranking import K1, REACH, IndexedDocument, Meaning, _Piece, _rate, _spread


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([1, 0, 4], [2, 2.5, 4.25]),
        ([0, 2, 0, 0], [1, 2, 1, 0.5]),
        ([0, 0, 0, 8], [1, 2, 4, 8]),
        ([8, 0, 0, 0], [8, 4, 2, 1]),
        ([3], [3]),
    ],
)
def test_a_count_spreads_both_ways_and_fades(
    counts: Sequence[int], expected: Sequence[float]
) -> None:
    assert _spread(counts, [0.5] * (len(counts) - 1)) == expected


def test_words_count_for_pieces_around_them_but_not_in_other_documents() -> None:
    pieces = [
        _Piece(1, 1, 0, 100, ["yak", "yak"]),
        _Piece(1, 2, 100, 300, ["zebra"]),
        _Piece(2, 3, 0, 100, ["zebra"]),
        _Piece(2, 4, 100, 200, ["other"]),
    ]
    scores = _rate({"yak": 1.0, "zebra": 3.0}, pieces)
    near = exp(-150 / REACH)

    def weigh(yaks: float, zebras: float) -> float:
        return (yaks / (yaks + K1) + 3 * zebras / (zebras + K1)) / 4

    assert scores == pytest.approx(
        [weigh(2, near), weigh(2 * near, 1), weigh(0, 1), weigh(0, exp(-100 / REACH))]
    )
    assert _rate({}, pieces) == [0.0] * 4


class Vectors:
    """The cosines of a document's chunks with every question."""

    def __init__(self, *cosines: float) -> None:
        self.cosines = cosines

    def fits(self, _: array[float]) -> bool:
        return len(self.cosines) > 1

    def sum_up(self, _: array[float]) -> tuple[float, int]:
        return sum(self.cosines), len(self.cosines)

    def score(self, _: array[float], places: Sequence[int]) -> Mapping[int, float]:
        assert all(0 <= place < len(self.cosines) for place in places)
        return {place: self.cosines[place] for place in places}

    def search(self, _: array[float], count: int) -> Mapping[int, float]:
        best = sorted(range(len(self.cosines)), key=lambda place: -self.cosines[place])
        return {place: self.cosines[place] for place in best[:count]}


def document(key: int, first: int, last: int) -> IndexedDocument:
    return IndexedDocument(key, str(key), 100, first, last, 0.0)


def test_meaning_is_compared_with_that_of_all_documents_together() -> None:
    vectors: Any = {1: Vectors(0.1, 0.5), 2: Vectors(0.3, 0.9, 0.2), 3: Vectors(0.7)}
    documents = [document(1, 10, 11), document(2, 20, 22), document(3, 30, 30)]
    meaning = Meaning(array("f", [1.0]), vectors)
    mean = 2.0 / 5
    # The third has vectors of another model, and chunks between the documents are of others.
    assert meaning.compare(documents, [10, 11, 12, 19, 21, 22, 23, 30]) == pytest.approx(
        {
            10: (0.1 - mean) / (1 - mean),
            11: (0.5 - mean) / (1 - mean),
            21: (0.9 - mean) / (1 - mean),
            22: (0.2 - mean) / (1 - mean),
        }
    )
    assert meaning.choose(documents, 2) == [21, 11]
    assert Meaning(array("f", [1.0]), {}).compare(documents, [10]) == {}
