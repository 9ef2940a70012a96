"""An embedder as a memory asks it: what fails is told once, and memory goes on by words."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence

from vibe_llms.exceptions import VibeLlmsError
from vibe_llms.memory.embedders.cache import CachedEmbedder
from vibe_llms.memory.embedders.core import ignore
from vibe_llms.memory.entries import Entry
from vibe_llms.memory.passages import split_passages

#: So long an embedder is left alone that failed; whoever searches does not wait for it again.
_REST_SECONDS = 60.0


class Embedding:
    """Vectors of questions and of entries, or `None` where there are none now."""

    def __init__(self, embedder: CachedEmbedder, tell: Callable[[str], None] = ignore) -> None:
        self.embedder = embedder
        self._tell = tell
        self._told: set[str] = set()
        self._rests_until = 0.0

    @property
    def model(self) -> str:
        """What its vectors are stored under."""
        return self.embedder.model

    async def embed_question(self, text: str) -> array[float] | None:
        """The vector that a question is searched with."""
        vectors = await self._ask([text], question=True) if text.strip() else None
        return None if vectors is None else vectors[0]

    async def embed_entries(
        self, entries: Sequence[tuple[int, Entry]]
    ) -> dict[int, Sequence[array[float]]] | None:
        """The vectors of the passages of some entries, by the numbers that they are given with.

        One whose file was emptied by hand has none.
        """
        passages = [(number, text) for number, entry in entries for text in split_passages(entry)]
        vectors = await self._ask([text for _, text in passages])
        if vectors is None:
            return None
        found: dict[int, list[array[float]]] = {number: [] for number, _ in entries}
        for (number, _), vector in zip(passages, vectors, strict=True):
            found[number].append(vector)
        return {**found}

    def tell(self, error: VibeLlmsError) -> None:
        """Tell once why there are no vectors; the embedder is left alone for a while."""
        self._rests_until = time.monotonic() + _REST_SECONDS
        text = f"memory is searched by words alone: {error}"
        if text not in self._told:
            self._told.add(text)
            self._tell(text)

    async def give_up(self, error: VibeLlmsError) -> None:
        """Tell that its model is another one under the same name; what was kept is of no use."""
        await self.embedder.give_up()
        self.tell(error)

    def wake(self) -> None:
        """Ask the embedder again now, though it failed a moment ago: somebody wants that."""
        self._rests_until = 0.0

    async def close(self) -> None:
        """Close the embedder; where that fails it is told, for nothing that was done is undone."""
        try:
            await self.embedder.close()
        except VibeLlmsError as error:
            self._tell(f"the embedder {self.model} could not be closed: {error}")

    async def _ask(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]] | None:
        if time.monotonic() < self._rests_until:
            return None
        try:
            return await self.embedder.embed(texts, question=question)
        except VibeLlmsError as error:
            self.tell(error)
            return None
