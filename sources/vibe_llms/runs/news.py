"""`News`: wakes tasks in this process that wait for changes to runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class News:
    """Wake-up signals for changes to runs; the facts are in the store.

    `orders` is set when there may be work for a worker.
    """

    def __init__(self) -> None:
        self.orders = asyncio.Event()
        self._expected: dict[str, set[asyncio.Event]] = {}

    @contextmanager
    def expecting(self, run: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set whenever the run changes within the block."""
        news = asyncio.Event()
        expecting = self._expected.setdefault(run, set())
        expecting.add(news)
        try:
            yield news
        finally:
            expecting.discard(news)
            if not expecting and self._expected.get(run) is expecting:
                del self._expected[run]

    def report(self, run: str) -> None:
        """Wake the tasks that wait for a run."""
        for news in self._expected.get(run, ()):
            news.set()

    def report_all(self) -> None:
        """Wake all tasks, because any run may have changed."""
        self.orders.set()
        for run in self._expected:
            self.report(run)


async def wait_for(news: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, for at most this many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await news.wait()
