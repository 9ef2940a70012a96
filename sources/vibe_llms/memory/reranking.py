"""Reranking: a model reads the question together with each result, and says how well they fit.

It is slower than an index and knows more: it sees when an entry has the words or the topic of a
question but does not answer it. By default there is no such model, and nothing here runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp
from typing import Annotated, Protocol

from msgspec import Meta, Struct

from vibe_llms.exceptions import VibeLlmsError
from vibe_llms.memory.embedders.core import ignore
from vibe_llms.memory.entries import Entry
from vibe_llms.memory.retrieval import Recollection, Share

#: How many characters of an entry the model reads: about a page.
_LONGEST = 2000


class RerankingSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """`[memory.reranking]`: the model, how many entries it reads, and the least score.

    `model` is the path of a folder, or a name in the cache of Hugging Face; empty for none.
    `threshold` is the least score of an entry, from 0 to 1.
    """

    model: str = ""
    threshold: Share = 0.35
    candidates: Annotated[int, Meta(ge=1)] = 30


class Reranker(Protocol):
    """A model that reads a question together with texts; safe to use from several tasks at once."""

    async def score(self, question: str, texts: Sequence[str]) -> Sequence[float]:
        """The raw logit of each text: the larger, the better it fits.

        Raises a `VibeLlmsError` on failure.
        """
        ...

    async def close(self) -> None:
        """Free what it holds; safe to call twice."""
        ...


class InquiringReranker(Reranker, Protocol):
    """A reranker that can say beforehand why it would fail."""

    async def inquire(self) -> None:
        """Raise a `VibeLlmsError` if it would fail; nothing is loaded."""
        ...


def rerank(
    recollections: Sequence[Recollection], scores: Sequence[float], settings: RerankingSettings
) -> Mapping[str, float]:
    """The scores of entries by identity, from the logits of a model, without those below the bar.

    The logistic function makes a score of each logit, without regard to the others: if nothing
    fits, nothing is left.
    """
    shares = map(_squash, scores)
    return {
        one.entry.identity: share
        for one, share in zip(recollections, shares, strict=True)
        if share >= settings.threshold
    }


class Reranking:
    """A reranker for a memory, which reports each failure once and continues without it."""

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
        """The scores of entries, see `rerank`; none if the model fails."""
        if not recollections:
            return {}
        texts = [_describe(one.entry) for one in recollections]
        try:
            scores = await self._reranker.score(question, texts)
        except VibeLlmsError as error:
            text = f"what memory finds is not reranked: {error}"
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
