"""What an embedder is: the protocol that built-in and third-party embedders fulfil alike."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol, runtime_checkable


class Embedder(Protocol):
    """Texts to vectors; safe to use from several tasks at once.

    Making one loads nothing and asks no server: the first call of `embed` does.
    """

    @property
    def model(self) -> str:
        """What its vectors are stored under: `sentence-transformers/all-MiniLM-L6-v2`, say.

        Vectors that cannot be compared have different names here: whatever changes them, another
        number of dimensions for one, is part of it.
        """
        ...

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        """A vector for each text, in their order: an `array("f")` whose length as a vector is 1.

        `question` is true for texts that are searched with, not for: some models differ.
        At most 256 texts are given, and a call that takes too long is cancelled; see
        `TimedEmbedder`. It must not block the event loop: nothing could cancel it then.

        Raises a `VibeLlmsError` where it cannot be done: a `ConfigurationError` for what has to be
        installed or set, a `ProviderError` for what a model or a server did not do. Then no vector
        of this call is given. Where a text is refused for what it says, or for its length, that is
        `RequestRefused`: the texts are asked again by halves, and those refused alone left out.
        """
        ...

    async def close(self) -> None:
        """Give up connections and models; safe to call twice."""
        ...


@runtime_checkable
class TimedEmbedder(Protocol):
    """An embedder that says how long one call of `embed` may take, where its row does not."""

    @property
    def timeout_seconds(self) -> float | None:
        """The seconds, for at most 256 texts; `None` where it keeps to limits of its own."""
        ...


@runtime_checkable
class LoadingEmbedder(Protocol):
    """An embedder that loads a model into this process, which takes a while."""

    async def load(self) -> None:
        """Load it now, so that no call waits later; returns if it is loaded. Raises as `embed`.

        If the caller is cancelled, loading continues.
        """
        ...


@runtime_checkable
class InquiringEmbedder(Protocol):
    """An embedder that can say whether it could load its model, without loading it."""

    async def inquire(self) -> None:
        """Raise for what stands in its way: a package, a key or weights that are missing."""
        ...
