"""Daemon threads for blocking tools, limited in number; abandoned ones are counted."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

#: Most tools that block at once in this process; others wait for a thread.
MAX_THREADS = 64
#: Number of abandoned, unreturned threads at which no more are started.
MAX_ABANDONED = 32


class ThreadsExhausted(RuntimeError):
    """Too many cancelled tools have not returned; the message is for the model."""


async def run_in_thread(function: Callable[[], Any]) -> Any:
    """Run a blocking function in a daemon thread and return its result.

    A thread cannot be stopped: cancelling the wait abandons it. A daemon thread does not keep the
    process alive. Raises `ThreadsExhausted` if too many are abandoned.
    """
    return await _THREADS.run(function)


class Threads:
    """A pool of threads that start when work arrives and end when none is left."""

    def __init__(self, limit: int, abandoned_limit: int) -> None:
        self._limit = limit
        self._abandoned_limit = abandoned_limit
        self._lock = threading.Lock()
        self._waiting: deque[_Work] = deque()
        self._busy = 0
        self._abandoned = 0

    async def run(self, function: Callable[[], Any]) -> Any:
        """See `run_in_thread`."""
        work = _Work(function, asyncio.get_running_loop())
        with self._lock:
            if self._abandoned >= self._abandoned_limit:
                raise ThreadsExhausted(
                    f"{self._abandoned} cancelled tool calls have not returned; no more "
                    "blocking tools can run"
                )
            self._waiting.append(work)
            if self._busy < self._limit:
                self._begin()
        try:
            return await work.future
        except asyncio.CancelledError:
            self._abandon(work)
            raise

    def _abandon(self, work: _Work) -> None:
        """Stop waiting for this work; another thread may take its place."""
        with self._lock:
            if work in self._waiting:
                self._waiting.remove(work)
            elif work.running:
                work.abandoned = True
                self._abandoned += 1
                self._busy -= 1
                if self._waiting:
                    self._begin()

    def _begin(self) -> None:
        self._busy += 1
        threading.Thread(target=self._serve, daemon=True, name="vibe-llms tool").start()

    def _serve(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._busy -= 1
                    return
                work = self._waiting.popleft()
                work.running = True
            work.context.run(work.carry_out)
            with self._lock:
                work.running = False
                if work.abandoned:
                    self._abandoned -= 1
                    return


class _Work:
    """A function, and the future that its caller awaits."""

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[Any] = loop.create_future()
        self.context = contextvars.copy_context()
        self.running = False
        self.abandoned = False
        self._function = function
        self._loop = loop

    def carry_out(self) -> None:
        try:
            value = self._function()
        except BaseException as error:  # noqa: BLE001  (raised where the call is awaited)
            self._resolve(self.future.set_exception, _portable(error))
        else:
            self._resolve(self.future.set_result, value)

    def _resolve(self, setter: Callable[[Any], None], value: Any) -> None:
        def resolve() -> None:
            if not self.future.done():
                setter(value)

        # An abandoned thread may outlive its event loop.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(resolve)


def _portable(error: BaseException) -> BaseException:
    # A future refuses StopIteration; KeyboardInterrupt and GeneratorExit would end more than the
    # awaiting coroutine.
    if isinstance(error, StopIteration | KeyboardInterrupt | GeneratorExit):
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


_THREADS = Threads(MAX_THREADS, MAX_ABANDONED)
