"""Small archives to do harm to, and the look at what is left of them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.faults.workers import INLINE, SHARED
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.messages.canisters import Canister, UserCanister
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.conversations import survey_folders
from vibe_llms.storage.deposits import references_of
from vibe_llms.storage.interfaces import Details, Restored

#: For looks at anything but durability, which then need not wait for the disk.
FAST = StorageSettings(durability="fast")
FAST_INLINE = StorageSettings(durability="fast", inline_bytes=INLINE.inline_bytes)


def produce_details(name: str = "", tags: Sequence[str] = ()) -> Details:
    return Details(created=datetime.now(UTC), name=name, tags=tuple(tags))


def say(*texts: str) -> list[Canister]:
    return [UserCanister.from_text(text) for text in texts]


def begin(
    folder: Path, canisters: Sequence[Canister] = (), settings: StorageSettings = INLINE
) -> DirectoryArchive:
    """An archive with the shared conversation in it."""
    archive = DirectoryArchive(folder, settings)
    archive.create_now(SHARED, produce_details(), canisters or say("first"))
    return archive


def lines_of(archive: DirectoryArchive, identity: str = SHARED) -> Path:
    return archive.conversations / identity / "messages.jsonl"


def identities_of(restored: Restored) -> list[str]:
    return [canister.identity for canister in restored.canisters]


def open_all(archive: DirectoryArchive) -> Mapping[str, Restored]:
    """Every conversation, with every content that it needs."""
    opened: dict[str, Restored] = {}
    for identity in survey_folders(archive.conversations):
        opened[identity] = archive.restore_now(identity)
        for canister in opened[identity].canisters:
            for reference in references_of(canister):
                archive.contents.load(reference)
    return opened


def check_all_is_there(folder: Path, acknowledged: Iterable[str]) -> None:
    """Every conversation opens with its contents, has what was acknowledged, and can go on."""
    archive = DirectoryArchive(folder, FAST_INLINE)
    opened = open_all(archive)
    held = {identity for restored in opened.values() for identity in identities_of(restored)}
    lost = [identity for identity in acknowledged if identity not in held]
    assert not lost, f"acknowledged and lost: {lost}"
    for digest in archive.contents.survey():
        data = (archive.contents.folder / digest / "data").read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest
        assert f"size = {len(data)}\n" in (
            archive.contents.folder / digest / "metadata.toml"
        ).read_text("utf-8")
    for identity, restored in opened.items():
        (further,) = say("further")
        archive.append_now(identity, [further], None)
        again = DirectoryArchive(folder, FAST_INLINE).restore_now(identity)
        assert identities_of(again) == [*identities_of(restored), further.identity]
        assert not again.notices


def snapshot(root: Path) -> dict[str, object]:
    """Everything below a folder: names, kinds, modes and bytes."""
    seen: dict[str, object] = {}
    for path, folders, files in os.walk(root):
        for name in (*folders, *files):
            entry = Path(path, name)
            status = os.lstat(entry)
            key = str(entry.relative_to(root))
            if stat.S_ISLNK(status.st_mode):
                seen[key] = ("link", os.readlink(entry))
            elif stat.S_ISDIR(status.st_mode):
                seen[key] = ("folder", stat.S_IMODE(status.st_mode))
            else:
                seen[key] = (stat.S_IMODE(status.st_mode), entry.read_bytes())
    return seen


def hand_over(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file or folder belong to another user, as far as this process can see."""
    if os.geteuid() == 0:
        os.chown(path, 1234, 1234)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 123_456)
