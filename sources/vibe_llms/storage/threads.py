"""Threads for blocking disk work, with one lock and one event-loop call per job.

`ThreadPoolExecutor` takes several locks, a condition, and a second future for each call. A call
that syncs a short write took 80 µs longer with it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from vibe_llms.base.futures import ShieldedFuture

T = TypeVar("T")
F = TypeVar("F", bound="asyncio.Future[Any]")


class DiskThreads:
    """Pool of up to `limit` threads, which start on demand.

    The threads end with this object. At exit, the program waits for jobs that have begun.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._crew = _Crew(name, limit)

    def run(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Run a function in a thread, to its end once it has begun, and return a future."""
        return self._run(asyncio.Future(), function, arguments)

    def run_shielded(self, function: Callable[..., T], *arguments: Any) -> ShieldedFuture[T]:
        """Run a function in a thread, even if the caller is cancelled, and return a future."""
        return self._run(ShieldedFuture(), function, arguments)

    def _run(self, future: F, function: Callable[..., Any], arguments: tuple[Any, ...]) -> F:
        job = _Job(future, function, arguments)
        while not self._crew.take(job):
            self._crew = self._crew.renew()
        return future

    async def close(self) -> None:
        """Wait until all jobs are done and the threads have ended. `run` starts new threads."""
        self._crew.end()
        if self._crew.threads:
            await asyncio.to_thread(self._crew.join)

    def __del__(self) -> None:
        self._crew.end()


class _Job(NamedTuple):
    """A function to run, and the future that its caller awaits."""

    future: asyncio.Future[Any]
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class _Thread(threading.Thread):
    """A thread that waits for jobs."""

    def __init__(self, crew: _Crew, name: str) -> None:
        # A daemon thread does not keep the program alive. `_finish` waits for its jobs.
        super().__init__(name=name, daemon=True)
        self.is_idle = False
        self._crew = crew
        self._woken = threading.Lock()
        self._woken.acquire()
        self._job: _Job | None = None

    def run(self) -> None:
        while (job := self._crew.find(self)) is not None:
            self._carry_out(job)
            # Do not hold the result until the next job comes.
            del job

    def wake(self, job: _Job | None) -> None:
        """Wake the thread, with a job or to end it."""
        if job is not None:
            self._job = job
        # A busy thread may already have been woken to end.
        with suppress(RuntimeError):
            self._woken.release()

    def wait(self) -> _Job | None:
        """Wait to be woken, and return the job, if any."""
        self._woken.acquire()
        job, self._job = self._job, None
        return job

    def _carry_out(self, job: _Job) -> None:
        result = error = None
        try:
            if job.future.cancelled():
                return
            try:
                result = job.function(*job.arguments)
            except BaseException as raised:  # noqa: BLE001  (raised where it is awaited)
                error = raised
            # Marked idle first, so that the caller's next job does not start another thread.
            self._crew.rest(self)
            # The loop may be closed by now.
            with suppress(RuntimeError):
                job.future.get_loop().call_soon_threadsafe(_resolve, job.future, result, error)
        finally:
            # An error refers to this frame, which must not keep the error alive.
            del job, result, error


class _Crew:
    """Threads and their shared state. The idle thread that worked last is woken first."""

    def __init__(self, name: str, limit: int) -> None:
        self._process = os.getpid()
        self._name = name
        self._limit = limit
        # Reentrant, because garbage collection may call `end` while the lock is held.
        self._lock = threading.RLock()
        self._waiting: deque[_Job] = deque()
        self._idle: list[_Thread] = []
        self.threads: list[_Thread] = []
        self._ended = False

    def renew(self) -> _Crew:
        """Return a new crew with the same settings and no threads."""
        return _Crew(self._name, self._limit)

    def take(self, job: _Job) -> bool:
        """Accept a job. Return False if the crew has ended or a fork left it without threads."""
        # Checked before the lock, which another thread may have held when the process forked.
        if self._process != os.getpid():
            return False
        with self._lock:
            if self._ended:
                return False
            if self._idle:
                self._idle.pop().wake(job)
                return True
            if len(self.threads) < self._limit:
                self._begin()
            self._waiting.append(job)
        return True

    def _begin(self) -> None:
        thread = _Thread(self, self._name)
        try:
            thread.start()
        except RuntimeError:
            # The system allows no more threads, so the existing ones do the work.
            if not self.threads:
                raise
            return
        self.threads.append(thread)
        _WORKING.add(self)

    def find(self, thread: _Thread) -> _Job | None:
        """Wait for the next job of a thread. Return `None` if the thread is to end."""
        while True:
            if not self.rest(thread):
                with self._lock:
                    if self._waiting:
                        return self._waiting.popleft()
                    if self._ended:
                        self.threads.remove(thread)
                        if not self.threads:
                            _WORKING.discard(self)
                        return None
                continue
            job = thread.wait()
            thread.is_idle = False
            if job is not None:
                return job

    def rest(self, thread: _Thread) -> bool:
        """Mark a thread as idle unless jobs are waiting. Return True if it is idle."""
        with self._lock:
            if not (thread.is_idle or self._waiting or self._ended):
                self._idle.append(thread)
                thread.is_idle = True
        return thread.is_idle

    def end(self) -> None:
        """End the threads when all jobs are done."""
        if self._process == os.getpid():
            with self._lock:
                self._ended = True
                self._idle.clear()
                for thread in self.threads:
                    thread.wake(None)

    def join(self) -> None:
        """Wait until the threads have ended."""
        if self._process == os.getpid():
            for thread in [*self.threads]:
                thread.join()


#: Crews with running threads.
_WORKING: set[_Crew] = set()


@atexit.register
def _finish() -> None:
    """Wait at exit for jobs that have begun."""
    for crew in [*_WORKING]:
        crew.end()
        crew.join()


def _resolve(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
