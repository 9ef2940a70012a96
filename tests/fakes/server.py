"""A small HTTP/1.1 server in a thread of its own, made to misbehave on demand."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

#: How a reply may end before its time: the connection is closed or reset, or the body is ended as
#: if it were whole.
End = Literal["close", "reset", "clean"]

_READ_BYTES = 64 * 1024
#: The first byte of who wants to speak TLS, which is not spoken here.
_TLS = b"\x16"


@dataclass(frozen=True)
class Request:
    """What the server was sent."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Answer:
    """What the server answers.

    `chunks` are sent one by one, each as an HTTP chunk of its own; with a `content-length` among
    the headers they are sent as they are. `drop` ends the connection before anything is answered,
    `cut` after so many bytes of the body, as `end` says. `stall` is the number of bytes of the body
    after which nothing more is sent until the client leaves; -1 is before the headers. `delay` is
    waited before the headers, `pause` between two chunks. `await_requests` holds the answer back
    until the server has had so many requests in all.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    chunks: Sequence[bytes] = ()
    drop: End | None = None
    cut: int | None = None
    end: End = "close"
    stall: int | None = None
    delay: float = 0.0
    pause: float = 0.0
    await_requests: int = 0


Responder = Callable[[Request], Answer]


class _Left(Exception):
    """The client has closed the connection."""


class FakeServer:
    """Serves on a free port of this machine while the context is open.

    `heads` are the first lines of the requests as they came in, `requests` the whole ones.
    `closed_by_client` counts the connections that the client closed before the answer was whole.
    `upload_pause` is waited once, when half of a request's body has been read.
    """

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.requests: list[Request] = []
        self.closed_by_client = 0
        self.connections = 0
        self.open_connections = 0
        self.upload_pause = 0.0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._port = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def respond(self, request: Request) -> Answer:
        raise NotImplementedError

    async def settled(self) -> None:
        """Wait until no connection is open any more; fails after some seconds."""
        async with asyncio.timeout(10):
            while self.open_connections:
                await asyncio.sleep(0.005)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self._arrived = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=1024)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open_connections += 1
        try:
            while (request := await self._read(reader)) is not None:
                async with self._arrived:
                    self.requests.append(request)
                    self._arrived.notify_all()
                if not await self._answer(reader, writer, self.respond(request)):
                    break
        except (_Left, ConnectionError):
            self.closed_by_client += 1
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            self.open_connections -= 1

    async def _read(self, reader: asyncio.StreamReader) -> Request | None:
        try:
            begin = await reader.readexactly(1)
            if begin == _TLS:
                return None
            head = begin + await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        self.heads.append(first)
        method, path, _ = first.split(" ", 2)
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines if line)
        }
        assert "content-length" in headers or method == "GET", "a body without its length"
        left = size = int(headers.get("content-length", "0"))
        parts: list[bytes] = []
        pause = self.upload_pause
        while left:
            if pause and left < size / 2:
                await asyncio.sleep(pause)
                pause = 0.0
            part = await reader.read(min(left, _READ_BYTES))
            if not part:
                raise _Left
            parts.append(part)
            left -= len(part)
        return Request(method, path, headers, b"".join(parts))

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer
    ) -> bool:
        """Send an answer; whether the connection goes on."""
        sending = asyncio.ensure_future(self._send(writer, answer))
        leaving = asyncio.ensure_future(_watch_leaving(reader))
        try:
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise _Left
            return sending.result()
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, writer: asyncio.StreamWriter, answer: Answer) -> bool:
        await asyncio.sleep(answer.delay)
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= answer.await_requests)
        if answer.drop is not None:
            return self._end(writer, answer.drop, chunked=False)
        if answer.stall == -1:
            await asyncio.Event().wait()
        chunked = "content-length" not in answer.headers
        framing = {"transfer-encoding": "chunked"} if chunked else {}
        headers = {**framing, **answer.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 {answer.status} Fake\r\n{lines}\r\n".encode())
        sent = 0
        for chunk in answer.chunks:
            for limit in (answer.stall, answer.cut):
                if limit is not None and sent + len(chunk) > limit:
                    await self._write(writer, chunk[: limit - sent], chunked)
                    if limit == answer.stall:
                        await asyncio.Event().wait()
                    return self._end(writer, answer.end, chunked)
            await self._write(writer, chunk, chunked)
            sent += len(chunk)
            await asyncio.sleep(answer.pause)
        if answer.stall is not None:
            await asyncio.Event().wait()
        if answer.cut is not None:
            return self._end(writer, answer.end, chunked)
        if chunked:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _write(self, writer: asyncio.StreamWriter, data: bytes, chunked: bool) -> None:
        if data:
            writer.write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
            await writer.drain()

    def _end(self, writer: asyncio.StreamWriter, end: End, chunked: bool) -> bool:
        if end == "clean":
            assert chunked, "only chunks can be ended early without a trace"
            writer.write(b"0\r\n\r\n")
            return True
        if end == "reset":
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            writer.transport.abort()
        return False


async def _watch_leaving(reader: asyncio.StreamReader) -> None:
    # Nothing is read: it could be the next request.
    while not reader.at_eof() and reader.exception() is None:
        await asyncio.sleep(0.002)
