"""`PostgresNews`: reports changes to runs between processes, with LISTEN and NOTIFY.

Messages may get lost: they say which runs to read, but waiting processes also poll, only less
often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress

from vibe_llms.base.exceptions import StorageError
from vibe_llms.runs.news import News
from vibe_llms.storage.postgres.connections import connect
from vibe_llms.storage.postgres.database import Database, database_errors
from vibe_llms.storage.postgres.pipelines import Statement

_EVENTS, _ORDERS = "vibe_run_events", "vibe_run_orders"
#: Shortest time between messages of a process. PostgreSQL commits notifications one by one.
_SEND_SECONDS = 0.1
#: Runs per message; a payload of NOTIFY must be shorter than 8,000 bytes.
_RUNS_PER_MESSAGE = 100
_RECONNECT_SECONDS = 1.0


class PostgresNews:
    """Sender of changes made here and, after `listen`, receiver of changes made elsewhere."""

    def __init__(self, database: Database) -> None:
        self._database = database
        settings = database.settings
        # A transaction pooler would give the listening connection to other clients.
        self._dsn = settings.listen_dsn or ("" if settings.pooler else settings.dsn)
        #: True if notifications of other processes are being received.
        self.hears = False
        self._heard: list[News] = []
        self._unsent: dict[str, set[str]] = {_EVENTS: set(), _ORDERS: set()}
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    def listen(self, news: News) -> None:
        """Report changes by other processes to `news` from now on."""
        if not self._dsn or any(one is news for one in self._heard):
            return
        self._heard.append(news)
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen(), name="news of runs")

    def tell_events(self, *runs: str) -> None:
        """Tell other processes that runs have new events."""
        self._tell(_EVENTS, runs)

    def tell_orders(self, *runs: str) -> None:
        """Tell other processes that runs need work."""
        self._tell(_ORDERS, runs)

    async def close(self) -> None:
        """Stop listening and send unsent messages; may be called twice."""
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
            for start in range(0, len(runs), _RUNS_PER_MESSAGE):
                yield channel, " ".join(runs[start : start + _RUNS_PER_MESSAGE])

    async def _listen(self) -> None:
        while True:
            with suppress(StorageError), database_errors():
                await self._hear()
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _hear(self) -> None:
        """Receive messages until the connection ends."""
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
                # If the host of the database has vanished, only a query finds out.
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
