"""HTTP connections, streamable and of the older protocol, with limits on sizes and origins.

The package follows redirects only within the origin of its URL, so that no header or token reaches
another one. It limits the events of a stream but not other bodies; this module does. A server names
further addresses for signing in: requests to those go only to public addresses, or to those of the
server's own kind, and only if the user has agreed.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from vibe_llms.base.network.connections import AddressRefused, origin_of
from vibe_llms.base.network.guard import AddressGuard, Admit
from vibe_llms.ensembles.mcp.settings import McpSettings
from vibe_llms.ensembles.mcp.stdio import MessageTooLong

if TYPE_CHECKING:
    import httpx2

_EVENTS = "text/event-stream"
_SESSION = "mcp-session-id"
#: JSON-RPC code for unknown methods, which some servers report with status 404.
_METHOD_NOT_FOUND = -32601
#: JSON-RPC codes with which servers refuse an unknown session with status 400.
_REFUSED = (-32000, -32001, -32600)
#: Beginnings of messages about an unknown session, such as "Bad Request: No valid session ID
#: provided" (TypeScript SDK). Elsewhere in a message, they may be a tool's words.
_NO_SESSION = re.compile(
    r"((bad request|invalid request|not found): )?("
    r"(no|missing|expired|unknown|invalid)( valid)?( mcp)?[ -]session\b"
    r"|(mcp[ -])?session\b.{0,20}\b(not found|expired|invalid|unknown|terminated|does not exist)\b"
    r"|server not initialized\b)",
    re.IGNORECASE,
)


@asynccontextmanager
async def connect_http(
    ensemble: str,
    settings: McpSettings,
    auth: httpx2.Auth | None,
    notify: Callable[[Exception], None],
    report_status: Callable[[int], None],
    *,
    offline: bool = False,
    agree: Admit | None = None,
) -> AsyncIterator[Any]:
    """Open the message streams that the official client needs, over HTTP.

    `notify` receives the error if a connection is closed because of the server, and
    `report_status` the status of each error response. `agree` raises an error if the user does not
    allow a request to another origin than the server's.
    """
    import httpx2

    async def check_status(response: httpx2.Response) -> None:
        if response.status_code >= 400:
            report_status(response.status_code)

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
                notify=notify,
            ),
            event_hooks={"response": [check_status]},
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


class _BoundedGuard(AddressGuard):
    """Transport to the server and the addresses that it names; limits the size of responses.

    Both may later have only the kinds of addresses that the server has at the first request, so no
    name can be redirected to another kind.
    """

    def __init__(
        self,
        purpose: str,
        *,
        offline: bool,
        server: str,
        agree: Admit | None,
        limit: int,
        notify: Callable[[Exception], None],
    ) -> None:
        super().__init__(purpose, offline=offline, admit=self._check_origin)
        self._server = server
        self._agree = agree
        self._limit = limit
        self._notify = notify

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and limit the response; the package limits streams of events."""
        import httpx2

        try:
            response = await super().handle_async_request(request)
        except httpx2.ConnectError as error:
            if isinstance(error.__cause__, AddressRefused):
                self._notify(error.__cause__)
            raise
        refused = response.status_code in (400, 404) and _SESSION in request.headers
        if refused or not response.headers.get("content-type", "").startswith(_EVENTS):
            response.stream = _bound(response.stream, self._limit, self._notify)
        if refused:
            body = await response.aread()
            if _has_lost_session(response.status_code, body):
                # The package understands a lost session only from a 404 without a body.
                return httpx2.Response(404)
        return response

    async def _check_origin(self, url: str) -> None:
        if self.kinds is None:
            self.kinds = await self.find_kinds(self._server)
        if origin_of(url) != origin_of(self._server) and self._agree is not None:
            await self._agree(url)


def _has_lost_session(status: int, body: bytes) -> bool:
    """Return True if a server refused a request because it does not know the session.

    The server has not carried out such a request.
    """
    try:
        error = msgspec.json.decode(body, type=_Refusal).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return status == 404
    if status == 404:
        return error.code != _METHOD_NOT_FOUND
    return error.code in _REFUSED and _NO_SESSION.match(error.message) is not None


class _Fault(Struct, frozen=True):
    code: int = 0
    message: str = ""


class _Refusal(Struct, frozen=True):
    """Body of an HTTP error that contains a JSON-RPC error."""

    error: _Fault = _Fault()


def _bound(stream: Any, limit: int, notify: Callable[[Exception], None]) -> httpx2.AsyncByteStream:
    """Wrap a stream to raise an error if it exceeds the given number of bytes."""
    import httpx2

    class BoundedStream(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in stream:
                size += len(chunk)
                if size > limit:
                    error = MessageTooLong(f"a message of the server has more than {limit:,} bytes")
                    notify(error)
                    raise httpx2.ReadError(str(error))
                yield chunk

        async def aclose(self) -> None:
            await stream.aclose()

    return BoundedStream()
