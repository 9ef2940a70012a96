"""Which candidates a search returns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vibe_llms.documents.passages import Candidate, choose_ranges


def test_candidates_that_touch_become_one_with_the_best_score() -> None:
    candidates = [
        Candidate(1, 100, 200, 0.9),
        Candidate(2, 200, 300, 0.8),
        Candidate(1, 200, 250, 0.4),
        Candidate(1, 0, 50, 0.3),
    ]
    assert choose_ranges(candidates, 1_000) == [
        Candidate(1, 100, 250, 0.9),
        Candidate(2, 200, 300, 0.8),
        Candidate(1, 0, 50, 0.3),
    ]


def test_what_does_not_fit_makes_room_for_what_does() -> None:
    candidates = [Candidate(1, 0, 80, 0.9), Candidate(1, 80, 120, 0.8), Candidate(1, 300, 320, 0.1)]
    assert choose_ranges(candidates, 100) == [candidates[0], candidates[2]]
    assert choose_ranges(candidates, 0) == []


@given(
    st.lists(st.integers(1, 50), max_size=30),
    st.lists(st.floats(0, 1), min_size=30, max_size=30),
    st.integers(0, 600),
)
def test_no_more_than_the_budget_is_chosen(
    lengths: list[int], scores: list[float], most: int
) -> None:
    start, candidates = 0, []
    for length, score in zip(lengths, scores, strict=False):
        candidates.append(Candidate(1, start, start + length, score))
        start += length
    candidates.sort(key=lambda one: -one.score)
    chosen = choose_ranges(candidates, most)
    assert sum(one.end - one.start for one in chosen) <= most
    if candidates and candidates[0].end - candidates[0].start <= most:
        assert chosen[0].score == candidates[0].score
