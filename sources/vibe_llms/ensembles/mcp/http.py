"""Connections over HTTP, streamable and of the older form: bounded, and closed to other origins.

The package itself follows redirects only within the origin of the address that it was given, so
that no header and no token reaches another one; it bounds the events of a stream but not the other
bodies, which is done here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from vibe_llms.ensembles.mcp.settings import McpSettings
from vibe_llms.ensembles.mcp.stdio import MessageTooLong

if TYPE_CHECKING:
    import httpx2

_EVENTS = "text/event-stream"


@asynccontextmanager
async def connect_http(
    settings: McpSettings,
    auth: httpx2.Auth | None,
    tell: Callable[[Exception], None],
    hear: Callable[[int], None],
) -> AsyncIterator[Any]:
    """The streams of messages that the official client wants, over HTTP.

    `tell` hears why a connection is given up where the server is to blame, `hear` the status of
    each response that is an error.
    """
    import httpx2

    async def look_at(response: httpx2.Response) -> None:
        if response.status_code >= 400:
            hear(response.status_code)

    def produce_client(*_: Any, **__: Any) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            headers=dict(settings.headers),
            timeout=httpx2.Timeout(settings.open_seconds, read=None),
            auth=auth,
            transport=_produce_transport(settings.message_bytes, tell),
            event_hooks={"response": [look_at]},
            trust_env=False,
        )

    async with AsyncExitStack() as stack:
        if settings.transport == "sse":
            from mcp.client.sse import sse_client

            streams = sse_client(settings.url, httpx_client_factory=produce_client)
        else:
            from mcp.client.streamable_http import streamable_http_client

            client = await stack.enter_async_context(produce_client())
            streams = streamable_http_client(
                settings.url, http_client=client, max_sse_event_size=settings.message_bytes
            )
        yield await stack.enter_async_context(streams)


def _produce_transport(limit: int, tell: Callable[[Exception], None]) -> httpx2.AsyncBaseTransport:
    """A transport whose responses are no longer than a message may be, streams of events apart."""
    import httpx2

    class BoundedStream(httpx2.AsyncByteStream):
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in self._stream:
                size += len(chunk)
                if size > limit:
                    error = MessageTooLong(f"a message of the server has more than {limit:,} bytes")
                    tell(error)
                    raise httpx2.ReadError(str(error))
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    class BoundedTransport(httpx2.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            response = await super().handle_async_request(request)
            if not response.headers.get("content-type", "").startswith(_EVENTS):
                response.stream = BoundedStream(response.stream)
            return response

    return BoundedTransport()
