"""The official client as a transport: its credentials, profiles and federation, our bytes.

This is the only module that imports the package `anthropic`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from vibe_llms.configuration import StreamSettings
from vibe_llms.credentials import guard_loggers
from vibe_llms.exceptions import ConfigurationError, CredentialMissing, PackageMissing
from vibe_llms.providers.transport import (
    KEPT_CONNECTIONS,
    KEPT_SECONDS,
    Incoming,
    Outgoing,
    check_address,
    permit_transport,
    produce_incoming,
    translate_error,
)
from vibe_llms.redaction import redact, remember

if TYPE_CHECKING:
    import httpx2
    from anthropic import AsyncAnthropic


class PackageTransport:
    """Sends through `anthropic.AsyncAnthropic`, with its own retries off."""

    def __init__(
        self,
        provider: str,
        base_url: str | None,
        stream: StreamSettings,
        headers: dict[str, str],
        *,
        offline: bool = False,
    ) -> None:
        self._provider = provider
        self._offline = offline
        self._base_url = base_url
        self._stream = stream
        self._headers = headers
        self._client: AsyncAnthropic | None = None

    def prepare(self) -> None:
        """Make the official client; see `vibe_llms.providers.transport.Transport`."""
        client = self._client or self._connect()
        permit_transport(str(client.base_url), self._provider, offline=self._offline)

    @asynccontextmanager
    async def open(self, outgoing: Outgoing, body: AsyncIterator[bytes]) -> AsyncIterator[Incoming]:
        """Send a request and give the reply; see `vibe_llms.providers.transport.Transport`."""
        client = self._client or self._connect()
        permit_transport(str(client.base_url), self._provider, outgoing, offline=self._offline)
        import httpx2
        from anthropic import AnthropicError, APIConnectionError, APIStatusError, AsyncStream

        options: Any = {
            "headers": {
                **self._headers,
                **outgoing.headers,
                "accept-encoding": "identity",
                **({"content-length": str(outgoing.size)} if outgoing.body else {}),
            }
        }
        how: dict[str, Any] = {
            "cast_to": httpx2.Response,
            "options": options,
            "stream": True,
            "stream_cls": AsyncStream[Any],
        }
        try:
            response: Any = (
                await client.post(outgoing.path, content=body, **how)
                if outgoing.body
                else await client.get(outgoing.path, **how)
            )
        except APIStatusError as error:
            # Read to its end by the client; the interface's own error table speaks for it.
            response = error.response
        except APIConnectionError as error:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            raise translate_error(
                cause,
                self._provider,
                str(client.base_url),
                connect_seconds=self._stream.connect_seconds,
                idle_seconds=self._stream.idle_seconds,
            ) from error
        except (AnthropicError, TypeError) as error:
            raise self._miss_credentials(error) from error
        try:
            if response.is_stream_consumed:
                headers = {name.lower(): value for name, value in response.headers.items()}
                yield Incoming(response.status_code, headers, _whole(response.content))
            else:
                yield produce_incoming(response, self._provider)
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _connect(self) -> AsyncAnthropic:
        try:
            import anthropic
            import httpx2
        except ImportError as error:
            raise PackageMissing(
                f'credential = "package" of [providers.{self._provider}]',
                package="anthropic",
                command="python -m pip install 'vibe-llms[anthropic]'",
            ) from error
        guard_loggers("anthropic", "httpx2", "httpcore2")
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
        try:
            client = anthropic.AsyncAnthropic(
                base_url=self._base_url,
                max_retries=0,
                # Spans are ours to make; two of one call would be counted twice.
                open_telemetry=False,
                timeout=timeout,
                http_client=anthropic.DefaultAsyncHttpxClient(
                    timeout=timeout,
                    limits=limits,
                    follow_redirects=False,
                    event_hooks={"request": [_remember_key]},
                ),
            )
        except anthropic.AnthropicError as error:
            raise self._miss_credentials(error) from error
        except (OSError, ValueError, httpx2.InvalidURL) as error:
            raise ConfigurationError(
                "the package anthropic makes no connection with what the environment and its "
                f"profiles say: {redact(str(error))}",
                table=f"providers.{self._provider}",
            ) from error
        check_address(str(client.base_url), self._provider)
        self._client = client
        return client

    def _miss_credentials(self, error: Exception) -> CredentialMissing:
        return CredentialMissing(
            f"the package anthropic found no credentials: {redact(str(error))}",
            table=f"providers.{self._provider}",
            key="credential",
        )


async def _remember_key(request: httpx2.Request) -> None:
    """What the package found, or was given by a server, is a key that no words may show."""
    for name in ("authorization", "x-api-key"):
        remember(request.headers.get(name, "").rpartition(" ")[2])


async def _whole(content: bytes) -> AsyncIterator[bytes]:
    yield content
