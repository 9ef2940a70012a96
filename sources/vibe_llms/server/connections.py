"""Connections of clients: what a request may take before its headers are complete."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vibe_llms.server.descriptors import ConnectionLimits
from vibe_llms.server.exchanges import ARRIVED, LOST

#: The longest time from the first byte of a request to the end of its headers.
_HEADER_SECONDS = 15.0
#: This many connections above the limit may learn that they are refused, each in this time.
_REFUSED = 32
_REFUSE_SECONDS = 1.0
#: What uvicorn writes before the head, if the client waits for it before it sends the body.
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
#: The longest part of a body that is copied to be written with the head.
_JOINED_BYTES = 64 * 1024
_FULL_BODY = (
    b'{"error":{"message":"the server has too many connections; try again in a moment",'
    b'"type":"server_error","param":null,"code":"overloaded"}}'
)
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(_FULL_BODY), _FULL_BODY)
)
_TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class Connection(HttpToolsProtocol):
    """Uvicorn's protocol, with limits on what it reads before it knows whose request it is.

    A connection may be idle for the time that the configuration allows; a request that has begun
    has less. The size is that of the configuration for incomplete events.
    """

    _lost: asyncio.Future[None]
    _admitted = True
    _timer: asyncio.TimerHandle | None = None
    #: Whether the headers of a request are arriving, and how many bytes of them have.
    _begun = False
    _received = 0

    def __init__(self, *values: Any, limits: ConnectionLimits, **named: Any) -> None:
        super().__init__(*values, **named)
        self._limits = limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._lost = self.loop.create_future()
        self._admitted = self._limits.admit(len(self.connections))
        if self._admitted:
            self._await_headers(self.timeout_keep_alive)
        elif len(self.connections) > self._limits.all + _REFUSED:
            transport.abort()
        else:
            # A client reads the refusal only once it has sent something.
            self._timer = self.loop.call_later(_REFUSE_SECONDS, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._cease()
        self._lost.set_result(None)
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Expect the headers of a request."""
        super().on_message_begin()
        self.scope.setdefault("state", {})[LOST] = self._lost
        self._cease()
        self._begun = True

    def on_headers_complete(self) -> None:
        """Leave the rest to the application."""
        self._cease()
        self._begun = False
        super().on_headers_complete()
        if self.scope["method"] != "HEAD":
            # Nothing but the head answers that.
            self.cycle.transport = _JoinedTransport(self.transport)

    def on_message_complete(self) -> None:
        """Tell the application that the whole body has arrived."""
        self.scope.setdefault("state", {})[ARRIVED] = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if self.cycle is not None and self.cycle.response_complete and not self.pipeline:
            self._limits.waiting[self] = None

    def dismiss(self) -> None:
        """Close a connection that has no whole request."""
        self._cease()
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request; close the connection if its headers do not end."""
        if not self._admitted:
            self.transport.write(_FULL)
            self.transport.close()
            return
        super().data_received(data)
        if (self._begun or self._timer is not None) and not self.transport.is_closing():
            if self._begun and self._timer is None:
                # Most headers are in one piece, and no timer is needed.
                self._await_headers(min(_HEADER_SECONDS, self.timeout_keep_alive))
            self._received += len(data)
            if self._received > (self.config.h11_max_incomplete_event_size or 0):
                self.transport.write(_TOO_LONG)
                self.transport.close()

    def _await_headers(self, seconds: float) -> None:
        self._cease()
        self._received = 0
        self._limits.waiting[self] = None
        self._timer = self.loop.call_later(seconds, self.transport.close)

    def _cease(self) -> None:
        self._limits.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _JoinedTransport(asyncio.Transport):
    """The transport of one response: it writes the head with the first part of the body."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._head: bytes | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write a part of the response; the head waits for the next one."""
        if self._head is None and data != _CONTINUE:
            self._head = bytes(data)
            return
        if self._head:
            if len(data) <= _JOINED_BYTES:
                data = self._head + data
            else:
                self._transport.write(self._head)
            self._head = b""
        self._transport.write(data)

    def close(self) -> None:
        """Close the connection once all is written."""
        if self._head:
            self._transport.write(self._head)
        self._transport.close()

    def is_closing(self) -> bool:
        """Return True if the connection is being closed."""
        return self._transport.is_closing()
