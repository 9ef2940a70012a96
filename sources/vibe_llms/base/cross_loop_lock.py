"""A lock for tasks in any event loops and threads.

A lock of asyncio belongs to one event loop: with two, it raises an error or never wakes a task.
This lock serves tasks in the order of their arrival, and blocks no thread.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from types import TracebackType

from msgspec import Struct


class _Waiting(Struct, eq=False):
    """A waiting task; `through` is True once it has the lock."""

    loop: asyncio.AbstractEventLoop
    woken: asyncio.Future[None]
    through: bool = False


class CrossLoopLock:
    """A lock for `async with` that admits one task at a time, first come, first served.

    `moved` is the time (`time.monotonic`) of a turn's last progress; users of the lock set it.
    """

    def __init__(self) -> None:
        self.moved = time.monotonic()
        # Held only to find the next task.
        self._lock = threading.Lock()
        self._busy = False
        self._queue: deque[_Waiting] = deque()

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            if not self._busy:
                self._busy = True
                return
            one = _Waiting(loop, loop.create_future())
            self._queue.append(one)
        entered = False
        try:
            await one.woken
            entered = True
        finally:
            if not entered:
                self._leave(one)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Pass the lock to the next task."""
        with self._lock:
            self._call_next()

    def _leave(self, one: _Waiting) -> None:
        """Leave the queue, or pass the lock on if this task has just received it."""
        with self._lock:
            if one.through:
                self._call_next()
            else:
                self._queue.remove(one)

    def _call_next(self) -> None:
        while self._queue:
            one = self._queue.popleft()
            one.through = True
            try:
                one.loop.call_soon_threadsafe(_wake, one.woken)
            except RuntimeError:
                continue
            return
        self._busy = False


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
