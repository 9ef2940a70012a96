"""`RunningServer`: serves the application with uvicorn, with limits and an orderly shutdown."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import cast

import uvicorn

from vibe_llms.base.configuration import Configuration
from vibe_llms.base.exceptions import RequestError
from vibe_llms.server.application import Application
from vibe_llms.server.connections import HttpConnection
from vibe_llms.server.core import ServerCore
from vibe_llms.server.descriptors import ConnectionLimits, raise_descriptor_limit
from vibe_llms.server.settings import ServerSettings
from vibe_llms.server.sockets import bind, is_loopback
from vibe_llms.server.working import check_agents
from vibe_llms.storage.backends import Backend
from vibe_llms.storage.users import UserStore

_BACKLOG = 2048
#: Maximum number of connections accepted per step of the event loop, less than the reserve of
#: descriptors.
_MOST_ACCEPTED = 32
_KEEP_ALIVE_SECONDS = 75
#: Bytes allowed for the request line, in addition to the headers.
_FIRST_LINE_BYTES = 64 * 1024
#: Fraction of `shutdown-seconds` for requests; the rest is for closing resources.
_REQUEST_SHARE = 0.8
#: Seconds for a cancelled request to respond to its client.
_ABORT_SECONDS = 0.1
#: Seconds after which the `date` header is set again.
_DATE_SECONDS = 1.0
#: Seconds between the last accept and the end of listening.
_ACCEPT_SECONDS = 0.01
#: Seconds after which a shutdown looks for connections that it has not told to close.
_LATE_SECONDS = 0.1


class Server(uvicorn.Server):
    """Uvicorn that stops when the calling program decides, at once and without signal handlers.

    Uvicorn looks ten times a second whether it should stop, and waits that long for connections.
    """

    def __init__(self, config: uvicorn.Config, opened: Callable[[], object]) -> None:
        """Create a server; `opened` is called when it listens."""
        super().__init__(config)
        self._opened = opened
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Stop accepting connections, and return from `serve` when the present ones are done."""
        self.should_exit = True
        self._ended.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        for one in sockets or ():
            # Asyncio uses the backlog both for waiting connections and for accepts per step.
            one.listen(_BACKLOG)
        self._opened()

    async def main_loop(self) -> None:
        """Keep the `date` header current until `end` is called."""
        # A count of 0 sets the header.
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _DATE_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and wait for the responses in progress."""
        # Closed at once, asyncio (3.11) would leave connections open forever that it has accepted
        # and not yet given a protocol.
        for one in sockets or ():
            asyncio.get_running_loop().remove_reader(one)
        await asyncio.sleep(_ACCEPT_SECONDS)
        for closing in (*self.servers, *(sockets or ())):
            closing.close()
        state = self.server_state
        connections = cast("set[HttpConnection]", state.connections)
        while waited := [*state.tasks, *(connection.lost for connection in connections)]:
            for connection in list(connections):
                connection.shutdown()
            await asyncio.wait(waited, timeout=_LATE_SECONDS)
        for server in self.servers:
            await server.wait_closed()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


class RunningServer:
    """A listening server; `serve` returns when it has stopped."""

    def __init__(
        self,
        configuration: Configuration,
        settings: ServerSettings,
        *,
        keys: bool,
        log: Callable[[str], object],
        opened: Callable[[], object] = lambda: None,
    ) -> None:
        """Bind the socket.

        Args:
            keys: Require API keys. Without them, only loopback addresses are allowed.
            log: Called with a line about each request.
            opened: Called when the server listens.

        Raises:
            RequestError: The address cannot be bound, or is not safe without keys.
            ConfigurationError: An agent cannot work; names the row and the key.
        """
        if not keys and not is_loopback(settings.host):
            raise RequestError(
                f"without keys the server listens on this machine only, not on {settings.host}"
            )
        check_agents(configuration)
        self._core = ServerCore(configuration, settings, keys=keys)
        self._socket = bind(settings.host, settings.port)
        self._limits = limits = ConnectionLimits(settings, raise_descriptor_limit())
        config = uvicorn.Config(
            Application(self._core, log, limits=limits),
            http=partial(HttpConnection, limits=limits),  # type: ignore[arg-type]
            h11_max_incomplete_event_size=settings.header_bytes + _FIRST_LINE_BYTES,
            ws="none",
            lifespan="off",
            interface="asgi3",
            access_log=False,
            log_config=None,
            log_level="critical",
            server_header=False,
            proxy_headers=False,
            backlog=_MOST_ACCEPTED,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        self._server = Server(config, opened)
        self.backend = self._core.spaces.backend
        #: Users of the server, not consulted without keys.
        self.users: UserStore = self._core.users
        self._seconds = settings.shutdown_seconds
        self._hurry = asyncio.Event()

    @property
    def url(self) -> str:
        """URL at which the server listens."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def invite(self, user: str) -> str:
        """Return a URL of the web page with which one browser logs in as a user, once and soon."""
        return f"{self.url}/#code={self._core.logins.invite(user)}"

    async def serve(self, begin: Callable[[Backend], Awaitable[object]] | None = None) -> None:
        """Answer requests until `end` is called, and return at most `shutdown-seconds` later.

        `begin` is awaited before listening. Raises `FormatNewer` if the server stopped because the
        database was migrated for a newer version.
        """
        try:
            if begin is not None:
                await begin(self.backend)
            self._core.spaces.start(self.end)
            with self._limits.watch_loop():
                await self._server.serve(sockets=[self._socket])
        finally:
            self._socket.close()
            await self._close()
        if self._core.spaces.watch.outdated is not None:
            raise self._core.spaces.watch.outdated

    def end(self) -> None:
        """Stop accepting requests and shut down; a second call shuts down at once."""
        loop, seconds = asyncio.get_running_loop(), self._seconds
        if self._core.ending:
            seconds = 0.0
        self._core.ending = True
        self._core.spaces.worker.pause()
        self._server.end()
        loop.call_later(seconds * _REQUEST_SHARE, self._cut_off)
        loop.call_later(seconds, self._hurry.set)

    def _cut_off(self) -> None:
        """Cancel all requests, then abort the connections of clients that do not read."""
        state = self._server.server_state
        for task in state.tasks:
            task.cancel()
        asyncio.get_running_loop().call_later(_ABORT_SECONDS, self._abort)

    def _abort(self) -> None:
        for connection in list(self._server.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()

    async def _close(self) -> None:
        """Close everything; slow tasks are cancelled, and their runs continued later."""
        closing = asyncio.create_task(self._core.close())
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait([closing, hurry], return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        closing.cancel()
        with suppress(asyncio.CancelledError):
            await closing
