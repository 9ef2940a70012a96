"""The protocol of embedders, built-in and third-party."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol, runtime_checkable


class Embedder(Protocol):
    """Texts to vectors; safe to use from several tasks at once.

    Creating one loads nothing and asks no server; the first call of `embed` does.
    """

    @property
    def model(self) -> str:
        """The name of its vectors, such as `sentence-transformers/all-MiniLM-L6-v2`.

        Vectors that cannot be compared have different names. Everything that changes them, such as
        the number of dimensions, is part of the name.
        """
        ...

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        """A vector for each text, in their order: an `array("f")` whose length as a vector is 1.

        `question` is true for texts that are searched with, not for: some models differ. At most
        256 texts are given, and a call that takes too long is cancelled; see `TimedEmbedder`. It
        must not block the event loop, because then it could not be cancelled.

        Raises a `VibeLlmsError` if it fails, and returns no vector then: a `ConfigurationError` if
        something has to be installed or set, a `ProviderError` if a model or a server fails. If a
        text is refused for its content or length, it raises `RequestRefused`: the texts are then
        sent again by halves, and those that are refused alone are left out.
        """
        ...

    async def close(self) -> None:
        """Close connections and release models; safe to call twice."""
        ...


@runtime_checkable
class TimedEmbedder(Protocol):
    """An embedder that says how long one call of `embed` may take if its row does not."""

    @property
    def timeout_seconds(self) -> float | None:
        """The seconds, for at most 256 texts; `None` if it has limits of its own."""
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
        """Raise if a package, a key or weights are missing."""
        ...
