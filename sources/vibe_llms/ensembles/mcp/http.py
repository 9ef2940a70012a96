"""Connections over HTTP, streamable and of the older form: bounded, and closed to other origins.

The package itself follows redirects only within the origin of the address that it was given, so
that no header and no token reaches another one; it bounds the events of a stream but not the other
bodies, which is done here. A server names further addresses where one has to sign in: what is sent
there is sent to public addresses, or to those of the server's own kind, once the user has agreed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from vibe_llms.connections import AddressRefused, Admit, Guard, origin_of
from vibe_llms.ensembles.mcp.settings import McpSettings
from vibe_llms.ensembles.mcp.stdio import MessageTooLong

if TYPE_CHECKING:
    import httpx2

_EVENTS = "text/event-stream"


@asynccontextmanager
async def connect_http(
    ensemble: str,
    settings: McpSettings,
    auth: httpx2.Auth | None,
    tell: Callable[[Exception], None],
    hear: Callable[[int], None],
    *,
    offline: bool = False,
    agree: Admit | None = None,
) -> AsyncIterator[Any]:
    """The streams of messages that the official client wants, over HTTP.

    `tell` hears why a connection is given up where the server is to blame, `hear` the status of
    each response that is an error; `agree` raises an error where the user does not let a request go
    to another origin than the server's.
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
            transport=_BoundedGuard(
                f"{ensemble}: a request",
                offline=offline,
                server=settings.url,
                agree=agree,
                limit=settings.message_bytes,
                tell=tell,
            ),
            event_hooks={"response": [look_at]},
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


class _BoundedGuard(Guard):
    """Sends to the server, and where it leads; no response is longer than a message may be.

    The kinds of addresses that the server has when it is first spoken with are those that it and
    whatever it names may have, so that no name can be led elsewhere later.
    """

    def __init__(
        self,
        purpose: str,
        *,
        offline: bool,
        server: str,
        agree: Admit | None,
        limit: int,
        tell: Callable[[Exception], None],
    ) -> None:
        super().__init__(purpose, offline=offline, admit=self._check_origin)
        self._server = server
        self._agree = agree
        self._limit = limit
        self._tell = tell

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, or say why not; streams of events are bounded by the package."""
        import httpx2

        try:
            response = await super().handle_async_request(request)
        except httpx2.ConnectError as error:
            if isinstance(error.__cause__, AddressRefused):
                self._tell(error.__cause__)
            raise
        if not response.headers.get("content-type", "").startswith(_EVENTS):
            response.stream = _bound(response.stream, self._limit, self._tell)
        return response

    async def _check_origin(self, url: str) -> None:
        if self.kinds is None:
            self.kinds = await self.find_kinds(self._server)
        if origin_of(url) != origin_of(self._server) and self._agree is not None:
            await self._agree(url)


def _bound(stream: Any, limit: int, tell: Callable[[Exception], None]) -> httpx2.AsyncByteStream:
    """A stream that ends with an error where it has more than so many bytes."""
    import httpx2

    class BoundedStream(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in stream:
                size += len(chunk)
                if size > limit:
                    error = MessageTooLong(f"a message of the server has more than {limit:,} bytes")
                    tell(error)
                    raise httpx2.ReadError(str(error))
                yield chunk

        async def aclose(self) -> None:
            await stream.aclose()

    return BoundedStream()
