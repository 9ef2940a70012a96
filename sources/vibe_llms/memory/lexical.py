"""The lexical index of one scope: which entries have which words, and how well they fit a question.

Scores are BM25 over fields (Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25
and Beyond", 2009, section 3.6): what an entry says, what was said just before and after it in the
same conversation, and its labels, that is who said it and when. A question often has the words of
the turn before the one that answers it, so a turn is found by its neighbours too.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import log

import msgspec
from msgspec import Struct

K1 = 1.2
B = 0.75
#: What a word counts in the turns before an entry: in the first, the second and so on.
BEFORE = (0.6, 0.4, 0.3, 0.2)
#: What it counts in the turns behind an entry.
BEHIND = (0.3, 0.2)
#: What it counts as a label.
LABEL = 2.0
NONE = 0xFFFFFFFF
#: From so many entries on it is worth asking whether further words can find better ones.
_MANY = 1000
#: So many of the best shall not be missed.
BEST = 100
#: What a word adds to an entry that has it once or as a label, of all that it could add.
_USUAL = 0.6
_VIRTUAL = 100
_NO_LABELS = array("I")


#: Up to so many postings a question they are worth being made a table of.
_FEW = 50


def rarity_of(frequency: int, count: int) -> float:
    """What a word is worth that stands in so many of so many entries."""
    # As if there were some more entries, so that a memory of three has rare words too.
    return log(1 + (count + _VIRTUAL - frequency + 0.5) / (frequency + 0.5))


class Postings:
    """In which entries a word stands, and how often."""

    __slots__ = ("counts", "numbers")

    def __init__(self, numbers: bytes = b"", counts: bytes = b"") -> None:
        self.numbers = array("I")
        self.numbers.frombytes(numbers)
        self.counts = array("B")
        self.counts.frombytes(counts)

    def look_up(self, questions: int) -> Callable[[int], int | None]:
        """How often the word stands in an entry, or `None`, for about so many questions."""
        numbers, counts = self.numbers, self.counts
        if len(numbers) < _FEW * questions:
            return dict(zip(numbers, counts, strict=True)).get

        def count_of(number: int) -> int | None:
            # They were added in order.
            place = bisect_left(numbers, number)
            return counts[place] if place < len(numbers) and numbers[place] == number else None

        return count_of


class Stored(Struct, array_like=True):
    """The index as it is kept in a file; arrays as the bytes of this machine's order."""

    words: dict[str, tuple[bytes, bytes]]
    labels: dict[str, bytes]
    lengths: bytes
    sizes: bytes
    before: bytes
    behind: bytes
    live: bytes


class LexicalIndex:
    """Entries by number, counted from 0 in the order in which they were added."""

    def __init__(self) -> None:
        self._words: dict[str, Postings] = {}
        self._stored: Mapping[str, tuple[bytes, bytes]] = {}
        self._labels: dict[str, array[int]] = {}
        self._lengths = array("H")
        self._before = array("I")
        self._behind = array("I")
        self._live = bytearray()
        self._sizes = array("f")
        self._total = 0.0
        self.count = 0

    def __len__(self) -> int:
        return len(self._lengths)

    @property
    def wasteful(self) -> bool:
        """Whether most of it belongs to entries that are gone."""
        return len(self) - self.count > max(self.count, 1000)

    def add(self, words: Sequence[str], labels: Iterable[str]) -> int:
        """Take an entry in; its number."""
        number = len(self._lengths)
        self._lengths.append(min(len(words), 0xFFFF))
        self._sizes.append(self._lengths[number])
        self._before.append(NONE)
        self._behind.append(NONE)
        self._live.append(1)
        self._total += self._lengths[number]
        self.count += 1
        for word, count in Counter(words).items():
            postings = self._postings(word)
            if postings is None:
                postings = self._words[word] = Postings()
            postings.numbers.append(number)
            postings.counts.append(min(count, 0xFF))
        for name in labels:
            self._labels.setdefault(name, array("I")).append(number)
        return number

    def remove(self, number: int) -> None:
        """Give an entry up; its neighbours are no neighbours of each other."""
        if self._live[number]:
            before, behind = self._before[number], self._behind[number]
            self._before[number] = self._behind[number] = NONE
            self.link(before, NONE)
            self.link(NONE, behind)
            self._live[number] = 0
            self._total -= self._sizes[number]
            self.count -= 1

    def link(self, before: int, behind: int) -> None:
        """Make two entries neighbours in a conversation; with `NONE`, one that has none."""
        if before != NONE:
            self._behind[before] = behind
        if behind != NONE:
            self._before[behind] = before
        for _ in BEFORE:
            if behind == NONE:
                return
            self._measure(behind)
            behind = self._behind[behind]

    def _measure(self, number: int) -> None:
        """Count the words of an entry's window: its own, and those before it, as they count."""
        size = float(self._lengths[number])
        before = number
        for share in BEFORE:
            before = self._before[before]
            if before == NONE:
                break
            size += share * self._lengths[before]
        self._total += size - self._sizes[number]
        self._sizes[number] = size

    def frequency(self, word: str) -> int:
        """In about how many entries a word stands, in their texts or labels."""
        postings, labelled = self._postings(word), self._labels.get(word, _NO_LABELS)
        numbers = _NO_LABELS if postings is None else postings.numbers
        if self.count == len(self):
            found = len(numbers) + len(labelled)
        else:
            live = self._live.__getitem__
            found = sum(map(live, numbers)) + sum(map(live, labelled))
        return min(found, self.count)

    def score(self, rarities: Mapping[str, float]) -> dict[int, float]:
        """How well entries fit the words of a question, by number; none that has none of them.

        `rarities` says what each word is worth, as `rarity_of` has it: about the most that it can
        add. The rare words come first. Once all words that are left would not bring an entry among
        the best hundred, they only add to those found that they can bring there.
        """
        scores: dict[int, float] = {}
        if not self.count:
            return scores
        ideal = left = sum(rarities.values())
        many = False
        for word in sorted(rarities, key=rarities.__getitem__, reverse=True):
            near: Collection[int] | None = None
            # No entry has more by now than all the words that were counted are worth.
            if many or (len(scores) >= _MANY and ideal - left >= _USUAL * left):
                hundredth = heapq.nlargest(BEST, scores.values())[-1]
                many = many or hundredth >= _USUAL * left
                if many:
                    least = hundredth - left
                    near = [number for number, score in scores.items() if score >= least]
            left -= rarities[word]
            if near is None:
                weights = self._spread(word)
            elif self.frequency(word) < len(near):
                spread = self._spread(word).items()
                weights = {number: weight for number, weight in spread if number in scores}
            else:
                weights = self._weigh(word, near)
            self._count(rarities[word], weights, scores)
        return scores

    def assess(self, rarities: Mapping[str, float], numbers: Collection[int]) -> dict[int, float]:
        """The same for some entries, each of them whole."""
        scores: dict[int, float] = {}
        for word, rarity in rarities.items():
            self._count(rarity, self._weigh(word, numbers), scores)
        return scores

    def _count(self, rarity: float, weights: Mapping[int, float], scores: dict[int, float]) -> None:
        """Add what a word is worth in some entries to their scores."""
        fixed, scaled = K1 * (1 - B), K1 * B * self.count / (self._total or 1.0)
        sizes, live, get = self._sizes, self._live, scores.get
        if self.count < len(self):
            weights = {number: weight for number, weight in weights.items() if live[number]}
        for number, weight in weights.items():
            part = rarity * weight / (weight + fixed + scaled * sizes[number])
            scores[number] = get(number, 0.0) + part

    def _spread(self, word: str) -> dict[int, float]:
        """How much of a word each entry has, in all its fields."""
        weights: dict[int, float] = {}
        get = weights.get
        postings = self._postings(word)
        if postings is not None:
            weights.update(zip(postings.numbers, postings.counts, strict=True))
            # Turns before one have it behind them, and those behind one have it before them.
            for shares, neighbours in ((BEFORE, self._behind), (BEHIND, self._before)):
                for number, count in zip(postings.numbers, postings.counts, strict=True):
                    neighbour = number
                    for share in shares:
                        neighbour = neighbours[neighbour]
                        if neighbour == NONE:
                            break
                        weights[neighbour] = get(neighbour, 0.0) + share * count
        for number in self._labels.get(word, _NO_LABELS):
            weights[number] = get(number, 0.0) + LABEL
        return weights

    def _weigh(self, word: str, numbers: Collection[int]) -> dict[int, float]:
        """The same for some entries only."""
        postings, labelled = self._postings(word), self._labels.get(word, _NO_LABELS)
        count_of = (Postings() if postings is None else postings).look_up(len(numbers))
        weights: dict[int, float] = {}
        for number in numbers:
            weight = float(count_of(number) or 0)
            for shares, neighbours in ((BEFORE, self._before), (BEHIND, self._behind)):
                neighbour = number
                for share in shares:
                    neighbour = neighbours[neighbour]
                    if neighbour == NONE:
                        break
                    if count := count_of(neighbour):
                        weight += share * count
            if labelled and _holds(labelled, number):
                weight += LABEL
            if weight:
                weights[number] = weight
        return weights

    def _postings(self, word: str) -> Postings | None:
        postings = self._words.get(word)
        if postings is None and (stored := self._stored.get(word)) is not None:
            postings = self._words[word] = Postings(*stored)
        return postings

    def encode(self) -> bytes:
        """The index as bytes, for `decode`; without the words of entries that are gone."""
        words = dict(self._stored)
        words.update(
            (word, (one.numbers.tobytes(), one.counts.tobytes()))
            for word, one in self._words.items()
        )
        labels = self._labels
        dead = {number for number, live in enumerate(self._live) if not live}
        if dead:
            words = {word: kept for word, one in words.items() if (kept := _bury(*one, dead))[0]}
            labels = {
                name: left
                for name, numbers in labels.items()
                if (left := array("I", (one for one in numbers if one not in dead)))
            }
        return msgspec.msgpack.encode(
            Stored(
                words,
                {name: numbers.tobytes() for name, numbers in labels.items()},
                self._lengths.tobytes(),
                self._sizes.tobytes(),
                self._before.tobytes(),
                self._behind.tobytes(),
                bytes(self._live),
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> LexicalIndex:
        """The index of `encode`; `ValueError` where the bytes are something else."""
        stored = msgspec.msgpack.decode(data, type=Stored)
        index = cls()
        index._stored = stored.words
        for name, numbers in stored.labels.items():
            index._labels[name] = _array("I", numbers)
        index._lengths = _array("H", stored.lengths)
        index._before = _array("I", stored.before)
        index._behind = _array("I", stored.behind)
        index._live = bytearray(stored.live)
        if not len(index._lengths) == len(index._before) == len(index._behind) == len(index._live):
            raise ValueError("its tables are of different lengths")
        index.count = sum(index._live)
        index._sizes.frombytes(stored.sizes)
        index._total = sum(
            size for size, live in zip(index._sizes, index._live, strict=True) if live
        )
        return index


def _bury(numbers: bytes, counts: bytes, dead: set[int]) -> tuple[bytes, bytes]:
    """The postings without those of entries that are gone."""
    postings = Postings(numbers, counts)
    if dead.isdisjoint(postings.numbers):
        return numbers, counts
    kept = [
        pair for pair in zip(postings.numbers, postings.counts, strict=True) if pair[0] not in dead
    ]
    return (
        array("I", (number for number, _ in kept)).tobytes(),
        bytes(count for _, count in kept),
    )


def _holds(numbers: array[int], number: int) -> bool:
    """Whether a number is among others that are in order."""
    place = bisect_left(numbers, number)
    return place < len(numbers) and numbers[place] == number


def _array(kind: str, data: bytes) -> array[int]:
    values = array(kind)
    values.frombytes(data)
    return values
