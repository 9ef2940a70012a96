"""Transport of a row with a plain key, which chooses how to send."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, suppress

from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.credentials import Credential
from vibe_llms.base.meta import __version__
from vibe_llms.base.network.connections import AddressKind, Resolver, choose_proxy, resolve
from vibe_llms.providers.direct_transport import DirectTransport
from vibe_llms.providers.httpx2_transport import Httpx2Transport
from vibe_llms.providers.passed_servers import name_servers
from vibe_llms.providers.transport import (
    KEPT_SECONDS,
    Endpoint,
    Incoming,
    Outgoing,
    Transport,
    check_address,
    permit_transport,
)


class HttpTransport:
    """Transport over connections of our own, or through httpx2 if the environment names a proxy.

    `authorize` returns the headers with the key; it is called once, when they are needed. For the
    other arguments, see `Endpoint`.
    """

    def __init__(
        self,
        provider: str,
        base_url: str,
        authorize: Callable[[], Mapping[str, str]],
        *,
        connect_seconds: float,
        idle_seconds: float,
        kept_seconds: float = KEPT_SECONDS,
        offline: bool = False,
        kinds: Collection[AddressKind] | None = None,
        resolver: Resolver = resolve,
    ) -> None:
        self._endpoint = Endpoint(
            provider=provider,
            base_url=base_url.rstrip("/"),
            connect_seconds=connect_seconds,
            idle_seconds=idle_seconds,
            kept_seconds=kept_seconds,
            offline=offline,
            kinds=kinds,
            resolver=resolver,
        )
        self._authorize = authorize
        self._sender: Transport | None = None

    def prepare(self) -> None:
        """Find the key and check the address; see `Transport`."""
        self._permit()
        self._choose().prepare()

    def open(
        self, outgoing: Outgoing, body: AsyncIterator[bytes]
    ) -> AbstractAsyncContextManager[Incoming]:
        """Send a request and return its reply; see `Transport`."""
        self._permit(outgoing)
        return (self._sender or self._choose()).open(name_servers(outgoing), body)

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        if self._sender is not None:
            await self._sender.close()

    def _permit(self, outgoing: Outgoing | None = None) -> None:
        endpoint = self._endpoint
        permit_transport(endpoint.base_url, endpoint.provider, outgoing, offline=endpoint.offline)

    def _choose(self) -> Transport:
        if self._sender is None:
            check_address(self._endpoint.base_url, self._endpoint.provider)
            headers = {
                "user-agent": f"vibe-llms/{__version__}",
                "accept-encoding": "identity",
                **self._authorize(),
            }
            self._sender = _produce_sender(self._endpoint, headers)
        return self._sender


def _produce_sender(endpoint: Endpoint, headers: Mapping[str, str]) -> Transport:
    if choose_proxy(endpoint.base_url) is None:
        # httptools may be missing, because it is compiled for each platform.
        with suppress(ImportError):
            return DirectTransport(endpoint, headers)
    return Httpx2Transport(endpoint, headers)


def send_bearer(key: str) -> Mapping[str, str]:
    """Return the header `Authorization: Bearer KEY`."""
    return {"authorization": f"Bearer {key}"}


def reveal_key(
    credential: Credential, authorize: Callable[[str], Mapping[str, str]] = send_bearer
) -> Mapping[str, str]:
    """Return the headers with the key of a row; none if the row needs no key.

    A row that leaves its key to a package may have a key too.
    """
    if credential.kind == "none":
        return {}
    secret = credential.search() if credential.kind == "package" else credential.find()
    return {} if secret is None else authorize(secret.reveal())


def produce_http_transport(
    provider: str,
    base_url: str,
    stream: StreamSettings,
    credential: Credential,
    headers: Mapping[str, str] = {},
    *,
    authorize: Callable[[str], Mapping[str, str]] = send_bearer,
    offline: bool = False,
) -> HttpTransport:
    """Return a transport that sends these headers, and those that `authorize` makes of the key."""
    return HttpTransport(
        provider,
        base_url,
        lambda: {**headers, **reveal_key(credential, authorize)},
        connect_seconds=stream.connect_seconds,
        idle_seconds=stream.idle_seconds,
        offline=offline,
    )
