"""A relay to a server on this machine, which can be stopped as a server is: in mid-reply."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Self

_READ_BYTES = 64 * 1024


class Relay:
    """Passes bytes on while the context is open, and it is not stopped; its port stays its own."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._loop.close()

    def start(self) -> None:
        """Accept connections, at the port where they were accepted before."""
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    def stop(self) -> None:
        """Break all connections and accept none."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for writer in self._writers:
            writer.transport.abort()
        while self._writers:
            await asyncio.sleep(0.001)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection(*self._target)
        writers = {writer, other_writer}
        self._writers |= writers
        try:
            await asyncio.gather(_pass(reader, other_writer), _pass(other_reader, writer))
        except ConnectionError:
            pass
        finally:
            for one in writers:
                one.close()
            self._writers -= writers


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_READ_BYTES):
        writer.write(data)
        await writer.drain()
    writer.close()
