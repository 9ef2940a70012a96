"""Protocol of embedders, built-in and third-party."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable


class Embedder(Protocol):
    """Converter of texts to vectors; safe to use from several tasks at once.

    Creating one loads nothing and asks no server; the first call of `embed` does.
    """

    @property
    def model(self) -> str:
        """Name of its vectors, such as `sentence-transformers/all-MiniLM-L6-v2`.

        Vectors that cannot be compared have different names. Everything that changes them, such as
        the number of dimensions, is part of the name.
        """
        ...

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        """Return a vector for each text, in order: an `array("f")` of Euclidean length 1.

        `question` is True for queries, which some models embed differently. At most 256 texts are
        given, and a call that takes too long is cancelled; see `TimedEmbedder`. To be cancellable,
        it must not block the event loop. A failed call returns no vector.

        Raises:
            ConfigurationError: Something has to be installed or set.
            ProviderError: A model or a server fails.
            RequestRefused: A text is refused for its content or length. The texts are then sent
                again by halves, and those that are refused alone are left out.
        """
        ...

    async def close(self) -> None:
        """Close connections and release models; safe to call twice."""
        ...


@runtime_checkable
class TimedEmbedder(Protocol):
    """Embedder with a default timeout for a call of `embed`, used if its row sets none."""

    @property
    def timeout_seconds(self) -> float | None:
        """Seconds for at most 256 texts; `None` if it has limits of its own."""
        ...


@runtime_checkable
class LoadingEmbedder(Protocol):
    """Embedder that loads a model into this process, which takes a while."""

    async def load(self) -> None:
        """Load the model now, so that no later call waits; raise the errors of `embed`.

        If the caller is cancelled, loading continues.
        """
        ...


@runtime_checkable
class InquiringEmbedder(Protocol):
    """Embedder that can check whether it could load its model, without loading it."""

    async def inquire(self) -> None:
        """Raise if a package, a key, or weights are missing."""
        ...


class VectorStore(Protocol):
    """Store of vectors by model and digest of the text, so that each is computed only once."""

    @property
    def epoch(self) -> int:
        """Number of removals: vectors begun before one may be of removed texts."""
        ...

    def exists(self) -> bool:
        """Return True if any vectors may exist."""
        ...

    def read(self, model: str, digests: Sequence[bytes]) -> Mapping[bytes, array[float]]:
        """Return the existing vectors of these digests, or none if they cannot be read."""
        ...

    def read_size(self, model: str) -> int | None:
        """Return the dimension of a model's vectors, or `None` if there are none."""
        ...

    def write(
        self, model: str, vectors: Mapping[bytes, array[float]], epoch: int | None = None
    ) -> None:
        """Store vectors if possible, unless they were started in another `epoch`."""
        ...

    def discard(self, model: str) -> None:
        """Remove the vectors of a model."""
        ...

    def forget(self, digests: Iterable[bytes]) -> None:
        """Remove the vectors of digests; raise `StorageError` on failure."""
        ...

    def retain(self, digests: Iterable[bytes]) -> None:
        """Remove all vectors except those of these digests; raise `StorageError` on failure."""
        ...
