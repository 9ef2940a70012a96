"""Vectors that servers make of texts: what every provider checks of them, whatever its format."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vibe_llms.exceptions import ReplyMalformed


def check_vectors(
    vectors: Sequence[Sequence[float]], count: int, *, provider: str, dimensions: int | None = None
) -> None:
    """`ReplyMalformed` where there are not `count` vectors of finite numbers, all equally long.

    `dimensions` is how long they shall be, where that was asked for.
    """
    if len(vectors) != count:
        _refuse(f"the server sent {len(vectors)} vectors for {count} texts", provider)
    lengths = {len(vector) for vector in vectors}
    if len(lengths) > 1 or 0 in lengths:
        reported = ", ".join(map(str, sorted(lengths)))
        _refuse(f"the server sent vectors of {reported} numbers in one answer", provider)
    if dimensions is not None and lengths - {dimensions}:
        _refuse(
            f"the server sent vectors of {lengths.pop()} numbers, not of the {dimensions} that "
            "were asked for; leave dimensions out if this model has only one size",
            provider,
        )
    if not all(math.isfinite(number) for vector in vectors for number in vector):
        _refuse("the server sent a vector with what is no number in it", provider)


def _refuse(message: str, provider: str) -> None:
    raise ReplyMalformed(message, provider=provider)
