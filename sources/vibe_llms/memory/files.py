"""Memory in files: each is written whole, and moved when deleted.

    entries/SCOPE/facts/TIME__IDENTITY.md      and the other places of an entry
    index/SCOPE/…                              snapshots of the index
    upkeep/SCOPE/…                             time of the last deduplication
    upkeep/reported.json                       damaged files already reported
    embeddings/…                               vectors

The files are authoritative: people may read, write, edit, and remove them. The library's own
changes hold the lock of the scope's folder.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import MemoryDamaged, MemoryInvalid, StorageError
from vibe_llms.base.files import LARGEST_SETTINGS, read_file
from vibe_llms.base.folders import (
    TEMPORARY,
    make_folder,
    read_parts,
    read_within,
    refuse_link,
    replace_file,
    storage_errors,
    synchronise_folder,
)
from vibe_llms.base.locks import LockTimeout, locked
from vibe_llms.embedding.cache import EMBEDDINGS, EmbeddingCache, digest_text
from vibe_llms.memory.entries import (
    LARGEST_BYTES,
    Entry,
    Scope,
    decode_entry,
    encode_entry,
)
from vibe_llms.memory.names import is_entry_name
from vibe_llms.memory.places import DELETED, FACTS, FOLDERS, FileStat, place_of
from vibe_llms.memory.scanner import DirectoryScanner
from vibe_llms.memory.snapshot import FolderSnapshots, discard_snapshots

ENTRIES = "entries"
#: Folders of derived files.
INDEX, UPKEEP = "index", "upkeep"
_LAST = "deduplicated.json"
#: File with digests of reported errors, and their maximum number.
_REPORTED, _MOST_REPORTED = "reported.json", 1000


class _State(Struct):
    last: datetime


_DECODER = msgspec.json.Decoder(_State)
_REPORTS = msgspec.json.Decoder(list[str])


class MemoryFiles:
    """Memory in the files below one folder."""

    has_files = True

    def __init__(self, folder: Path, *, lock_seconds: float = 10.0, durable: bool = True) -> None:
        self.folder = folder
        self.vectors = EmbeddingCache(folder / EMBEDDINGS, lock_seconds=lock_seconds)
        self.address = str(folder)
        self._entries = f"{folder / ENTRIES}"
        self._lock_seconds = lock_seconds
        self._durable = durable
        #: Errors of damaged files, with the times those files were changed.
        self._damaged: dict[str, tuple[str, int]] = {}

    def place_of(self, entry: Entry) -> str:
        """Return the place of an entry in its scope; raise `MemoryInvalid` for a bad identity."""
        return place_of(entry)

    def path_of(self, scope: Scope, place: str = "") -> Path:
        """Return the path of a scope's folder, or of a file in it."""
        return self.folder / ENTRIES / str(scope) / place

    @contextmanager
    def changing(
        self, scope: Scope, *, seconds: float | LockTimeout | None = None
    ) -> Iterator[None]:
        """Hold the scope to change it; others wait, or get `ArchiveLocked`.

        For the order of locks see `vibe_llms.memory.indexes`.
        """
        patience = self._lock_seconds if seconds is None else seconds
        path = self.path_of(scope)
        with storage_errors(path), ExitStack() as stack:
            while True:
                make_folder(path)
                # The scope may be forgotten in between, and its folder removed.
                with suppress(FileNotFoundError):
                    stack.enter_context(locked(path, seconds=patience))
                    break
            yield

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Group several calls of one thread; reading files needs no preparation."""
        yield

    def write(self, entry: Entry) -> str:
        """Write an entry, replacing its file; return its place. Durable on return."""
        place = self.place_of(entry)
        self.rewrite(entry, place)
        return place

    def rewrite(self, entry: Entry, place: str) -> None:
        """Rewrite an entry at its place; call while the scope is held."""
        path = self.path_of(entry.scope, place)
        with storage_errors(path):
            self._prepare(entry.scope, path.parent)
            replace_file(path, encode_entry(entry), LARGEST_BYTES, durable=self._durable)

    def holds(self, scope: Scope, place: str = "") -> bool:
        """Return True if a scope has a folder, or a file at a place."""
        path = self.path_of(scope, place)
        with storage_errors(path):
            return os.path.lexists(path) if place else path.is_dir()

    def read_all(self, scope: Scope) -> Iterator[tuple[str, bytes | None]]:
        """Yield the bytes of all files, including foreign ones; `None` for oversized files.

        Links and other special files yield no bytes.
        """
        for place in self.survey_files(scope):
            yield place, self._read_data(scope, place)

    def _read_data(self, scope: Scope, place: str) -> bytes | None:
        path = self.path_of(scope, place)
        with storage_errors(path), suppress(FileNotFoundError):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                whole = status.st_size <= LARGEST_BYTES
                return read_within(path.parent, path.name, LARGEST_BYTES) if whole else None
        return b""

    def read_parts(self, scope: Scope, place: str) -> Iterator[bytes]:
        """Yield the bytes of a file in chunks."""
        path = self.path_of(scope, place)
        with storage_errors(path), suppress(FileNotFoundError):
            yield from read_parts(path.parent, path.name)

    def read(self, scope: Scope, place: str) -> Entry:
        """Return the entry at a place; raise `MemoryDamaged` or `FileNotFoundError`."""
        try:
            return self._read(scope, place)
        except MemoryDamaged as error:
            status = self.stat_file(scope, place)
            changed = 0 if status is None else status.modified
            self._damaged[f"{scope}/{place}"] = str(error), changed
            raise

    def read_many(
        self, scope: Scope, places: Collection[str]
    ) -> Iterator[tuple[str, Entry | MemoryDamaged]]:
        """Yield the entries at some places, or their errors; skip missing files."""
        for place in places:
            with suppress(FileNotFoundError):
                try:
                    yield place, self.read(scope, place)
                except MemoryDamaged as error:
                    yield place, error

    def take_damaged(self) -> Sequence[str]:
        """Return the errors of files that were read and are not entries.

        Each is returned once across processes, until the file changes.
        """
        found = [self._damaged.pop(place) for place in sorted(self._damaged)]
        if not found:
            return []
        path = self.folder / UPKEEP / _REPORTED
        reported: dict[str, None] = {}
        with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
            reported = dict.fromkeys(_REPORTS.decode(read_file(path, LARGEST_SETTINGS)))
        digests = [digest_text(f"{changed} {error}").hex() for error, changed in found]
        new = [error for (error, _), one in zip(found, digests, strict=True) if one not in reported]
        if new:
            reported.update(dict.fromkeys(digests))
            # If this fails, they are returned again.
            with suppress(StorageError), storage_errors(path):
                make_folder(path.parent)
                data = msgspec.json.encode([*reported][-_MOST_REPORTED:])
                replace_file(path, data, LARGEST_SETTINGS, durable=False)
        return new

    def _read(self, scope: Scope, place: str) -> Entry:
        # Every search does this ten times, and `Path` is slow.
        path = f"{self._entries}/{scope}/{place}"
        try:
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode):
                raise MemoryDamaged("not a regular file", path=path)
            if status.st_size > LARGEST_BYTES:
                raise MemoryDamaged(f"longer than {LARGEST_BYTES >> 20} MiB", path=path)
            data = read_within(*os.path.split(path), LARGEST_BYTES)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise MemoryDamaged(f"cannot be read: {error.strerror}", path=path) from error
        return decode_entry(data, scope, path, modified=status.st_mtime)

    def delete(self, entry: Entry, place: str, *, replaced_by: str = "") -> None:
        """Move an entry to the deleted ones; call while the scope is held."""
        path = self.path_of(entry.scope, place)
        target = self.path_of(entry.scope, f"{DELETED}/{place}")
        with storage_errors(path):
            self._prepare(entry.scope, path.parent)
            self._prepare(entry.scope, target.parent)
            # Move first, so that after a crash it is in one place only.
            with suppress(FileNotFoundError):
                os.rename(path, target)
                if replaced_by:
                    tombstone = msgspec.structs.replace(entry, replaced_by=replaced_by)
                    replace_file(
                        target, encode_entry(tombstone), LARGEST_BYTES, durable=self._durable
                    )
            if self._durable:
                synchronise_folder(target.parent)
                synchronise_folder(path.parent)

    def erase(self, scope: Scope, places: Iterable[str]) -> None:
        """Permanently remove files, including deleted ones; call while the scope is held."""
        for place in places:
            path = self.path_of(scope, place)
            with storage_errors(path), suppress(FileNotFoundError):
                path.unlink()
                if self._durable:
                    synchronise_folder(path.parent)

    def erase_scope(self, scope: Scope) -> None:
        """Permanently remove the folder of a scope; call while the scope is held.

        Links are removed, not their targets.
        """
        path = self.path_of(scope)
        with storage_errors(path):
            shutil.rmtree(path)
            if self._durable:
                synchronise_folder(path.parent)

    def erase_derived(self, scope: Scope) -> None:
        """Remove the derived files of a removed scope."""
        for base in (INDEX, UPKEEP):
            folder = self.folder / base / str(scope)
            with storage_errors(folder):
                if folder.is_dir():
                    shutil.rmtree(folder)

    def clear_derived(self) -> None:
        """Remove the indexes of scopes whose folders are gone."""
        base = self.folder / INDEX
        # List indexes before scopes: a new scope gets its folder before its index.
        with storage_errors(base):
            names = os.listdir(base) if base.is_dir() else []
        scopes = set(map(str, self.survey_scopes()))
        for name in names:
            if name not in scopes:
                discard_snapshots(base / name)

    def survey_files(self, scope: Scope, *, prefix: str = "") -> list[str]:
        """Return all files below a scope's folder, including foreign ones, without following links.

        With `prefix`, return only files whose names begin with it. Raise `StorageError` if a folder
        cannot be read, rather than miss a file.
        """
        base = self.path_of(scope)
        with storage_errors(base):
            return [
                os.path.relpath(os.path.join(folder, name), base)
                for folder, _, names in os.walk(base, onerror=_raise_unless_gone)
                for name in names
                if name.startswith(prefix)
            ]

    def survey_strays(self) -> list[Path]:
        """Return files outside the scopes: in the memory's folder, or in unknown folders.

        Raise `StorageError` if a folder cannot be read.
        """
        base = self.folder / ENTRIES
        scopes = set(map(str, self.survey_scopes()))
        found: list[Path] = []
        with storage_errors(self.folder), suppress(FileNotFoundError):
            found += (Path(item.path) for item in os.scandir(self.folder) if item.is_file())
            for folder, folders, names in os.walk(base, onerror=_raise_unless_gone):
                if Path(folder) == base:
                    folders[:] = [name for name in folders if name not in scopes]
                found += [Path(folder) / name for name in names]
            found = [path for path in found if not path.is_symlink()]
        return sorted(found)

    def clear(self, scope: Scope) -> None:
        """Remove leftovers of crashes; call while the scope is held."""
        # Writers hold the scope, so none of these is being written.
        self.erase(scope, self.survey_files(scope, prefix=TEMPORARY))

    def list_facts(self, scope: Scope) -> set[str]:
        """Return the names in the folder of facts; much faster than `scan`."""
        path = self.path_of(scope, FACTS)
        with storage_errors(path), suppress(FileNotFoundError):
            return set(os.listdir(path))
        return set()

    def folder_times(self, scope: Scope) -> tuple[int, ...]:
        """Return the modification times of a scope's folders in nanoseconds; 0 if missing.

        Much faster than `scan`, but files overwritten in place change no folder.
        """
        found: list[int] = []
        base = self.path_of(scope)
        with storage_errors(base):
            for folder in FOLDERS:
                try:
                    found.append(os.stat(f"{base}/{folder}").st_mtime_ns)
                except FileNotFoundError:
                    found.append(0)
        return tuple(found)

    def scan_inodes(self, scope: Scope) -> Iterator[tuple[str, int]]:
        """Yield the places of a scope's files with inodes; several times faster than `scan`."""
        for folder, path in self._folders(scope):
            with storage_errors(path), suppress(FileNotFoundError), os.scandir(path) as items:
                for item in items:
                    if _is_entry(item.name):
                        yield f"{folder}/{item.name}", item.inode()

    def stat_file(self, scope: Scope, place: str) -> FileStat | None:
        """Return the same as `scan` for one file, or `None` if it is gone."""
        return self.stat_many(scope, [place]).get(place)

    def stat_many(self, scope: Scope, places: Collection[str]) -> Mapping[str, FileStat]:
        """Return the same as `scan`, for some files."""
        found: dict[str, FileStat] = {}
        base = f"{self._entries}/{scope}"
        with storage_errors(self.path_of(scope)):
            for place in places:
                with suppress(FileNotFoundError):
                    found[place] = _stat_of(os.lstat(f"{base}/{place}"))
        return found

    def survey_scopes(self) -> list[Scope]:
        """Return the scopes that have a folder, in order."""
        with storage_errors(self.folder):
            try:
                names = os.listdir(self.folder / ENTRIES)
            except FileNotFoundError:
                return []
        scopes: list[Scope] = []
        for name in names:
            with suppress(MemoryInvalid):
                scopes.append(Scope.parse(name))
        return sorted(scopes)

    def scan(self, scope: Scope, *, deleted: bool = False) -> Mapping[str, FileStat]:
        """Return the files of a scope by place, with their size, times, and inode."""
        found: dict[str, FileStat] = {}
        for folder, path in self._folders(scope, deleted=deleted):
            with storage_errors(path), suppress(FileNotFoundError), os.scandir(path) as items:
                for item in items:
                    if _is_entry(item.name):
                        with suppress(FileNotFoundError):
                            status = item.stat(follow_symlinks=False)
                            found[f"{folder}/{item.name}"] = _stat_of(status)
        return found

    def produce_scanner(self, scope: Scope) -> DirectoryScanner:
        """Produce a detector of changes in the folder of a scope."""
        return DirectoryScanner(self, scope)

    def access_snapshots(self, scope: Scope) -> FolderSnapshots:
        """Return the stored indexes of a scope."""
        return FolderSnapshots(self.folder / INDEX / str(scope))

    def read_last(self, scope: Scope) -> datetime | None:
        """Return the time the facts of a scope were last deduplicated."""
        try:
            data = read_file(self._upkeep_of(scope) / _LAST, LARGEST_SETTINGS)
            last = _DECODER.decode(data).last
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return last if last.tzinfo is not None else last.replace(tzinfo=UTC)

    def write_last(self, scope: Scope, last: datetime) -> None:
        """Record the time the facts of a scope were last deduplicated."""
        path = self._upkeep_of(scope)
        with storage_errors(path):
            make_folder(path)
            replace_file(
                path / _LAST, msgspec.json.encode(_State(last)), LARGEST_SETTINGS, durable=False
            )

    @contextmanager
    def deduplicating(self, scope: Scope, *, seconds: float) -> Iterator[None]:
        """Lock the folder with the scope's last deduplication."""
        path = self._upkeep_of(scope)
        with storage_errors(path), ExitStack() as stack:
            make_folder(path)
            stack.enter_context(locked(path, seconds=seconds))
            yield

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _upkeep_of(self, scope: Scope) -> Path:
        return self.folder / UPKEEP / str(scope)

    def _prepare(self, scope: Scope, folder: Path) -> None:
        """Make a folder of a scope; refuse links, since files behind them are not read."""
        make_folder(folder)
        base = self.path_of(scope)
        for one in (folder, *folder.parents):
            if one == base:
                return
            refuse_link(one)

    def _folders(self, scope: Scope, *, deleted: bool = False) -> list[tuple[str, Path]]:
        base = self.path_of(scope, DELETED if deleted else "")
        return [(folder, base / folder) for folder in FOLDERS]


def _raise_unless_gone(error: OSError) -> None:
    """Raise the error of reading a folder, unless the folder is gone."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _is_entry(name: str) -> bool:
    return is_entry_name(name) and not name.startswith(TEMPORARY)


def _stat_of(status: os.stat_result) -> FileStat:
    # A program can set back the modification time, but not the change time.
    return FileStat(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
