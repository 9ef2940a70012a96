"""Passages of documents, and the choice of the passages that a search returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from vibe_llms.conversations.document_texts import Place


class Passage(Struct, frozen=True):
    """A range of a document's text that fits a request.

    `hash` belongs to the document. The range begins at `place` and ends at `last`. `score` is the
    share of the request, from 0 to 1, in its best chunk; it is 1 for a whole text.
    """

    hash: str
    start: int
    end: int
    text: str
    place: Place = Place()
    last: Place = Place()
    title: str = ""
    score: float = 1.0


class Candidate(NamedTuple):
    """A range that may be returned, with the key of its document."""

    document: int
    start: int
    end: int
    score: float


def choose_ranges(candidates: Iterable[Candidate], characters: int) -> list[Candidate]:
    """Return the first candidates that fit into a number of characters, best first.

    Candidates must not overlap. Adjacent ones are merged and keep the best score.
    """
    chosen: list[Candidate] = []
    left = characters
    for one in candidates:
        if one.end - one.start <= left:
            chosen.append(one)
            left -= one.end - one.start
    merged: list[Candidate] = []
    for one in sorted(chosen):
        last = merged[-1] if merged else None
        if last is None or (one.document, one.start) != (last.document, last.end):
            merged.append(one)
        else:
            merged[-1] = last._replace(end=one.end, score=max(last.score, one.score))
    return sorted(merged, key=lambda one: (-one.score, one.document, one.start))
