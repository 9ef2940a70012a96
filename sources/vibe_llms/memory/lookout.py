"""What is in the folder of a scope, looked at as closely as it has to be before an answer.

A look at every file tells all, and takes long where there are thousands. Then a folder's time of
change tells that no name came or went, and a glance at names and inodes which ones did; files that
were written over in place are noticed by a whole look, which comes at intervals.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from vibe_llms.memory.entries import Scope
from vibe_llms.memory.files import Look, MemoryFiles

#: A look that takes longer than this, in seconds, is not taken before every answer, but when so
#: many times as long has passed.
_QUICK, _REST = 0.002, 20.0
#: In so many nanoseconds a folder may change again without another time of change.
_UNSETTLED = 100_000_000


class Lookout:
    """The folder of one scope, as it was when it was last looked at.

    `listed` are the names of the facts then; whoever writes one adds its name.
    """

    def __init__(self, files: MemoryFiles, scope: Scope) -> None:
        self.listed: set[str] = set()
        self._files = files
        self._scope = scope
        self._stamp: tuple[int, ...] = ()
        self._looked = self._seconds = 0.0

    def look(
        self, known: Callable[[str], Look | None], *, thorough: bool
    ) -> Mapping[str, Look] | None:
        """All files by their places, and what tells whether they changed; `None` if none did.

        `known` is what was told of a place before. Where it is not to be `thorough`, files that
        were written over in place may be told as they were.
        """
        # Before the look: what appears between the two is seen as new the next time.
        rested = time.monotonic() - self._looked < _REST * self._seconds
        thorough = thorough or self._seconds < _QUICK or not rested
        if not thorough and self._stamp and self._files.stamp(self._scope) == self._stamp:
            return None
        self._stamp = self._take_stamp()
        self.listed = self._files.list_facts(self._scope)
        return self._look_closely() if thorough else self._glance(known)

    def is_listed(self) -> bool:
        """Whether the same facts are there by their names."""
        return self._files.list_facts(self._scope) == self.listed

    def doubt(self) -> None:
        """Look at the files the next time also where the folder has not changed."""
        self._stamp = ()

    def begin_anew(self) -> None:
        """Take nothing for known."""
        self._stamp, self.listed = (), set()

    def _look_closely(self) -> Mapping[str, Look]:
        self._looked = time.monotonic()
        now = self._files.look(self._scope)
        self._seconds = time.monotonic() - self._looked
        return now

    def _glance(self, known: Callable[[str], Look | None]) -> Mapping[str, Look]:
        """The same, where files that are the same by name and inode are taken for unchanged."""
        now: dict[str, Look] = {}
        for place, inode in self._files.glance(self._scope):
            old = known(place)
            if old is not None and old.inode == inode:
                now[place] = old
            elif (look := self._files.look_at(self._scope, place)) is not None:
                now[place] = look
        return now

    def _take_stamp(self) -> tuple[int, ...]:
        """The stamp of the folder, or none while it may change without another one."""
        stamp = self._files.stamp(self._scope)
        return stamp if max(stamp) + _UNSETTLED < time.time_ns() else ()
