"""Which facts say the same: the nearest ones by words or by vectors, and groups of them.

Facts are taken the most important first, and of two that are as important the newer one. Each joins
the nearest of those that lead a group, or leads one of its own; so nobody is compared with what has
been grouped, and a group is what is like its first, not a chain.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from math import hypot, sqrt
from typing import Any, Protocol

from vibe_llms.exceptions import ConfigurationError
from vibe_llms.memory.entries import Entry
from vibe_llms.memory.lexical import rarity_of
from vibe_llms.memory.merging import says_all
from vibe_llms.memory.wordings import Wording, read_wording, tell_apart

#: So many of the nearest are looked at, and a group has at most so many facts.
_NEAREST, _LARGEST = 20, 20
#: So many facts are compared with all others at a time.
_BLOCK = 512


class Neighbours(Protocol):
    """Facts by their places in a list; those that lead a group are found by what is like them."""

    def find(self, place: int) -> Sequence[int]:
        """The leaders that are alike enough, the nearest first."""
        ...

    def add(self, place: int) -> None:
        """Let a fact be found."""
        ...

    def remove(self, place: int) -> None:
        """Let a fact be found no more."""
        ...


class WordNeighbours:
    """Likeness as the cosine of words, the rarer the weightier; one has no word the other lacks.

    A pair above the bar shares one of the rarest words of both (Bayardo, Ma and Srikant, "Scaling
    up all pairs similarity search", 2007), so only these are looked up.
    """

    def __init__(self, wordings: Sequence[Wording], bar: float) -> None:
        self._bar = bar
        self._sets = [frozenset(wording.words) for wording in wordings]
        frequencies = Counter(word for words in self._sets for word in words)
        count = len(wordings)
        self._worth = {
            word: rarity_of(frequency, count) ** 2 for word, frequency in frequencies.items()
        }
        self._sizes = [sum(map(self._worth.__getitem__, words)) for words in self._sets]
        self._led: dict[str, list[int]] = defaultdict(list)

    def find(self, place: int) -> Sequence[int]:
        """The leaders that are alike enough, the nearest first."""
        own, size = self._sets[place], self._sizes[place]
        alike: dict[int, float] = {}
        for word in self._rarest(place):
            for other in self._led.get(word, ()):
                theirs = self._sets[other]
                if other not in alike and (own <= theirs or theirs <= own):
                    sizes = sorted((size, self._sizes[other]))
                    alike[other] = sqrt(sizes[0] / sizes[1])
        near = [other for other, cosine in alike.items() if cosine > self._bar]
        return sorted(near, key=alike.__getitem__, reverse=True)[:_NEAREST]

    def add(self, place: int) -> None:
        """Let a fact be found."""
        for word in self._rarest(place):
            self._led[word].append(place)

    def remove(self, place: int) -> None:
        """Let a fact be found no more."""
        for word in self._rarest(place):
            self._led[word].remove(place)

    def _rarest(self, place: int) -> list[str]:
        """The words without which a text cannot be alike enough."""
        ordered = sorted(self._sets[place], key=lambda word: (-self._worth[word], word))
        left = self._sizes[place]
        least = self._bar**2 * left
        kept: list[str] = []
        for word in ordered:
            if left < least:
                break
            kept.append(word)
            left -= self._worth[word]
        return kept


class VectorNeighbours:
    """Likeness as the cosine of vectors, each 1 long."""

    def __init__(self, vectors: Sequence[array[float]], bar: float) -> None:
        numpy = _numpy()
        self._leaders: set[int] = set()
        self._near: list[list[int]] = []
        matrix = numpy.array(vectors, numpy.float32)
        for start in range(0, len(vectors), _BLOCK):
            end = min(start + _BLOCK, len(vectors))
            cosines = matrix[start:end] @ matrix[:end].T
            for row in range(end - start):
                earlier = cosines[row, : start + row]
                places = numpy.flatnonzero(earlier > bar)
                order = numpy.argsort(-earlier[places], kind="stable")
                self._near.append(places[order][: 4 * _NEAREST].tolist())

    def find(self, place: int) -> Sequence[int]:
        """The leaders that are alike enough, the nearest first."""
        return [other for other in self._near[place] if other in self._leaders][:_NEAREST]

    def add(self, place: int) -> None:
        """Let a fact be found."""
        self._leaders.add(place)

    def remove(self, place: int) -> None:
        """Let a fact be found no more."""
        self._leaders.discard(place)


def rank(entry: Entry) -> tuple[float, float, str]:
    """What facts are sorted by: the more important first, then the newer."""
    return -entry.importance, -entry.created.timestamp(), entry.identity


def find_groups(
    entries: Sequence[Entry], wordings: Sequence[Wording], near: Neighbours
) -> list[list[int]]:
    """The places of facts that say the same, the one that stays first; `entries` are by rank."""
    group_of: dict[int, list[int]] = {}
    leads = {entry.identity: place for place, entry in enumerate(entries)}
    merged = {
        identity: leads[entry.identity] for entry in entries for identity in entry.merged_from
    }
    for place, entry in enumerate(entries):
        joined = _find_merger(entry, entries, merged, group_of) or next(
            (
                group_of[leader]
                for leader in near.find(place)
                if _fits(place, group_of[leader], entries, wordings)
            ),
            None,
        )
        if joined is None:
            group_of[place] = [place]
            near.add(place)
        else:
            joined.append(place)
            group_of[place] = joined
            if len(joined) == _LARGEST:
                near.remove(joined[0])
    return [group for place, group in group_of.items() if group[0] == place and len(group) > 1]


def _find_merger(
    entry: Entry, entries: Sequence[Entry], merged: dict[str, int], groups: dict[int, list[int]]
) -> list[int] | None:
    """The group of the fact that a crash left beside what was merged into it."""
    place = merged.get(entry.identity)
    if place is None or place not in groups or not says_all(entries[place].content, entry.content):
        return None
    return groups[place]


def _fits(
    place: int, group: Sequence[int], entries: Sequence[Entry], wordings: Sequence[Wording]
) -> bool:
    speakers = {entries[one].speaker for one in (place, *group)} - {""}
    return len(speakers) < 2 and not any(
        tell_apart(wordings[one], wordings[place]) for one in group
    )


def read_wordings(entries: Sequence[Entry]) -> list[Wording]:
    """How each of some facts is worded."""
    return [read_wording(entry.content) for entry in entries]


def find_mean(vectors: Sequence[array[float]]) -> array[float]:
    """The vector in the midst of some, 1 long as they are."""
    if len(vectors) == 1:
        return vectors[0]
    total = [sum(values) for values in zip(*vectors, strict=True)]
    length = hypot(*total) or 1.0
    return array("f", (value / length for value in total))


def _numpy() -> Any:
    try:
        import numpy as np
    except ImportError as error:
        raise ConfigurationError(
            "to find facts that mean the same faiss-cpu is needed: "
            "python -m pip install 'vibe-llms[memory]'"
        ) from error
    return np
