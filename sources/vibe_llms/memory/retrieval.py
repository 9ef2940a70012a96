"""Retrieval of entries that fit a question, by relevance, recency, and variety."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from math import exp
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from vibe_llms.embedding.words import asks_about_now, split_forms, split_words
from vibe_llms.memory.entries import Entry, Role
from vibe_llms.memory.index import ScopeIndex
from vibe_llms.memory.parts import WeightedPart, split_message, weigh_parts
from vibe_llms.memory.records import IndexRecord

Share = Annotated[float, Meta(ge=0, le=1)]
Recency: TypeAlias = Literal["now", "always"]
#: Candidates per wanted result.
_POOL = 6
_DAY_SECONDS = 86_400.0
#: Days after which recency has fallen to about a third.
RECENCY_DAYS = 30.0
#: Weight of a turn that is itself a question, which is rarely an answer.
_ASKING = 0.9
#: Share of the minimum that is enough once any entry reaches the minimum.
_ONCE_REACHED = 0.5
#: Number of additional chunks of cosine 0 in the mean cosine.
_VIRTUAL = 5
#: A cosine of this many times `least_likeness` is enough alone.
_CLEARLY = 2
#: Factor on `least_relevance` if vectors exist too.
_WORDS_WITH_MEANING = 4 / 3
#: Minimum share and number of common words of results that are about the same; the newer one comes
#: first if its score is at least this share of the older one's.
_SAME, _SHARED, _NEARLY = 0.25, 2, 0.6
#: Maximum number of results compared with each other.
_COMPARED = 30
#: Roles searched by default: summaries are added to the context without a search.
FOUND_ROLES = frozenset({Role.FACT, Role.USER, Role.ASSISTANT})


class RetrievalSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """Settings of the search.

    `least_relevance` is the minimum for finding an entry by its words, as a share of the weight of
    the words of a sentence; see `vibe_llms.memory.parts`. `least_likeness` is the minimum for
    finding it by its meaning: (cosine - mean) / (1 - mean), with the mean cosine of the question; a
    cosine of twice the minimum is enough as well. One of the two is enough. Once an entry reaches
    it, others need only half as much; if none does, nothing is found.

    `dense_weight` is the weight of meaning against words, if vectors exist. `recency_weight` and
    `importance_weight` weigh age and importance against relevance; age counts only for questions
    about the present, or for all with `recency` "always". `mmr_lambda` weighs relevance against
    similarity to a better result. With `newer_first`, the newer of two entries that say nearly the
    same comes first.
    """

    limit: Annotated[int, Meta(ge=1)] = 10
    least_relevance: Share = 0.15
    least_likeness: Share = 0.32
    dense_weight: Share = 0.4
    recency: Recency = "now"
    recency_weight: Share = 0.1
    importance_weight: Share = 0.0
    mmr_lambda: Share = 1.0
    newer_first: bool = True


class RetrievalQuery(Struct, frozen=True):
    """Query: the words, the vector of their meaning if there is one, and the time.

    `relevances` are scores of entries by identity, if a reranker gave them; then no others are
    found. `pool` is the minimum number of results that candidates are gathered for.
    """

    text: str
    now: datetime
    vector: array[float] | None = None
    relevances: Mapping[str, float] | None = None
    pool: int = 0
    roles: Collection[Role] = FOUND_ROLES

    def admits(self, record: IndexRecord) -> bool:
        """Return True if an entry may be found at all."""
        return self.relevances is None or record.identity in self.relevances


class Recollection(Struct, frozen=True):
    """A search result: the entry, its score, and its reasons, signals from 0 to 1 by name."""

    entry: Entry
    score: float
    reasons: Mapping[str, float]


class _Bars(Struct, frozen=True):
    """Minimum signals of a result: of words, and of meaning above the usual.

    The usual is the mean cosine of the question with all chunks: a name that most entries contain
    makes none of them an answer. It is 0 if no entry shares a word with the question.
    """

    words: float
    meaning: float
    usual: float

    @classmethod
    def of(
        cls,
        question: RetrievalQuery,
        frequencies: Mapping[str, int],
        indexes: Sequence[ScopeIndex],
        settings: RetrievalSettings,
    ) -> _Bars:
        total, passages = 0.0, 0
        if question.vector is not None:
            for index in indexes:
                some, count = index.sum_up(question.vector)
                total, passages = total + some, passages + count
            if not any(frequencies.values()):
                total = 0.0
        return cls(
            settings.least_relevance * (_WORDS_WITH_MEANING if passages else 1.0),
            settings.least_likeness,
            max(total, 0.0) / (passages + _VIRTUAL),
        )

    def admit(self, words: float, meaning: float, share: float = 1.0) -> bool:
        """Return True if one of an entry's signals reaches a share of its minimum."""
        if words > 0 and words >= share * self.words:
            return True
        least = share * self.meaning
        standing_out = (meaning - self.usual) / (1 - self.usual)
        return meaning > 0 and (standing_out >= least or meaning >= _CLEARLY * least)


class _Candidate(Struct):
    """An entry that may be found; `words` is the share of the best part of the message."""

    index: ScopeIndex
    record: IndexRecord
    words: float
    score: float
    reasons: dict[str, float]


def retrieve(
    question: RetrievalQuery, indexes: Sequence[ScopeIndex], settings: RetrievalSettings
) -> list[Recollection]:
    """Return the entries that fit a question, best first; the indexes must be up to date."""
    if settings.recency == "now" and not asks_about_now(question.text):
        settings = msgspec.structs.replace(settings, recency_weight=0.0)
    words = split_message(question.text)
    frequencies = Counter(dict.fromkeys(chain.from_iterable(one.words for one in words), 0))
    for index in indexes:
        frequencies.update(index.count_entries([*frequencies]))
    count = sum(map(len, indexes))
    parts = weigh_parts(words, frequencies, count)
    bars = _Bars.of(question, frequencies, indexes, settings)
    pool = [
        candidate
        for index in indexes
        for candidate in _gather(index, question, parts, bars, settings)
    ]
    if not any(bars.admit(one.words, one.reasons.get("meaning", 0.0)) for one in pool):
        return []
    pool.sort(key=lambda one: one.score, reverse=True)
    chosen = _choose(pool, settings)
    return _put_newer_first(chosen, question.text) if settings.newer_first else chosen


def _gather(
    index: ScopeIndex,
    question: RetrievalQuery,
    parts: Sequence[WeightedPart],
    bars: _Bars,
    settings: RetrievalSettings,
) -> Iterable[_Candidate]:
    """Yield the candidates of one scope: the best by words, and the best by meaning."""
    size = max(settings.limit, question.pool) * _POOL
    found = dict(index.score(parts, size, question.roles))
    cosines: Mapping[int, float] = {}
    if question.vector is not None:
        cosines = index.rank(question.vector, size)
        others = [number for number in cosines if number not in found]
        cosines = {**cosines, **index.compare(question.vector, [*found])}
        found.update(index.assess(parts, others))
    for record in index.records(found):
        number = record.number
        if record.role not in question.roles or not question.admits(record):
            continue
        fit = found[number]
        likeness = max(cosines.get(number, 0.0), 0.0)
        reasons = {"words": min(fit.whole, 1.0), **({"meaning": likeness} if cosines else {})}
        if bars.admit(fit.best, likeness, _ONCE_REACHED):
            score = _weigh(record, reasons, settings, question)
            yield _Candidate(index, record, fit.best, score, reasons)


def _weigh(
    record: IndexRecord,
    reasons: dict[str, float],
    settings: RetrievalSettings,
    question: RetrievalQuery,
) -> float:
    """Return the score of an entry, and record the signals that count for it in `reasons`."""
    score = reasons["words"]
    if "meaning" in reasons:
        score += settings.dense_weight * (reasons["meaning"] - score)
    if record.asks:
        score *= _ASKING
    if question.relevances is not None:
        score = reasons["reranking"] = question.relevances[record.identity]
    if settings.recency_weight:
        age = max((question.now - record.created).total_seconds(), 0.0) / _DAY_SECONDS
        reasons["recency"] = exp(-age / RECENCY_DAYS)
        score += settings.recency_weight * (reasons["recency"] - score)
    if settings.importance_weight:
        reasons["importance"] = record.importance
        score += settings.importance_weight * (record.importance - score)
    return score


def _choose(pool: Sequence[_Candidate], settings: RetrievalSettings) -> list[Recollection]:
    """Choose from the pool by maximal marginal relevance (Carbonell and Goldstein, 1998)."""
    chosen: list[Recollection] = []
    left = list(pool)
    relevance = settings.mmr_lambda
    entries = {} if relevance == 1 else dict(_read(left))
    traits = {id(one): _Trait.of(one, entries[id(one)]) for one in left} if entries else {}
    alike = dict.fromkeys(traits, 0.0)
    while left and len(chosen) < settings.limit:
        place = 0
        if traits:
            values = [relevance * one.score - (1 - relevance) * alike[id(one)] for one in left]
            place = values.index(max(values))
        if id(left[place]) not in entries:
            # Read the likely next ones in the same batch.
            entries.update(_read([left[place], *left[: settings.limit - len(chosen)]]))
        best = left.pop(place)
        entry = entries[id(best)]
        if entry is None:
            continue
        chosen.append(Recollection(entry, best.score, best.reasons))
        for one in left if traits else ():
            likeness = traits[id(one)].compare(traits[id(best)])
            alike[id(one)] = max(alike[id(one)], likeness)
    return chosen


def _read(some: Iterable[_Candidate]) -> Iterator[tuple[int, Entry | None]]:
    """Yield the entries of some candidates, by the `id` of each."""
    by_index: dict[int, dict[int, _Candidate]] = {}
    for one in some:
        by_index.setdefault(id(one.index), {})[id(one)] = one
    for group in by_index.values():
        index = next(iter(group.values())).index
        yield from zip(group, index.read_many([one.record for one in group.values()]), strict=True)


def _put_newer_first(chosen: Sequence[Recollection], question: str) -> list[Recollection]:
    """Move newer results before older ones that say nearly the same.

    People change their minds, and their earlier statements still fit the question.
    """
    asked = frozenset(split_forms(question))
    sayings = [_Saying.of(one, asked) for one in chosen[:_COMPARED]]
    ordered: list[Recollection] = []
    while sayings:
        # Always found: nothing is newer than the newest.
        one = next(one for one in sayings if not one.is_outdated(sayings))
        sayings.remove(one)
        found = one.found
        if one.outdated:
            reasons = {**found.reasons, "outdated": one.outdated}
            score = min(found.score, ordered[-1].score)
            found = msgspec.structs.replace(found, score=score, reasons=reasons)
        ordered.append(found)
    return [*ordered, *chosen[_COMPARED:]]


class _Saying(Struct, eq=False):
    """A result with its words, and the words of the question among them.

    `outdated` is the share of words in common with a newer result, if there is one.
    """

    found: Recollection
    words: frozenset[str]
    asked: frozenset[str]
    outdated: float = 0.0

    @classmethod
    def of(cls, found: Recollection, asked: frozenset[str]) -> _Saying:
        # Stems would find no more, and would take most of the time of a search.
        words = frozenset(split_forms(found.entry.content))
        return cls(found, words, words & asked)

    def is_outdated(self, others: Iterable[_Saying]) -> bool:
        """Return True if a newer result comes first."""
        likeness = max(other.outdates(self) for other in others)
        self.outdated = likeness or self.outdated
        return likeness > 0

    def outdates(self, older: _Saying) -> float:
        """Return the share of common words if this result replaces an older one; else 0.

        To replace it, this must have all words of the question that the other has.
        """
        if (
            self.found.entry.created <= older.found.entry.created
            or self.found.score < _NEARLY * older.found.score
            or not self.asked >= older.asked
        ):
            return 0.0
        shared = len(self.words & older.words)
        likeness = shared / (len(self.words | older.words) or 1)
        return likeness if shared >= _SHARED and likeness >= _SAME else 0.0


class _Trait(Struct, frozen=True):
    """Basis for comparing two candidates: their vectors, or their words if one has none."""

    words: frozenset[str]
    vectors: Any

    @staticmethod
    def of(one: _Candidate, entry: Entry | None) -> _Trait:
        words = frozenset() if entry is None else frozenset(split_words(entry.content))
        return _Trait(words, one.index.vectors_of(one.record.number))

    def compare(self, other: _Trait) -> float:
        if self.vectors is not None and other.vectors is not None:
            return max(float((self.vectors @ other.vectors.T).max()), 0.0)
        return len(self.words & other.words) / (len(self.words | other.words) or 1)
