"""Records of installed files, and checks that the files are unchanged."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import PluginMissing, RegistrationError
from vibe_llms.base.files import LARGEST_FILE, opened, read_parts, read_trusted
from vibe_llms.base.folders import storage_errors, write_new
from vibe_llms.plugins.pins import Plugin

_RECORD = "record.json"
_LARGEST_RECORD = 64 * 1024**2


class Record(Struct, frozen=True):
    """An installed plugin: its row, and the SHA-256 of each of its files."""

    row: str
    module: str
    requirements: Mapping[str, tuple[str, ...]]
    files: Mapping[str, str]

    @property
    def name(self) -> str:
        """The requirements in one line."""
        return ", ".join(self.requirements)


_DECODER = msgspec.json.Decoder(Record)


def write_record(folder: Path, record: Record) -> None:
    """Store the record of an installation in its folder."""
    write_new(folder / _RECORD, msgspec.json.encode(record), durable=True)


def read_record(folder: Path) -> Record | None:
    """Return the record of a folder, or None if no installation was completed there."""
    try:
        data = read_trusted(folder / _RECORD, _LARGEST_RECORD)
        return _DECODER.decode(data)
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None


def survey_records(home: Path) -> Iterator[tuple[Path, Record]]:
    """Yield all installed plugins and their folders."""
    folders = sorted(home.iterdir()) if home.is_dir() else []
    for folder in folders:
        if not folder.name.startswith(".") and (record := read_record(folder)) is not None:
            yield folder, record


def verify(plugin: Plugin) -> Record:
    """Return the record of a plugin whose files are exactly as installed.

    Raise `PluginMissing` if it is not installed, or `RegistrationError` if a file differs.
    """
    with storage_errors(plugin.folder):
        record = read_record(plugin.folder)
        if record is None or record.requirements != plugin.requirements:
            raise PluginMissing(plugin.name, row=plugin.row, command=plugin.remedy)
        try:
            found = survey_files(plugin.packages)
        except FileNotFoundError:
            found = {}
    changed = sorted({*found.items()} ^ {*record.files.items()})
    if changed:
        raise RegistrationError(
            f"{plugin.packages / changed[0][0]} was changed after the installation, so "
            f"{plugin.name} is not run; reinstall it: {plugin.remedy}",
            table=f"providers.{plugin.row}",
            key="install",
        )
    return record


def survey_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below a folder, by path; raise `OSError` for links."""
    found: dict[str, str] = {}
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                    continue
                if not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                    raise OSError(errno.ELOOP, "it is not a regular file", entry.path)
                with opened(entry.path, os.O_NOFOLLOW) as file:
                    digest = hashlib.sha256()
                    for part in read_parts(file, LARGEST_FILE):
                        digest.update(part)
                found[os.path.relpath(entry.path, folder)] = digest.hexdigest()
    return found
