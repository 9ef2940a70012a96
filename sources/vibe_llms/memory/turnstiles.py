"""`Turnstile`: a lock for tasks, whatever event loops and threads they run in.

The lock of asyncio belongs to one event loop: with two it raises, or a task of one is never woken
by the other. This one keeps the order in which tasks came, and no thread waits in it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Hashable
from types import TracebackType
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from msgspec import Struct

Key = TypeVar("Key", bound=Hashable)


class _Waiting(Struct, eq=False):
    """A task that waits, and whether it is its turn."""

    loop: asyncio.AbstractEventLoop
    woken: asyncio.Future[None]
    through: bool = False


class Turnstile:
    """`async with` lets one task through at a time, first come, first served.

    `moved` is for whoever uses it: when something came of a turn last, as `time.monotonic` tells.
    """

    def __init__(self) -> None:
        self.moved = time.monotonic()
        # Held for no longer than it takes to look who is next.
        self._lock = threading.Lock()
        self._busy = False
        self._queue: deque[_Waiting] = deque()

    async def __aenter__(self) -> None:
        """Wait for one's turn."""
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
        """Let the next one through."""
        with self._lock:
            self._call_next()

    def _leave(self, one: _Waiting) -> None:
        """Cancelled while it waited, or in the moment in which its turn came."""
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
                # Its event loop was closed before it, so there is nobody to be woken.
                continue
            return
        self._busy = False


class Turnstiles(Generic[Key]):
    """A turnstile for each key, kept as long as somebody is at it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: WeakValueDictionary[Key, Turnstile] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._known)

    def access(self, key: Key) -> Turnstile:
        """The one of a key."""
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = Turnstile()
            return found


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
