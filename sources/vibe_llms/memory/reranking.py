"""Reranking: a model reads the question together with each result, and scores the match.

It is slower than an index and knows more: it sees when an entry has the words or the topic of a
question but does not answer it. By default no model is set, and nothing here runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp
from typing import Annotated, Protocol

from msgspec import Meta, Struct

from vibe_llms.base.exceptions import VibeLlmsError
from vibe_llms.embedding.core import ignore
from vibe_llms.memory.entries import Entry
from vibe_llms.memory.retrieval import Recollection, Share

#: Characters of an entry that the model reads: about a page.
_LONGEST = 2000


class RerankingSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The table `[memory.reranking]`: the model, its number of entries, and the minimum score.

    `model` is the path of a folder, or a name in the cache of Hugging Face; if empty, results are
    not reranked. `threshold` is the minimum score of an entry, from 0 to 1.
    """

    model: str = ""
    threshold: Share = 0.35
    candidates: Annotated[int, Meta(ge=1)] = 30


class Reranker(Protocol):
    """Model that reads a question together with texts; safe to use from several tasks at once."""

    async def score(self, question: str, texts: Sequence[str]) -> Sequence[float]:
        """Return the raw logit of each text: higher is better.

        Raise a `VibeLlmsError` on failure.
        """
        ...

    async def close(self) -> None:
        """Free its resources; safe to call twice."""
        ...


class InquiringReranker(Reranker, Protocol):
    """Reranker that can report in advance why it would fail."""

    async def inquire(self) -> None:
        """Raise a `VibeLlmsError` if it would fail, without loading anything."""
        ...


def rerank(
    recollections: Sequence[Recollection], scores: Sequence[float], settings: RerankingSettings
) -> Mapping[str, float]:
    """Return the scores of entries by identity, without those below the threshold.

    The logistic function turns each logit into a score, independently of the others: if nothing
    fits, nothing is left.
    """
    shares = map(_squash, scores)
    return {
        one.entry.identity: share
        for one, share in zip(recollections, shares, strict=True)
        if share >= settings.threshold
    }


class Reranking:
    """Reranker for a memory, which reports each failure once and continues without it."""

    def __init__(
        self,
        reranker: Reranker,
        settings: RerankingSettings = RerankingSettings(),
        notify: Callable[[str], None] = ignore,
    ) -> None:
        self.settings = settings
        self._reranker = reranker
        self._notify = notify
        self._reported: set[str] = set()

    async def weigh(
        self, question: str, recollections: Sequence[Recollection]
    ) -> Mapping[str, float] | None:
        """Return the scores of entries, see `rerank`; `None` if the model fails."""
        if not recollections:
            return {}
        texts = [_describe(one.entry) for one in recollections]
        try:
            scores = await self._reranker.score(question, texts)
        except VibeLlmsError as error:
            text = f"memory results are not reranked: {error}"
            if text not in self._reported:
                self._reported.add(text)
                self._notify(text)
            return None
        return rerank(recollections, scores, self.settings)

    async def close(self) -> None:
        """Close the reranker."""
        await self._reranker.close()


def _squash(logit: float) -> float:
    # The exponential of a large number is an error, that of a small one is 0.
    if logit >= 0:
        return 1 / (1 + exp(-logit))
    return exp(logit) / (1 + exp(logit))


def _describe(entry: Entry) -> str:
    text = entry.content[:_LONGEST]
    return f"{entry.speaker}: {text}" if entry.speaker else text
