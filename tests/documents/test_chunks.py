"""Where a text is split into chunks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibe_llms.documents.chunks import OVERLAP, SIZE, split_chunks

TEXTS = st.text(alphabet=st.sampled_from("ab. \n\t"), max_size=400)


@given(TEXTS, st.integers(1, 60), st.integers(0, 20))
def test_chunks_cover_the_text_in_order_within_their_size(
    text: str, size: int, overlap: int
) -> None:
    overlap = min(overlap, size - 1)
    chunks = split_chunks(text, size, overlap)
    covered = set[int]()
    for start, end in chunks:
        assert 0 <= start < end <= len(text)
        assert end - start <= size
        covered.update(range(start, end))
    assert not "".join(text[place] for place in range(len(text)) if place not in covered).strip()
    for (start, end), (next_start, next_end) in pairwise(chunks):
        assert start < next_start
        assert end < next_end
        assert end - next_start <= overlap


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("", []),
        (" \n\n ", []),
        ("short", ["short"]),
        # The best separator that is there decides, and stays with what is before it.
        ("one two\n\nthree four", ["one two\n\n", "three four"]),
        ("One two. Three f.", ["One two. ", "Three f."]),
        ("one two three four", ["one two ", "three four"]),
        # Without a separator, a text is cut, and the overlap is exact.
        ("abcdefghijklmnopqr", ["abcdefghijkl", "klmnopqr"]),
    ],
)
def test_chunks_end_at_the_best_separator(text: str, chunks: list[str]) -> None:
    assert [text[start:end] for start, end in split_chunks(text, 12, 2)] == chunks


def test_a_chunk_repeats_whole_pieces_only() -> None:
    text = "aaaa bb cc dddd ee"
    assert [text[start:end] for start, end in split_chunks(text, 11, 4)] == [
        "aaaa bb cc ",
        "cc dddd ee",
    ]


def test_the_setting_of_the_product() -> None:
    assert (SIZE, OVERLAP) == (500, 50)
    text = "x" * 1000
    assert split_chunks(text) == [(0, 500), (450, 950), (900, 1000)]
