"""A pooler in transaction mode: every transaction gets any of a few connections to the server.

So a client meets the sessions of others between two transactions, and with them the prepared
statements and settings that these left behind, or not its own.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from urllib.parse import quote

_STARTUP, _SSL = 196_608, (80_877_103, 80_877_104)


class _Server:
    """A connection to the server, and what it said of itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.greeting = b""


class Pooler:
    """Listens on a socket in a folder and passes transactions on; `used` counts them."""

    def __init__(self, upstream: Path, role: str, database: str, size: int, seed: int) -> None:
        self._upstream = upstream / ".s.PGSQL.5432"
        self._names = (role, database)
        self._size = size
        self._random = random.Random(seed)
        self._servers: list[_Server] = []
        self._free: list[_Server] = []
        self._clients: set[asyncio.Task[None]] = set()
        self._returned = asyncio.Condition()
        self.used: list[int] = []

    async def open(self) -> None:
        """Connect to the server."""
        for _ in range(self._size):
            reader, writer = await asyncio.open_unix_connection(self._upstream)
            values = b"".join(
                one.encode() + b"\0" for one in ("user", self._names[0], "database", self._names[1])
            )
            body = struct.pack("!i", _STARTUP) + values + b"\0"
            writer.write(struct.pack("!i", len(body) + 4) + body)
            server = _Server(reader, writer)
            kind = b""
            while kind != b"Z":
                kind, message = await _read(reader)
                assert kind != b"E", message
                server.greeting += message
            self._servers.append(server)
        self._free.extend(self._servers)

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Begin to serve a client."""
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client until it leaves."""
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = struct.unpack("!i", await reader.readexactly(4))
                (code,) = struct.unpack("!i", (await reader.readexactly(size - 4))[:4])
                if code not in _SSL:
                    break
                writer.write(b"N")
            writer.write(self._free[0].greeting if self._free else await self._greet())
            while True:
                kind, message = await _read(reader)
                if kind == b"X":
                    break
                await self._pass_on(message, reader, writer)

    async def _greet(self) -> bytes:
        server = await self._take()
        await self._give(server)
        return server.greeting

    async def _take(self) -> _Server:
        async with self._returned:
            await self._returned.wait_for(lambda: bool(self._free))
            server = self._free.pop(self._random.randrange(len(self._free)))
            self.used.append(id(server))
            return server

    async def _give(self, server: _Server) -> None:
        async with self._returned:
            self._free.append(server)
            self._returned.notify()

    async def _pass_on(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass a transaction on, which begins with a message of the client."""
        server = await self._take()
        server.writer.write(first)

        async def send() -> None:
            while True:
                _, message = await _read(reader)
                server.writer.write(message)

        sending = asyncio.ensure_future(send())
        try:
            while True:
                kind, message = await _read(server.reader)
                writer.write(message)
                if kind == b"Z" and message[5:6] == b"I":
                    break
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, asyncio.IncompleteReadError):
                await sending
        await self._give(server)

    async def close(self) -> None:
        """Close the connections to clients and to the server."""
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        for server in self._servers:
            server.writer.close()


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The kind of the next message, and all of it."""
    head = await reader.readexactly(5)
    (size,) = struct.unpack("!i", head[1:])
    return head[:1], head + await reader.readexactly(size - 4)


@asynccontextmanager
async def pooled(
    folder: Path, upstream: Path, role: str, database: str, *, size: int = 6, seed: int = 7
) -> AsyncIterator[tuple[str, Pooler]]:
    """A pooler before a database: the connection string that leads to it, and itself."""
    pooler = Pooler(upstream, role, database, size, seed)
    await pooler.open()
    server = await asyncio.start_unix_server(pooler.serve, folder / ".s.PGSQL.5432")
    try:
        yield f"postgresql://{role}@/{database}?host={quote(str(folder), safe='')}", pooler
    finally:
        server.close()
        await pooler.close()
