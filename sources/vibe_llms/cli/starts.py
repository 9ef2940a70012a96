"""The start of a server or a worker: reports problems, and waits until they are solved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from vibe_llms.base.exceptions import StorageError, StorageUnavailable
from vibe_llms.cli.terminal import note
from vibe_llms.storage.backends import Backend
from vibe_llms.storage.user_stores import produce_users

_RETRY_SECONDS = 1.0


class Start:
    """Preparation of the storage; `show_key` gets the key of the first user, once there is one.

    Without `show_key`, no user is made.
    """

    def __init__(self, show_key: Callable[[str], object] | None = None) -> None:
        self._show_key = show_key
        self._key = self._problem = ""
        self._watching: asyncio.Task[None] | None = None

    async def prepare(self, backend: Backend) -> None:
        """Raise a permanent `StorageError`; print a temporary one."""
        try:
            await self._attempt(backend)
        except StorageUnavailable as error:
            self._report(error)

    def watch(self, backend: Backend) -> None:
        """Show the key, wait until the storage is ready, and print the warnings of runs."""
        self._show()
        self._watching = asyncio.create_task(self._watch(backend), name="start")

    async def _watch(self, backend: Backend) -> None:
        if self._problem:
            await self._wait(backend)
            note("ready")
            self._show()
        # Earlier warnings would repeat the problem.
        with warnings_printed("vibe_llms.runs"), warnings_printed("vibe_llms.storage"):
            for one in await backend.check():
                note("; ".join(filter(None, (f"note: {one.path}: {one.text}", one.remedy))))
            await asyncio.Event().wait()

    async def _wait(self, backend: Backend) -> None:
        while self._problem:
            await asyncio.sleep(_RETRY_SECONDS)
            try:
                await self._attempt(backend)
            except StorageError as error:
                self._report(error)

    async def _attempt(self, backend: Backend) -> None:
        await backend.prepare()
        if self._show_key is not None:
            self._key = await produce_users(backend).add_first()
        self._problem = ""

    def _report(self, error: StorageError) -> None:
        if str(error) != self._problem:
            self._problem = str(error)
            note(f"not ready yet: {error}")

    def _show(self) -> None:
        if self._key and self._show_key is not None:
            self._show_key(self._key)


@contextmanager
def warnings_printed(name: str, put: Callable[[str], None] = note) -> Iterator[None]:
    """Print the warnings of a logger within the block."""
    handler, logger = _Printing(put), logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Printing(logging.Handler):
    def __init__(self, put: Callable[[str], None]) -> None:
        super().__init__()
        self._put = put

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line, and the traceback of a fault."""
        self._put(self.format(record))


def note_timed(text: str) -> None:
    """Print a line of a server's log, with the time in UTC before it."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    note(f"{now} {text}")
