"""The check of an archive: every line, every reference, every content; and what mends itself."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from vibe_llms.exceptions import (
    ContentDamaged,
    ConversationNotFound,
    FormatNewer,
    StorageError,
)
from vibe_llms.messages.contents import Reference
from vibe_llms.storage.archive import INDEX, DirectoryArchive
from vibe_llms.storage.contents import references_of
from vibe_llms.storage.conversations import survey_folders
from vibe_llms.storage.details import METADATA
from vibe_llms.storage.files import storage_errors
from vibe_llms.storage.interfaces import Diagnosis

_FROM_BACKUP = "restore it from a backup"


def inspect_archive(archive: DirectoryArchive, *, repair: bool = False) -> Iterator[Diagnosis]:
    """What is wrong with an archive, one thing after the other; mended where `repair` asks for it.

    Mending keeps every old file beside the new one; nothing is thrown away.
    """
    if not archive.folder.exists():
        return
    with storage_errors(archive.folder):
        yield from _inspect_rights(archive, repair)
        for identity in sorted(survey_folders(archive.conversations)):
            # Whoever removed it meanwhile did nothing wrong.
            with suppress(ConversationNotFound):
                yield from _inspect_conversation(archive, identity, repair)
        yield from _inspect_contents(archive)
        yield from _inspect_remains(archive)
    if repair:
        archive.discard_index()


def _inspect_conversation(
    archive: DirectoryArchive, identity: str, repair: bool
) -> Iterator[Diagnosis]:
    folder = archive.access_folder(identity)
    try:
        folder.read_details()
    except FormatNewer as error:
        yield Diagnosis("conversation", error.path, _describe(error))
        return
    except StorageError as error:
        yield Diagnosis("conversation", str(folder.path / METADATA), _describe(error))
    try:
        canisters, gaps, notices = folder.read(lenient=True)
        if repair and gaps:
            folder.repair()
        elif repair and notices:
            folder.append((), after=None)
    except StorageError as error:
        yield Diagnosis("conversation", str(folder.path), _describe(error), _FROM_BACKUP)
        return
    for gap in gaps:
        yield Diagnosis(
            "line",
            f"{folder.path}:{gap.line}",
            f"this line ({gap.size} bytes) cannot be read: {gap.reason}",
            "vibe-llms doctor --repair keeps the file and writes the readable lines anew",
            mended=repair,
        )
    for notice in notices:
        yield Diagnosis(
            "line",
            str(folder.path),
            notice.text,
            "the next message, or vibe-llms doctor --repair, sets them aside",
            mended=repair,
        )
    for canister in canisters:
        for reference in references_of(canister):
            yield from _inspect_reference(archive, identity, reference)


def _inspect_reference(
    archive: DirectoryArchive, identity: str, reference: Reference
) -> Iterator[Diagnosis]:
    path = str(archive.contents.folder / reference.hash)
    try:
        if not archive.contents.holds(reference):
            text = f"{identity} needs this content, but it is not there, or not whole"
            yield Diagnosis("content", path, text, _FROM_BACKUP)
    except StorageError as error:
        yield Diagnosis("content", path, f"{identity} needs this content: {error}")


def _inspect_contents(archive: DirectoryArchive) -> Iterator[Diagnosis]:
    for digest in archive.contents.survey():
        try:
            archive.contents.check(digest)
        except ContentDamaged as error:
            yield Diagnosis("content", error.path, _describe(error), _FROM_BACKUP)
        except StorageError as error:
            yield Diagnosis("content", error.path, _describe(error))


def _inspect_remains(archive: DirectoryArchive) -> Iterator[Diagnosis]:
    for path in archive.survey_remains():
        yield Diagnosis(
            "remains",
            str(path),
            "something was interrupted while it was written; it is no part of the archive",
            "the next `vibe-llms rm` or `doctor --repair` clears it away after an hour",
        )


def _inspect_rights(archive: DirectoryArchive, repair: bool) -> Iterator[Diagnosis]:
    # The folder itself may hold more than the archive; all that matters is who may write there.
    yield from _inspect_mode(archive.folder, 0o022, repair)
    yield from _inspect_mode(archive.folder / INDEX, 0o077, repair)
    for root in (archive.conversations, archive.contents.folder):
        for path, _, files in os.walk(root):
            for name in ("", *files):
                yield from _inspect_mode(Path(path, name), 0o077, repair)


def _inspect_mode(path: Path, forbidden: int, repair: bool) -> Iterator[Diagnosis]:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode) or not mode & forbidden:
        return
    wanted = mode & ~forbidden
    if repair:
        os.chmod(path, wanted)
    yield Diagnosis(
        "rights",
        str(path),
        f"others may use it (mode {mode:o})",
        f"chmod {wanted:o} {path}",
        mended=repair,
    )


def _describe(error: StorageError) -> str:
    """What is wrong, without the path before it."""
    return str(error).removeprefix(f"{error.path}: ")
