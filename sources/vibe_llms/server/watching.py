"""`StorageWatch`: looks now and then whether what is kept can be used, so that no request has to.

While it cannot, the server is not ready, and runs are neither begun nor claimed. A database whose
tables need a newer version ends the process in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from vibe_llms.credentials import get_logger
from vibe_llms.exceptions import FormatNewer, StorageError, VibeLlmsError
from vibe_llms.runs.worker import RunWorker
from vibe_llms.storage.backends import Backend

_LOGGER = get_logger("vibe_llms.storage")

#: How often it looks, and how often while there is a problem.
_SECONDS = 15.0
_PROBLEM_SECONDS = 1.0
#: How often what was deferred is tried, such as moving contents to a bucket that was away.
_TEND_SECONDS = 15.0


class StorageWatch:
    """Watches the storage of one process, and holds its worker while the storage cannot be used."""

    def __init__(self, backend: Backend, worker: RunWorker) -> None:
        self._backend = backend
        self._worker = worker
        self._problem = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._end: Callable[[], object] = lambda: None
        #: Why this version cannot go on.
        self.outdated: FormatNewer | None = None

    async def check(self) -> None:
        """Raise a `StorageError` if what is kept cannot be used now."""
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
        self._tasks = [asyncio.create_task(one) for one in (self._watch(), self._tend())]

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
            await asyncio.sleep(_PROBLEM_SECONDS if self._problem else _SECONDS)
            with suppress(StorageError):
                await self.check()

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(_TEND_SECONDS)
            with suppress(VibeLlmsError):
                await self._backend.tend()
