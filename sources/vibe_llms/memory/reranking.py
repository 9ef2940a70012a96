"""Reranking: a model reads the question and what was found together, and says how well they fit.

It is slow beside an index and knows more: it sees that an entry has the words of a question, or its
topic, and does not answer it. Without one, which is how memory is shipped, nothing here runs.
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

#: What a model is given of an entry, in characters; it reads about as many tokens as a page has.
_LONGEST = 2000


class RerankingSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """`[memory.reranking]`: the model, how many entries it reads, and what fits too little.

    `model` is the path of a folder, or a name in the cache of Hugging Face; empty for none.
    `threshold` is what the model must think of an entry at least, from 0 to 1.
    """

    model: str = ""
    threshold: Share = 0.35
    candidates: Annotated[int, Meta(ge=1)] = 30


class Reranker(Protocol):
    """A model that reads a question beside texts; safe to use from several tasks at once."""

    async def score(self, question: str, texts: Sequence[str]) -> Sequence[float]:
        """How well each text fits, as the model says it: a raw logit, the larger the better.

        Raises a `VibeLlmsError` where it cannot be done.
        """
        ...

    async def close(self) -> None:
        """Free what it holds; safe to call twice."""
        ...


class InquiringReranker(Reranker, Protocol):
    """One that can tell beforehand what stands in its way."""

    async def inquire(self) -> None:
        """Raise a `VibeLlmsError` for what does; nothing is loaded."""
        ...


def rerank(
    recollections: Sequence[Recollection], scores: Sequence[float], settings: RerankingSettings
) -> Mapping[str, float]:
    """How well entries fit by the logits of a model, by identity; those that fit too little not.

    A logit becomes a share by itself, through the logistic function, and not by the best and the
    worst of the others: where nothing fits, nothing is left.
    """
    shares = map(_squash, scores)
    return {
        one.entry.identity: share
        for one, share in zip(recollections, shares, strict=True)
        if share >= settings.threshold
    }


class Reranking:
    """A reranker as a memory asks it: what fails is told once, and memory goes on without it."""

    def __init__(
        self,
        reranker: Reranker,
        settings: RerankingSettings = RerankingSettings(),
        tell: Callable[[str], None] = ignore,
    ) -> None:
        self.settings = settings
        self._reranker = reranker
        self._tell = tell
        self._told: set[str] = set()

    async def weigh(
        self, question: str, recollections: Sequence[Recollection]
    ) -> Mapping[str, float] | None:
        """How well entries fit, as `rerank` has it; none where the model cannot be asked."""
        if not recollections:
            return {}
        texts = [_describe(one.entry) for one in recollections]
        try:
            scores = await self._reranker.score(question, texts)
        except VibeLlmsError as error:
            text = f"what memory finds is not reranked: {error}"
            if text not in self._told:
                self._told.add(text)
                self._tell(text)
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
