"""Transport through httpx2, for proxies and for platforms without httptools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from vibe_llms.base.credentials import guard_loggers
from vibe_llms.base.exceptions import ConfigurationError, ProviderError
from vibe_llms.base.network.guard import AddressGuard
from vibe_llms.providers.transport import (
    KEPT_CONNECTIONS,
    Endpoint,
    Incoming,
    Outgoing,
    check_headers,
    is_refused,
    read_headers,
    words_of,
)

if TYPE_CHECKING:
    import ssl

    import httpx2


class Httpx2Transport:
    """Transport through httpx2, with these headers.

    A task closes all connections `kept_seconds` after the last request, so that no request has to
    close those that others left: with 200 streams at once, one waited 2 s for that.
    """

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str]) -> None:
        self._endpoint = endpoint
        self._headers = check_headers(headers, endpoint.provider)
        self._client: httpx2.AsyncClient | None = None
        self._tls: ssl.SSLContext | None = None
        self._running = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def prepare(self) -> None:
        """Check the proxies and certificates of the environment; see `Transport`."""
        if self._client is None:
            self._connect()

    @asynccontextmanager
    async def open(self, outgoing: Outgoing, body: AsyncIterator[bytes]) -> AsyncIterator[Incoming]:
        """Send a request and return its reply; see `Transport`."""
        import httpx2

        client = self._client or self._connect()
        self._engage()
        try:
            headers = check_headers(outgoing.headers, self._endpoint.provider)
            if outgoing.body:
                headers["content-length"] = str(outgoing.size)
            try:
                request = client.build_request(
                    outgoing.method,
                    self._endpoint.base_url + outgoing.path,
                    content=body if outgoing.body else None,
                    headers=headers,
                )
                response = await client.send(request, stream=True)
            except (httpx2.TransportError, httpx2.InvalidURL) as error:
                raise translate_error(error, self._endpoint) from error
            try:
                yield produce_incoming(response, self._endpoint)
            finally:
                await response.aclose()
        finally:
            self._release()

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        if self._timer is not None:
            self._timer.cancel()
        self._drop()
        if self._closing:
            await asyncio.wait(self._closing)

    def _engage(self) -> None:
        self._running += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _release(self) -> None:
        self._running -= 1
        if not self._running and self._client is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._endpoint.kept_seconds, self._drop)

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            task = asyncio.get_running_loop().create_task(client.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _connect(self) -> httpx2.AsyncClient:
        import httpx2

        guard_loggers("httpx2", "httpcore2")
        endpoint = self._endpoint
        try:
            if self._tls is None:
                self._tls = _produce_context(endpoint.base_url)
            guard = AddressGuard(
                f"{endpoint.provider}: a request",
                offline=endpoint.offline,
                kinds=endpoint.kinds,
                resolver=endpoint.resolver,
                verify=self._tls,
                limits=httpx2.Limits(
                    max_connections=None,
                    max_keepalive_connections=KEPT_CONNECTIONS,
                    keepalive_expiry=endpoint.kept_seconds,
                ),
            )
            guard.connect(endpoint.base_url)
            self._client = httpx2.AsyncClient(
                headers=self._headers,
                transport=guard,
                timeout=httpx2.Timeout(
                    connect=endpoint.connect_seconds,
                    write=endpoint.idle_seconds,
                    read=None,
                    pool=None,
                ),
                follow_redirects=False,
            )
        except (ImportError, OSError, ValueError, httpx2.InvalidURL) as error:
            raise ConfigurationError(
                "the proxies or certificates named in the environment (HTTPS_PROXY, SSL_CERT_FILE "
                f"and related variables) cannot be used: {words_of(error)}"
            ) from error
        return self._client


def _produce_context(base_url: str) -> ssl.SSLContext:
    """Return a TLS context; certificates are read only if needed, because that is slow."""
    import ssl

    import httpx2

    if base_url.lower().startswith("https:"):
        return httpx2.create_ssl_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def produce_incoming(response: httpx2.Response, endpoint: Endpoint) -> Incoming:
    """Convert a response of httpx2 to a reply."""
    return Incoming(
        response.status_code, read_headers(response.headers), _chunks(response, endpoint)
    )


async def _chunks(response: httpx2.Response, endpoint: Endpoint) -> AsyncIterator[bytes]:
    import httpx2

    try:
        async for chunk in response.aiter_raw():
            yield chunk
    except (httpx2.TransportError, httpx2.DecodingError) as error:
        raise endpoint.cut(words_of(error)) from error


def translate_error(error: Exception, endpoint: Endpoint) -> ProviderError:
    """Return this library's error for a failure before the reply began."""
    import httpx2

    match error:
        case httpx2.ConnectTimeout():
            return endpoint.connect_timeout()
        case httpx2.WriteTimeout():
            return endpoint.write_timeout()
        case httpx2.ProxyError():
            return endpoint.broken(f"the proxy answered: {words_of(error)}")
        case _ if isinstance(error, httpx2.ConnectError) or is_refused(error):
            return endpoint.not_connected(error)
        case _:
            return endpoint.broken(words_of(error))
