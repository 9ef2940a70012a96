"""Contents in an object store, such as S3, by user and hash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class ObjectStore(Protocol):
    """Bytes under a user and their hash, for an archive that knows which of them there are.

    The same hash always means the same bytes, so nothing here depends on the order of writes, nor
    on conditional requests. Its methods raise `StorageUnavailable` for what passes.
    """

    async def write(self, user: str, digest: str, data: bytes) -> None:
        """Store bytes; returns when they are durable. They may be there already, or damaged."""
        ...

    async def read(self, user: str, digest: str) -> bytes:
        """The bytes; `ContentMissing` if there are none. They are not checked."""
        ...

    async def remove(self, user: str, digests: Sequence[str]) -> None:
        """Delete objects; some may be gone already."""
        ...

    async def survey(self, user: str) -> Sequence[str]:
        """The hashes of all objects of a user."""
        ...

    async def close(self) -> None:
        """Close what is open; safe to call twice."""
        ...
