"""Detect changed files of a scope with as few system calls as possible.

A full scan stats every file, which is slow for thousands. After one, the modification times of the
folders show whether names came or went, a quick scan of names and inodes shows which, and files
that were overwritten in place are noticed by the next full scan.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import Protocol

from vibe_llms.memory.entries import Scope
from vibe_llms.memory.places import FACTS, Difference, FileStat

#: A full scan slower than this, in seconds, is repeated only after this many times its duration.
_QUICK, _REST = 0.002, 20.0
#: Nanoseconds within which a folder can change again and keep its modification time.
_UNSETTLED = 100_000_000


class ScannedFiles(Protocol):
    """Files to scan; see `vibe_llms.memory.files.MemoryFiles`."""

    def list_facts(self, scope: Scope) -> set[str]:
        """Return the names in the folder of facts."""
        ...

    def folder_times(self, scope: Scope) -> tuple[int, ...]:
        """Return the modification times of the folders."""
        ...

    def scan(self, scope: Scope) -> Mapping[str, FileStat]:
        """Return all files with their stats."""
        ...

    def scan_inodes(self, scope: Scope) -> Iterable[tuple[str, int]]:
        """Yield all files with their inodes."""
        ...

    def stat_file(self, scope: Scope, place: str) -> FileStat | None:
        """Return the stat of one file, or `None` if it is gone."""
        ...


class DirectoryScanner:
    """Folder of a scope, as of the last scan."""

    def __init__(self, files: ScannedFiles, scope: Scope) -> None:
        #: File names of the facts at the last scan, and of those written since.
        self._listed: set[str] = set()
        self._files = files
        self._scope = scope
        self._stamp: tuple[int, ...] = ()
        self._scanned = self._seconds = 0.0

    def scan(self, known: Mapping[str, FileStat], *, thorough: bool) -> Difference | None:
        """Return the difference from the `known` files, or `None` if the folder did not change.

        Unless `thorough`, files that were overwritten in place may be left out.
        """
        rested = time.monotonic() - self._scanned < _REST * self._seconds
        thorough = thorough or self._seconds < _QUICK or not rested
        if not thorough and self._stamp and self._files.folder_times(self._scope) == self._stamp:
            return None
        # Before the scan, so that the next scan finds what appears during this one.
        self._stamp = self._take_stamp()
        self._listed = self._files.list_facts(self._scope)
        now = self._scan_fully() if thorough else self._scan_quickly(known)
        return Difference(
            [place for place in known if place not in now],
            {place: stat for place, stat in now.items() if known.get(place) != stat},
        )

    def is_listed(self) -> bool:
        """Return True if the facts have the same file names as at the last scan."""
        return self._files.list_facts(self._scope) == self._listed

    def add(self, place: str) -> None:
        """Note that the caller has written a file."""
        folder, name = os.path.split(place)
        if folder == FACTS:
            self._listed.add(name)

    def remove(self, place: str) -> None:
        """Note that the caller has moved a file away."""
        self._listed.discard(os.path.basename(place))

    def rescan_later(self) -> None:
        """Scan again the next time, even if the folder does not change."""
        self._stamp = ()

    def reset(self) -> None:
        """Forget all earlier scans."""
        self._stamp, self._listed = (), set()

    def _scan_fully(self) -> Mapping[str, FileStat]:
        self._scanned = time.monotonic()
        now = self._files.scan(self._scope)
        self._seconds = time.monotonic() - self._scanned
        return now

    def _scan_quickly(self, known: Mapping[str, FileStat]) -> Mapping[str, FileStat]:
        now: dict[str, FileStat] = {}
        for place, inode in self._files.scan_inodes(self._scope):
            old = known.get(place)
            if old is not None and old.inode == inode:
                now[place] = old
            elif (stat := self._files.stat_file(self._scope, place)) is not None:
                now[place] = stat
        return now

    def _take_stamp(self) -> tuple[int, ...]:
        """Return the folders' modification times, or nothing while they may still hide a change."""
        stamp = self._files.folder_times(self._scope)
        return stamp if max(stamp) + _UNSETTLED < time.time_ns() else ()
