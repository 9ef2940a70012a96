"""Runs the application with uvicorn: a socket, limits, and an end in order."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import uvicorn

from vibe_llms.configuration import Configuration
from vibe_llms.exceptions import RequestError
from vibe_llms.server.application import Application
from vibe_llms.server.connections import Connection
from vibe_llms.server.core import ServerCore
from vibe_llms.server.descriptors import ConnectionLimits, raise_descriptor_limit
from vibe_llms.server.settings import ServerSettings
from vibe_llms.server.sockets import bind, is_loopback
from vibe_llms.server.users import UserStore
from vibe_llms.server.working import check_agents
from vibe_llms.storage.backends import Backend

_BACKLOG = 2048
#: The most connections that are accepted in one step of the loop: fewer than the reserve of
#: descriptors has.
_ACCEPTED = 32
_KEEP_ALIVE_SECONDS = 75
#: What a request may have before its headers.
_FIRST_LINE_BYTES = 64 * 1024
#: The part of `shutdown-seconds` that requests have; the rest is for closing what they used.
_FOR_REQUESTS = 0.8
#: How long a cancelled request may take to say so to its client.
_ABORT_SECONDS = 0.1


class Server(uvicorn.Server):
    """Uvicorn without its signal handlers: the program that runs it decides when it ends."""

    def __init__(self, config: uvicorn.Config, opened: Callable[[], object]) -> None:
        """`opened` is called once it listens."""
        super().__init__(config)
        self._opened = opened

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        for one in sockets or ():
            # Asyncio accepts as many at once as it lets wait.
            one.listen(_BACKLOG)
        self._opened()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


class RunningServer:
    """A server that listens; `serve` returns once it has ended."""

    def __init__(
        self,
        configuration: Configuration,
        settings: ServerSettings,
        *,
        keys: bool,
        log: Callable[[str], object],
        opened: Callable[[], object] = lambda: None,
    ) -> None:
        """Bind the socket; `RequestError` if that is not possible, or not safe without keys.

        `ConfigurationError` names the row and the key if an agent cannot work.
        `opened` is called once it listens, and `log` with a line about each request.
        """
        if not keys and not is_loopback(settings.host):
            raise RequestError(
                f"without keys the server listens on this machine only, not on {settings.host}"
            )
        check_agents(configuration)
        self._core = ServerCore(configuration, settings)
        self._socket = bind(settings.host, settings.port)
        self._limits = limits = ConnectionLimits(settings, raise_descriptor_limit())
        config = uvicorn.Config(
            Application(self._core, log, limits=limits, keys=keys),
            http=partial(Connection, limits=limits),  # type: ignore[arg-type]
            h11_max_incomplete_event_size=settings.header_bytes + _FIRST_LINE_BYTES,
            ws="none",
            lifespan="off",
            interface="asgi3",
            access_log=False,
            log_config=None,
            log_level="critical",
            server_header=False,
            proxy_headers=False,
            backlog=_ACCEPTED,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        self._server = Server(config, opened)
        self.backend = self._core.spaces.backend
        #: Who may use it; without keys, these are not asked.
        self.users: UserStore = self._core.users
        self._seconds = settings.shutdown_seconds
        self._hurry = asyncio.Event()

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def serve(self, begin: Callable[[Backend], Awaitable[object]] | None = None) -> None:
        """Answer requests until `end` is called, and return at most `shutdown-seconds` later.

        `begin` is awaited before it listens. `FormatNewer` if it has ended because the database was
        changed for a newer version.
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
        """Stop accepting requests and end; a second call ends at once."""
        loop, seconds = asyncio.get_running_loop(), self._seconds
        if self._core.ending:
            seconds = 0.0
        self._core.ending = True
        self._core.spaces.worker.pause()
        self._server.should_exit = True
        loop.call_later(seconds * _FOR_REQUESTS, self._cut_off)
        loop.call_later(seconds, self._hurry.set)

    def _cut_off(self) -> None:
        """End all requests, and then the connections of clients that do not read."""
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
        """Close everything; what takes too long is cut off, and continued the next time."""
        closing = asyncio.create_task(self._core.close())
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait([closing, hurry], return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        closing.cancel()
        with suppress(asyncio.CancelledError):
            await closing
