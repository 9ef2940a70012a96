"""Connections of clients: what a request may take before its headers are complete."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class Connection(HttpToolsProtocol):
    """Uvicorn's protocol, with limits on what it reads before it knows whose request it is.

    The time is that for which idle connections stay open, and the size that of the configuration
    for incomplete events.
    """

    _timer: asyncio.TimerHandle | None = None
    _received = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._cease()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Wait for the headers of a request."""
        super().on_message_begin()
        self._await_headers()

    def on_headers_complete(self) -> None:
        """Leave the rest to the application."""
        self._cease()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request; close the connection if its headers do not end."""
        super().data_received(data)
        if self._timer is not None and not self.transport.is_closing():
            self._received += len(data)
            if self._received > (self.config.h11_max_incomplete_event_size or 0):
                self.transport.write(_TOO_LONG)
                self.transport.close()

    def _await_headers(self) -> None:
        self._cease()
        self._received = 0
        self._timer = self.loop.call_later(self.timeout_keep_alive, self.transport.close)

    def _cease(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
