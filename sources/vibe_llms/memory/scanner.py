"""Which files of a scope changed since the last scan, found with as few system calls as possible.

A full scan looks at every file, which takes long if there are thousands. Then the modification
times of the folders show whether names came or went, a quick scan of names and inodes shows which,
and files that were overwritten in place are noticed by the next full scan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from vibe_llms.memory.entries import Scope
from vibe_llms.memory.files import FileStat, MemoryFiles

#: A full scan that takes longer than this, in seconds, is repeated only after this many times as
#: long.
_QUICK, _REST = 0.002, 20.0
#: A folder can change again within this many nanoseconds and keep its modification time.
_UNSETTLED = 100_000_000


class DirectoryScanner:
    """The folder of a scope, as of the last scan.

    `listed` holds the file names of the facts then; code that writes a fact adds its name.
    """

    def __init__(self, files: MemoryFiles, scope: Scope) -> None:
        self.listed: set[str] = set()
        self._files = files
        self._scope = scope
        self._stamp: tuple[int, ...] = ()
        self._scanned = self._seconds = 0.0

    def scan(
        self, known: Callable[[str], FileStat | None], *, thorough: bool
    ) -> Mapping[str, FileStat] | None:
        """All files by their places, or `None` if nothing changed.

        `known` gives the result of the last scan for a place. Unless `thorough`, files that were
        overwritten in place may be reported as they were.
        """
        rested = time.monotonic() - self._scanned < _REST * self._seconds
        thorough = thorough or self._seconds < _QUICK or not rested
        if not thorough and self._stamp and self._files.folder_times(self._scope) == self._stamp:
            return None
        # Before the scan, so that what appears during it is found by the next one.
        self._stamp = self._take_stamp()
        self.listed = self._files.list_facts(self._scope)
        return self._scan_fully() if thorough else self._scan_quickly(known)

    def is_listed(self) -> bool:
        """Whether the facts have the same file names as at the last scan."""
        return self._files.list_facts(self._scope) == self.listed

    def doubt(self) -> None:
        """Scan again the next time, even if the folder does not change."""
        self._stamp = ()

    def reset(self) -> None:
        """Forget all earlier scans."""
        self._stamp, self.listed = (), set()

    def _scan_fully(self) -> Mapping[str, FileStat]:
        self._scanned = time.monotonic()
        now = self._files.scan(self._scope)
        self._seconds = time.monotonic() - self._scanned
        return now

    def _scan_quickly(self, known: Callable[[str], FileStat | None]) -> Mapping[str, FileStat]:
        now: dict[str, FileStat] = {}
        for place, inode in self._files.scan_inodes(self._scope):
            old = known(place)
            if old is not None and old.inode == inode:
                now[place] = old
            elif (stat := self._files.stat_file(self._scope, place)) is not None:
                now[place] = stat
        return now

    def _take_stamp(self) -> tuple[int, ...]:
        """The folders' modification times, or nothing while they may still hide a change."""
        stamp = self._files.folder_times(self._scope)
        return stamp if max(stamp) + _UNSETTLED < time.time_ns() else ()
