"""Loaded models, each with its own thread that runs one job at a time.

A thread's items reach the event loop in batches. A batch that was not fetched yet grows without
waking a task again, so that a fast model cannot flood the loop. Its size is bounded, because a
reply is never longer than the model's context.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, Generic, TypeVar

from vibe_llms.base.exceptions import SessionClosed
from vibe_llms.providers.llamacpp.package import Halt, LlamaModel

T = TypeVar("T")
#: Seconds that closing waits for a thread that is loading its model.
JOIN_SECONDS = 10.0
#: Error message of work that was ended by closing its client.
CLOSED = "the client of this model was closed"


class Job(Generic[T]):
    """Unit of work for a model's thread, with the items that it sends."""

    def __init__(self, work: Callable[[Job[T], LlamaModel], None]) -> None:
        self.halt = Halt()
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._lock = threading.Lock()
        self._batch: list[T] = []
        self._error: BaseException | None = None
        self._done = False

    # On the model's thread.

    def send(self, *items: T) -> None:
        """Send items to the listener."""
        with self._lock:
            waiting = bool(self._batch)
            self._batch += items
        if not waiting and items:
            self._wake()

    def run(self, load: Callable[[], LlamaModel]) -> None:
        """Do the work; `listen` raises its error."""
        try:
            if not self.halt.is_set():
                self._work(self, load())
        except BaseException as error:  # noqa: BLE001  (`listen` raises it)
            self._error = error
        self._end()

    def refuse(self, error: BaseException) -> None:
        """End with an error before the work has begun."""
        self._error = error
        self._end()

    def _end(self) -> None:
        with self._lock:
            self._done = True
        self._wake()

    def _wake(self) -> None:
        # The listener's loop may be closed.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._arrived.set)

    # On the event loop.

    async def listen(self) -> AsyncIterator[Sequence[T]]:
        """Yield batches of the items until the work is done; raise its error."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            with self._lock:
                batch, self._batch, done = self._batch, [], self._done
            if batch:
                yield batch
            if done:
                if self._error is not None:
                    raise self._error
                return


class Engine:
    """Model with its own thread; it is loaded when first needed."""

    def __init__(self, name: str, load: Callable[[], LlamaModel]) -> None:
        self._name = name
        self._load = load
        self._loaded: LlamaModel | None = None
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._current: Job[Any] | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._waiting = 0

    @property
    def busy(self) -> bool:
        """True if a job is running or waiting."""
        return self._waiting > 0

    async def do(
        self, work: Callable[[Job[T], LlamaModel], None]
    ) -> AsyncGenerator[Sequence[T], None]:
        """Run a job when its turn comes, and yield batches of its items.

        Leaving the loop halts the job: generation stops with the next step of the computation.
        """
        job = Job(work)
        self._put(job)
        self._waiting += 1
        try:
            async for batch in job.listen():
                yield batch
        finally:
            job.halt.set()
            self._waiting -= 1

    async def ask(self, question: Callable[[LlamaModel], T]) -> T:
        """Return the result of a function of the loaded model."""
        answers: list[T] = []

        def work(job: Job[T], loaded: LlamaModel) -> None:
            job.send(question(loaded))

        async with contextlib.aclosing(self.do(work)) as batches:
            async for batch in batches:
                answers += batch
        return answers[0]

    async def close(self) -> None:
        """Halt the current job, free the model, and end the thread; safe to call twice."""
        with self._lock:
            self._closed = True
            current, thread = self._current, self._thread
        if current is not None:
            current.halt.set()
        self._jobs.put(None)
        if thread is not None:
            # Loading cannot be halted; a thread that is still loading frees the model afterward.
            await asyncio.to_thread(thread.join, JOIN_SECONDS)

    def _put(self, job: Job[T]) -> None:
        with self._lock:
            if self._closed:
                raise SessionClosed(CLOSED)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, daemon=True, name=f"vibe-llms {self._name}"
                )
                self._thread.start()
            self._jobs.put(job)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self._lock:
                closed, self._current = self._closed, job
            if closed:
                job.refuse(SessionClosed(CLOSED))
            else:
                job.run(self._access)
            with self._lock:
                self._current = None
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded.close()

    def _access(self) -> LlamaModel:
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded
