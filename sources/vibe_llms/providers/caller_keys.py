"""Keys from callers of a server; each lives as long as the request that it comes with.

A row with `credential = "caller"` uses the key of the current request. Its clients, with their
connections, also belong to the request, so that no other request can use them.
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

from vibe_llms.base.credentials import Secret
from vibe_llms.base.exceptions import CredentialMissing
from vibe_llms.base.redaction import remembered
from vibe_llms.providers.interfaces import Client

CALLER = "caller"


class CallerKey:
    """Key of a request, and the clients that use it, by row."""

    def __init__(self, secret: Secret) -> None:
        self.secret = secret
        self._clients: dict[str, Client] = {}
        self._closed = False

    def access_client(self, row: str, produce: Callable[[Secret], Client]) -> Client:
        """Return the client of a row for this request."""
        if self._closed:
            raise _missing(row)
        if row not in self._clients:
            self._clients[row] = produce(self.secret)
        return self._clients[row]

    async def close(self) -> None:
        """Close the clients and forget the key."""
        self._closed = True
        self.secret = Secret("")
        clients, self._clients = self._clients, {}
        async with AsyncExitStack() as stack:
            for client in clients.values():
                stack.push_async_callback(client.close)


_KEY: ContextVar[CallerKey | None] = ContextVar("caller_key", default=None)


def calling_with(key: str) -> AbstractAsyncContextManager[None]:
    """Return a context in which rows of callers use a key, or no key if it is empty."""
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
    """Return the key of the current request, or None."""
    return _KEY.get()


def access_caller_key(row: str) -> CallerKey:
    """Return the key of the current request, or raise `CredentialMissing`."""
    held = _KEY.get()
    if held is None:
        raise _missing(row)
    return held


def _missing(row: str) -> CredentialMissing:
    return CredentialMissing(
        f"no key for {row!r}; send it with each request in the header X-Provider-Key",
        table=f"providers.{row}",
    )
