"""The parts of a message that are looked for one by one, however long the message is.

An entry answers a sentence, not a whole message. So each sentence is a question of its own, and an
entry is found if it fits one of them. What an entry has in common with a message by chance then
depends on the length of a sentence, not on that of the message. Document retrieval ranks long texts
by their best passage for the same reason (Callan, "Passage-Level Evidence in Document Retrieval",
SIGIR 1994).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from vibe_llms.memory.sentences import split_sentences
from vibe_llms.memory.words import MOST_WORDS, rarity_of, split_query

#: A part has up to this many different words, as most questions have.
_LONGEST = 10
#: A part of a longer message weighs at least as much as this many words that one entry has each. So
#: one word in common does not make "Great, thanks!" a question about it. A question mark says that
#: a sentence is one, so it needs less.
_LEAST, _LEAST_ASKED = 7, 4
_ASKING = ("?", "\uff1f", "\u061f")
#: How much the best part counts before the others in the order of what is found: with 1, the sum of
#: all counts, and with infinity the best one alone.
NORM = 4


class Words(NamedTuple):
    """The different words of a part, stemmed, and whether it is a question."""

    words: Sequence[str]
    asks: bool = True


class Part(Struct, frozen=True):
    """The words of a part with their rarities, and the weight that what is found is a share of."""

    rarities: Mapping[str, float]
    weight: float


class Fit(NamedTuple):
    """The share that an entry has of the weight of the best part, and of all parts together.

    `best` decides whether the entry is found, and `whole` in which order.
    """

    best: float
    whole: float

    @classmethod
    def of(cls, shares: Sequence[float], factors: Sequence[float]) -> Fit:
        """Return the fit of an entry that has these shares of the parts.

        `factors` are how much more each share counts in the order.
        """
        best = max(shares, default=0.0)
        values = [share * factor for share, factor in zip(shares, factors, strict=True)]
        if len(values) < 2:
            return cls(best, sum(values))
        return cls(best, sum(value**NORM for value in values) ** (1 / NORM))


def split_message(message: str) -> list[Words]:
    """Return the words of each part of a message.

    A message of up to 10 words is one part. Of a longer one, each sentence is, and each half,
    third, and so on of a longer sentence. Only the first 256 words count.
    """
    words = split_query(message)
    parts = [*_split(message)] if len(words) > _LONGEST else []
    return parts or [Words(words)]


def weigh_parts(parts: Sequence[Words], frequencies: Mapping[str, int], count: int) -> list[Part]:
    """Weigh the words of each part by how many of `count` entries have them."""
    rarities = {word: rarity_of(frequency, count) for word, frequency in frequencies.items()}
    total, one = sum(rarities.values()), rarity_of(1, count)
    weighed: list[Part] = []
    for words, asks in parts:
        least = min(total, (_LEAST_ASKED if asks else _LEAST) * one)
        part = {word: rarities[word] for word in words}
        weighed.append(Part(part, max(sum(part.values()), least) or 1.0))
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
