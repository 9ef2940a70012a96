"""`PostgresNews`: processes tell each other of which runs there is news, by LISTEN and NOTIFY.

Nothing relies on it: a message says which runs to look at, and those who wait look anyway, only
less often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress

from vibe_llms.exceptions import StorageError
from vibe_llms.runs.news import News
from vibe_llms.storage.postgres.connections import connect
from vibe_llms.storage.postgres.database import Database, database_errors
from vibe_llms.storage.postgres.pipelines import Statement

_EVENTS, _ORDERS = "vibe_run_events", "vibe_run_orders"
#: So often at most a process sends messages. PostgreSQL commits them one after the other.
_SEND_SECONDS = 0.1
#: A message has at most 8,000 bytes.
_RUNS = 100
_RECONNECT_SECONDS = 1.0


class PostgresNews:
    """Sends what this process does, and hears what others do once it was told to `listen`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        settings = database.settings
        # A pooler gives the connection that listens to others.
        self._dsn = settings.listen_dsn or ("" if settings.pooler else settings.dsn)
        #: Whether it hears what others do.
        self.hears = False
        self._heard: list[News] = []
        self._unsent: dict[str, set[str]] = {_EVENTS: set(), _ORDERS: set()}
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    def listen(self, news: News) -> None:
        """Report there what other processes do, from now on."""
        if not self._dsn or any(one is news for one in self._heard):
            return
        self._heard.append(news)
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen(), name="news of runs")

    def tell_events(self, *runs: str) -> None:
        """Tell other processes that runs have new events."""
        self._tell(_EVENTS, runs)

    def tell_orders(self, *runs: str) -> None:
        """Tell other processes that there is something to do about runs."""
        self._tell(_ORDERS, runs)

    async def close(self) -> None:
        """Stop listening, and send what is unsent; safe to call twice."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
        if self._sending is not None:
            await asyncio.wait([self._sending])

    def _tell(self, channel: str, runs: Iterable[str]) -> None:
        self._unsent[channel].update(runs)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send(), name="messages about runs")

    async def _send(self) -> None:
        while messages := [*self._take()]:
            notify = "select pg_notify(%s, %s)"
            with suppress(StorageError):
                await self._database.run([Statement("", notify, one) for one in messages])
            await asyncio.sleep(_SEND_SECONDS)

    def _take(self) -> Iterator[tuple[str, str]]:
        for channel, unsent in self._unsent.items():
            runs = sorted(unsent)
            unsent.clear()
            for start in range(0, len(runs), _RUNS):
                yield channel, " ".join(runs[start : start + _RUNS])

    async def _listen(self) -> None:
        while True:
            with suppress(StorageError), database_errors():
                await self._hear()
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _hear(self) -> None:
        """Hear messages until the connection ends."""
        settings = self._database.settings
        seconds = settings.connect_seconds
        connection = await connect(self._dsn, settings, seconds, autocommit=True)
        try:
            for channel in (_EVENTS, _ORDERS):
                await connection.execute(f"listen {channel}".encode())
            self.hears = True
            for news in self._heard:
                news.report_all()
            while True:
                # It is deaf without knowing if the host of the database has vanished.
                async for message in connection.notifies(timeout=seconds / 2):
                    self._report(message.channel, message.payload)
                await connection.execute("select 1")
        finally:
            self.hears = False
            await connection.close()

    def _report(self, channel: str, payload: str) -> None:
        for news in self._heard:
            for run in payload.split():
                news.report(run)
            if channel == _ORDERS:
                news.orders.set()
