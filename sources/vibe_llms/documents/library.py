"""A person's library of documents: their texts, searched without blocking the event loop.

A library belongs to one owner and lies in one folder, so a server gives each user one of their own.
Everything in it is derived from documents, and may be removed at any time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from vibe_llms.documents.index import CHARACTERS, DocumentIndex
from vibe_llms.documents.passages import Passage
from vibe_llms.documents.texts import DocumentText
from vibe_llms.memory.embedders.core import ignore

#: Documents that were not used for so many hours are dropped.
TTL_HOURS = 24.0
_HOUR = 3600.0
#: Every so often, unused documents are looked for.
_PURGE_SECONDS = 600.0


class Library:
    """The documents of one owner, in a folder, or in memory without one.

    Safe to use from several tasks; several processes may use the same folder. `notify` is called
    from any thread with what users should know although no call fails.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        ttl_hours: float = TTL_HOURS,
        lock_seconds: float = 10.0,
        notify: Callable[[str], None] = ignore,
    ) -> None:
        self._index = DocumentIndex(folder, lock_seconds=lock_seconds, notify=notify)
        self._ttl_seconds = ttl_hours * _HOUR
        self._purged = 0.0

    async def add(self, hash: str, document: DocumentText) -> None:  # noqa: A002
        """Keep and index a text under the hash of its file, see `hash_document`.

        If the hash is there, the text is only marked as used.
        """
        await asyncio.to_thread(self._add, hash, document)

    async def access(self, hash: str) -> DocumentText | None:  # noqa: A002
        """The text with a hash; `None` if its file has to be read again."""
        return await asyncio.to_thread(self._access, hash)

    async def search(
        self, request: str, hashes: Collection[str], *, characters: int = CHARACTERS
    ) -> Sequence[Passage]:
        """The passages of some documents that fit a request best, the best first.

        They have up to so many characters together. If the documents have no more, they are
        returned whole. Hashes that are not there are ignored.
        """
        return await asyncio.to_thread(self._search, request, hashes, characters)

    async def close(self) -> None:
        """Close the files; safe to call twice."""
        await asyncio.to_thread(self._index.close)

    def _add(self, hash: str, document: DocumentText) -> None:  # noqa: A002
        self._index.add(hash, document)
        if time.monotonic() > self._purged + _PURGE_SECONDS:
            self._index.purge(time.time() - self._ttl_seconds)
            self._purged = time.monotonic()

    def _access(self, hash: str) -> DocumentText | None:  # noqa: A002
        found = self._index.access(hash)
        if found is not None:
            self._index.touch([hash])
        return found

    def _search(self, request: str, hashes: Collection[str], characters: int) -> Sequence[Passage]:
        found = self._index.search(request, hashes, characters=characters)
        self._index.touch(hashes)
        return found
