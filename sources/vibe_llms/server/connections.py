"""`Connection`: limits on client connections before request headers are complete."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vibe_llms.server.descriptors import ConnectionLimits
from vibe_llms.server.exchanges import ARRIVED, LOST

#: Longest time from the first byte of a request to the end of its headers.
_HEADER_SECONDS = 15.0
#: Connections above the limit that receive a refusal, and seconds for each.
_MOST_REFUSALS = 32
_REFUSE_SECONDS = 1.0
#: Written by uvicorn before the head if the client waits for it before sending the body.
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
#: Largest part of a body that is copied to be written together with the head.
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


class HttpConnection(HttpToolsProtocol):
    """Uvicorn's protocol, with limits on data read before a request is complete.

    A connection may be idle for the configured time, but headers must arrive faster. Their size is
    limited by the configured size of incomplete events.
    """

    #: Done when the connection is lost.
    lost: asyncio.Future[None]
    _admitted = True
    _timer: asyncio.TimerHandle | None = None
    #: True if request headers are arriving, and the number of their bytes so far.
    _begun = False
    _received = 0

    def __init__(self, *values: Any, limits: ConnectionLimits, **named: Any) -> None:
        super().__init__(*values, **named)
        self._limits = limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request, or refuse the connection."""
        super().connection_made(transport)
        self.lost = self.loop.create_future()
        self._admitted = self._limits.admit(len(self.connections))
        if self._admitted:
            self._await_headers(self.timeout_keep_alive)
        elif len(self.connections) > self._limits.all + _MOST_REFUSALS:
            transport.abort()
        else:
            # A client reads the refusal only after it has sent something.
            self._timer = self.loop.call_later(_REFUSE_SECONDS, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting and tell the application."""
        self._stop_waiting()
        self.lost.set_result(None)
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Expect the headers of a request."""
        super().on_message_begin()
        self.scope.setdefault("state", {})[LOST] = self.lost
        self._stop_waiting()
        self._begun = True

    def on_headers_complete(self) -> None:
        """Let the application handle the request."""
        self._stop_waiting()
        self._begun = False
        super().on_headers_complete()
        if self.scope["method"] != "HEAD":
            # A HEAD response has no body to join with the head.
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
        """Close a connection without a complete request."""
        self._stop_waiting()
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Handle a part of a request; close the connection if its headers are too long."""
        if not self._admitted:
            self.transport.write(_FULL)
            self.transport.close()
            return
        super().data_received(data)
        if (self._begun or self._timer is not None) and not self.transport.is_closing():
            if self._begun and self._timer is None:
                # Headers mostly arrive in one piece, and then need no timer.
                self._await_headers(min(_HEADER_SECONDS, self.timeout_keep_alive))
            self._received += len(data)
            if self._received > (self.config.h11_max_incomplete_event_size or 0):
                self.transport.write(_TOO_LONG)
                self.transport.close()

    def _await_headers(self, seconds: float) -> None:
        self._stop_waiting()
        self._received = 0
        self._limits.waiting[self] = None
        self._timer = self.loop.call_later(seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        self._limits.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _JoinedTransport(asyncio.Transport):
    """Transport of one response, which writes the head together with the first body part."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._head: bytes | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write a part of the response; the head is held back until the next part."""
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
        """Write the held head, and close the connection."""
        if self._head:
            self._transport.write(self._head)
        self._transport.close()

    def is_closing(self) -> bool:
        """Return True if the connection is being closed."""
        return self._transport.is_closing()
