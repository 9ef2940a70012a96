"""Writer of new conversations in batches, which is much faster than one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from vibe_llms.base.exceptions import StorageError, StorageUnavailable
from vibe_llms.storage.transfer import BatchArchive, NewConversation, TransferableArchive

_MOST_CONVERSATIONS = 100
_MOST_BYTES = 32 * 1024**2
#: Number of conversations that are stored at the same time in an archive without batches.
_PARALLEL = 8


class ImportWriter:
    """Writer of new conversations. `errors` are those of conversations that were not stored."""

    def __init__(self, archive: TransferableArchive) -> None:
        self.errors: dict[str, StorageError] = {}
        self._archive = archive
        self._waiting: dict[str, NewConversation] = {}
        self._size = 0

    @property
    def is_full(self) -> bool:
        """True if it is time to store what is waiting."""
        return len(self._waiting) >= _MOST_CONVERSATIONS or self._size >= _MOST_BYTES

    def has(self, identity: str) -> bool:
        """Return True if a conversation is waiting to be stored."""
        return identity in self._waiting

    async def add(self, new: NewConversation) -> None:
        """Let a conversation wait; if too many bytes wait, store them."""
        self._waiting[new.identity] = new
        self._size += len(new.stored.lines) + sum(len(one.data) for one in new.deposits)
        if self._size >= _MOST_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Store what is waiting. Raises `StorageUnavailable` if the rest would fail too."""
        batch = [*self._waiting.values()]
        self._waiting, self._size = {}, 0
        if isinstance(self._archive, BatchArchive):
            self.errors.update(await self._archive.create_batch(batch) if batch else {})
        else:
            self.errors.update(await _store_each(self._archive, batch))


async def _store_each(
    archive: TransferableArchive, batch: Sequence[NewConversation]
) -> Mapping[str, StorageError]:
    """Store conversations one by one; return the errors."""
    errors: dict[str, StorageError] = {}
    todo = iter(batch)

    async def work() -> None:
        for new in todo:
            try:
                for deposit in new.deposits:
                    await archive.put(deposit.data, deposit.mimetype)
                await archive.import_conversation(new.identity, new.stored)
            except StorageUnavailable:
                raise
            except StorageError as error:
                errors[new.identity] = error

    async with asyncio.TaskGroup() as group:
        for _ in range(min(_PARALLEL, len(batch))):
            group.create_task(work())
    return errors
