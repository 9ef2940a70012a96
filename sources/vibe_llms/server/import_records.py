"""Records of a user's imports, which survive the server, and by which servers tell each other.

In a home, each import has a folder, whose lock its server holds while it works on the import.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from vibe_llms.base.configuration import Places
from vibe_llms.base.exceptions import ArchiveLocked
from vibe_llms.base.files import LARGEST_FILE
from vibe_llms.base.folders import (
    TEMPORARY,
    create_file,
    make_folder,
    read_within,
    remove_folder,
    replace_file,
    storage_errors,
)
from vibe_llms.base.locks import locked
from vibe_llms.storage.backends import Backend

#: What another server wants the server of an import to do.
Wish: TypeAlias = Literal["", "start", "cancel"]
#: Records of a user that are kept.
MOST_RECORDS = 20
#: Folder of the uploaded file in the folder of an import.
UPLOAD = "upload"
_RECORD, _REPORT, _WISH = "record.json", "report.json", "wish"
_WISHES: Mapping[bytes, Wish] = {b"start": "start", b"cancel": "cancel"}


class StoredImport(Struct, frozen=True):
    """A record; `alive` if a server holds the import."""

    record: bytes
    alive: bool


class ImportRecords(Protocol):
    """Records of the imports of one user, by their ids. Reports are stored beside them."""

    async def survey(self) -> Mapping[str, StoredImport]:
        """Return the records, newest first."""
        ...

    async def begin(self, identity: str, record: bytes) -> None:
        """Store the record of a new import, and delete the oldest ones."""
        ...

    async def put(self, identity: str, record: bytes, report: bytes | None = None) -> Wish | None:
        """Replace a record, and a report if given; return what is wanted, once.

        Returns None, and stores nothing, if the record was deleted.
        """
        ...

    async def ask(self, identity: str, wish: Wish) -> None:
        """Ask the server that holds an import to do something."""
        ...

    async def load_report(self, identity: str) -> bytes | None:
        """Return the report of an import, if it has one."""
        ...

    async def remove(self, identity: str) -> None:
        """Delete a record and its report."""
        ...


class ImportRecordStore(Protocol):
    """Storage of the records of all users."""

    def open(self, user: str, places: Places) -> ImportRecords:
        """Open the records of one user, whose own files are at `places`."""
        ...


def find_imports(places: Places) -> Path:
    """Return the folder with the imports of a user."""
    return places.data / "imports"


@contextmanager
def held_folder(folder: Path, identity: str) -> Iterator[Path]:
    """Create the folder of an import and hold its lock; at the end, delete the uploaded files."""
    with storage_errors(folder):
        make_folder(folder)
        # A sweep must not find it before it is locked.
        temporary = folder / f"{TEMPORARY}{identity}"
        os.mkdir(temporary, 0o700)
    with locked(temporary, seconds=0):
        path = folder / identity
        with storage_errors(path):
            os.rename(temporary, path)
        try:
            yield path
        finally:
            _clear(path)


def create_upload(path: Path) -> int:
    """Create an uploaded file, and return its descriptor."""
    os.mkdir(path.parent, 0o700)
    return create_file(path)


def sweep(folder: Path) -> None:
    """Delete uploaded files that no server holds."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in os.listdir(folder):
            if name.startswith(TEMPORARY):
                continue
            with suppress(ArchiveLocked, OSError), locked(folder / name, seconds=0):
                _clear(folder / name)


def _clear(path: Path) -> None:
    """Delete the uploaded files of an import."""
    remove_folder(path / UPLOAD)
    with suppress(OSError):
        # A folder without a record is empty now.
        os.rmdir(path)


class HomeImportRecords:
    """`ImportRecords` in a folder for each import."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def survey(self) -> Mapping[str, StoredImport]:
        """Return the records, newest first."""
        found: dict[str, StoredImport] = {}
        for identity in self._list():
            with suppress(FileNotFoundError):
                path = self._folder / identity
                record = read_within(path, _RECORD)
                found[identity] = StoredImport(record, _is_locked(path))
        return found

    async def begin(self, identity: str, record: bytes) -> None:
        """Store the record of a new import, and delete the oldest ones."""
        self._write(identity, _RECORD, record)
        for old in self._list()[MOST_RECORDS:]:
            if not _is_locked(self._folder / old):
                await self.remove(old)

    async def put(self, identity: str, record: bytes, report: bytes | None = None) -> Wish | None:
        """Replace a record, and a report if given; see `ImportRecords`."""
        path = self._folder / identity
        if not (path / _RECORD).exists():
            return None
        if report is not None:
            await asyncio.to_thread(self._write, identity, _REPORT, report)
        self._write(identity, _RECORD, record)
        wish: Wish = ""
        with suppress(FileNotFoundError):
            wish = _WISHES.get(read_within(path, _WISH), "")
            os.unlink(path / _WISH)
        return wish

    async def ask(self, identity: str, wish: Wish) -> None:
        """Ask the server that holds an import to do something."""
        self._write(identity, _WISH, wish.encode())

    async def load_report(self, identity: str) -> bytes | None:
        """Return the report of an import, if it has one."""
        with suppress(FileNotFoundError):
            return await asyncio.to_thread(read_within, self._folder / identity, _REPORT)
        return None

    async def remove(self, identity: str) -> None:
        """Delete a record and its report."""
        path = self._folder / identity
        for name in (_RECORD, _REPORT, _WISH):
            with suppress(FileNotFoundError):
                os.unlink(path / name)
        with suppress(OSError):
            # The folder has uploaded files while a server holds it, which then deletes it.
            os.rmdir(path)

    def _list(self) -> list[str]:
        try:
            names = os.listdir(self._folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted((one for one in names if not one.startswith(".")), reverse=True)

    def _write(self, identity: str, name: str, data: bytes) -> None:
        path = self._folder / identity / name
        with storage_errors(path):
            replace_file(path, data, LARGEST_FILE, durable=name == _REPORT)


class HomeImportRecordStore:
    """The `ImportRecordStore` of a home."""

    def open(self, user: str, places: Places) -> HomeImportRecords:
        """Open the records of one user."""
        del user
        return HomeImportRecords(find_imports(places))


def produce_home_records(backend: Backend) -> HomeImportRecordStore:
    """Create the store of the records of all users."""
    del backend
    return HomeImportRecordStore()


def _is_locked(path: Path) -> bool:
    try:
        # Several programs may look at the same time.
        with locked(path, seconds=0, shared=True):
            return False
    except FileNotFoundError:
        return False
    except ArchiveLocked:
        return True
