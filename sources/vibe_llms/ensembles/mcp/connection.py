"""A connection to an MCP server: one task owns it, and any task may use and close it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from vibe_llms.base.credentials import get_logger
from vibe_llms.base.exceptions import (
    EnsembleFailed,
    PackageMissing,
    SessionLost,
    SignInNeeded,
    VibeLlmsError,
)
from vibe_llms.base.meta import CAGE_VARIABLE, __version__
from vibe_llms.base.redaction import redact
from vibe_llms.ensembles.mcp.http import connect_http
from vibe_llms.ensembles.mcp.listings import ListingStream, Refuse
from vibe_llms.ensembles.mcp.oauth import SignIn
from vibe_llms.ensembles.mcp.settings import McpSettings
from vibe_llms.ensembles.mcp.stdio import ServerProcess, connect_process, start_process
from vibe_llms.invocation.limits import Limit, SharedLimits
from vibe_llms.messages.contents import repair_text

if TYPE_CHECKING:
    from mcp import Client, MCPError

T = TypeVar("T")
#: Makes the sign-in; its argument is called with the error if signing in fails.
SignInFactory: TypeAlias = Callable[[Callable[[Exception], None]], Awaitable["SignIn"]]

_CLOSE_SECONDS, _STATUS_SECONDS = 10.0, 0.5
_LISTEN_AGAIN_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0
#: Messages of the package for answers that are not protocol errors.
_SESSION_LOST, _HTTP_ERROR = "Session terminated", "Server returned an error response"
_CLOSED = "Connection closed"


class McpConnection:
    """The official client in its own task.

    The package must be entered and exited in the same task; callers may use any task. The client
    calls `callbacks` for the server's requests, `changed` when the server says that its tools have
    changed, and `refuse` for each tool that is omitted from a list.
    """

    def __init__(
        self,
        ensemble: str,
        settings: McpSettings,
        *,
        limits: SharedLimits,
        callbacks: dict[str, Any],
        produce_sign_in: SignInFactory,
        changed: Callable[[], None],
        refuse: Refuse = lambda *_: None,
        offline: bool = False,
    ) -> None:
        self._ensemble = ensemble
        self._settings = settings
        self._limits = limits
        self._callbacks = callbacks
        self._produce_sign_in = produce_sign_in
        self._offline = offline
        self._changed = changed
        self._refuse = refuse
        self._status = 0
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: True once the task has something to close: a task cancelled earlier would not run at all.
        self._owns = False
        self._client: Client | None = None
        self._server: ServerProcess | None = None
        self._broken: Exception | None = None
        self._requests = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def has_lost_session(self) -> bool:
        """True if the server no longer knows the session. It may still answer pending requests."""
        return isinstance(self._broken, SessionLost)

    @property
    def alive(self) -> bool:
        """True if the connection is usable."""
        ended = self._task is None or self._task.done()
        gone = self._server is not None and self._server.status is not None
        return not ended and not gone and self._broken is None and self._client is not None

    @property
    def details(self) -> Mapping[str, str]:
        """Protocol version, and the server's name and version, while connected."""
        if self._client is None:
            return {}
        info = self._client.server_info
        words = () if info is None else (info.name, info.version)
        server = " ".join(word for word in words if word)
        return {"protocol": str(self._client.protocol_version), "server": repair_text(server)}

    async def open(self) -> None:
        """Connect within `open-seconds`, or raise `EnsembleFailed` and leave nothing open."""
        require_packages(self._ensemble, self._settings)
        async with AsyncExitStack() as starting:
            # Importing takes half a second. It must not block other tasks or count as the server's
            # time, and the server starts in the meantime.
            importing = asyncio.create_task(asyncio.to_thread(import_module, "mcp"))
            if self._settings.command:
                self._server = await starting.enter_async_context(self._start_process())
            await importing
            stack = starting.pop_all()
        # Send its log to logging handlers instead of the screen, with keys redacted.
        get_logger("mcp")
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(stack, ready), name=f"mcp {self._ensemble}")
        try:
            async with Limit(self._settings.open_seconds) as limit:
                with self._limits.register(limit.pause):
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
        if self._client is None and self._owns:
            # The package is waiting for a server that has not answered yet.
            task.cancel()
        _, running = await asyncio.wait([task], timeout=_CLOSE_SECONDS)
        if running:
            task.cancel()
            await asyncio.wait([task])

    async def close_when_idle(self) -> None:
        """Close after all pending requests are answered, each within its own time limit."""
        try:
            await self._idle.wait()
        finally:
            await self.close()

    async def request(
        self, seconds: float, phase: str, call: Callable[[Client], Awaitable[T]]
    ) -> T:
        """Return the server's answer within `seconds`; `EnsembleFailed` names the phase.

        Time that the server spends asking the user does not count.
        """
        client = self._client
        if client is None or not self.alive:
            raise self._failure("the connection has ended", phase)
        self._requests += 1
        self._idle.clear()
        try:
            return await self._request(client, seconds, phase, call)
        finally:
            self._requests -= 1
            if not self._requests:
                self._idle.set()

    async def _request(
        self, client: Client, seconds: float, phase: str, call: Callable[[Client], Awaitable[T]]
    ) -> T:
        import httpx2
        from anyio import BrokenResourceError, ClosedResourceError
        from mcp import MCPError

        try:
            async with Limit(seconds) as limit:
                with self._limits.register(limit.pause):
                    return await self._watch(call(client))
        except TimeoutError as error:
            raise self._failure(f"it did not answer within {seconds:g} s", phase) from error
        except MCPError as error:
            if self._server is not None and str(error) == _CLOSED:
                # The streams end shortly before the process does, and its exit status says more.
                await self._server.wait(_STATUS_SECONDS)
            raise self._explain(error, phase) from error
        except (BrokenResourceError, ClosedResourceError, httpx2.HTTPError) as error:
            raise self._failure("the connection has ended", phase) from error
        except (ValueError, RuntimeError) as error:
            # The package raises these for answers that violate the protocol.
            raise self._failure(f"its answer is not valid: {_brief(error)}", phase) from error

    async def _watch(self, answer: Awaitable[T]) -> T:
        """Return the answer, or raise the connection's failure if that comes first."""
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

    def _explain(self, error: MCPError, phase: str) -> EnsembleFailed:
        """Make an error with the server's message, or the package's if the server sent none."""
        words = redact(str(error))
        if words == _SESSION_LOST and self._settings.url:
            self._broken = SessionLost(f"{phase}: {words}", ensemble=self._ensemble)
            return self._broken
        if words == _CLOSED:
            # The package's tasks may take a moment to end; send no requests until then.
            self._broken = self._broken or error
        if words == _HTTP_ERROR and self._status:
            words = f"it answered with HTTP {self._status}"
        return self._failure(words, phase)

    async def _run(self, stack: AsyncExitStack, ready: asyncio.Future[None]) -> None:
        import httpx2
        from mcp import MCPError

        try:
            async with stack:
                self._owns = True
                if self._stop.is_set():
                    raise EnsembleFailed("it has been closed", ensemble=self._ensemble)
                client = await self._produce_client()
                self._client = await stack.enter_async_context(client)
                self._require_era(self._client.protocol_version)
                ready.set_result(None)
                await self._wait_for_close(self._client)
        except MCPError as error:
            self._record_failure(ready, self._explain(error, "opening"))
        except (VibeLlmsError, httpx2.HTTPError) as error:
            self._record_failure(ready, error)
        except (ExceptionGroup, OSError, ValueError, RuntimeError) as error:
            # Errors from the package's tasks, or about a response that is not a server's.
            self._record_failure(ready, _first(error))
        finally:
            self._client = None
            # Another task may have closed it while it was being opened.
            self._record_failure(
                ready, EnsembleFailed("it has been closed", ensemble=self._ensemble)
            )

    async def _wait_for_close(self, client: Client) -> None:
        """Keep the connection until it should end, and listen for changed tools."""
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        tools = client.server_capabilities.tools
        changes = tools is not None and tools.list_changed
        if not changes or client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            # Before 2026-07-28, servers send changes without being asked; see `_receive`.
            await self._stop.wait()
            return
        listening = asyncio.create_task(self._listen(client), name=f"mcp {self._ensemble} changes")
        try:
            await self._stop.wait()
        finally:
            listening.cancel()
            await asyncio.wait([listening])

    def _require_era(self, version: str) -> None:
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        if self._settings.protocol == "stateless" and version not in MODERN_PROTOCOL_VERSIONS:
            raise self._failure(
                f'it uses protocol version {version}; to allow it: protocol = "auto"'
            )

    async def _listen(self, client: Client) -> None:
        from mcp import MCPError
        from mcp.client.subscriptions import SubscriptionLost

        for attempt in count():
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        self._changed()
            except SubscriptionLost:
                pass
            except MCPError:
                # The server does not allow listening, or the connection has ended.
                return
            await asyncio.sleep(
                min(_LISTEN_AGAIN_SECONDS * 2 ** min(attempt, 6), _LONGEST_PAUSE_SECONDS)
            )
            # Changes during the pause were not reported.
            self._changed()

    async def _receive(self, message: Any) -> None:
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._changed()

    def _record_failure(self, ready: asyncio.Future[None], error: Exception) -> None:
        """Store why the connection ended, and wake the task that waits for it to open."""
        self._broken = self._broken or error
        if ready.done():
            return
        blamed = self._broken
        if isinstance(blamed, VibeLlmsError):
            error = blamed
        if isinstance(error, VibeLlmsError):
            ready.set_exception(error)
            return
        failure = self._failure(_brief(error))
        failure.__cause__ = error
        ready.set_exception(failure)

    def _start_process(self) -> AbstractAsyncContextManager[ServerProcess]:
        settings = self._settings
        command = tuple(sys.executable if w == "{python}" else w for w in settings.command)
        environment = dict(settings.environment)
        if settings.cage == "none":
            environment[CAGE_VARIABLE] = settings.cage
        return start_process(self._ensemble, command, environment, settings.folder)

    async def _produce_client(self) -> Client:
        from mcp import Client
        from mcp_types import Implementation

        settings = self._settings
        if self._server is not None:
            target: Any = connect_process(self._server, settings.message_bytes, self._blame)
        else:
            sign_in = await self._produce_sign_in(self._blame)
            target = connect_http(
                self._ensemble,
                settings,
                sign_in.auth,
                self._blame,
                self._note_status,
                offline=self._offline,
                agree=sign_in.agree,
            )
        return Client(
            self._repair_lists(target),
            # `Limit` is used instead: it pauses while the user is asked.
            read_timeout_seconds=None,
            client_info=Implementation(name="vibe-llms", version=__version__),
            cache=None,
            mode="legacy" if settings.protocol == "handshake" else "auto",
            message_handler=self._receive,
            **self._callbacks,
        )

    @asynccontextmanager
    async def _repair_lists(self, target: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
        async with target as (read_stream, write_stream):
            yield ListingStream(read_stream, self._find_version, self._refuse), write_stream

    def _find_version(self) -> str:
        from mcp_types.version import LATEST_HANDSHAKE_VERSION

        return str(self._client.protocol_version) if self._client else LATEST_HANDSHAKE_VERSION

    def _note_status(self, status: int) -> None:
        self._status = status

    def _blame(self, error: Exception) -> None:
        self._broken = error

    def _failure(self, reason: str, phase: str = "opening") -> EnsembleFailed:
        if isinstance(self._broken, SignInNeeded):
            return self._broken
        if self._broken is not None and not isinstance(self._broken, EnsembleFailed):
            cause = _brief(self._broken)
            reason += "" if cause in reason else f": {cause}"
        if self._server is not None:
            if self._server.status is not None:
                reason += f"; its process ended with status {self._server.status}"
            if complaints := self._server.complaints:
                reason += f"; it said: {complaints}"
        return EnsembleFailed(f"{phase}: {reason}", ensemble=self._ensemble, phase=phase)


def require_packages(ensemble: str, settings: McpSettings) -> None:
    """Raise `PackageMissing` unless all packages that a row needs are installed."""
    for package in ("mcp", *settings.needs):
        if find_spec(package) is None:
            raise PackageMissing(
                f"[ensembles.{ensemble}]",
                package=package,
                command=f"python -m pip install 'vibe-llms[{settings.extra}]'",
            )


def _first(error: Exception) -> Exception:
    """Return the first real error in a group, preferring this library's own errors."""
    if not isinstance(error, ExceptionGroup):
        return error
    found = [_first(one) for one in error.exceptions]
    return next((one for one in found if isinstance(one, VibeLlmsError)), found[0])


def _brief(error: Exception) -> str:
    """Shorten an error of the package to one line."""
    error = _first(error)
    return redact(" ".join(str(error).split()) or type(error).__name__)[:500]
