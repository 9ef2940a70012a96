"""The official client as a transport: its credentials and identities, our bytes.

This is the only module that imports the package `openai`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from vibe_llms.configuration import StreamSettings
from vibe_llms.credentials import guard_loggers
from vibe_llms.exceptions import CredentialMissing, PackageMissing
from vibe_llms.providers.transport import (
    Incoming,
    Outgoing,
    permit_transport,
    produce_incoming,
    translate_error,
)
from vibe_llms.redaction import redact

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class PackageTransport:
    """Sends through `openai.AsyncOpenAI`, with its own retries off."""

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
        self._client: AsyncOpenAI | None = None

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
        from openai import APIConnectionError, APIStatusError, AsyncStream, OpenAIError

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
        except OpenAIError as error:
            raise self._miss_credential(error) from error
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

    def _connect(self) -> AsyncOpenAI:
        try:
            import httpx2
            import openai
        except ImportError as error:
            raise PackageMissing(
                f'credential = "package" of [providers.{self._provider}]',
                package="openai",
                command="python -m pip install 'vibe-llms[openai]'",
            ) from error
        guard_loggers("openai", "httpx2", "httpcore2")
        try:
            self._client = openai.AsyncOpenAI(
                base_url=self._base_url,
                max_retries=0,
                timeout=httpx2.Timeout(
                    connect=self._stream.connect_seconds,
                    write=self._stream.idle_seconds,
                    read=None,
                    pool=None,
                ),
            )
        except openai.OpenAIError as error:
            raise self._miss_credential(error) from error
        return self._client

    def _miss_credential(self, error: Exception) -> CredentialMissing:
        return CredentialMissing(
            f"the package openai found no credentials: {redact(str(error))}",
            table=f"providers.{self._provider}",
            key="credential",
        )


async def _whole(content: bytes) -> AsyncIterator[bytes]:
    yield content
