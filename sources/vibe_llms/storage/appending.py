"""Append to a conversation's lines under the folder's lock, and repair a torn end.

The folder and its file stay open between two appends, because opening them for every message costs
more than the message. `DirectoryArchive` limits how many stay open.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import ArchiveDamaged, ArchiveLocked, ConversationMoved, StorageError
from vibe_llms.base.files import LARGEST_FILE, describe_size, open_regular
from vibe_llms.base.folders import (
    FOLDER,
    read_within,
    replace_file,
    synchronise,
    synchronise_folder,
    write_all,
    write_new,
)
from vibe_llms.base.locks import acquire, give_back, try_lock
from vibe_llms.messages.codecs import LineUnreadable, decode_canister
from vibe_llms.messages.events import Notice
from vibe_llms.storage.changes import Changes
from vibe_llms.storage.details import refuse_newer

MESSAGES = "messages.jsonl"
_APPEND = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW
_TAIL_BYTES = 64 * 1024


#: State that shows changes to a file: device, inode, size in bytes, and modification time in ns.
_State: TypeAlias = tuple[int, int, int, int]


def _state_of(status: os.stat_result) -> _State:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class _OpenFolder:
    """An open folder and its open file, closed with the last reference to this object."""

    def __init__(self, path: Path) -> None:
        self._open: list[int] = []
        self.process = os.getpid()
        self.folder = self._keep(os.open(path, FOLDER))
        self.file = self._keep(open_regular(MESSAGES, _APPEND, folder=self.folder))
        self.status = os.fstat(self.file)

    def _keep(self, descriptor: int) -> int:
        self._open.append(descriptor)
        return descriptor

    def __del__(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)

    def is_there(self, status: os.stat_result) -> bool:
        """Return True if this is still the file at its path."""
        mine = self.status
        return (mine.st_dev, mine.st_ino) == (status.st_dev, status.st_ino)


class LinesWriter:
    """Thread-safe writer of the lines of one conversation."""

    def __init__(self, path: Path, settings: StorageSettings, changes: Changes) -> None:
        self._path = path
        self._identity = path.name
        self._file = f"{path}/{MESSAGES}"
        self._settings = settings
        self._durable = settings.durability == "safe"
        self._opened: _OpenFolder | None = None
        # State in which this process left the file, and the identity of its last canister. The end
        # is not read again while the state is unchanged.
        self._left: _State | None = None
        self._end = ""
        self._changes = changes
        # The file lock belongs to the open folder, which all threads of this process share.
        self._turn = threading.Lock()
        #: Size in bytes of the torn end that was reported to the reader.
        self.reported = 0

    def append(self, lines: bytes, last: str, *, after: str | None) -> Sequence[Notice]:
        """Add lines with one write and one sync, and return notices about repairs made before.

        `last` is the identity of the last canister among the lines.
        """
        self._acquire()
        try:
            opened, status = self._lock()
            try:
                return self._extend(opened, status, lines, last, after)
            finally:
                give_back(opened.folder)
        except OSError:
            self._opened = None
            raise
        finally:
            self._turn.release()

    def append_at_once(self, lines: bytes, last: str, *, after: str | None) -> bool:
        """Add lines if no waiting, opening, reading, or repair is needed.

        Otherwise change nothing and return False.
        """
        if not self._turn.acquire(blocking=False):
            return False
        try:
            opened = self._opened
            if opened is None or opened.process != os.getpid() or not try_lock(opened.folder):
                return False
            try:
                status = os.stat(self._file, follow_symlinks=False)
                if status.st_nlink > 1 or _state_of(status) != self._left:
                    return False
                self._extend(opened, status, lines, last, after)
            finally:
                give_back(opened.folder)
            return True
        except OSError:
            self._opened = None
            raise
        finally:
            self._turn.release()

    def retract(self, find_size: Callable[[int], int], last: str) -> None:
        """Truncate the file, or raise `ConversationMoved` if `last` is not its last canister."""
        self._acquire()
        try:
            opened, status = self._lock()
            try:
                self._changes.mark(self._identity)
                self.require_last(self._find_end(opened.file, status)[1], last)
                size = find_size(opened.file)
                self._left = None
                os.ftruncate(opened.file, size)
                if self._durable:
                    synchronise(opened.file)
            finally:
                give_back(opened.folder)
        except OSError:
            self._opened = None
            raise
        finally:
            self._turn.release()

    def _acquire(self) -> None:
        seconds = self._settings.lock_seconds
        if not self._turn.acquire(timeout=seconds):
            raise ArchiveLocked(
                f"locked by another thread for {seconds:g} s; try again", path=str(self._path)
            )

    def require_last(self, end: str, last: str) -> None:
        """Raise `ConversationMoved` if a conversation does not end with the canister `last`."""
        if end != last:
            raise ConversationMoved(
                "another process has continued this conversation; continue in a fork",
                path=str(self._path),
            )

    def _extend(
        self,
        opened: _OpenFolder,
        status: os.stat_result,
        lines: bytes,
        last: str,
        after: str | None,
    ) -> Sequence[Notice]:
        """Add lines to the locked file, whose status was read under the lock."""
        self._changes.mark(self._identity)
        if status.st_size + len(lines) > LARGEST_FILE:
            raise StorageError(
                f"this conversation would be larger than {describe_size(LARGEST_FILE)}; "
                "continue in a new one",
                path=self._file,
            )
        size, end, notices = self._find_end(opened.file, status)
        if after is not None:
            self.require_last(end, after)
        self._write(opened.file, size, lines)
        with suppress(OSError):
            self._left, self._end = _state_of(os.fstat(opened.file)), last or end
        return notices

    def _lock(self) -> tuple[_OpenFolder, os.stat_result]:
        """Return the open folder and file, locked and verified to be still at their path."""
        while True:
            opened = self._opened
            # After a fork, the parent process would share the lock.
            if opened is None or opened.process != os.getpid():
                opened = self._opened = _OpenFolder(self._path)
            acquire(opened.folder, self._path, self._settings.lock_seconds)
            try:
                status = os.stat(self._file, follow_symlinks=False)
            except OSError:
                give_back(opened.folder)
                raise
            try:
                if status.st_nlink > 1:
                    self._separate()
                elif opened.is_there(status):
                    return opened, status
            except OSError:
                give_back(opened.folder)
                raise
            give_back(opened.folder)
            self._opened = None

    def _separate(self) -> None:
        """Replace the file with a copy to keep a hard link elsewhere unchanged."""
        data = read_within(self._path, MESSAGES)
        replace_file(Path(self._file), data, LARGEST_FILE, durable=self._durable)

    def _write(self, descriptor: int, size: int, lines: bytes) -> None:
        self._left = None
        try:
            write_all(descriptor, lines)
            if self._durable:
                synchronise(descriptor)
        except OSError:
            # If truncating fails too, the next writer repairs the end.
            with suppress(OSError):
                os.ftruncate(descriptor, size)
            raise

    def _find_end(
        self, descriptor: int, status: os.stat_result
    ) -> tuple[int, str, Sequence[Notice]]:
        """Repair a torn end, and return the end's offset and its canister's identity."""
        if self._left == _state_of(status):
            return status.st_size, self._end, ()
        refuse_newer(self._path)
        size, tail = self._heal(descriptor, status.st_size)
        notices: Sequence[Notice] = ()
        if size < status.st_size:
            torn = status.st_size - size
            notices = () if torn == self.reported else (describe_torn(self._identity, torn),)
            self.reported = 0
        if not size:
            return 0, "", notices
        try:
            return size, decode_canister(tail).identity, notices
        except LineUnreadable as error:
            raise ArchiveDamaged(
                f"the last line cannot be read ({error}); run: vibe-llms doctor --repair",
                path=self._file,
            ) from error

    def _heal(self, descriptor: int, size: int) -> tuple[int, bytes]:
        """Set an incomplete end aside, and return the remaining size and the last line."""
        end, last, rest = read_tail(descriptor, size)
        if rest:
            torn = self._path / f"messages.torn-{produce_stamp()}"
            write_new(torn, rest, durable=self._durable)
            if self._durable:
                synchronise_folder(self._path)
            os.ftruncate(descriptor, end)
        return end, last


def read_tail(descriptor: int, size: int) -> tuple[int, bytes, bytes]:
    """Return the offset after the last complete line, that line, and the bytes after it.

    Only the end of the file is read.
    """
    length = min(size, _TAIL_BYTES)
    while True:
        start = size - length
        data = os.pread(descriptor, length, start)
        end = complete_size(data)
        line = data[:end].rpartition(b"\n")[0].rpartition(b"\n")
        # Enough was read if a newline comes before the last complete line.
        if start == 0 or line[1]:
            return start + end, line[2], data[end:]
        length = min(size, length * 4)


def complete_size(data: bytes) -> int:
    """Return the number of bytes up to the end of the last complete line.

    A last line with NUL bytes is incomplete: a power failure leaves them for unwritten data.
    """
    end = data.rfind(b"\n") + 1
    start = data.rfind(b"\n", 0, max(end - 1, 0)) + 1
    return start if b"\0" in data[start:end] else end


def describe_torn(identity: str, size: int) -> Notice:
    """Return the notice about a torn end."""
    return Notice(
        "repair",
        f"{identity}: the last {size} bytes were an incomplete message, as after a crash; they "
        "are set aside next to messages.jsonl with the next message",
    )


def produce_stamp() -> str:
    """Return a unique part of a file name, which contains the time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.urandom(3).hex()}"
