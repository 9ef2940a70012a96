"""`StrictEmbedder`: wraps every embedder, built-in or third-party.

The texts are checked before they are embedded, and the vectors before they are used.
"""

from __future__ import annotations

import asyncio
import math
import sys
from array import array
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

from vibe_llms.base.exceptions import MemoryInvalid, ReplyMalformed, ReplyTimeout
from vibe_llms.base.registries import Row
from vibe_llms.embedding.interfaces import (
    Embedder,
    InquiringEmbedder,
    LoadingEmbedder,
    TimedEmbedder,
)
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.provider_pool import PROVIDERS, Providers
from vibe_llms.providers.registry import guard_code, guard_row

#: Maximum deviation of a vector's length from 1 without normalization.
_TOLERANCE = 1e-5
#: Texts per call, to which the timeout applies.
BATCH_TEXTS = 256
#: Timeout of a batch if neither the row nor the embedder sets one.
TIMEOUT_SECONDS = 300.0
#: Timeout for closing an embedder: results have been returned by then.
_CLOSE_SECONDS = 10.0


class StrictEmbedder:
    """Embedder whose texts and vectors are checked, with the prefixes of its row.

    `row` is the row of `table` that names it, if any. A batch of at most 256 texts may take
    `timeout_seconds`; by default the embedder's value, or 300. Raise `RegistrationError` if it is
    not an embedder, or its model has no name.
    """

    def __init__(
        self,
        embedder: Embedder,
        row: Row | None = None,
        *,
        query_prefix: str = "",
        entry_prefix: str = "",
        timeout_seconds: float | None = None,
        table: str = PROVIDERS,
        owned: Providers | None = None,
    ) -> None:
        #: Wrapped embedder, without the prefixes of its row.
        self.bare = embedder
        self._row = row
        self._table = table
        self._prefixes = (repair_text(entry_prefix), repair_text(query_prefix))
        self._owned = owned
        self._dimensions: int | None = None
        with self._guard():
            for method in ("embed", "close"):
                if not callable(getattr(embedder, method, None)):
                    raise TypeError(f"{embedder!r} is not an embedder: it has no {method}")
            model = embedder.model
            if not isinstance(model, str) or not model:
                # Vectors without a name could not be distinguished from those of another model.
                raise TypeError(f"{embedder!r} is not an embedder: its model has no name")
            own: float | None = TIMEOUT_SECONDS
            if isinstance(embedder, TimedEmbedder):
                own = embedder.timeout_seconds
            if own is not None and (not isinstance(own, int | float) or not own > 0):
                raise TypeError(f"{embedder!r} is not an embedder: its timeout_seconds is {own!r}")
        self._seconds = own if timeout_seconds is None else timeout_seconds

    @property
    def model(self) -> str:
        """Name of its vectors; the prefix of entries is part of it."""
        prefix = self._prefixes[0]
        return f"{self.bare.model} {prefix!r}" if prefix else self.bare.model

    async def inquire(self) -> None:
        """Raise if a package, a key, or weights are missing, without loading a model."""
        if isinstance(self.bare, InquiringEmbedder):
            async with self._bound("to check that it works", self._seconds):
                await self.bare.inquire()

    async def load(self) -> None:
        """Load its model now, if it loads one into this process."""
        if isinstance(self.bare, LoadingEmbedder):
            async with self._bound("to load", self._seconds):
                await self.bare.load()

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        """Return a vector for each text; see `vibe_llms.embedding.interfaces.Embedder`.

        Raise `MemoryInvalid` for an empty text, and `ReplyTimeout` if a batch takes too long.
        """
        if not all(text.strip() for text in texts):
            raise MemoryInvalid("an empty text cannot be embedded")
        if not texts:
            return ()
        prefix = self._prefixes[question]
        wanted = [prefix + repair_text(text) for text in texts]
        checked: list[array[float]] = []
        for start in range(0, len(wanted), BATCH_TEXTS):
            batch = wanted[start : start + BATCH_TEXTS]
            words = "1 text" if len(batch) == 1 else f"{len(batch)} texts"
            async with self._bound(f"for {words}", self._seconds):
                found = await self.bare.embed(batch, question=question)
                checked += self._check([*found], len(batch))
        return checked

    async def close(self) -> None:
        """Close connections and release models; safe to call twice."""
        try:
            async with self._bound("to close", _CLOSE_SECONDS):
                await self.bare.close()
        finally:
            owned, self._owned = self._owned, None
            if owned is not None:
                await owned.close()

    @property
    def _name(self) -> str:
        """Name in messages."""
        return type(self.bare).__name__ if self._row is None else self._row.name

    def _guard(self) -> AbstractContextManager[None]:
        if self._row is not None:
            return guard_row(self._row, self._table)
        kind = type(self.bare)
        return guard_code(f"the embedder {kind.__module__}.{kind.__qualname__}")

    @asynccontextmanager
    async def _bound(self, what: str, seconds: float | None) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                with self._guard():
                    yield
        except TimeoutError as error:
            assert seconds is not None
            remedy = ""
            if seconds == self._seconds:
                place = "its" if self._row is None else f"[{self._table}.{self._row.name}]"
                key = "timeout_seconds" if self._row is None else "timeout-seconds"
                remedy = f"; if it is only slow, raise {place} {key}"
            raise ReplyTimeout(
                f"the embedder {self.model} took longer than {seconds:g} seconds {what}{remedy}",
                provider=self._name,
                limit="timeout-seconds",
                seconds=seconds,
            ) from error

    def _check(self, vectors: Sequence[Any], count: int) -> Sequence[array[float]]:
        if len(vectors) != count:
            self._refuse(f"{len(vectors)} vectors for {count} texts")
        checked: list[array[float]] = []
        arrays = [
            one if isinstance(one, array) and one.typecode == "f" else array("f", one)
            for one in vectors
        ]
        for vector, length in zip(arrays, _measure(arrays), strict=True):
            if not math.isfinite(length) or not length:
                self._refuse("a vector that is zero or not finite")
            if self._dimensions is None:
                self._dimensions = len(vector)
            if len(vector) != self._dimensions:
                self._refuse(f"a vector of {len(vector)} numbers after those of {self._dimensions}")
            if abs(length - 1) > _TOLERANCE:
                checked.append(array("f", (number / length for number in vector)))
            else:
                checked.append(vector)
        return checked

    def _refuse(self, what: str) -> None:
        raise ReplyMalformed(f"the embedder {self.model} returned {what}", provider=self._name)


def _measure(vectors: Sequence[array[float]]) -> Iterable[float]:
    # Importing numpy takes longer than it saves, unless an index of vectors has done so.
    if "numpy" not in sys.modules or len(set(map(len, vectors))) != 1:
        return [math.hypot(*vector) for vector in vectors]
    import numpy as np

    numbers = np.frombuffer(b"".join(vectors), np.float32).astype(np.float64)
    lengths: list[float] = np.linalg.norm(numbers.reshape(len(vectors), -1), axis=1).tolist()
    return lengths


def make_strict(embedder: Embedder) -> StrictEmbedder:
    """Wrap an embedder for a memory; return a strict one unchanged."""
    return embedder if isinstance(embedder, StrictEmbedder) else StrictEmbedder(embedder)
