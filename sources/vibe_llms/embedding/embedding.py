"""Embedder for memory and documents, which falls back to search by words.

A failure is reported once, and then only words are searched.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence

from vibe_llms.base.exceptions import ModelUnavailable, RequestRefused, VibeLlmsError
from vibe_llms.embedding.cache import CachedEmbedder, digest_text
from vibe_llms.embedding.core import ignore

#: Pause after a failure; searches do not wait for the embedder.
_PAUSE_SECONDS = 60.0
#: Harmless text that shows whether an embedder refuses some texts or all.
_HARMLESS = "hello"


class Embedding:
    """Vectors of questions and of entries, or `None` while the embedder does not work."""

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
        self._paused_until = 0.0
        #: Digests of texts that were refused alone, and are not tried again.
        self._refused: set[bytes] = set()
        #: Number of refusals not reported yet, and the reason of the first.
        self._unreported: tuple[int, str] = (0, "")
        #: True once it made a vector; then a refusal is about the text.
        self._works = False
        #: True once its model is loaded, or cannot be.
        self.ready = False

    @property
    def model(self) -> str:
        """Name under which its vectors are stored."""
        return self.embedder.model

    @property
    def batch(self) -> int:
        """Number of texts embedded at a time."""
        return self.embedder.pace.count

    async def load(self) -> None:
        """Load its model now, if it loads one into this process; report a failure as a notice."""
        try:
            await self.embedder.load()
        except VibeLlmsError as error:
            self.notify(error)
        self.ready = True

    def report_late(self, seconds: float) -> None:
        """Report once that recall stopped waiting for it."""
        remedy = "" if self.ready else "; to keep it loaded: vibe-llms memory serve-embedder"
        self._notify_once(
            f"recalled by words only: the embedder {self.model} was not ready within "
            f"{seconds:g} s{remedy}"
        )

    def report_loading(self) -> None:
        """Report once that the model is loading, unless it is loaded."""
        if not self.ready:
            self._notify_once(f"loading the embedder {self.model}")

    async def embed_question(self, text: str) -> array[float] | None:
        """Return the vector to search with, or `None`."""
        if not text.strip() or self._is_paused():
            return None
        try:
            return await self._embed_question(text)
        except VibeLlmsError as error:
            self.notify(error)
            return None

    async def embed_texts(self, texts: Sequence[str]) -> dict[str, array[float]] | None:
        """Return the vectors of the texts that the embedder accepts.

        A refused text is not tried again before `wake`, and `report_refused` reports it.
        """
        if self._is_paused():
            return None
        try:
            if self._refused:
                texts = [text for text in texts if digest_text(text) not in self._refused]
            return await self._divide(texts)
        except VibeLlmsError as error:
            self.notify(error)
            return None

    def notify(self, error: VibeLlmsError) -> None:
        """Report a failure once, and pause the embedder for a while."""
        self._paused_until = time.monotonic() + _PAUSE_SECONDS
        self._notify_once(f"{self._searched} searched by words only: {error}")

    def report_refused(self) -> None:
        """Report how many texts were refused since the last report, if any."""
        (count, why), self._unreported = self._unreported, (0, "")
        if count:
            texts, them = ("1 text", "it is") if count == 1 else (f"{count} texts", "they are")
            self._notify_once(
                f"the embedder {self.model} refuses {texts}; {them} found by words only: {why}"
            )

    async def discard(self, error: VibeLlmsError) -> None:
        """Remove the stored vectors, because another model now has this name."""
        await self.embedder.discard()
        self.notify(error)

    def wake(self) -> None:
        """Use the embedder again now, despite earlier failures or refusals."""
        self._paused_until = 0.0
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
            self._notify_once(f"a question is searched by words only: {error}")
            return None
        return vector

    async def _divide(self, texts: Sequence[str]) -> dict[str, array[float]]:
        """Embed texts; bisection finds the refused ones, which get no vectors."""
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
        """Return True if it refuses every text, even a harmless one.

        Other failures of the test are raised.
        """
        if isinstance(error, ModelUnavailable):
            return True
        if not self._works:
            try:
                await self._ask([_HARMLESS], question=True)
            except RequestRefused:
                return True
        return False

    def _leave_out(self, text: str, error: RequestRefused) -> None:
        self._refused.add(digest_text(text))
        count, why = self._unreported
        self._unreported = (count + 1, why or str(error))

    def _is_paused(self) -> bool:
        return time.monotonic() < self._paused_until

    async def _ask(self, texts: Sequence[str], *, question: bool = False) -> Sequence[array[float]]:
        vectors = await self.embedder.embed(texts, question=question)
        self._works = self.ready = True
        return vectors

    def _notify_once(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self._notify(text)
