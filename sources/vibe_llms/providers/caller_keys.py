"""Keys that callers of a server bring: each lives as long as the request that it comes with.

A row with `credential = "caller"` is used with the key of the request at hand. Its clients, with
their connections, belong to the request too, so that no other request can use them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from contextvars import ContextVar

from vibe_llms.credentials import Secret
from vibe_llms.exceptions import CredentialMissing
from vibe_llms.providers.interfaces import Client
from vibe_llms.redaction import remembered

CALLER = "caller"


class CallerKey:
    """The key of a request, and the clients that use it, by rows."""

    def __init__(self, secret: Secret) -> None:
        self.secret = secret
        self._clients: dict[str, Client] = {}
        self._closed = False

    def access_client(self, row: str, produce: Callable[[Secret], Client]) -> Client:
        """The client of a row for this request."""
        if self._closed:
            raise _missing(row)
        if row not in self._clients:
            self._clients[row] = produce(self.secret)
        return self._clients[row]

    async def close(self) -> None:
        """Close the clients; the key is of no use any more."""
        self._closed = True
        self.secret = Secret("")
        clients, self._clients = self._clients, {}
        async with AsyncExitStack() as stack:
            for client in clients.values():
                stack.push_async_callback(client.close)


_KEY: ContextVar[CallerKey | None] = ContextVar("caller_key", default=None)


def calling_with(key: str) -> AbstractAsyncContextManager[None]:
    """Within the block, rows of callers are used with a key; with none if it is empty."""
    return _calling_with(key) if key else nullcontext()


@asynccontextmanager
async def _calling_with(key: str) -> AsyncIterator[None]:
    with remembered(key):
        held = CallerKey(Secret(key))
        token = _KEY.set(held)
        try:
            yield
        finally:
            _KEY.reset(token)
            await held.close()


def find_caller_key() -> CallerKey | None:
    """The key of the request at hand, if it brought one."""
    return _KEY.get()


def access_caller_key(row: str) -> CallerKey:
    """The key of the request at hand; `CredentialMissing` if it brought none."""
    held = _KEY.get()
    if held is None:
        raise _missing(row)
    return held


def _missing(row: str) -> CredentialMissing:
    return CredentialMissing(
        f"the key for {row!r} comes with each request to the server, in X-Provider-Key",
        table=f"providers.{row}",
    )
