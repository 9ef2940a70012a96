"""`Purge`: deletes unneeded data of old runs in the background."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from vibe_llms.base.exceptions import StorageError

#: Pause between steps, so that other transactions can run.
_PAUSE_SECONDS = 0.05


class Purge:
    """A step that is repeated until nothing is left, started at most once per interval.

    If the storage is unavailable, the work is done the next time.
    """

    def __init__(self, step: Callable[[], Awaitable[bool]], seconds: float) -> None:
        self._step = step
        self._seconds = seconds
        self._next = 0.0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def begin(self) -> None:
        """Start purging if the interval has passed."""
        now = time.monotonic()
        if now >= self._next and (self._task is None or self._task.done()):
            self._next = now + self._seconds
            self._task = asyncio.create_task(self._repeat(), name="purge of runs")

    async def close(self) -> None:
        """Wait for the current step and start no other; may be called twice."""
        self._closed = True
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _repeat(self) -> None:
        with suppress(StorageError):
            while await self._step() and not self._closed:  # noqa: ASYNC110  (it does the work)
                await asyncio.sleep(_PAUSE_SECONDS)
