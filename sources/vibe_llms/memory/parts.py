"""Parts of a message, each searched separately.

An entry answers a sentence, not a whole message. So each sentence is a query of its own, and an
entry is found if it fits one of them. The chance overlap of an entry with a message then depends on
the length of a sentence, not of the message. Document retrieval ranks long texts by their best
passage for the same reason (Callan, "Passage-Level Evidence in Document Retrieval", SIGIR 1994).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from vibe_llms.embedding.words import MOST_WORDS, rarity_of, split_query
from vibe_llms.memory.sentences import split_sentences

#: Maximum number of distinct words in a part, as in most questions.
_LONGEST = 10
#: Minimum weight of a part of a longer message, in words that occur in only one entry. It keeps one
#: shared word from making "Great, thanks!" a question. A question mark lowers it.
_LEAST, _LEAST_ASKED = 7, 4
_ASKING = ("?", "\uff1f", "\u061f")
#: Exponent of the norm that combines the parts for ranking: 1 sums them, infinity takes the best.
NORM = 4


class Words(NamedTuple):
    """Distinct stemmed words of a part; `asks` is True if it is a question."""

    words: Sequence[str]
    asks: bool = True


class WeightedPart(Struct, frozen=True):
    """Words of a part with their rarities, and the weight that scores are divided by."""

    rarities: Mapping[str, float]
    weight: float


class Fit(NamedTuple):
    """Share of the best part's weight that an entry has, and of all parts together.

    `best` decides whether the entry is found, `whole` its rank.
    """

    best: float
    whole: float

    @classmethod
    def of(cls, shares: Sequence[float], factors: Sequence[float]) -> Fit:
        """Combine the shares that an entry has of the parts.

        `factors` weight each share for ranking.
        """
        best = max(shares, default=0.0)
        values = [share * factor for share, factor in zip(shares, factors, strict=True)]
        if len(values) < 2:
            return cls(best, sum(values))
        return cls(best, sum(value**NORM for value in values) ** (1 / NORM))


def split_message(message: str) -> list[Words]:
    """Split a message into parts and return the words of each.

    A message of up to 10 words is one part. In longer messages each sentence is a part, and longer
    sentences are split evenly. Only the first 256 words count.
    """
    words = split_query(message)
    parts = [*_split(message)] if len(words) > _LONGEST else []
    return parts or [Words(words)]


def weigh_parts(
    parts: Sequence[Words], frequencies: Mapping[str, int], count: int
) -> list[WeightedPart]:
    """Weigh the words of each part by how many of `count` entries have them."""
    rarities = {word: rarity_of(frequency, count) for word, frequency in frequencies.items()}
    total, one = sum(rarities.values()), rarity_of(1, count)
    weighed: list[WeightedPart] = []
    for words, asks in parts:
        least = min(total, (_LEAST_ASKED if asks else _LEAST) * one)
        part = {word: rarities[word] for word in words}
        weighed.append(WeightedPart(part, max(sum(part.values()), least) or 1.0))
    return weighed


def _split(message: str) -> Iterator[Words]:
    left = MOST_WORDS
    for sentence in split_sentences(message):
        words = split_query(sentence, left, stop_words=False)
        left -= len(words)
        asks = sentence.rstrip("\"')*_\u201d\u2019").endswith(_ASKING)
        count = -(-len(words) // _LONGEST)
        for place in range(count):
            yield Words(
                words[len(words) * place // count : len(words) * (place + 1) // count], asks
            )
