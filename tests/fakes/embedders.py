"""An embedder for tests: a vector is the sum of its text's words, so related texts are alike."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Sequence

from vibe_llms.base.exceptions import VibeLlmsError
from vibe_llms.embedding.words import split_words


class WordsEmbedder:
    """Each stemmed word is a direction of its own; the same words always give the same vector.

    Nothing is random and nothing is loaded. `batches` holds the texts of every call; `failure` is
    raised by every call while it is set.
    """

    def __init__(self, dimensions: int = 64, model: str = "words") -> None:
        self.dimensions = dimensions
        self.model = model
        self.batches: list[Sequence[str]] = []
        self.failure: VibeLlmsError | None = None
        self.closed = False

    @property
    def texts(self) -> list[str]:
        """All texts that were embedded, in order."""
        return [text for batch in self.batches for text in batch]

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        """A vector for each text."""
        self.batches.append(tuple(texts))
        if self.failure is not None:
            raise self.failure
        return [self.embed_one(text) for text in texts]

    async def close(self) -> None:
        """Nothing is open."""
        self.closed = True

    def embed_one(self, text: str) -> array[float]:
        """The vector of a text."""
        total = [0.0] * self.dimensions
        # A text of marks alone is a word of its own: no vector is zero.
        for word in split_words(text) or [text]:
            for place, value in enumerate(self._direction(word)):
                total[place] += value
        length = math.hypot(*total)
        return array("f", (value / length for value in total))

    def _direction(self, word: str) -> list[float]:
        seed = f"{self.model} {word}".encode("utf-8", "replace")
        data = hashlib.shake_256(seed).digest(2 * self.dimensions)
        pairs = zip(data[::2], data[1::2], strict=True)
        return [(high * 256 + low) / 32767.5 - 1 for high, low in pairs]


def likeness(one: Sequence[float], other: Sequence[float]) -> float:
    """The cosine of two vectors of length 1."""
    return math.fsum(a * b for a, b in zip(one, other, strict=True))
