"""Progress of long indexing work, and its end when the memory is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

from msgspec import Struct

from vibe_llms.base.exceptions import SessionClosed

Stage: TypeAlias = Literal["reading", "embedding"]
READING: Stage = "reading"
EMBEDDING: Stage = "embedding"


class IndexingProgress(Struct, frozen=True):
    """Number of new entries of a scope that have been read or embedded."""

    stage: Stage
    done: int
    total: int


#: Callback for progress, called in any thread.
Report: TypeAlias = Callable[[IndexingProgress], None]


class LongWork:
    """Progress of indexing, which stops when the memory is closed."""

    def __init__(self, report: Report | None = None) -> None:
        self._report = report
        self._ended = threading.Event()

    def proceed(self, stage: Stage, done: int, total: int) -> None:
        """Report progress; raise `SessionClosed` if the memory is being closed."""
        if self._ended.is_set():
            raise SessionClosed("indexing stopped because the memory is being closed")
        if self._report is not None:
            self._report(IndexingProgress(stage, done, total))

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Stop long work at its next step, within the block."""
        self._ended.set()
        try:
            yield
        finally:
            self._ended.clear()
