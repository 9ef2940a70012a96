"""Finding what fits a question: relevance, how recent it is, and no two that say the same."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import exp
from typing import Annotated

from msgspec import Meta, Struct

from vibe_llms.memory.entries import Entry
from vibe_llms.memory.index import Known, ScopeIndex
from vibe_llms.memory.lexical import rarity_of
from vibe_llms.memory.words import split_query, split_words

Share = Annotated[float, Meta(ge=0, le=1)]
#: So many times the wanted entries are looked at more closely.
_POOL = 6
_DAY_SECONDS = 86_400.0
#: After so many days something counts for about a third of what it counted when it was new.
RECENCY_DAYS = 30.0


class RetrievalSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """How entries are chosen.

    `least_relevance` is what an entry needs to be found at all: the share of what the question's
    words are worth. `recency_weight` and `importance_weight` are what age and importance weigh
    against relevance, `diversity` what likeness to a better entry costs.
    """

    limit: Annotated[int, Meta(ge=1)] = 10
    least_relevance: Share = 0.1
    recency_weight: Share = 0.0
    importance_weight: Share = 0.0
    diversity: Share = 0.0


class Recollection(Struct, frozen=True):
    """An entry that was found, how well it fits, and why: each signal by its name, from 0 to 1."""

    entry: Entry
    score: float
    reasons: Mapping[str, float]


class _Candidate(Struct):
    index: ScopeIndex
    known: Known
    score: float
    reasons: dict[str, float]
    words: frozenset[str] = frozenset()
    alike: float = 0.0


def retrieve(
    question: str,
    indexes: Sequence[ScopeIndex],
    settings: RetrievalSettings,
    now: datetime,
) -> list[Recollection]:
    """The entries of some scopes that fit a question, the best first; all indexes are fresh."""
    words = split_query(question)
    count = sum(map(len, indexes))
    rarities = {
        word: rarity_of(sum(index.frequency(word) for index in indexes), count) for word in words
    }
    ideal = sum(rarities.values())
    if not ideal:
        return []
    pool: list[_Candidate] = []
    for index in indexes:
        scores = index.score(rarities)
        for number in heapq.nlargest(settings.limit * _POOL, scores, key=scores.__getitem__):
            relevance = min(scores[number] / ideal, 1.0)
            if relevance < settings.least_relevance:
                break
            pool.append(_weigh(index, index.access(number), relevance, settings, now))
    pool.sort(key=lambda one: one.score, reverse=True)
    return _choose(pool, settings)


def _weigh(
    index: ScopeIndex,
    known: Known,
    relevance: float,
    settings: RetrievalSettings,
    now: datetime,
) -> _Candidate:
    reasons = {"words": relevance}
    score = relevance
    if settings.recency_weight:
        age = max((now - known.created).total_seconds(), 0.0) / _DAY_SECONDS
        reasons["recency"] = exp(-age / RECENCY_DAYS)
        score += settings.recency_weight * (reasons["recency"] - score)
    if settings.importance_weight:
        reasons["importance"] = known.importance
        score += settings.importance_weight * (known.importance - score)
    return _Candidate(index, known, score, reasons)


def _choose(pool: Sequence[_Candidate], settings: RetrievalSettings) -> list[Recollection]:
    """The best of the pool; with `diversity` each as unlike those before it as it is relevant.

    That is maximal marginal relevance (Carbonell and Goldstein, 1998), with the likeness of words.
    """
    chosen: list[Recollection] = []
    left = list(pool)
    diversity = settings.diversity
    if diversity:
        for one in left:
            entry = one.index.read(one.known)
            one.words = frozenset() if entry is None else frozenset(split_words(entry.content))
    while left and len(chosen) < settings.limit:
        values = [(1 - diversity) * one.score - diversity * one.alike for one in left]
        best = left.pop(values.index(max(values)))
        entry = best.index.read(best.known)
        if entry is None:
            continue
        chosen.append(Recollection(entry, best.score, best.reasons))
        for one in left if diversity else ():
            shared = len(one.words & best.words) / (len(one.words | best.words) or 1)
            one.alike = max(one.alike, shared)
    return chosen
