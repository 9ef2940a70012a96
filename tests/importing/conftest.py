"""What the tests of importers share: an archive, files of exports, and imports into it."""

from __future__ import annotations

import json
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from vibe_llms.base.configuration import Places, StorageSettings, load_configuration
from vibe_llms.importing.core import import_conversations
from vibe_llms.importing.reports import ImportedConversation, ImportOptions, ImportReport
from vibe_llms.messages.canisters import Canister
from vibe_llms.storage.archive import DirectoryArchive

#: Imports paths into the archive of the test; keyword arguments are options.
Import: TypeAlias = Callable[..., Awaitable[ImportReport]]


@pytest.fixture
async def archive(tmp_path: Path) -> AsyncIterator[DirectoryArchive]:
    """An archive in the test's own folder."""
    opened = DirectoryArchive(tmp_path / "home", StorageSettings(durability="fast"))
    yield opened
    await opened.close()


@pytest.fixture
def bring(archive: DirectoryArchive, tmp_path: Path) -> Import:
    """Import paths into the archive."""
    configuration = load_configuration(Places.under(tmp_path / "home"), environment={})

    async def call(*paths: Path, **options: Any) -> ImportReport:
        return await import_conversations(
            paths, archive, configuration=configuration, options=ImportOptions(**options)
        )

    return call


def write_json(path: Path, value: object) -> Path:
    """Write a value as a file of JSON."""
    path.write_text(json.dumps(value), "utf-8")
    return path


def write_lines(path: Path, lines: Sequence[object]) -> Path:
    """Write values as lines of JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    return path


def write_zip(path: Path, members: Mapping[str, object]) -> Path:
    """Write a ZIP file; members that are not bytes are JSON."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in members.items():
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            archive.writestr(name, data)
    return path


def only(report: ImportReport) -> ImportedConversation:
    """The one conversation of a report."""
    (found,) = report.conversations
    return found


async def read(archive: DirectoryArchive, identity: str) -> Sequence[Canister]:
    """The canisters of a conversation."""
    return (await archive.restore(identity)).canisters


async def texts(archive: DirectoryArchive, identity: str) -> list[str]:
    """The roles and texts of a conversation."""
    found = []
    for canister in await read(archive, identity):
        said = "".join(str(getattr(one, "data", "")) for one in canister.contents)
        role = type(canister).__name__.removesuffix("Canister").lower()
        found.append(f"{role}: {said or getattr(canister, 'name', '')}")
    return found


def snapshot(folder: Path) -> dict[str, bytes]:
    """The files of conversations and contents, by path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "index" not in path.name and path.name != "changes"
    }
