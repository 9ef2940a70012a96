"""Scores of pieces of documents for a request, by words and, with vectors, by meaning.

FTS5 returns the chunks with a word. Their pieces are scored here, as in
`vibe_llms.memory.database`. The words of a request are often in two adjacent sentences, so the
words of a piece also count for the pieces around it, but less.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import chain, pairwise
from math import exp, log
from typing import TYPE_CHECKING, NamedTuple

from vibe_llms.documents.chunks import SIZE
from vibe_llms.documents.database import divide
from vibe_llms.documents.passages import Candidate
from vibe_llms.embedding.vectors import VectorIndex

if TYPE_CHECKING:
    import sqlite3

#: Saturation of repeated words, as in BM25.
K1 = 1.2
#: Distance in characters at which a word of a neighboring piece counts 1/e as much.
REACH = 400.0
#: Weight of meaning relative to words.
MEANING = 0.4
#: Chunks on each side of a chosen one that are rated too. More distant words count little.
_NEAR = 2
#: Maximum number of matches that choose chunks, rarest words first.
_MOST_ROWS = 3_000
#: Chosen chunks per returnable chunk, and examined chunks per chosen one.
_POOL, _FIRST = 2, 4


class _Piece(NamedTuple):
    document: int
    chunk: int
    start: int
    end: int
    words: list[str]


class IndexedDocument(NamedTuple):
    """A row of the index: its key, its length in characters, and the numbers of its chunks."""

    key: int
    hash: str
    size: int
    first: int
    last: int
    used: float


def rank(
    database: sqlite3.Connection,
    documents: Sequence[IndexedDocument],
    words: Sequence[str],
    meaning: Meaning | None,
    characters: int,
) -> list[Candidate]:
    """Return the pieces of documents that fit a request, best first."""
    count = sum(one.last + 1 - one.first for one in documents)
    wanted = _Numbers(database, documents)
    frequencies = {word: wanted.count(word) for word in words}
    rarities = {
        word: log(1 + (count - frequency + 0.5) / (frequency + 0.5))
        for word, frequency in frequencies.items()
        if frequency
    }
    held: dict[int, float] = {}
    seen = 0
    for word in sorted(rarities, key=rarities.__getitem__, reverse=True):
        seen += frequencies[word]
        if held and seen > _MOST_ROWS:
            break
        rarity = rarities[word]
        for number in wanted.match(word):
            held[number] = held.get(number, 0.0) + rarity
    pool = _POOL * (characters // SIZE + 1)
    around = {
        number: (held[number] + sum(held.get(one, 0.0) for one in wanted.near(number, 1))) / 2
        for number in _choose_best(held, _FIRST * pool)
    }
    chosen = _choose_best(around, pool)
    if meaning is not None:
        chosen += meaning.choose(documents, pool)
    near = {one for number in chosen for one in wanted.near(number, _NEAR)}
    pieces = [*wanted.pieces(sorted(near))]
    scores = _rate(rarities, pieces)
    if meaning is not None:
        alike = meaning.compare(documents, near)
        scores = [
            (score + MEANING * alike.get(one.chunk, 0.0)) / (1 + MEANING)
            for score, one in zip(scores, pieces, strict=True)
        ]
    found = [
        Candidate(one.document, one.start, one.end, score)
        for one, score in zip(pieces, scores, strict=True)
    ]
    return sorted(found, key=lambda one: (-one.score, one.document, one.start))


class Meaning(NamedTuple):
    """Vector of a request, and vectors of documents by key."""

    question: array[float]
    vectors: Mapping[int, VectorIndex]

    def choose(self, documents: Sequence[IndexedDocument], count: int) -> list[int]:
        """Return the numbers of the nearest chunks."""
        cosines: dict[int, float] = {}
        for one, vectors in self._pairs(documents):
            nearest = vectors.search(self.question, count)
            cosines.update((one.first + place, cosine) for place, cosine in nearest.items())
        return _choose_best(cosines, count)

    def compare(
        self, documents: Sequence[IndexedDocument], numbers: Collection[int]
    ) -> dict[int, float]:
        """Return how far each chunk's cosine exceeds the mean, as a fraction of the way to 1."""
        pairs = self._pairs(documents)
        sums = [vectors.sum_up(self.question) for _, vectors in pairs]
        mean = sum(total for total, _ in sums) / (sum(count for _, count in sums) or 1)
        alike: dict[int, float] = {}
        for one, vectors in pairs:
            places = [number - one.first for number in numbers if one.first <= number <= one.last]
            for place, cosine in vectors.score(self.question, places).items():
                alike[one.first + place] = (cosine - mean) / (1 - mean)
        return alike

    def _pairs(
        self, documents: Sequence[IndexedDocument]
    ) -> list[tuple[IndexedDocument, VectorIndex]]:
        return [
            (one, vectors)
            for one in documents
            if (vectors := self.vectors.get(one.key)) and vectors.fits(self.question)
        ]


class _Numbers:
    """Chunk numbers of some documents, and their entries in the database."""

    def __init__(self, database: sqlite3.Connection, documents: Sequence[IndexedDocument]) -> None:
        self._database = database
        self._documents = documents
        self._firsts = [one.first for one in documents]
        self._range = (documents[0].first, documents[-1].last)
        #: Needed if chunks of other documents have numbers in between.
        self._own: set[int] | None = None
        if any(after.first > one.last + 1 for one, after in pairwise(documents)):
            self._own = {*chain.from_iterable(range(one.first, one.last + 1) for one in documents)}

    def count(self, word: str) -> int:
        """Return the number of chunks that have a word."""
        if self._own is not None:
            return len(self.match(word))
        statement = "select count(*) from postings where postings match ? and rowid between ? and ?"
        (count,) = self._database.execute(statement, (f'"{word}"', *self._range)).fetchone()
        return int(count)

    def match(self, word: str) -> Collection[int]:
        """Return the chunks that have a word."""
        statement = "select rowid from postings where postings match ? and rowid between ? and ?"
        rows = self._database.execute(statement, (f'"{word}"', *self._range))
        numbers = chain.from_iterable(rows)
        return [*numbers] if self._own is None else self._own.intersection(numbers)

    def near(self, number: int, steps: int) -> range:
        """Return a chunk and its neighbors in the same document, up to a number of steps away."""
        owner = self._find_owner(number)
        return range(max(number - steps, owner.first), min(number + steps, owner.last) + 1)

    def pieces(self, numbers: Sequence[int]) -> Iterator[_Piece]:
        """Yield the pieces of some chunks of these documents, in order."""
        for some in divide(numbers):
            marks = ", ".join("?" * len(some))
            statement = (
                "select number, breaks, words from chunks "  # noqa: S608
                f"where number in ({marks}) order by number"
            )
            for number, breaks, words in self._database.execute(statement, some):
                key = self._find_owner(number).key
                for (start, end), line in zip(
                    pairwise(array("Q", breaks)), words.split("\n"), strict=True
                ):
                    yield _Piece(key, number, start, end, line.split())

    def _find_owner(self, number: int) -> IndexedDocument:
        return self._documents[bisect_right(self._firsts, number) - 1]


def _choose_best(scores: Mapping[int, float], count: int) -> list[int]:
    """Return the numbers with the best scores; of equal scores, the lowest numbers."""
    return nlargest(count, scores, key=lambda number: (scores[number], -number))


def _rate(rarities: Mapping[str, float], pieces: Sequence[_Piece]) -> list[float]:
    """Return the share of the words that each piece has, including neighbors, from 0 to 1."""
    fading = [
        exp((one.start + one.end - after.start - after.end) / 2 / REACH)
        if one.document == after.document
        else 0.0
        for one, after in pairwise(pieces)
    ]
    asked = {*rarities}
    counts = [
        {word: one.words.count(word) for word in asked.intersection(one.words)} for one in pieces
    ]
    scores = [0.0] * len(pieces)
    for word, rarity in rarities.items():
        weights = _spread([one.get(word, 0) for one in counts], fading)
        for place, weight in enumerate(weights):
            scores[place] += rarity * weight / (weight + K1)
    most = sum(rarities.values())
    return [score / most for score in scores] if most else scores


def _spread(counts: Sequence[float], fading: Sequence[float]) -> list[float]:
    """Return the counts plus those before and after, which fade with distance."""
    weights = [*counts]
    carried = 0.0
    for place, fade in enumerate(fading, 1):
        carried = (carried + counts[place - 1]) * fade
        weights[place] += carried
    carried = 0.0
    for place in range(len(fading) - 1, -1, -1):
        carried = (carried + counts[place + 1]) * fading[place]
        weights[place] += carried
    return weights
