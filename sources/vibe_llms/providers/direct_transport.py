"""Requests over asyncio connections of our own; httptools (llhttp) parses the replies.

The rules of HTTP/1.1 that are named here are from RFC 9112.
"""

from __future__ import annotations

import asyncio
import base64
import select
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import quote, unquote, urlsplit

from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.base.files import limit_descriptors
from vibe_llms.base.network.connections import (
    AddressRefused,
    encode_host,
    find_permitted,
    inflate,
    is_address,
    permitted_kinds,
    produce_tls_context,
)
from vibe_llms.providers.transport import (
    KEPT_CONNECTIONS,
    Endpoint,
    Incoming,
    Outgoing,
    check_address,
    check_headers,
    read_headers,
    words_of,
)

if TYPE_CHECKING:
    import ssl

    import httptools

#: Maximum size of a head, and of the framing between two parts of a body.
FRAMING_BYTES = 100 * 1024
#: Bytes that may wait for a slow reader before reading pauses.
BUFFER_BYTES = 256 * 1024
_PIECE_BYTES = 64 * 1024
#: Seconds until another address of a name is tried (RFC 8305).
_EYEBALLS_SECONDS = 0.25
#: Maximum number of idle connections; an eighth of the process's descriptors is another limit.
_MOST_KEPT = 1024
_PORTS = {"http": 80, "https": 443}
#: Interim statuses that every client ignores (RFC 9110, RFC 2518, RFC 8297).
_INTERIM = (100, 102, 103)
#: Characters that are not quoted, in a path and in a query; the same as in httpx2.
_PATH = "!$%&'()*+,/:;=@[\\]^|"
_QUERY = _PATH + "?`{}"


class DirectTransport:
    """Transport over connections to one server, with these headers; idle connections are reused.

    Creating one raises `ImportError` if httptools cannot be imported.
    """

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str]) -> None:
        import httptools  # noqa: F401

        parts = check_address(endpoint.base_url, endpoint.provider)
        self._endpoint = endpoint
        self._host = encode_host(parts.hostname or "")
        self._port = parts.port or _PORTS[parts.scheme]
        self._secure = parts.scheme == "https"
        self._tls: ssl.SSLContext | None = None
        host = f"[{self._host}]" if ":" in self._host else self._host
        place = "" if self._port == _PORTS[parts.scheme] else f":{self._port}"
        self._headers = {"host": f"{host}{place}", "accept": "*/*"}
        self._headers |= check_headers(headers, endpoint.provider)
        if parts.username or parts.password:
            user = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
            self._headers["authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        self._lines = _write_headers(self._headers)
        self._connections: set[_Connection] = set()
        self._idle: deque[_Connection] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._most_kept = max(KEPT_CONNECTIONS, min(_MOST_KEPT, limit_descriptors() // 8))

    def prepare(self) -> None:
        """Read the certificates; see `Transport`."""
        if self._secure and self._tls is None:
            try:
                self._tls = produce_tls_context()
            except OSError as error:
                raise ConfigurationError(
                    "the certificates named in the environment (SSL_CERT_FILE, SSL_CERT_DIR) "
                    f"cannot be loaded: {words_of(error)}"
                ) from error

    def open(self, outgoing: Outgoing, body: AsyncIterator[bytes]) -> _Opened:
        """Send a request and return its reply; see `Transport`."""
        return _Opened(self, outgoing, body)

    async def access_connection(self) -> _Connection:
        """Return a connection for one request: an idle one, or a new one."""
        return self._take() or await self._connect()

    async def ask(
        self, connection: _Connection, head: bytes, body: AsyncIterator[bytes]
    ) -> Incoming:
        """Send a request over a connection, and wait for the head of its reply."""
        await self._send(connection, head, body)
        while not connection.status:
            if connection.error is not None:
                raise self._endpoint.broken(connection.error) from connection.cause
            await connection.wait()
        chunks: AsyncIterator[bytes] = _Body(connection, self._endpoint)
        headers = read_headers(connection.headers)
        encoding = headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            chunks = _inflate(chunks, encoding, self._endpoint)
        return Incoming(connection.status, headers, chunks)

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._idle.clear()
        for connection in list(self._connections):
            connection.abort()
        while self._connections:
            await next(iter(self._connections)).ended

    def encode_head(self, outgoing: Outgoing) -> bytes:
        """Encode the head of a request; raise `ConfigurationError` if a header cannot be sent."""
        added = check_headers(outgoing.headers, self._endpoint.provider)
        if outgoing.body or outgoing.method == "POST":
            added["content-length"] = str(outgoing.size)
        lines = self._lines
        if not added.keys().isdisjoint(self._headers):
            lines = _write_headers({k: v for k, v in self._headers.items() if k not in added})
        target = _find_target(self._endpoint.base_url + outgoing.path)
        lines += _write_headers(added)
        return f"{outgoing.method} {target} HTTP/1.1\r\n{lines}\r\n".encode("ascii")

    async def _send(self, connection: _Connection, head: bytes, body: AsyncIterator[bytes]) -> None:
        """Write a request; stop if the server answers before it has everything."""
        waiting = head
        async for part in body:
            for start in range(0, len(part), _PIECE_BYTES):
                piece = part if len(part) <= _PIECE_BYTES else part[start : start + _PIECE_BYTES]
                connection.write(waiting + piece)
                waiting = b""
                if connection.stalled:
                    try:
                        async with asyncio.timeout(self._endpoint.idle_seconds):
                            while connection.stalled:
                                await connection.wait()
                    except TimeoutError as error:
                        raise self._endpoint.write_timeout() from error
                if connection.status or connection.closing:
                    return
        if waiting:
            connection.write(waiting)
        connection.sent = True

    def _take(self) -> _Connection | None:
        """Take the idle connection that was used last."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_quiet():
                return connection
            connection.abort()
        return None

    async def _connect(self) -> _Connection:
        self.prepare()
        endpoint = self._endpoint
        try:
            async with asyncio.timeout(endpoint.connect_seconds):
                return await self._reach()
        except TimeoutError as error:
            raise endpoint.connect_timeout() from error
        except (OSError, UnicodeError, AddressRefused) as error:
            raise endpoint.not_connected(error) from error

    async def _reach(self) -> _Connection:
        """Connect to the first address that accepts a connection."""
        endpoint = self._endpoint
        kinds = permitted_kinds(endpoint.kinds, offline=endpoint.offline)
        if kinds is None:
            return await self._dial(self._host)
        addresses = await find_permitted(self._host, self._port, kinds, endpoint.resolver)
        for address in addresses:
            try:
                async with asyncio.timeout(endpoint.connect_seconds / len(addresses)):
                    return await self._dial(address)
            except OSError:
                if address == addresses[-1]:
                    raise
        raise OSError(f"{self._host} has no address")

    async def _dial(self, host: str) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: _Connection(loop, self._connections),
            host,
            self._port,
            ssl=self._tls,
            server_hostname=self._host if self._tls else None,
            # An address needs no further tasks; a name may have several addresses.
            happy_eyeballs_delay=None if is_address(host) else _EYEBALLS_SECONDS,
        )
        return connection

    def release(self, connection: _Connection) -> None:
        """Keep a connection for the next request if that is possible; otherwise close it."""
        if not connection.rest():
            connection.abort()
            return
        self._idle.append(connection)
        if len(self._idle) > self._most_kept:
            self._idle.popleft().abort()
        if self._timer is None:
            self._expect_expiry()

    def _expect_expiry(self) -> None:
        loop = asyncio.get_running_loop()
        due = self._idle[0].idle_since + self._endpoint.kept_seconds
        self._timer = loop.call_at(due, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._idle and self._idle[0].idle_since + self._endpoint.kept_seconds <= now:
            self._idle.popleft().abort()
        if self._idle:
            self._expect_expiry()


def _write_headers(headers: Mapping[str, str]) -> str:
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


@lru_cache(64)
def _find_target(url: str) -> str:
    parts = urlsplit(url)
    path = quote(_drop_dots(parts.path), safe=_PATH) or "/"
    return f"{path}?{quote(parts.query, safe=_QUERY)}" if parts.query else path


def _drop_dots(path: str) -> str:
    """Remove the segments `.` and `..` of a path (RFC 3986)."""
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == ".." and kept not in ([], [""]):
            kept.pop()
        elif segment not in (".", ".."):
            kept.append(segment)
    return "/".join(kept)


class _Connection(asyncio.Protocol):
    """Connection to the server, and the reply that it is reading.

    The parser calls the methods `on_…`; errors in its input end the connection.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, connections: set[_Connection]) -> None:
        self.parts: list[bytes] = []
        self.on_body = self.parts.append
        self.ended: asyncio.Future[None] = loop.create_future()
        self.idle_since = 0.0
        self._loop = loop
        self._connections = connections
        self._transport: asyncio.Transport
        self._parser: httptools.HttpResponseParser | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._full = False
        self._paused = False
        self._reset()

    # Called by requests.

    def write(self, data: bytes) -> None:
        """Send more of the request; its first bytes begin the exchange."""
        if self._parser is None:
            self._begin()
        self._transport.write(data)

    def _begin(self) -> None:
        import httptools

        self._reset()
        self._parser = httptools.HttpResponseParser(self)
        if self._transport.is_closing():
            self._fail("the server closed the connection, or sent data before the request")

    def _reset(self) -> None:
        self.parts.clear()
        #: Status of the reply; 0 until its head is complete.
        self.status = 0
        self.headers: dict[str, str] = {}
        #: True if the reply is complete, and if the request was sent completely.
        self.complete = self.sent = False
        #: Reason why nothing more will arrive.
        self.error: str | None = None
        self.cause: BaseException | None = None
        self._reusable = False
        self._held = self._framing = 0
        self._until_close = self._ended_cleanly = False

    @property
    def closing(self) -> bool:
        """True if nothing more can be sent."""
        return self.error is not None or self._transport.is_closing()

    @property
    def stalled(self) -> bool:
        """True if the server takes no more of the request, and has not answered it."""
        return self._full and not self.status and self.error is None

    async def wait(self) -> None:
        """Wait until the state of the connection changes."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def take(self) -> bytes:
        """Return the part of the body that has arrived."""
        parts = self.parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._held = 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return data

    def rest(self) -> bool:
        """End the exchange; return True if the connection can serve another."""
        self._parser = None
        self.idle_since = self._loop.time()
        clean = self.complete and self.sent and self._reusable and not self._paused
        return clean and not self._transport.is_closing()

    def is_quiet(self) -> bool:
        """Return True if an idle connection is open and has received nothing unexpected."""
        if self._transport.is_closing():
            return False
        descriptor = self._transport.get_extra_info("socket").fileno()
        if not hasattr(select, "poll"):  # Windows
            return not select.select([descriptor], [], [], 0)[0]
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return not poll.poll(0)

    def abort(self) -> None:
        """Close at once; unsent data is lost."""
        self._transport.abort()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        import httptools

        if self._parser is None or self.complete:
            # Unexpected data must not be read as the reply to the next request.
            self._reusable = False
            self._transport.abort()
            return
        held = len(self.parts)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("the server switched to another protocol")
        except httptools.HttpParserError as error:
            self._reusable = False
            if not self.complete:
                self._fail(f"malformed HTTP ({words_of(error)})", error)
        self._framing = 0 if len(self.parts) > held else self._framing + len(data)
        if self._framing > FRAMING_BYTES:
            self._fail(f"more than {FRAMING_BYTES:,} bytes of headers or framing")
        self._held += len(data)
        if self._held > BUFFER_BYTES and not self.complete and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        import ssl

        cipher = self._transport.get_extra_info("ssl_object")
        # asyncio also calls this if the server did not end the TLS connection. After a proper end,
        # there is nothing more to read.
        with suppress(ssl.SSLError):
            self._ended_cleanly = cipher is None or not cipher.read(1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        if self._parser is not None and not self.complete:
            if exc is None and self._ended_cleanly and self.status and self._until_close:
                self.complete = True
            else:
                words = "the server closed the connection" if exc is None else words_of(exc)
                self._fail(words, exc)
        self._wake()
        if not self.ended.done():
            self.ended.set_result(None)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._wake()

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self.complete:
            raise ValueError("a second response")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:
            # A trailer's header.
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        encoding = self.headers.get("transfer-encoding", "")
        if status < 200 and (status not in _INTERIM or encoding):
            self._refuse(f"the interim status {status}")
        if encoding.lower() not in ("", "chunked"):
            self._refuse(f"Transfer-Encoding: {encoding[:40]!r}")
        if status < 200:
            # The reply is still to come.
            self.headers = {}
            return
        self.status = status
        self._until_close = not encoding and "content-length" not in self.headers

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self.status:
            self.complete = True
            self._reusable = self._parser.should_keep_alive()

    def _refuse(self, what: str) -> None:
        self._fail(f"the server sent {what}, which is not supported")
        raise ValueError(what)

    def _fail(self, reason: str, cause: BaseException | None = None) -> None:
        if self.error is None:
            self.error, self.cause = reason, cause
        self._reusable = False
        self._transport.abort()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Opened(AbstractAsyncContextManager[Incoming]):
    """Request that is sent when the block begins; its end releases the connection."""

    def __init__(
        self, transport: DirectTransport, outgoing: Outgoing, body: AsyncIterator[bytes]
    ) -> None:
        self._transport = transport
        self._outgoing = outgoing
        self._body = body

    async def __aenter__(self) -> Incoming:
        head = self._transport.encode_head(self._outgoing)
        self._connection = await self._transport.access_connection()
        answered = False
        try:
            incoming = await self._transport.ask(self._connection, head, self._body)
            answered = True
        finally:
            if not answered:
                self._transport.release(self._connection)
        return incoming

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._transport.release(self._connection)


class _Body:
    """Bytes of a reply as they arrive; each piece holds all that arrived since the last one."""

    def __init__(self, connection: _Connection, endpoint: Endpoint) -> None:
        self._connection = connection
        self._endpoint = endpoint

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        connection = self._connection
        while not connection.parts:
            if connection.complete:
                raise StopAsyncIteration
            if connection.error is not None:
                raise self._endpoint.cut(connection.error) from connection.cause
            await connection.wait()
        return connection.take()


async def _inflate(
    chunks: AsyncIterator[bytes], encoding: str, endpoint: Endpoint
) -> AsyncIterator[bytes]:
    try:
        async for piece in inflate(chunks, encoding):
            yield piece
    except ValueError as error:
        raise endpoint.cut(words_of(error)) from error
