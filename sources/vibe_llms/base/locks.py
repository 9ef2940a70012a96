"""Advisory locks on folders, between processes and between the threads of one process.

The lock is on the folder itself, so it leaves no file behind and cannot become stale: the system
releases it when its holder ends. Files in the folder may be replaced in the meantime.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vibe_llms.base.exceptions import ArchiveLocked
from vibe_llms.base.folders import FOLDER

_FIRST_WAIT_SECONDS = 0.001
#: Longest sleep between attempts. Short, because a sleeping process misses a released lock.
_LONGEST_WAIT_SECONDS = 0.01


class LockTimeout:
    """A time limit for waiting for a lock, counted from its creation or from `begun`.

    Another thread may end the wait, even before it begins. `met` is True if the lock was taken.
    """

    def __init__(self, seconds: float, *, begun: float | None = None) -> None:
        self.seconds = seconds
        self.met = self.ended = False
        self._ends = (time.monotonic() if begun is None else begun) + seconds

    @property
    def is_over(self) -> bool:
        """True if the time is over."""
        return time.monotonic() >= self._ends

    def end(self) -> None:
        """Stop waiting and take no lock from now on; a lock that is already held stays held."""
        self.ended, self._ends = True, 0.0


@contextmanager
def locked(path: Path, *, seconds: float | LockTimeout, shared: bool = False) -> Iterator[int]:
    """Hold the lock of a folder and yield its descriptor.

    Raises `ArchiveLocked` after the time limit, `FileNotFoundError` if the folder was removed.
    """
    descriptor = os.open(path, FOLDER)
    try:
        acquire(descriptor, path, seconds, shared=shared)
        here = os.fstat(descriptor)
        there = os.stat(path, follow_symlinks=False)
        if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
            raise FileNotFoundError(errno.ENOENT, "it was removed in the meantime", str(path))
        yield descriptor
    finally:
        # Closing also releases the lock.
        os.close(descriptor)


def acquire(
    descriptor: int, path: Path, seconds: float | LockTimeout, *, shared: bool = False
) -> None:
    """Take the lock of an open folder; raises `ArchiveLocked` after the time limit."""
    if not isinstance(seconds, LockTimeout):
        if try_lock(descriptor, shared=shared):
            return
        seconds = LockTimeout(seconds)
    _wait(descriptor, path, seconds, shared=shared)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Take the lock of an open folder if it is free; return True if it was taken."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(descriptor: int, path: Path, timeout: LockTimeout, *, shared: bool) -> None:
    wait = _FIRST_WAIT_SECONDS
    while True:
        if try_lock(descriptor, shared=shared):
            # The wait may have been ended while this thread waited for its turn to run.
            if not timeout.ended:
                timeout.met = True
                return
            give_back(descriptor)
        if timeout.is_over:
            raise ArchiveLocked(
                f"another process has locked it for {timeout.seconds:g} s; try again, "
                f"or find the process: fuser {path}",
                path=str(path),
            )
        time.sleep(wait)
        wait = min(wait * 2, _LONGEST_WAIT_SECONDS)


def give_back(descriptor: int) -> None:
    """Release the lock of an open folder without closing it."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
