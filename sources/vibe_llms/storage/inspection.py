"""Check an archive's lines, references, and contents, and repair them where possible."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from vibe_llms.base.exceptions import (
    ContentDamaged,
    ConversationNotFound,
    FormatNewer,
    StorageError,
)
from vibe_llms.base.folders import storage_errors
from vibe_llms.messages.contents import Reference
from vibe_llms.storage.archive import INDEX, DirectoryArchive
from vibe_llms.storage.changes import CHANGES
from vibe_llms.storage.conversations import survey_folders
from vibe_llms.storage.deposits import references_of
from vibe_llms.storage.details import METADATA
from vibe_llms.storage.interfaces import Diagnosis

_FROM_BACKUP = "restore it from a backup"


def inspect_archive(archive: DirectoryArchive, *, repair: bool = False) -> Iterator[Diagnosis]:
    """Yield the problems of an archive one by one, and repair them if `repair` is true.

    Repair keeps every old file next to the new one and deletes nothing.
    """
    if not archive.folder.exists():
        return
    with storage_errors(archive.folder):
        yield from _inspect_rights(archive, repair)
        for identity in sorted(survey_folders(archive.conversations)):
            # A conversation that was deleted in the meantime is not a problem.
            with suppress(ConversationNotFound):
                yield from _inspect_conversation(archive, identity, repair)
        yield from _inspect_contents(archive)
        yield from _inspect_remains(archive)
    if repair:
        archive.discard_index()
    elif (archive.folder / INDEX).exists():
        archive.verify_now()


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
        yield Diagnosis("conversation", error.path, _describe(error), _FROM_BACKUP)
        return
    for gap in gaps:
        yield Diagnosis(
            "line",
            f"{folder.path}:{gap.line}",
            f"this line ({gap.size} bytes) cannot be read: {gap.reason}",
            "vibe-llms doctor --repair keeps a copy of the file and rewrites the readable lines",
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
            text = f"{identity} needs this content, but it is missing or incomplete"
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
            "left by an interrupted write; not part of the archive",
            "the next `vibe-llms rm` or `doctor --repair` deletes it after an hour",
        )


def _inspect_rights(archive: DirectoryArchive, repair: bool) -> Iterator[Diagnosis]:
    # The folder may hold more than the archive, so only write access matters.
    yield from inspect_mode(archive.folder, 0o022, repair)
    for name in (INDEX, CHANGES):
        yield from inspect_mode(archive.folder / name, 0o077, repair)
    for root in (archive.conversations, archive.contents.folder):
        for path, _, files in os.walk(root):
            for name in ("", *files):
                yield from inspect_mode(Path(path, name), 0o077, repair)


def inspect_mode(path: Path, forbidden: int, repair: bool) -> Iterator[Diagnosis]:
    """Yield a problem if a path's mode has forbidden bits. A missing path has none."""
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
        f"other users can access it (mode {mode:o})",
        f"chmod {wanted:o} {path}",
        mended=repair,
    )


def _describe(error: StorageError) -> str:
    """Return the error's text without the leading path."""
    return str(error).removeprefix(f"{error.path}: ")
