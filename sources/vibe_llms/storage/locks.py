"""Advisory locks on folders, between processes and between threads of one.

A lock is taken on the folder itself, so nothing is left behind and nothing can be stale: the system
gives it back when its holder ends, however it ends. Files within may be replaced meanwhile.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vibe_llms.exceptions import ArchiveLocked
from vibe_llms.storage.files import FOLDER

_FIRST_WAIT_SECONDS = 0.001
#: Short, because whoever is asleep when the lock becomes free does not get it.
_LONGEST_WAIT_SECONDS = 0.01


class Patience:
    """So many seconds to wait for a lock, counted from when it is made, or `begun` before.

    Another thread may end the waiting. `met` tells whether the lock was taken.
    """

    def __init__(self, seconds: float, *, begun: float | None = None) -> None:
        self.seconds = seconds
        self.met = False
        self._ends = (time.monotonic() if begun is None else begun) + seconds

    @property
    def is_over(self) -> bool:
        """Whether it is time to give up."""
        return time.monotonic() >= self._ends

    def end(self) -> None:
        """Wait no more; what is held by then stays held."""
        self._ends = 0.0


@contextmanager
def locked(path: Path, *, seconds: float | Patience, shared: bool = False) -> Iterator[int]:
    """Hold the lock of a folder; gives its descriptor.

    `ArchiveLocked` after so many seconds, `FileNotFoundError` where the folder has gone meanwhile.
    """
    descriptor = os.open(path, FOLDER)
    try:
        acquire(descriptor, path, seconds, shared=shared)
        here = os.fstat(descriptor)
        there = os.stat(path, follow_symlinks=False)
        if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
            raise FileNotFoundError(errno.ENOENT, "it was removed meanwhile", str(path))
        yield descriptor
    finally:
        # This gives the lock back as well.
        os.close(descriptor)


def acquire(
    descriptor: int, path: Path, seconds: float | Patience, *, shared: bool = False
) -> None:
    """Take the lock of an open folder; `ArchiveLocked` after so many seconds."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    patience = seconds if isinstance(seconds, Patience) else Patience(seconds)
    wait = _FIRST_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            patience.met = True
            return
        except BlockingIOError:
            if patience.is_over:
                raise ArchiveLocked(
                    f"another process has held it for {patience.seconds:g} s; try again, "
                    f"or see which one: fuser {path}",
                    path=str(path),
                ) from None
        time.sleep(wait)
        wait = min(wait * 2, _LONGEST_WAIT_SECONDS)


def give_back(descriptor: int) -> None:
    """Give the lock of an open folder back without closing it."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
