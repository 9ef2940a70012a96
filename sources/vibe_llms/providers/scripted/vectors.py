"""Vectors of the scripted provider: texts that share words are close to each other."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

DIMENSIONS = 256
_WORD = re.compile(r"\w+")


def embed_text(text: str, dimensions: int = DIMENSIONS) -> Sequence[float]:
    """Return the vector of a text; each word adds to one of its numbers.

    >>> embed_text("Red, red and blue", 6)
    (0.0, 3.0, 0.0, 0.0, 0.0, 1.0)
    """
    vector = [0.0] * dimensions
    for word in _WORD.findall(text.lower()) or [text]:
        digest = hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest()
        vector[int.from_bytes(digest, "big") % dimensions] += 1.0
    return tuple(vector)


def count_words(texts: Sequence[str]) -> int:
    """Return the number of words in the texts."""
    return sum(len(_WORD.findall(text)) for text in texts)
