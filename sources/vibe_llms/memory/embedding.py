"""An embedder as memory and documents use it.

A failure is reported once, and then only words are searched.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence

from vibe_llms.exceptions import ModelUnavailable, RequestRefused, VibeLlmsError
from vibe_llms.memory.chunks import split_passages
from vibe_llms.memory.embedders.cache import CachedEmbedder, digest_text
from vibe_llms.memory.embedders.core import ignore
from vibe_llms.memory.entries import Entry

#: A failed embedder is not asked again for so long; searches do not wait for it.
_REST_SECONDS = 60.0
#: So many texts of a batch are those of one entry, or fewer.
_TEXTS = 4
#: A harmless text, to see whether an embedder refuses some texts or all.
_HARMLESS = "hello"


class Embedding:
    """Vectors of questions and of entries, or `None` while there are none."""

    def __init__(
        self,
        embedder: CachedEmbedder,
        notify: Callable[[str], None] = ignore,
        *,
        searched: str = "memory is",
    ) -> None:
        self.embedder = embedder
        self._notify = notify
        self._searched = searched
        self._reported: set[str] = set()
        self._rests_until = 0.0
        #: The digests of texts that were refused by themselves, and are not tried again.
        self._refused: set[bytes] = set()
        #: How many of them were not reported yet, and why the first was refused.
        self._untold: tuple[int, str] = (0, "")
        #: Whether it ever made a vector: then a refusal is about the text.
        self._proven = False
        #: Whether its model is loaded, or cannot be.
        self.ready = False

    @property
    def model(self) -> str:
        """The name that its vectors are stored under."""
        return self.embedder.model

    @property
    def batch(self) -> int:
        """Number of entries that get their vectors at a time."""
        return self.embedder.pace.count // _TEXTS

    async def load(self) -> None:
        """Load its model now, if it loads one into this process; a failure becomes a note."""
        try:
            await self.embedder.load()
        except VibeLlmsError as error:
            self.notify(error)
        self.ready = True

    def report_late(self, seconds: float) -> None:
        """Report once that recall stopped waiting for it."""
        remedy = "" if self.ready else "; to keep it loaded: vibe-llms memory serve-embedder"
        self._notify_once(
            f"recalled by words alone: the embedder {self.model} was not ready within "
            f"{seconds:g} s{remedy}"
        )

    def report_loading(self) -> None:
        """Report once that the model is loading, unless it is loaded."""
        if not self.ready:
            self._notify_once(f"loading the embedder {self.model}")

    async def embed_question(self, text: str) -> array[float] | None:
        """The vector that a question is searched with."""
        if not text.strip() or self._rests():
            return None
        try:
            return await self._embed_question(text)
        except VibeLlmsError as error:
            self.notify(error)
            return None

    async def embed_entries(
        self, entries: Sequence[tuple[int, Entry]]
    ) -> dict[int, Sequence[array[float]]] | None:
        """The vectors of the passages of some entries, by the numbers that they are given with.

        An entry whose file was emptied by hand has none. A passage that is refused has none either;
        it is not tried again before `wake`, and `report_refused` reports it.
        """
        passages = {number: split_passages(entry) for number, entry in entries}
        vectors = await self.embed_texts([text for some in passages.values() for text in some])
        if vectors is None:
            return None
        return {
            number: [vectors[text] for text in some if text in vectors]
            for number, some in passages.items()
        }

    async def embed_texts(self, texts: Sequence[str]) -> dict[str, array[float]] | None:
        """The vectors of some texts, except those that are refused; see `embed_entries`."""
        if self._rests():
            return None
        try:
            if self._refused:
                texts = [text for text in texts if digest_text(text) not in self._refused]
            return await self._divide(texts)
        except VibeLlmsError as error:
            self.notify(error)
            return None

    def notify(self, error: VibeLlmsError) -> None:
        """Report once why there are no vectors, and leave the embedder alone for a while."""
        self._rests_until = time.monotonic() + _REST_SECONDS
        self._notify_once(f"{self._searched} searched by words alone: {error}")

    def report_refused(self) -> None:
        """Report how many texts were refused since the last report, if any were."""
        (count, why), self._untold = self._untold, (0, "")
        if count:
            texts, them = ("1 text", "it is") if count == 1 else (f"{count} texts", "they are")
            self._notify_once(
                f"the embedder {self.model} refuses {texts}; {them} found by words alone: {why}"
            )

    async def discard(self, error: VibeLlmsError) -> None:
        """Remove the kept vectors: the model is another one under the same name."""
        await self.embedder.discard()
        self.notify(error)

    def wake(self) -> None:
        """Use the embedder again now, although it failed or refused before."""
        self._rests_until = 0.0
        self._refused.clear()

    async def close(self) -> None:
        """Close the embedder; a failure is only reported, since all work is done by then."""
        try:
            await self.embedder.close()
        except VibeLlmsError as error:
            self._notify(f"the embedder {self.model} could not be closed: {error}")

    async def _embed_question(self, text: str) -> array[float] | None:
        try:
            (vector,) = await self._ask([text], question=True)
        except RequestRefused as error:
            if await self._refuses_all(error):
                raise
            self._notify_once(f"a question is searched by its words alone: {error}")
            return None
        return vector

    async def _divide(self, texts: Sequence[str]) -> dict[str, array[float]]:
        """The vectors of texts; halving finds the texts that are refused, which get none."""
        found: dict[str, array[float]] = {}
        left = [texts] if texts else []
        while left:
            some = left.pop()
            try:
                found.update(zip(some, await self._ask(some), strict=True))
            except RequestRefused as error:
                if await self._refuses_all(error):
                    raise
                half = len(some) // 2
                if half:
                    left += [some[half:], some[:half]]
                else:
                    self._leave_out(some[0], error)
        return found

    async def _refuses_all(self, error: RequestRefused) -> bool:
        """Whether it refuses every text, even a harmless one.

        If that fails in another way, its error is raised.
        """
        if isinstance(error, ModelUnavailable):
            return True
        if not self._proven:
            try:
                await self._ask([_HARMLESS], question=True)
            except RequestRefused:
                return True
        return False

    def _leave_out(self, text: str, error: RequestRefused) -> None:
        self._refused.add(digest_text(text))
        count, why = self._untold
        self._untold = (count + 1, why or str(error))

    def _rests(self) -> bool:
        return time.monotonic() < self._rests_until

    async def _ask(self, texts: Sequence[str], *, question: bool = False) -> Sequence[array[float]]:
        vectors = await self.embedder.embed(texts, question=question)
        self._proven = self.ready = True
        return vectors

    def _notify_once(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self._notify(text)
