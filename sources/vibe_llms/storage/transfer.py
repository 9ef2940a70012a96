"""Copy conversations with their contents, and uploaded files, from one archive to another.

Everything is copied byte for byte and read again. Another copy resumes one that was interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from msgspec import Struct

from vibe_llms.base.exceptions import ConversationNotFound, StorageError
from vibe_llms.messages.contents import Reference
from vibe_llms.storage.deposits import Deposit
from vibe_llms.storage.interfaces import Archive, UploadedFile

#: Anything that looks like a hash counts, because a newer version may write hashes elsewhere.
HASH = rb"[0-9a-f]{64}"
#: Number of attempts. A collection may delete contents before the first attempt uses them.
_ATTEMPTS = 2


class StoredConversation(Struct, frozen=True):
    """Bytes of a conversation's `metadata.toml` and `messages.jsonl`.

    `updated` is the time when its messages last changed.
    """

    metadata: bytes
    lines: bytes
    updated: datetime


@runtime_checkable
class TransferableArchive(Archive, Protocol):
    """An archive that can be copied. Exports do not change it."""

    async def survey_identities(self) -> Sequence[str]:
        """Return the identities of all conversations, including superseded and unreadable ones."""
        ...

    async def export_conversation(self, identity: str) -> StoredConversation:
        """Return a conversation as it is stored, without an incomplete last line."""
        ...

    async def import_conversation(self, identity: str, stored: StoredConversation) -> None:
        """Make a conversation identical to another archive's.

        Raises `ConversationMoved` if the existing lines are not the beginning of the new ones,
        because the conversation was continued here.
        """
        ...

    async def find_contents(self, digests: Collection[str]) -> Mapping[str, Reference]:
        """Return the references of stored contents among these hashes, keyed by hash."""
        ...

    async def import_file(self, file: UploadedFile) -> None:
        """Keep the record of a file whose bytes are stored."""
        ...


class NewConversation(Struct, frozen=True):
    """A conversation to be made, with the contents that its lines need."""

    identity: str
    stored: StoredConversation
    deposits: Sequence[Deposit] = ()


@runtime_checkable
class BatchArchive(TransferableArchive, Protocol):
    """An archive that makes many conversations much faster together than one by one."""

    async def create_batch(
        self, conversations: Sequence[NewConversation]
    ) -> Mapping[str, StorageError]:
        """Make conversations, each for itself; return the errors of those that were not made.

        When it returns, all others are durable.
        """
        ...


class Copied(Struct, frozen=True):
    """Result of a copy: True if something was written, and the sizes of the copied contents."""

    changed: bool
    contents: Sequence[int] = ()


async def copy_conversation(
    source: TransferableArchive, target: TransferableArchive, identity: str
) -> Copied:
    """Copy a conversation and the contents that it needs.

    Returns after reading the target again and finding it identical.
    """
    wanted = await source.export_conversation(identity)
    needed = await source.find_contents({one.decode() for one in re.findall(HASH, wanted.lines)})
    sizes: list[int] = []
    changed = False
    for _ in range(_ATTEMPTS):
        sizes += await _copy_contents(source, target, needed)
        if not await _is_there(target, identity, wanted):
            await target.import_conversation(identity, wanted)
            changed = True
        if await _is_there(target, identity, wanted) and not await _find_missing(target, needed):
            return Copied(changed, sizes)
    raise StorageError("the copy differs from the source", path=identity)


async def copy_file(
    source: TransferableArchive, target: TransferableArchive, file: UploadedFile
) -> Copied:
    """Copy an uploaded file. The newer record with its id wins."""
    needed = {file.hash: Reference(file.hash, file.size)}
    there = {one.id: one for one in await target.survey_files()}.get(file.id)
    if there is not None and there.created >= file.created:
        return Copied(False, await _copy_contents(source, target, needed))
    sizes: list[int] = []
    for _ in range(_ATTEMPTS):
        sizes += await _copy_contents(source, target, needed)
        await target.import_file(file)
        if not await _find_missing(target, needed):
            return Copied(True, sizes)
    raise StorageError("its bytes are missing from the copy", path=file.name)


async def _copy_contents(
    source: TransferableArchive, target: TransferableArchive, needed: Mapping[str, Reference]
) -> Sequence[int]:
    """Copy the missing contents, and return their sizes in bytes."""
    missing = await _find_missing(target, needed)
    for reference in missing:
        # `load` checks the hash, and `put` stores the bytes under the hash of what was read.
        await target.put(await source.load(reference))
    return [one.size for one in missing]


async def _find_missing(
    target: TransferableArchive, needed: Mapping[str, Reference]
) -> Sequence[Reference]:
    if not needed:
        return ()
    there = await target.find_contents(needed)
    return [one for one in needed.values() if there.get(one.hash) != one]


async def _is_there(target: TransferableArchive, identity: str, wanted: StoredConversation) -> bool:
    try:
        found = await target.export_conversation(identity)
    except ConversationNotFound:
        return False
    return (found.metadata, found.lines) == (wanted.metadata, wanted.lines)
