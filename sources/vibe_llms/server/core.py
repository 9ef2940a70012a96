"""`ServerCore`: objects shared by the handlers of all dialects."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import TracebackType

from vibe_llms.base.configuration import Configuration
from vibe_llms.messages.tracing import Tracer, guard
from vibe_llms.server.embedders import Embedders
from vibe_llms.server.failures import Rejected
from vibe_llms.server.logins import Logins
from vibe_llms.server.mcp_calls import McpCalls
from vibe_llms.server.metrics import CountingTracer, Metrics
from vibe_llms.server.settings import ServerSettings
from vibe_llms.server.spaces import UserSpaces
from vibe_llms.server.stores import produce_secrets
from vibe_llms.storage.user_stores import produce_logins, produce_users
from vibe_llms.telemetry import produce_tracer


class ServerCore:
    """Settings, metrics, stores, and user spaces of the server.

    Without `keys`, every request is from the user `local`.
    """

    def __init__(
        self, configuration: Configuration, settings: ServerSettings, *, keys: bool = True
    ) -> None:
        self.settings = settings
        self.keys = keys
        self.metrics = Metrics(lambda: self.spaces.running)
        traced = configuration.telemetry.enabled
        tracer = produce_tracer(configuration) if traced else Tracer()
        self.tracer = guard(CountingTracer(self.metrics, guard(tracer)))
        self.spaces = UserSpaces(configuration, settings, self.tracer)
        # The limits of a provider apply to all users together.
        self.embedders = Embedders(configuration, self.spaces.limiters)
        self.users = produce_users(self.spaces.backend)
        self.secrets = produce_secrets(self.spaces.backend)
        logins = produce_logins(self.spaces.backend)
        self.logins = Logins(logins, self.secrets, settings.login_seconds)
        self.mcp = McpCalls()
        #: True while the server shuts down and is not ready for new requests.
        self.ending = False

    async def close(self) -> None:
        """Close all spaces and send pending traces; may be called twice."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.tracer.close)
            stack.push_async_callback(self.embedders.close)
            stack.push_async_callback(self.spaces.close)

    def turn_limit(self) -> TurnLimit:
        """Return a context manager that cancels a turn that takes too long."""
        return TurnLimit(self.settings.turn_seconds)


class TurnLimit:
    """Context manager that cancels a turn that takes too long, and raises `Rejected`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as late:
            raise Rejected(
                f"the turn took more than {self._seconds:g} s (turn-seconds)",
                status=504,
                type="server_error",
                code="turn_timeout",
            ) from late
