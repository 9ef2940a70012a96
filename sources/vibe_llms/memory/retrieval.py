"""Finding what fits a question: relevance, how recent it is, and no two that say the same."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from math import exp
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from vibe_llms.memory.catalogue import Known
from vibe_llms.memory.entries import Entry, Role
from vibe_llms.memory.index import ScopeIndex
from vibe_llms.memory.lexical import rarity_of
from vibe_llms.memory.words import asks_about_now, split_query, split_words

Share = Annotated[float, Meta(ge=0, le=1)]
Recency: TypeAlias = Literal["now", "always"]
#: So many times the wanted entries are looked at more closely.
_POOL = 6
_DAY_SECONDS = 86_400.0
#: After so many days something counts for about a third of what it counted when it was new.
RECENCY_DAYS = 30.0
#: What a turn that is itself a question counts, of what another counts: it answers less.
_ASKING = 0.9
#: What others need beside an entry that fits, of what that needs.
_BESIDE = 0.5
#: The usual cosine is counted as if there were so many more passages of something else.
_VIRTUAL = 5
#: A cosine of so many times what it must stand out by is enough by itself.
_CLEARLY = 2
#: What is found by its words alone needs so much more of them where meaning is compared too.
_WORDS_BESIDE_MEANING = 4 / 3
#: Entries that share such a part of their words, and so many, say something about the same; the
#: newer comes first if it fits nearly as well.
_SAME, _SHARED, _NEARLY = 0.3, 2, 0.6
#: Only so many results are compared with each other.
_COMPARED = 30
#: What is searched where nothing else is asked for: summaries are not found, they are given.
FOUND_ROLES = frozenset({Role.FACT, Role.USER, Role.ASSISTANT})


class RetrievalSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """How entries are chosen.

    `least_relevance` is what an entry needs to be found by its words: the share of what the
    question's words are worth. `least_likeness` is what it needs to be found by its meaning: how
    far its cosine stands out, as a part of the way from what is usual for the question to 1; a
    cosine of twice as much is enough as well. One of the two will do, and once there is such an
    entry, half of it will do for others: what answers in part stands beside what fits, and a
    question that nothing fits finds nothing. `dense_weight` is what meaning weighs against words,
    where there are vectors. `recency_weight` and `importance_weight` are what age and importance
    weigh against relevance, age only for questions about the present, or with `recency` "always"
    for all; `mmr_lambda` is what relevance weighs against likeness to a better entry. With
    `newer_first`, of two entries that say nearly the same the newer stands before the older.
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


class Question(Struct, frozen=True):
    """What is asked: the words, the vector of their meaning if there is one, and when it is.

    `relevances` says by identity how well entries fit, where something else has judged that; no
    others are found then. The pool is made for so many results at least as `pool` says.
    """

    text: str
    now: datetime
    vector: array[float] | None = None
    relevances: Mapping[str, float] | None = None
    pool: int = 0
    roles: Collection[Role] = FOUND_ROLES

    def admits(self, known: Known) -> bool:
        """Whether an entry may be found at all."""
        return self.relevances is None or known.identity in self.relevances


class Recollection(Struct, frozen=True):
    """An entry that was found, how well it fits, and why: each signal by its name, from 0 to 1."""

    entry: Entry
    score: float
    reasons: Mapping[str, float]


class _Bars(Struct, frozen=True):
    """What an entry needs to be found: of words, and of meaning beyond what is usual.

    The usual is the mean cosine of the question with all passages, where they have words of it at
    all. That it names somebody of whom everything speaks makes no entry an answer; but where no
    word is shared, everything may speak of what it means.
    """

    words: float
    meaning: float
    usual: float

    @classmethod
    def of(
        cls,
        question: Question,
        words: Iterable[str],
        indexes: Sequence[ScopeIndex],
        settings: RetrievalSettings,
    ) -> _Bars:
        total, passages = 0.0, 0
        if question.vector is not None:
            for index in indexes:
                some, count = index.sum_up(question.vector)
                total, passages = total + some, passages + count
            if not any(index.frequency(word) for index in indexes for word in words):
                total = 0.0
        return cls(
            settings.least_relevance * (_WORDS_BESIDE_MEANING if passages else 1.0),
            settings.least_likeness,
            max(total, 0.0) / (passages + _VIRTUAL),
        )

    def admit(self, reasons: Mapping[str, float], share: float = 1.0) -> bool:
        """Whether one of an entry's signals is enough; with a share of what is enough."""
        words, meaning = reasons["words"], reasons.get("meaning", 0.0)
        if words > 0 and words >= share * self.words:
            return True
        least = share * self.meaning
        standing_out = (meaning - self.usual) / (1 - self.usual)
        return meaning > 0 and (standing_out >= least or meaning >= _CLEARLY * least)


class _Candidate(Struct):
    index: ScopeIndex
    known: Known
    score: float
    reasons: dict[str, float]


def retrieve(
    question: Question, indexes: Sequence[ScopeIndex], settings: RetrievalSettings
) -> list[Recollection]:
    """The entries of some scopes that fit a question, the best first; all indexes are fresh."""
    if settings.recency == "now" and not asks_about_now(question.text):
        settings = msgspec.structs.replace(settings, recency_weight=0.0)
    words = split_query(question.text)
    count = sum(map(len, indexes))
    rarities = {
        word: rarity_of(sum(index.frequency(word) for index in indexes), count) for word in words
    }
    bars = _Bars.of(question, words, indexes, settings)
    pool = [
        candidate
        for index in indexes
        for candidate in _gather(index, question, rarities, bars, settings)
    ]
    if not any(bars.admit(one.reasons) for one in pool):
        return []
    pool.sort(key=lambda one: one.score, reverse=True)
    chosen = _choose(pool, settings)
    return _put_newer_first(chosen, rarities.keys()) if settings.newer_first else chosen


def _gather(
    index: ScopeIndex,
    question: Question,
    rarities: Mapping[str, float],
    bars: _Bars,
    settings: RetrievalSettings,
) -> Iterable[_Candidate]:
    """The candidates of one scope: the best by their words, and the best by their meaning."""
    size = max(settings.limit, question.pool) * _POOL
    ideal = sum(rarities.values())
    scores = index.score(rarities) if ideal else {}
    wanted = _keep_roles(index, scores, question.roles)
    found = {
        number: scores[number] for number in heapq.nlargest(size, wanted, key=scores.__getitem__)
    }
    cosines: Mapping[int, float] = {}
    if question.vector is not None:
        cosines = index.rank(question.vector, size)
        others = [number for number in cosines if number not in found]
        others = [*_keep_roles(index, others, question.roles)]
        cosines = {**cosines, **index.compare(question.vector, [*found])}
        # The score of those that are not among the best is not whole.
        found.update({**dict.fromkeys(others, 0.0), **index.assess(rarities, others)})
    for number, score in found.items():
        relevance = min(score / ideal, 1.0) if ideal else 0.0
        likeness = max(cosines.get(number, 0.0), 0.0)
        if not question.admits(index.access(number)):
            continue
        reasons = {"words": relevance, **({"meaning": likeness} if cosines else {})}
        if bars.admit(reasons, _BESIDE):
            yield _weigh(index, index.access(number), reasons, settings, question)


def _keep_roles(
    index: ScopeIndex, numbers: Iterable[int], roles: Collection[Role]
) -> Iterable[int]:
    if roles is FOUND_ROLES and not index.summaries:
        return numbers
    return (number for number in numbers if index.access(number).role in roles)


def _weigh(
    index: ScopeIndex,
    known: Known,
    reasons: dict[str, float],
    settings: RetrievalSettings,
    question: Question,
) -> _Candidate:
    score = reasons["words"]
    if "meaning" in reasons:
        score += settings.dense_weight * (reasons["meaning"] - score)
    if known.asks:
        score *= _ASKING
    if question.relevances is not None:
        score = reasons["reranking"] = question.relevances[known.identity]
    if settings.recency_weight:
        age = max((question.now - known.created).total_seconds(), 0.0) / _DAY_SECONDS
        reasons["recency"] = exp(-age / RECENCY_DAYS)
        score += settings.recency_weight * (reasons["recency"] - score)
    if settings.importance_weight:
        reasons["importance"] = known.importance
        score += settings.importance_weight * (known.importance - score)
    return _Candidate(index, known, score, reasons)


def _choose(pool: Sequence[_Candidate], settings: RetrievalSettings) -> list[Recollection]:
    """The best of the pool, each as unlike those before it as it is relevant.

    That is maximal marginal relevance (Carbonell and Goldstein, 1998).
    """
    chosen: list[Recollection] = []
    left = list(pool)
    relevance = settings.mmr_lambda
    traits = {} if relevance == 1 else {id(one): _Trait.of(one) for one in left}
    alike = dict.fromkeys(traits, 0.0)
    while left and len(chosen) < settings.limit:
        place = 0
        if traits:
            values = [relevance * one.score - (1 - relevance) * alike[id(one)] for one in left]
            place = values.index(max(values))
        best = left.pop(place)
        entry = best.index.read(best.known)
        if entry is None:
            continue
        chosen.append(Recollection(entry, best.score, best.reasons))
        for one in left if traits else ():
            likeness = traits[id(one)].compare(traits[id(best)])
            alike[id(one)] = max(alike[id(one)], likeness)
    return chosen


def _put_newer_first(chosen: Sequence[Recollection], asked: Collection[str]) -> list[Recollection]:
    """The same, but what says nearly the same as something newer that fits stands behind that.

    People change their minds and move house; what they said first still fits as well.
    """
    sayings = [_Saying.of(one, asked) for one in chosen[:_COMPARED]]
    ordered: list[Recollection] = []
    while sayings:
        # There is always one: nothing outdates the newest.
        one = next(one for one in sayings if not one.stands_back(sayings))
        sayings.remove(one)
        found = one.found
        if one.outdated:
            reasons = {**found.reasons, "outdated": one.outdated}
            score = min(found.score, ordered[-1].score)
            found = msgspec.structs.replace(found, score=score, reasons=reasons)
        ordered.append(found)
    return [*ordered, *chosen[_COMPARED:]]


class _Saying(Struct, eq=False):
    """A result with its words and those of them that were asked for.

    `outdated` is how much of its words it shares with something newer, once there is such.
    """

    found: Recollection
    words: frozenset[str]
    asked: frozenset[str]
    outdated: float = 0.0

    @classmethod
    def of(cls, found: Recollection, asked: Collection[str]) -> _Saying:
        words = frozenset(split_words(found.entry.content))
        return cls(found, words, words.intersection(asked))

    def stands_back(self, others: Iterable[_Saying]) -> bool:
        """Whether something newer is to come first."""
        likeness = max(other.outdates(self) for other in others)
        self.outdated = likeness or self.outdated
        return likeness > 0

    def outdates(self, older: _Saying) -> float:
        """How much of their words the two share, if this takes the place of the other; else 0.

        It has all words of the question that the other has: of two places the one that was asked
        for is the answer, however old.
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
    """What tells how alike two candidates are: their vectors, or their words where one has none."""

    words: frozenset[str]
    vectors: Any

    @staticmethod
    def of(one: _Candidate) -> _Trait:
        entry = one.index.read(one.known)
        words = frozenset() if entry is None else frozenset(split_words(entry.content))
        return _Trait(words, one.index.vectors_of(one.known.number))

    def compare(self, other: _Trait) -> float:
        if self.vectors is not None and other.vectors is not None:
            return max(float((self.vectors @ other.vectors.T).max()), 0.0)
        return len(self.words & other.words) / (len(self.words | other.words) or 1)
