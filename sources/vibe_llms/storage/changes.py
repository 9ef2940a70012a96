"""Marks of changed conversations, so that a list does not have to check every file.

`index.changes` is a table of numbers. Every change of a conversation first replaces the number in
the conversation's slot. A reader compares the table with the one that it saw last and checks only
the conversations whose slots differ. A mark is never removed, so a crash after it only costs an
extra check.

Marks are not synced. They may be lost if the machine crashes, so a reader checks every file if the
machine was restarted since its last check.
"""

from __future__ import annotations

import fcntl
import os
import time
from binascii import crc32
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from vibe_llms.base.files import open_regular, read_file
from vibe_llms.base.folders import open_folder, open_or_make

CHANGES = "index.changes"
_SLOTS = 4096
_SLOT_BYTES = 8
#: The first number identifies the table itself.
TABLE_BYTES = _SLOT_BYTES * (1 + _SLOTS)
#: Bytes per part when two states are compared, and parts per comparison.
_PART_BYTES = 32 * _SLOT_BYTES
_PARTS = 16
_WRITE = os.O_RDWR | os.O_NOFOLLOW
_BOOT = "/proc/sys/kernel/random/boot_id"
_NEVER_MARKED = bytes(_SLOT_BYTES)


class _Table:
    """An open table, closed with the last reference to this object."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


class Changes:
    """Thread-safe table of one archive, which stays open between marks."""

    def __init__(self, archive: Path) -> None:
        self._path = f"{archive}/{CHANGES}"
        self._table: _Table | None = None

    def mark(self, identity: str) -> None:
        """Mark a conversation that is about to change. The caller holds its lock."""
        table = self._table
        if table is None or not os.fstat(table.descriptor).st_nlink:
            table = self._table = _Table(self._open())
        # Never the same twice between two starts of the machine.
        number = time.monotonic_ns().to_bytes(_SLOT_BYTES, "little")
        os.pwrite(table.descriptor, number, _SLOT_BYTES * slot_of(identity))

    def close(self) -> None:
        """Close the table; the next mark opens it again."""
        self._table = None

    def read(self) -> bytes:
        """Return the table, or empty bytes if it is missing or incomplete."""
        try:
            descriptor = self._open()
        except OSError:
            # On a read-only disk every file is checked.
            return b""
        try:
            data = os.pread(descriptor, TABLE_BYTES + 1, 0)
        finally:
            os.close(descriptor)
        return data if len(data) == TABLE_BYTES else b""

    def _open(self) -> int:
        try:
            return open_regular(self._path, _WRITE)
        except FileNotFoundError:
            pass
        descriptor = open_or_make(self._path)
        try:
            # Do not truncate: another process may have just created it.
            if os.fstat(descriptor).st_size < TABLE_BYTES:
                _allocate(descriptor)
                os.pwrite(descriptor, os.urandom(_SLOT_BYTES), 0)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor


def _allocate(descriptor: int) -> None:
    """Allocate the table's full size so that marks succeed on a full disk. Keep its numbers."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, TABLE_BYTES)
    else:
        os.ftruncate(descriptor, TABLE_BYTES)


def slot_of(identity: str) -> int:
    """Return the number of a conversation's slot, from 1."""
    return 1 + crc32(identity.encode()) % _SLOTS


def read_slot(table: bytes, identity: str) -> bytes:
    """Return the number in a conversation's slot."""
    start = _SLOT_BYTES * slot_of(identity)
    return table[start : start + _SLOT_BYTES]


def are_of_one_table(one: bytes, other: bytes) -> bool:
    """Return True if both states belong to the same table and neither is empty."""
    return bool(one) and one[:_SLOT_BYTES] == other[:_SLOT_BYTES]


def compare(before: bytes, now: bytes) -> set[int]:
    """Return the slots that differ between two states of a table.

    An empty `before` means that nothing was marked. The result is empty if `now` is empty.
    """
    if not now or before == now:
        return set()
    before = before or bytes(TABLE_BYTES)
    slots: set[int] = set()
    # Nearly all parts are equal, and comparing bytes is much faster than comparing numbers.
    for start in _find_different(before, now):
        one, other = (memoryview(table[start : start + _PART_BYTES]) for table in (before, now))
        pairs = enumerate(zip(one.cast("Q"), other.cast("Q"), strict=True), start // _SLOT_BYTES)
        slots.update(slot for slot, (number, newer) in pairs if slot and number != newer)
    return slots


def _find_different(before: bytes, now: bytes) -> Iterator[int]:
    """Yield the offsets of the parts that differ between two states of a table."""
    for start in range(0, TABLE_BYTES, _PARTS * _PART_BYTES):
        end = start + _PARTS * _PART_BYTES
        if before[start:end] != now[start:end]:
            for part in range(start, min(end, TABLE_BYTES), _PART_BYTES):
                if before[part : part + _PART_BYTES] != now[part : part + _PART_BYTES]:
                    yield part


def clear_slots(table: bytes, slots: set[int]) -> bytes:
    """Return a state in which some slots count as never marked."""
    data = bytearray(table)
    for slot in slots:
        data[slot * _SLOT_BYTES : (slot + 1) * _SLOT_BYTES] = _NEVER_MARKED
    return bytes(data)


def is_being_changed(folder: str) -> bool:
    """Return True if a process that marked a conversation may not have changed it yet.

    That process holds the lock from before the mark until after the change.
    """
    try:
        with open_folder(folder) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        # Without a folder there cannot be a lock.
        return False
    except OSError:
        return True
    return False


@cache
def identify_boot() -> str:
    """Return an identifier of this boot of the machine, or an empty string if unknown."""
    with suppress(OSError):
        return read_file(_BOOT, 64).decode("ascii", "replace").strip()
    return ""
