"""A server of bytes: it sends exactly what a test gives it, when the test says so.

It runs in the loop of the test and knows no HTTP but where a request ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import ssl
import struct
import termios
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self, TypeAlias

#: What follows the bytes of a reply.
Then: TypeAlias = Literal["keep", "close", "reset", "truncate"]

#: Closing with it resets the connection.
NO_LINGER = struct.pack("ii", 1, 0)


class Left(Exception):
    """The client has closed the connection."""


class Peer:
    """The server's side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        #: Set as soon as the client has closed the connection.
        self.left = asyncio.Event()
        #: How many bytes were sent.
        self.sent = 0

    async def read_request(self) -> bytes:
        """The next request, head and body; `Left` where the client sends none."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
            size = 0
            for line in head.lower().split(b"\r\n"):
                name, _, value = line.partition(b":")
                if name == b"content-length":
                    size = int(value)
            return head + await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError) as error:
            self.left.set()
            raise Left from error

    async def send(self, *pieces: bytes) -> None:
        """Send these pieces, each in a packet of its own; `Left` where the client has closed."""
        for piece in pieces:
            try:
                self.writer.write(piece)
                await self.writer.drain()
            except OSError as error:
                self.left.set()
                raise Left from error
            self.sent += len(piece)
            # The client's side reads it before the next is sent.
            for _ in range(3):
                await asyncio.sleep(0)

    def deliver(self, data: bytes) -> None:
        """Send bytes and return when the client's system has them; the loop does not run."""
        self.writer.write(data)
        connection: socket.socket = self.writer.get_extra_info("socket")
        unread = struct.pack("i", 1)
        while struct.unpack("i", unread)[0]:
            time.sleep(0.0005)
            unread = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, unread)

    async def flood(self, piece: bytes, limit: int = 8_000_000) -> None:
        """Send a piece over and over until the client leaves; after `limit` bytes hold still."""
        while self.sent < limit:
            await self.send(piece)
        await self.hold()

    async def hold(self) -> None:
        """Send nothing more; `Left` as soon as the client has closed the connection."""
        with suppress(OSError):
            while await self.reader.read(65536):
                pass
        self.left.set()
        raise Left

    def reset(self) -> None:
        """Break the connection off."""
        connection: socket.socket = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self.writer.transport.abort()

    def truncate(self) -> None:
        """End the TCP connection; a TLS connection is not ended properly."""
        self.writer.transport.abort()

    async def finish(self, then: Then) -> None:
        """Do what follows a reply."""
        match then:
            case "keep":
                pass
            case "close":
                self.writer.close()
                with suppress(OSError):
                    await self.writer.wait_closed()
            case "reset":
                self.reset()
            case "truncate":
                self.truncate()


#: Answers one request.
Reply: TypeAlias = Callable[[Peer], Awaitable[None]]


def say(*pieces: bytes, then: Then = "keep") -> Reply:
    """A reply of these pieces, each in a packet of its own."""

    async def reply(peer: Peer) -> None:
        await peer.send(*pieces)
        await peer.finish(then)

    return reply


class RawServer:
    """Gives the n-th request of all the n-th reply, and each one after these the last."""

    def __init__(self, *replies: Reply, tls: ssl.SSLContext | None = None) -> None:
        self.replies = list(replies)
        self.requests: list[bytes] = []
        self.peers: list[Peer] = []
        self._tls = tls
        self._tasks: list[asyncio.Task[None]] = []
        self._running = 0

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The address, without a slash at its end."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", 0, ssl=self._tls, limit=1 << 20
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        # Connections that were made just before still begin.
        await asyncio.sleep(0)
        while running := [task for task in self._tasks if not task.done()]:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for peer in self.peers:
                # Those that never began have not done so.
                peer.writer.transport.abort()
            # The loop closes an aborted connection in its next step.
            await asyncio.sleep(0)
        for task in self._tasks:
            if error is None and not task.cancelled() and (failure := task.exception()):
                raise failure

    async def settle(self) -> None:
        """Wait until no reply is being sent."""
        while self._running:
            await asyncio.sleep(0)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.peers.append(Peer(reader, writer))
        self._tasks.append(asyncio.get_running_loop().create_task(self._serve(self.peers[-1])))

    async def _serve(self, peer: Peer) -> None:
        with suppress(Left):
            try:
                await self.serve(peer)
            finally:
                peer.writer.transport.abort()

    async def serve(self, peer: Peer) -> None:
        """Answer the requests of one connection."""
        while not peer.writer.is_closing():
            self.requests.append(await peer.read_request())
            self._running += 1
            try:
                await self.replies[min(len(self.requests), len(self.replies)) - 1](peer)
            finally:
                self._running -= 1
