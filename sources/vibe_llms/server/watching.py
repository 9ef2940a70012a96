"""`StorageWatch`: regular checks of the storage, so that requests need not check it.

While the storage is unusable, the server is not ready, and runs are neither started nor claimed. If
the tables need a newer version, the process shuts down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from vibe_llms.base.credentials import get_logger
from vibe_llms.base.exceptions import FormatNewer, StorageError, VibeLlmsError
from vibe_llms.runs.worker import RunWorker
from vibe_llms.storage.backends import Backend

_LOGGER = get_logger("vibe_llms.storage")

#: Seconds between checks, normally and while there is a problem.
_CHECK_SECONDS = 15.0
_PROBLEM_SECONDS = 1.0
#: Seconds between attempts at deferred work, such as moving contents to a bucket.
_CATCH_UP_SECONDS = 15.0


class StorageWatch:
    """Watcher of a process's storage, which stops its worker while the storage is unusable."""

    def __init__(self, backend: Backend, worker: RunWorker) -> None:
        self._backend = backend
        self._worker = worker
        self._problem = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._end: Callable[[], object] = lambda: None
        #: Error that prevents this version from continuing.
        self.outdated: FormatNewer | None = None

    async def check(self) -> None:
        """Raise a `StorageError` if the storage is unusable."""
        try:
            await self._backend.prepare()
        except StorageError as error:
            self._report(error)
            raise
        if self._problem:
            self._problem, self._worker.guard = "", None
            _LOGGER.warning("ready again")

    def start(self, end: Callable[[], object]) -> None:
        """Watch until `close`; `end` is called if this version is too old for the tables."""
        self._end = end
        self._tasks = [asyncio.create_task(one) for one in (self._watch(), self._catch_up())]

    async def close(self) -> None:
        """Stop watching."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _report(self, error: StorageError) -> None:
        if str(error) != self._problem:
            self._problem = str(error)
            _LOGGER.warning("not ready: %s", error)
        self._worker.guard = self.check
        if isinstance(error, FormatNewer) and self.outdated is None:
            self.outdated = error
            self._end()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_PROBLEM_SECONDS if self._problem else _CHECK_SECONDS)
            with suppress(StorageError):
                await self.check()

    async def _catch_up(self) -> None:
        while True:
            await asyncio.sleep(_CATCH_UP_SECONDS)
            with suppress(VibeLlmsError):
                await self._backend.catch_up()
