"""Passages of documents as values, and the choice of those that a search returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from vibe_llms.documents.texts import Place


class Passage(Struct, frozen=True):
    """A range of a document's text that fits a request.

    `hash` is the document's. `score` is the share of the request that its best chunk has, from 0 to
    1; it is 1 for a whole text.
    """

    hash: str
    start: int
    end: int
    text: str
    place: Place = Place()
    title: str = ""
    score: float = 1.0


class Candidate(NamedTuple):
    """A range that may be returned, with the key of its document."""

    document: int
    start: int
    end: int
    score: float


def choose_ranges(candidates: Iterable[Candidate], characters: int) -> list[Candidate]:
    """The best candidates that fit into so many characters, counted once where they overlap.

    Candidates that overlap or touch become one, with the best of their scores. The best is first.
    """
    chosen: dict[int, list[Candidate]] = {}
    left = characters
    for one in candidates:
        before = chosen.get(one.document, [])
        after = merge_ranges([*before, one])
        cost = _count(after) - _count(before)
        if cost <= left:
            chosen[one.document] = after
            left -= cost
    every = [one for some in chosen.values() for one in some]
    return sorted(every, key=lambda one: (-one.score, one.document, one.start))


def merge_ranges(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Ranges of one document in their order, those that overlap or touch as one."""
    merged: list[Candidate] = []
    for one in sorted(candidates, key=lambda one: one.start):
        last = merged[-1] if merged else None
        if last is None or one.start > last.end:
            merged.append(one)
        else:
            end, score = max(last.end, one.end), max(last.score, one.score)
            merged[-1] = last._replace(end=end, score=score)
    return merged


def _count(ranges: Iterable[Candidate]) -> int:
    return sum(one.end - one.start for one in ranges)
