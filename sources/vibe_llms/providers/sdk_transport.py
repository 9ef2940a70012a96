"""Transport through an official client: its credentials and identities, our bytes.

The clients of different vendors are made by one generator and have the same names. Differences are
in each provider's `package.py`, which alone imports its package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.credentials import guard_loggers
from vibe_llms.base.exceptions import ConfigurationError, CredentialMissing, PackageMissing
from vibe_llms.base.network.guard import AddressGuard
from vibe_llms.base.redaction import redact, remember
from vibe_llms.providers.httpx2_transport import produce_incoming, translate_error
from vibe_llms.providers.passed_servers import name_servers
from vibe_llms.providers.transport import (
    KEPT_CONNECTIONS,
    KEPT_SECONDS,
    Endpoint,
    Incoming,
    Outgoing,
    check_address,
    check_headers,
    permit_transport,
    read_headers,
)

if TYPE_CHECKING:
    import httpx2


class OfficialTransport(ABC):
    """Transport through the official asynchronous client of a vendor, with its retries off.

    `base_url` is the address of the row; without it the package decides, which knows its
    environment and its profiles. Redirects are not followed. Each key that is sent is remembered,
    so that it is redacted everywhere.
    """

    #: Name of the package, and of the extra that installs it.
    package: str

    def __init__(
        self,
        provider: str,
        base_url: str | None,
        stream: StreamSettings,
        headers: Mapping[str, str],
        *,
        offline: bool = False,
    ) -> None:
        self._provider = provider
        self._offline = offline
        self._base_url = base_url
        self._stream = stream
        self._headers = headers
        self._client: Any = None

    @abstractmethod
    def load(self) -> Any:
        """Import and return the package; raise `ImportError` if it is not installed."""

    @abstractmethod
    def list_complaints(self) -> tuple[type[Exception], ...]:
        """Return the errors that the package raises while sending if it has no credentials."""

    @abstractmethod
    def produce_client(self, **options: Any) -> Any:
        """Return the official client, with these options."""

    def prepare(self) -> None:
        """Create the official client; see `vibe_llms.providers.transport.Transport`."""
        client = self._client or self._connect()
        permit_transport(str(client.base_url), self._provider, offline=self._offline)

    @asynccontextmanager
    async def open(self, outgoing: Outgoing, body: AsyncIterator[bytes]) -> AsyncIterator[Incoming]:
        """Send a request and return its reply; see `vibe_llms.providers.transport.Transport`."""
        response = await self._send(name_servers(outgoing), body)
        try:
            if response.is_stream_consumed:
                headers = read_headers(response.headers)
                yield Incoming(response.status_code, headers, _whole(response.content))
            else:
                yield produce_incoming(response, self._endpoint(str(response.url)))
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _send(self, outgoing: Outgoing, body: AsyncIterator[bytes]) -> Any:
        import httpx2

        client = self._client or self._connect()
        permit_transport(str(client.base_url), self._provider, outgoing, offline=self._offline)
        module = self.load()
        options = {
            "headers": {
                **check_headers({**self._headers, **outgoing.headers}, self._provider),
                "accept-encoding": "identity",
                **({"content-length": str(outgoing.size)} if outgoing.body else {}),
            }
        }
        how: dict[str, Any] = {
            "cast_to": httpx2.Response,
            "options": options,
            "stream": True,
            "stream_cls": module.AsyncStream[Any],
        }
        try:
            if outgoing.body:
                return await client.post(outgoing.path, content=body, **how)
            return await client.get(outgoing.path, **how)
        except module.APIStatusError as error:
            # The client has read the response; the interface's own error table applies.
            return error.response
        except module.APIConnectionError as error:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            raise translate_error(cause, self._endpoint(str(client.base_url))) from error
        except self.list_complaints() as error:
            raise self._miss_credentials(error) from error

    def _endpoint(self, base_url: str) -> Endpoint:
        return Endpoint(
            provider=self._provider,
            base_url=base_url,
            connect_seconds=self._stream.connect_seconds,
            idle_seconds=self._stream.idle_seconds,
        )

    def _connect(self) -> Any:
        try:
            import httpx2

            module = self.load()
        except ImportError as error:
            raise PackageMissing(
                f'credential = "package" of [providers.{self._provider}]',
                package=self.package,
                command=f"python -m pip install 'vibe-llms[{self.package}]'",
            ) from error
        guard_loggers(self.package, "httpx2", "httpcore2")
        timeout = httpx2.Timeout(
            connect=self._stream.connect_seconds,
            write=self._stream.idle_seconds,
            read=None,
            pool=None,
        )
        limits = httpx2.Limits(
            max_connections=None,
            max_keepalive_connections=KEPT_CONNECTIONS,
            keepalive_expiry=KEPT_SECONDS,
        )
        if self._base_url is not None:
            check_address(self._base_url, self._provider)
        guard = AddressGuard(f"{self._provider}: a request", offline=self._offline, limits=limits)
        try:
            client = self.produce_client(
                base_url=self._base_url,
                max_retries=0,
                timeout=timeout,
                http_client=module.DefaultAsyncHttpxClient(
                    timeout=timeout,
                    transport=guard,
                    follow_redirects=False,
                    event_hooks={"request": [_remember_key]},
                ),
            )
            guard.connect(str(client.base_url))
        except self.list_complaints() as error:
            raise self._miss_credentials(error) from error
        except (ImportError, OSError, ValueError, httpx2.InvalidURL) as error:
            raise ConfigurationError(
                f"the package {self.package} cannot connect with the settings of the environment "
                f"and its profiles: {redact(str(error))}",
                table=f"providers.{self._provider}",
            ) from error
        check_address(str(client.base_url), self._provider)
        self._client = client
        return client

    def _miss_credentials(self, error: Exception) -> CredentialMissing:
        return CredentialMissing(
            f"the package {self.package} found no credentials: {redact(str(error))}",
            table=f"providers.{self._provider}",
            key="credential",
        )


async def _remember_key(request: httpx2.Request) -> None:
    """Remember the key that the package sends, so that it is redacted everywhere."""
    for name in ("authorization", "x-api-key", "api-key"):
        remember(request.headers.get(name, "").rpartition(" ")[2])


async def _whole(content: bytes) -> AsyncIterator[bytes]:
    yield content
