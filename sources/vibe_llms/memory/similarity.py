"""Similarity of facts: which repeat each other, and which are similar enough to ask a model.

Only facts with the same words count as repeats. Neither words nor vectors show reliably whether two
other sentences say the same; a model has to read them.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from math import hypot, log
from typing import Any

from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.embedding.words import digest_of, split_words
from vibe_llms.memory.entries import Entry

#: Maximum number of facts in a group, which a model sees as a whole.
LARGEST = 20
#: Number of facts compared with all others at a time.
_BLOCK = 512
#: Words in more facts than this are not used to find pairs, since there would be too many.
_COMMON = 100

Group = list[int]


def rank(entry: Entry) -> tuple[float, float, str]:
    """Return the key to sort facts by: more important first, then newer."""
    return -entry.importance, -entry.created.timestamp(), entry.identity


def find_repeats(entries: Sequence[Entry]) -> list[Group]:
    """Group the positions of facts with the same words, ignoring case and punctuation."""
    said: dict[str, list[Group]] = defaultdict(list)
    for place, entry in enumerate(entries):
        groups = said[digest_of(entry.content)]
        for group in groups:
            if len({entries[one].speaker for one in (*group, place)} - {""}) < 2:
                group.append(place)
                break
        else:
            groups.append([place])
    return [group for groups in said.values() for group in groups]


def find_alike_by_words(texts: Sequence[str], bar: float) -> list[Group]:
    """Group texts whose share of common words exceeds `bar`; rarer words count more.

    Groups contain positions. The share is that of the shorter text's words found in the other text.
    """
    sets = [frozenset(split_words(text)) for text in texts]
    frequencies = Counter(word for words in sets for word in words)
    worth = {word: log(1 + len(sets) / count) ** 2 for word, count in frequencies.items()}
    sizes = [sum(map(worth.__getitem__, words)) for words in sets]
    leaders: dict[str, list[int]] = defaultdict(list)
    groups: dict[int, Group] = {}
    for place, own in enumerate(sets):
        words = [word for word in own if frequencies[word] <= _COMMON]
        best, leader = bar, place
        for other in {one for word in words for one in leaders[word]}:
            shared = sum(map(worth.__getitem__, own & sets[other]))
            share = shared / min(sizes[place], sizes[other])
            if share > best and len(groups[other]) < LARGEST:
                best, leader = share, other
        groups.setdefault(leader, []).append(place)
        if leader == place:
            for word in words:
                leaders[word].append(place)
    return [group for group in groups.values() if len(group) > 1]


def find_alike_by_vectors(vectors: Sequence[array[float]], bar: float) -> list[Group]:
    """Group the positions of unit vectors that have a cosine above `bar`."""
    numpy = _numpy()
    matrix = numpy.array(vectors, numpy.float32)
    groups: dict[int, Group] = {}
    for start in range(0, len(vectors), _BLOCK):
        cosines = matrix[start : start + _BLOCK] @ matrix.T
        for place, row in enumerate(cosines, start):
            near = numpy.flatnonzero(row[:place] > bar)
            nearest = near[numpy.argsort(-row[near], kind="stable")].tolist()
            fitting = (one for one in nearest if one in groups and len(groups[one]) < LARGEST)
            leader = next(fitting, place)
            groups.setdefault(leader, []).append(place)
    return [group for group in groups.values() if len(group) > 1]


def find_mean(vectors: Sequence[array[float]]) -> array[float]:
    """Return the mean of some vectors, scaled to length 1."""
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
            "finding facts with the same meaning needs faiss-cpu: "
            "python -m pip install 'vibe-llms[memory]'"
        ) from error
    return np
