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
    """Writer of new conversations. `errors` are those of conversations that were not stored.

    While a batch is stored, the next one is read.
    """

    def __init__(self, archive: TransferableArchive) -> None:
        self.errors: dict[str, StorageError] = {}
        self._archive = archive
        self._waiting: dict[str, NewConversation] = {}
        self._size = 0
        self._storing: dict[str, NewConversation] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        """True if it is time to store what is waiting."""
        return len(self._waiting) >= _MOST_CONVERSATIONS or self._size >= _MOST_BYTES

    def has(self, identity: str) -> bool:
        """Return True if a conversation is not stored yet."""
        return identity in self._waiting or identity in self._storing

    async def add(self, new: NewConversation) -> None:
        """Let a conversation wait; if too many bytes wait, begin to store them."""
        self._waiting[new.identity] = new
        self._size += len(new.stored.lines) + sum(len(one.data) for one in new.deposits)
        if self._size >= _MOST_BYTES:
            await self.begin()

    async def begin(self) -> None:
        """Begin to store what is waiting; what began before is stored then.

        Raises `StorageUnavailable` if the rest would fail too.
        """
        await self._wait()
        self._storing, self._waiting, self._size = self._waiting, {}, 0
        if self._storing:
            self._task = asyncio.create_task(self._store([*self._storing.values()]))

    async def flush(self) -> None:
        """Store everything."""
        await self.begin()
        await self._wait()

    async def _wait(self) -> None:
        if (task := self._task) is not None:
            await asyncio.wait([task])
            self._task, self._storing = None, {}
            task.result()

    async def _store(self, batch: Sequence[NewConversation]) -> None:
        if isinstance(self._archive, BatchArchive):
            self.errors.update(await self._archive.create_batch(batch))
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
