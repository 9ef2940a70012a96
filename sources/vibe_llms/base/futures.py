"""Work that cancellation does not stop: `shield`, `finish`, and their future."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class ShieldedFuture(asyncio.Future[T]):
    """A future that cannot be cancelled.

    A task that is cancelled while it waits for one is cancelled once the future is done. Unlike
    `asyncio.shield`, this takes no second future and no further round of the event loop.
    """

    #: The task that does the work, if any; event loops keep only weak references to tasks.
    task: asyncio.Task[Any] | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        """Do nothing; the waiting task remembers that it is cancelled."""
        del msg
        return False

    async def wait(self) -> asyncio.CancelledError | None:
        """Wait until the future is done, with a result or an error.

        Returns the cancellation of the waiting task, which the caller has to raise.
        """
        try:
            # Errors are raised by `result`.
            with suppress(Exception):
                await self
        except asyncio.CancelledError as error:
            if not self.done():
                raise
            return error
        return None


class ShieldedWork(Coroutine[Any, Any, T]):
    """A coroutine that waits for a `ShieldedFuture`, which `begin` starts without a task.

    As with every coroutine, nothing starts before it is awaited.
    """

    def __init__(self, begin: Callable[[], ShieldedFuture[T]]) -> None:
        self.begin = begin
        self._waiting: Coroutine[Any, Any, T] | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self._wait().__await__()

    def send(self, value: Any) -> Any:
        """Resume waiting, as for any coroutine."""
        return self._wait().send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error at the point of waiting."""
        return self._wait().throw(*error)

    def close(self) -> None:
        """Stop waiting."""
        if self._waiting is not None:
            self._waiting.close()

    def _wait(self) -> Coroutine[Any, Any, T]:
        async def wait() -> T:
            return await self.begin()

        if self._waiting is None:
            self._waiting = wait()
        return self._waiting


def shield(work: Awaitable[T]) -> ShieldedFuture[T]:
    """Start work that completes even if its waiter is cancelled."""
    if isinstance(work, ShieldedWork):
        return work.begin()
    future: ShieldedFuture[T] = ShieldedFuture()
    future.task = asyncio.get_running_loop().create_task(_fulfil(work, future))

    def end(task: asyncio.Task[None]) -> None:
        if task.cancelled():
            # `asyncio.run` cancels tasks at its end, perhaps before their first step.
            if asyncio.iscoroutine(work):
                work.close()
            asyncio.Future.cancel(future)
        elif (error := task.exception()) is not None:
            future.set_exception(error)

    future.task.add_done_callback(end)
    return future


async def finish(work: Awaitable[T]) -> T:
    """Return the result of work that completes even if this task is cancelled.

    A cancellation is raised afterwards, unless the work failed: then its error is raised.
    """
    future = shield(work)
    try:
        cancelled = await future.wait()
        result = future.result()
        if cancelled is not None:
            raise cancelled
        return result
    finally:
        # The error refers to this frame, which must not keep the future alive.
        del future


async def _fulfil(work: Awaitable[T], future: ShieldedFuture[T]) -> None:
    # Done inside the task: a done callback would run one iteration of the loop later.
    try:
        result = await work
    except Exception as error:  # noqa: BLE001  (raised where it is awaited)
        future.set_exception(error)
    else:
        future.set_result(result)
    finally:
        del future
