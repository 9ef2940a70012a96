"""A connection to an MCP server: one task owns it, anybody may use and close it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from vibe_llms.ensembles.mcp.settings import McpSettings
from vibe_llms.ensembles.mcp.stdio import ServerProcess, connect_process, start_process
from vibe_llms.exceptions import EnsembleFailed, PackageMissing
from vibe_llms.meta import __version__
from vibe_llms.redaction import redact

if TYPE_CHECKING:
    from mcp import Client

T = TypeVar("T")

_CLOSE_SECONDS = 10.0


class Connection:
    """The official client in a task of its own.

    The package wants to be entered and left in the same task; whoever calls needs not care.
    """

    def __init__(self, ensemble: str, settings: McpSettings) -> None:
        self._ensemble = ensemble
        self._settings = settings
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._server: ServerProcess | None = None
        self._broken: Exception | None = None

    @property
    def alive(self) -> bool:
        """Whether the server can still be spoken with."""
        ended = self._task is None or self._task.done()
        gone = self._server is not None and self._server.status is not None
        return not ended and not gone and self._broken is None and self._client is not None

    async def open(self) -> None:
        """Connect, within `open-seconds`; `EnsembleFailed` says why not, and nothing is left."""
        for package in ("mcp", *self._settings.needs):
            if find_spec(package) is None:
                raise PackageMissing(
                    f"[ensembles.{self._ensemble}]",
                    package=package,
                    command=f"python -m pip install 'vibe-llms[{self._settings.extra}]'",
                )
        # Half a second of work, which shall not hold up others, nor count as the server's.
        await asyncio.to_thread(import_module, "mcp")
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._own(ready), name=f"mcp {self._ensemble}")
        try:
            async with asyncio.timeout(self._settings.open_seconds):
                await asyncio.shield(ready)
        except TimeoutError as error:
            ready.cancel()
            await self.close()
            raise self._failure(
                f"it did not open within {self._settings.open_seconds:g} s (open-seconds)"
            ) from error
        except asyncio.CancelledError:
            ready.cancel()
            await self.close()
            raise

    async def close(self) -> None:
        """End the connection and the server's process; safe from any task, and twice."""
        self._stop.set()
        task = self._task
        if task is None or task is asyncio.current_task():
            return
        if self._client is None:
            # It waits for a server that has not answered yet.
            task.cancel()
        _, running = await asyncio.wait([task], timeout=_CLOSE_SECONDS)
        if running:
            task.cancel()
            await asyncio.wait([task])

    async def request(
        self, seconds: float, phase: str, call: Callable[[Client], Awaitable[T]]
    ) -> T:
        """What the server answers within so many seconds; `EnsembleFailed` names the phase."""
        client = self._client
        if client is None or not self.alive:
            raise self._failure("the connection has ended", phase)
        import httpx2
        from anyio import BrokenResourceError, ClosedResourceError
        from mcp import MCPError

        try:
            async with asyncio.timeout(seconds):
                return await self._watch(call(client))
        except TimeoutError as error:
            raise self._failure(f"it did not answer within {seconds:g} s", phase) from error
        except MCPError as error:
            raise self._failure(redact(str(error)), phase) from error
        except (BrokenResourceError, ClosedResourceError, httpx2.HTTPError) as error:
            raise self._failure("the connection has ended", phase) from error
        except (ValueError, RuntimeError) as error:
            # What the package says of an answer that is not as the protocol has it.
            raise self._failure(f"its answer is not valid: {_brief(error)}", phase) from error

    async def _watch(self, answer: Awaitable[T]) -> T:
        """The answer, or the failure of the connection if that comes first."""
        assert self._task is not None
        asking = asyncio.ensure_future(answer)
        try:
            await asyncio.wait([asking, self._task], return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise RuntimeError("the connection has ended")
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.wait([asking])

    async def _own(self, ready: asyncio.Future[None]) -> None:
        import httpx2
        from mcp import MCPError

        try:
            async with AsyncExitStack() as stack:
                client = await self._produce_client(stack)
                self._client = await stack.enter_async_context(client)
                ready.set_result(None)
                await self._stop.wait()
        except (EnsembleFailed, MCPError, httpx2.HTTPError) as error:
            self._settle(ready, error)
        except (ExceptionGroup, OSError, ValueError, RuntimeError) as error:
            # What the package's tasks raise, and what it says of a server that is none.
            self._settle(ready, error)
        finally:
            self._client = None
            # Somebody else has closed it while it was being opened.
            self._settle(ready, EnsembleFailed("it has been closed", ensemble=self._ensemble))

    def _settle(self, ready: asyncio.Future[None], error: Exception) -> None:
        """Keep why the connection ended, and tell whoever waits for it to open."""
        self._broken = self._broken or error
        if ready.done():
            return
        if isinstance(error, EnsembleFailed):
            ready.set_exception(error)
            return
        failure = self._failure(_brief(error))
        failure.__cause__ = error
        ready.set_exception(failure)

    async def _produce_client(self, stack: AsyncExitStack) -> Client:
        from mcp import Client
        from mcp_types import Implementation

        settings = self._settings
        if settings.command:
            command = tuple(sys.executable if w == "{python}" else w for w in settings.command)
            self._server = await stack.enter_async_context(
                start_process(self._ensemble, command, settings.environment, settings.folder)
            )
            target: Any = connect_process(self._server, settings.message_bytes, self._blame)
        else:
            target = await self._connect_http(stack)
        return Client(
            target,
            read_timeout_seconds=max(settings.call_seconds, settings.list_seconds),
            client_info=Implementation(name="vibe-llms", version=__version__),
            cache=None,
        )

    async def _connect_http(self, stack: AsyncExitStack) -> Any:
        settings = self._settings
        if settings.transport == "sse":
            from mcp.client.sse import sse_client

            return sse_client(settings.url, headers=dict(settings.headers))
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        client = await stack.enter_async_context(
            httpx2.AsyncClient(
                headers=dict(settings.headers),
                timeout=httpx2.Timeout(settings.open_seconds, read=None),
                trust_env=False,
            )
        )
        return streamable_http_client(
            settings.url, http_client=client, max_sse_event_size=settings.message_bytes
        )

    def _blame(self, error: Exception) -> None:
        self._broken = error

    def _failure(self, reason: str, phase: str = "opening") -> EnsembleFailed:
        if self._broken is not None and not isinstance(self._broken, EnsembleFailed):
            cause = _brief(self._broken)
            reason += "" if cause in reason else f": {cause}"
        if self._server is not None:
            if self._server.status is not None:
                reason += f"; its process ended with status {self._server.status}"
            if complaints := self._server.complaints:
                reason += f"; it said: {complaints}"
        return EnsembleFailed(f"{phase}: {reason}", ensemble=self._ensemble)


def _brief(error: BaseException) -> str:
    """An error of the package in a line: the first of those that a group holds."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return redact(" ".join(str(error).split()) or type(error).__name__)[:500]
