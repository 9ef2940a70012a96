"""Bounds on the tokens of a text that no server has counted; they hold for today's tokenizers."""

from __future__ import annotations

import re

from msgspec import Struct

_LONG_RUN = re.compile(r"(.)\1{7,}", re.DOTALL)
# No tokenizer of today joins words, letters with digits, or more than three digits to one token. A
# sign may be one token with the word after it.
_PARTS = re.compile(r"[^\W\d_]+|\d{1,3}|[^\w\s]+(?!\w)")


class Measure(Struct, frozen=True, gc=False):
    """How many tokens something has: surely as many as `least`, about `likely`, within `ample`."""

    least: int = 0
    likely: int = 0
    ample: int = 0

    def __add__(self, other: Measure) -> Measure:
        return Measure(
            self.least + other.least, self.likely + other.likely, self.ample + other.ample
        )

    def __sub__(self, other: Measure) -> Measure:
        return Measure(
            self.least - other.least, self.likely - other.likely, self.ample - other.ample
        )


def measure_text(text: str) -> Measure:
    """The tokens of a text, for all tokenizers that models have today.

    >>> measure_text("The sky is blue, they say.")
    Measure(least=8, likely=9, ample=10)
    """
    least = len(_PARTS.findall(text))
    short = _LONG_RUN.sub(r"\1\1\1\1", "".join(text.split()))
    wide = 0 if short.isascii() else len(short) - len(short.encode("ascii", "ignore"))
    narrow = len(short) - wide
    likely = max(least + least // 8, narrow // 4 + wide * 5 // 8)
    return Measure(least, likely, max(likely, narrow // 2 + wide * 2))
