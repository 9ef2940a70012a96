"""`News`: wakes those in this process who wait for something to happen to a run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class News:
    """What is known to have happened; whether anything did is in the store.

    `orders` is set when there may be something for a worker to do.
    """

    def __init__(self) -> None:
        self.orders = asyncio.Event()
        self._expected: dict[str, set[asyncio.Event]] = {}

    @contextmanager
    def expecting(self, run: str) -> Iterator[asyncio.Event]:
        """An event that is set when something happens to a run within the block."""
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
        """Something happened to a run."""
        for news in self._expected.get(run, ()):
            news.set()

    def report_all(self) -> None:
        """Something may have happened to any run."""
        self.orders.set()
        for run in self._expected:
            self.report(run)


async def wait_for(news: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, but not for longer than so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await news.wait()
