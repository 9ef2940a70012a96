"""Checks of embedding vectors that all providers share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vibe_llms.base.exceptions import ReplyMalformed


def check_vectors(
    vectors: Sequence[Sequence[float]], count: int, *, provider: str, dimensions: int | None = None
) -> None:
    """Raise `ReplyMalformed` unless there are `count` vectors of finite numbers and equal length.

    `dimensions` is the length that was requested, if any.
    """
    if len(vectors) != count:
        _refuse(f"the server sent {len(vectors)} vectors for {count} texts", provider)
    lengths = {len(vector) for vector in vectors}
    if len(lengths) > 1 or 0 in lengths:
        reported = ", ".join(map(str, sorted(lengths)))
        _refuse(f"the server sent vectors of different or zero length: {reported}", provider)
    if dimensions is not None and lengths - {dimensions}:
        _refuse(
            f"the server sent vectors of {lengths.pop()} dimensions, not the requested "
            f"{dimensions}; omit dimensions if this model has only one size",
            provider,
        )
    if not all(math.isfinite(number) for vector in vectors for number in vector):
        _refuse("the server sent a vector that contains NaN or infinity", provider)


def _refuse(message: str, provider: str) -> None:
    raise ReplyMalformed(message, provider=provider)
