"""What is checked of vectors, whatever the format that they came in."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import pytest

from vibe_llms.base.exceptions import ReplyMalformed
from vibe_llms.providers.embeddings import check_vectors


def test_vectors_that_fit_are_fine() -> None:
    check_vectors([[1.0, 0.0], [0.0, 1.0]], 2, provider="x", dimensions=2)
    check_vectors([], 0, provider="x", dimensions=2)


@pytest.mark.parametrize(
    ("vectors", "dimensions", "reported"),
    [
        ([[1.0]], None, "1 vectors for 2 texts"),
        ([[1.0], [1.0], [1.0]], None, "3 vectors for 2 texts"),
        ([[1.0], [1.0, 2.0]], None, "of different or zero length: 1, 2"),
        ([[], []], None, "of different or zero length: 0"),
        ([[1.0, 2.0], [1.0, 2.0]], 3, "of 2 dimensions, not the requested 3"),
        ([[1.0], [math.nan]], None, "contains NaN or infinity"),
        ([[math.inf], [1.0]], None, "contains NaN or infinity"),
        ([array("f", [math.inf, -math.inf]), array("f", [1, 1])], None, "contains NaN or infinity"),
    ],
)
def test_vectors_that_do_not_fit_are_malformed(
    vectors: Sequence[Sequence[float]], dimensions: int | None, reported: str
) -> None:
    with pytest.raises(ReplyMalformed, match=reported) as caught:
        check_vectors(vectors, 2, provider="x", dimensions=dimensions)
    assert caught.value.provider == "x"
