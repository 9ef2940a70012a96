"""Copies conversations, with their contents, and uploaded files from one archive to another.

Everything is copied byte for byte and read again. What is there already is not copied twice, so a
copy that was interrupted is continued by another one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from msgspec import Struct

from vibe_llms.exceptions import ConversationNotFound, StorageError
from vibe_llms.messages.contents import Reference
from vibe_llms.storage.interfaces import Archive, UploadedFile

#: Anything that looks like a hash counts as one, because a newer version may write it elsewhere.
HASH = rb"[0-9a-f]{64}"
#: A collection may delete what was not in use yet; the second time it is in use.
_ATTEMPTS = 2


class StoredConversation(Struct, frozen=True):
    """The bytes of a conversation's `metadata.toml` and `messages.jsonl`.

    `updated` is when its messages last changed.
    """

    metadata: bytes
    lines: bytes
    updated: datetime


@runtime_checkable
class TransferableArchive(Archive, Protocol):
    """An archive that can be copied. What exports changes nothing."""

    async def survey_identities(self) -> Sequence[str]:
        """The identities of all conversations, superseded and unreadable ones too."""
        ...

    async def export_conversation(self, identity: str) -> StoredConversation:
        """A conversation as it is stored, without an incomplete last line."""
        ...

    async def import_conversation(self, identity: str, stored: StoredConversation) -> None:
        """Make a conversation the same as another archive's.

        `ConversationMoved` if the one that is there does not begin what is to be stored: then it
        was continued here.
        """
        ...

    async def find_contents(self, digests: Collection[str]) -> Mapping[str, Reference]:
        """The contents that are stored, of those with these hashes."""
        ...

    async def import_file(self, file: UploadedFile) -> None:
        """Keep the record of a file whose bytes are stored."""
        ...


class Copied(Struct, frozen=True):
    """Whether something was copied, and the sizes of the contents that were."""

    changed: bool
    contents: Sequence[int] = ()


async def copy_conversation(
    source: TransferableArchive, target: TransferableArchive, identity: str
) -> Copied:
    """Copy a conversation and the contents that it needs.

    Returns when the target was read again and is the same.
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
    raise StorageError("it differs from the source after it was copied", path=identity)


async def copy_file(
    source: TransferableArchive, target: TransferableArchive, file: UploadedFile
) -> Copied:
    """Copy an uploaded file; the newer record of the same bytes wins."""
    needed = {file.id: Reference(file.id, file.size)}
    there = {one.id: one for one in await target.survey_files()}.get(file.id)
    if there is not None and there.created >= file.created:
        return Copied(False, await _copy_contents(source, target, needed))
    sizes: list[int] = []
    for _ in range(_ATTEMPTS):
        sizes += await _copy_contents(source, target, needed)
        await target.import_file(file)
        if not await _find_missing(target, needed):
            return Copied(True, sizes)
    raise StorageError("its bytes are missing after it was copied", path=file.name)


async def _copy_contents(
    source: TransferableArchive, target: TransferableArchive, needed: Mapping[str, Reference]
) -> Sequence[int]:
    """Copy the contents that are missing; returns their sizes."""
    missing = await _find_missing(target, needed)
    for reference in missing:
        # Checked against its hash when it is read, and stored under the hash of what was read.
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
