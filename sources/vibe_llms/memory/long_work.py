"""Progress of work that takes long with many entries, and its end when the memory is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

from msgspec import Struct

from vibe_llms.exceptions import SessionClosed

Stage: TypeAlias = Literal["reading", "embedding"]
READING: Stage = "reading"
EMBEDDING: Stage = "embedding"


class IndexingProgress(Struct, frozen=True):
    """Number of new entries of a scope that have been read, or have their vectors."""

    stage: Stage
    done: int
    total: int


#: Called in any thread.
Report: TypeAlias = Callable[[IndexingProgress], None]


class LongWork:
    """Reports the progress of indexing, and ends it when the memory is closed."""

    def __init__(self, report: Report | None = None) -> None:
        self._report = report
        self._ended = threading.Event()

    def proceed(self, stage: Stage, done: int, total: int) -> None:
        """Report progress; raise `SessionClosed` if the memory is being closed."""
        if self._ended.is_set():
            raise SessionClosed("this memory is being closed; what was indexed is kept")
        if self._report is not None:
            self._report(IndexingProgress(stage, done, total))

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Within the block, long work ends after its present part."""
        self._ended.set()
        try:
            yield
        finally:
            self._ended.clear()


class Pace:
    """Batch size that grows while batches are quick, so that an interruption loses little.

    Call `note` with the seconds that each batch took.
    """

    #: Twice as many are done at a time after less than this, and half as many after more.
    quick_seconds, slow_seconds = 0.25, 2.0

    def __init__(self, least: int, most: int) -> None:
        self.count = least
        self._least = least
        self._most = most

    def note(self, seconds: float) -> None:
        """Adapt the number to how long the last ones took."""
        if seconds < self.quick_seconds:
            self.count = min(2 * self.count, self._most)
        elif seconds > self.slow_seconds:
            self.count = max(self.count // 2, self._least)
