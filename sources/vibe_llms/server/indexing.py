"""`CollectionIndexer`: reads the uploaded documents of a user in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from vibe_llms.base.credentials import get_logger
from vibe_llms.base.exceptions import VibeLlmsError

_LOGGER = get_logger("vibe_llms.server")


class CollectionIndexer:
    """Tasks that index collections, one for each.

    `index(collection, failed)` reads the documents of a collection that wait, and those whose
    reading `failed`. A document that it does not reach waits for the next start.
    """

    def __init__(self, index: Callable[[str, bool], Awaitable[None]]) -> None:
        self._index = index
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: Collections to index once more, and whether failed documents are included.
        self._again: dict[str, bool] = {}

    @property
    def busy(self) -> bool:
        """True if a collection is being indexed."""
        return bool(self._tasks)

    def is_indexing(self, collection: str) -> bool:
        """Return True if a collection is being indexed."""
        return collection in self._tasks

    def start(self, collection: str, *, failed: bool = False) -> None:
        """Index a collection in the background; if that is running, once more after it."""
        self._again[collection] = failed or self._again.get(collection, False)
        if collection not in self._tasks:
            task = asyncio.create_task(self._work(collection), name=f"index {collection}")
            self._tasks[collection] = task

    async def close(self) -> None:
        """Cancel all tasks; what was read is kept."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, collection: str) -> None:
        try:
            while collection in self._again:
                await self._index(collection, self._again.pop(collection))
        except VibeLlmsError as error:
            _LOGGER.warning("a collection was not indexed: %s", error)
        finally:
            self._again.pop(collection, None)
            del self._tasks[collection]
