"""A small HTTP/1.1 server in its own thread, which misbehaves on demand.

It is independent of providers: subclasses of `Listener` answer the requests.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import msgspec
from msgspec import Struct, field

#: Ways to end a reply early: close or reset the connection, or end the body as if it were whole.
End: TypeAlias = Literal["close", "reset", "clean"]
#: Position after all bytes of a body.
BEHIND = sys.maxsize

_READ_BYTES = 64 * 1024
_HEAD_BYTES = 256 * 1024
_RECEIVED_BYTES = 512 * 1024
_STOP_SECONDS = 10.0
_WATCH_SECONDS = 0.002
#: First byte of a TLS connection, which is not supported.
_TLS = b"\x16"


class ReceivedRequest(Struct, frozen=True):
    """A received request; the names of `headers` are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The decoded body; raises `ValueError` if it is not JSON."""
        return msgspec.json.decode(self.body)


class HttpAnswer(Struct):
    """An answer of the server.

    Each of `chunks` is sent as an HTTP chunk, or plainly if `headers` has a `content-length`.
    `drop` ends the connection before the answer; `cut` ends it after this number of bytes of the
    body, as `end` says. After `stall` bytes of the body, nothing more is sent until the client
    leaves; -1 is before the headers. The seconds to wait are `delay` before the headers, `pause`
    between two chunks, and `waits` before the chunk with this index. With `await_requests`, the
    answer waits until the server has received this number of requests.
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
    waits: Mapping[int, float] = {}
    await_requests: int = 0


class _Left(Exception):
    """The client has closed the connection."""


class Listener:
    """A server on this machine only, open within `with` or `async with`.

    `port` 0 chooses a free one. While `recording` is on, `requests` holds all complete requests and
    `heads` their first lines. `closed_by_client` counts connections that the client closed before
    the answer was whole. `upload_pause` is a single wait, in seconds, after half of a request's
    body. An exception in `respond` closes its connection, and is raised again at the end of the
    context.
    """

    def __init__(self, *, port: int = 0, recording: bool = True) -> None:
        self.recording = recording
        self.heads: list[str] = []
        self.requests: list[ReceivedRequest] = []
        self.closed_by_client = 0
        self.connections = 0
        self.open_connections = 0
        self.upload_pause = 0.0
        self._count = 0
        self._port = port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="fake server", daemon=True)

    @property
    def url(self) -> str:
        """The address, without a slash at its end."""
        return f"http://127.0.0.1:{self._port}"

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        """Return the answer to a request; called in the server's thread."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._loop is None:
            self._thread.join()
            raise self._failures.pop()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_STOP_SECONDS)
        if self._failures and error is None:
            raise self._failures[0]

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._failures.append(error)
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self._arrived = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        # With TCP as the protocol, asyncio sends every chunk at once.
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # A small buffer blocks the sender soon if the server does not read.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_BYTES)
        try:
            listening.bind(("127.0.0.1", self._port))
        except OSError:
            listening.close()
            raise
        server = await asyncio.start_server(
            self._begin, sock=listening, backlog=1024, limit=_HEAD_BYTES
        )
        self._port = server.sockets[0].getsockname()[1]
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._accept(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._conclude)

    def _conclude(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failures.append(error)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        try:
            while (request := await self._read(reader, writer)) is not None:
                async with self._arrived:
                    self._count += 1
                    if self.recording:
                        self.requests.append(request)
                    self._arrived.notify_all()
                if not await self._answer(reader, writer, self.respond(request)):
                    break
        except (_Left, ConnectionError):
            self.closed_by_client += 1
        finally:
            writer.close()
            self.open_connections -= 1

    async def _read(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> ReceivedRequest | None:
        try:
            begin = await reader.readexactly(1)
            if begin == _TLS:
                return None
            head = begin + await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        if self.recording:
            self.heads.append(first)
        method, _, rest = first.partition(" ")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines if line)
        }
        if headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await self._read_body(reader, method, headers)
        return ReceivedRequest(method, rest.rpartition(" ")[0], headers, body)

    async def _read_body(
        self, reader: asyncio.StreamReader, method: str, headers: Mapping[str, str]
    ) -> bytes:
        """Read the body of a request, of a known length or in chunks."""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await _read_chunks(reader)
        reported = headers.get("content-length", "")
        left = size = int(reported) if reported.isdecimal() else 0
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
        return b"".join(parts)

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: HttpAnswer
    ) -> bool:
        """Send an answer, and return True if the connection stays open."""
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

    async def _send(self, writer: asyncio.StreamWriter, answer: HttpAnswer) -> bool:
        await asyncio.sleep(answer.delay)
        async with self._arrived:
            await self._arrived.wait_for(lambda: self._count >= answer.await_requests)
        if answer.drop is not None:
            return self._end(writer, answer.drop)
        if answer.stall == -1:
            await asyncio.Event().wait()
        chunked = "content-length" not in answer.headers
        framing = {"transfer-encoding": "chunked"} if chunked else {}
        headers = {**framing, **answer.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 {answer.status} Fake\r\n{lines}\r\n".encode())
        sent = 0
        for index, chunk in enumerate(answer.chunks):
            if wait := answer.waits.get(index):
                await writer.drain()
                await asyncio.sleep(wait)
            for limit in (answer.stall, answer.cut):
                if limit is not None and sent + len(chunk) > limit:
                    await self._write(writer, chunk[: limit - sent], chunked)
                    if limit == answer.stall:
                        await asyncio.Event().wait()
                    return self._end(writer, answer.end)
            await self._write(writer, chunk, chunked)
            sent += len(chunk)
            await asyncio.sleep(answer.pause)
        await writer.drain()
        if answer.stall is not None:
            await asyncio.Event().wait()
        if answer.cut is not None:
            return self._end(writer, answer.end)
        if chunked:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _write(self, writer: asyncio.StreamWriter, data: bytes, chunked: bool) -> None:
        if data:
            writer.write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
            await writer.drain()

    def _end(self, writer: asyncio.StreamWriter, end: End) -> bool:
        """End the connection, or with `clean` only the body, and return True if it stays open."""
        if end == "clean":
            writer.write(b"0\r\n\r\n")
            return True
        if end == "reset":
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            writer.transport.abort()
        return False


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    try:
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            parts.append(await reader.readexactly(size))
            await reader.readexactly(2)
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise _Left from error
    return b"".join(parts)


async def _watch_leaving(reader: asyncio.StreamReader) -> None:
    # Do not read: the data may be the next request.
    while not reader.at_eof() and reader.exception() is None:  # noqa: ASYNC110
        await asyncio.sleep(_WATCH_SECONDS)
