"""Decides for each request through httpx2 whether and where it may be sent.

Connections go to the checked address. They are not reused if unexpected bytes follow a reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias
from urllib.parse import urlsplit

from vibe_llms.base.network.connections import (
    PORTS,
    AddressKind,
    AddressRefused,
    Resolver,
    choose_proxy,
    classify_address,
    find_addresses,
    find_permitted,
    inflate,
    permitted_kinds,
    resolve,
)
from vibe_llms.base.network.offline import permit_request

if TYPE_CHECKING:
    import httpx2

    _Base = httpx2.AsyncBaseTransport
else:
    # Importing httpx2 takes longer than importing this whole library.
    _Base = object

#: Raises an error if requests to this address are not permitted.
Admit: TypeAlias = Callable[[str], Awaitable[None]]


class AddressGuard(_Base):
    """An httpx2 transport that decides for each request whether and how it may be sent.

    In errors, `purpose` names the purpose of the requests; `offline` is the configuration key. With
    `kinds`, a host is resolved here, all its addresses must be public or of these kinds, and the
    connection goes to a checked address. While requests are forbidden, only loopback addresses are
    permitted. A proxy resolves names itself, so names that cannot be resolved here are left to it.
    """

    def __init__(
        self,
        purpose: str,
        *,
        offline: bool = False,
        kinds: Collection[AddressKind] | None = None,
        admit: Admit | None = None,
        resolver: Resolver = resolve,
        **options: Any,
    ) -> None:
        self.kinds = kinds
        self._purpose = purpose
        self._offline = offline
        self._admit = admit
        self._resolve = resolver
        self._options = options
        self._routes: dict[str, str | None] = {}
        self._transports: dict[tuple[str | None, str], httpx2.AsyncHTTPTransport] = {}

    def connect(self, url: str) -> httpx2.AsyncHTTPTransport:
        """Return the transport for an address, with its proxy if any, without sending anything."""
        return self._produce_transport(self._route(url))

    def _route(self, url: str) -> str | None:
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        if origin not in self._routes:
            self._routes[origin] = choose_proxy(origin)
        return self._routes[origin]

    def _produce_transport(self, proxy: str | None, host: str = "") -> httpx2.AsyncHTTPTransport:
        """Return the transport for a proxy, or a separate one for a host's pinned addresses.

        A transport reuses connections by address. The certificate of such a connection was checked
        for one host, so another host at the same address must not reuse it.
        """
        import ssl

        import httpx2

        key = (proxy, host)
        if key not in self._transports:
            if "verify" not in self._options:
                self._options["verify"] = httpx2.create_ssl_context()
            # Python 3.11.2 sets it: a connection that is cut off then looks like one that ended.
            # OpenSSL before 3.0 does not have it.
            self._options["verify"].options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
            self._transports[key] = httpx2.AsyncHTTPTransport(proxy=proxy, **self._options)
        return self._transports[key]

    async def find_kinds(self, url: str) -> Collection[AddressKind]:
        """Return the kinds of addresses of a URL's host; empty if the host cannot be resolved."""
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme, 0)
        try:
            found = await find_addresses(parts.hostname or "", port, self._resolve)
        except (OSError, UnicodeError):
            return ()
        return [classify_address(address) for address in found]

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; raises `RequestForbidden`, or any error of `admit`."""
        url = str(request.url)
        permit_request(url, self._purpose, offline=self._offline)
        if self._admit is not None:
            await self._admit(url)
        if request.headers.get("accept-encoding") != "identity":
            # Otherwise httpx2 also accepts encodings of other installed packages.
            request.headers["accept-encoding"] = "gzip"
        response = await _close_if_cancelled(request, self._send)
        response.stream = _ended_properly(request, response)
        encoding = response.headers.pop("content-encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            response.stream = _inflated(response.stream, encoding)
        return response

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        url = str(request.url)
        kinds = permitted_kinds(self.kinds, offline=self._offline)
        if kinds is None:
            return await self.connect(url).handle_async_request(request)
        proxy = self._route(url)
        addresses = await self._check(request, kinds, direct=proxy is None)
        if proxy is not None:
            return await self.connect(url).handle_async_request(request)
        pinned = self._produce_transport(None, request.url.host)
        return await _send_pinned(pinned, request, addresses)

    async def aclose(self) -> None:
        """Close all connections."""
        for transport in self._transports.values():
            await transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        await self.aclose()

    async def _check(
        self, request: httpx2.Request, kinds: Collection[AddressKind], *, direct: bool
    ) -> Sequence[str]:
        """Return the addresses of a request's host; raises an error if one is not permitted."""
        import httpx2

        host = request.url.host
        seconds = request.extensions.get("timeout", {}).get("connect")
        port = request.url.port or PORTS.get(request.url.scheme, 0)
        try:
            async with asyncio.timeout(seconds):
                return await find_permitted(host, port, kinds, self._resolve)
        except TimeoutError as error:
            raise httpx2.ConnectTimeout(f"{host} was not found in {seconds:g} s") from error
        except (OSError, UnicodeError) as error:
            if not direct:
                return ()
            raise httpx2.ConnectError(f"{host}: {error}") from error
        except AddressRefused as error:
            raise httpx2.ConnectError(str(error)) from error


def _inflated(stream: Any, encoding: str) -> httpx2.AsyncByteStream:
    """Return a stream that decodes in small pieces; httpx2 would inflate each piece at once."""
    import httpx2

    class Inflated(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for piece in inflate(stream, encoding):
                    yield piece
            except ValueError as error:
                raise httpx2.DecodingError(str(error)) from error

        async def aclose(self) -> None:
            await stream.aclose()

    return Inflated()


async def _close_if_cancelled(
    request: httpx2.Request, send: Callable[[httpx2.Request], Awaitable[httpx2.Response]]
) -> httpx2.Response:
    """Send a request; on cancellation, also close a connection whose TLS handshake is not finished.

    httpcore2 leaves such a connection to the garbage collector.
    """
    made: list[Any] = []

    async def trace(event: str, info: Any) -> None:
        if event == "connection.connect_tcp.complete":
            made.append(info["return_value"])

    request.extensions = {"trace": trace, **request.extensions}
    try:
        return await send(request)
    except asyncio.CancelledError:
        for network in made:
            await network.aclose()
        raise


def _ended_properly(request: httpx2.Request, response: httpx2.Response) -> httpx2.AsyncByteStream:
    """Return the body of a response, and keep later bytes out of the next response.

    httpcore2 keeps bytes that follow a response for the next request on the connection. Therefore
    the connection is closed if something follows, or if that cannot be known. httpcore2 also
    accepts any end of a TLS connection as the end of a body without a length.
    """
    import ssl

    import httpx2

    stream: Any = response.stream
    network = response.extensions.get("network_stream")
    framings = {"transfer-encoding", "content-length"} & set(response.headers)
    # Two of them are as ambiguous as none (RFC 9112); a body without length ends the connection.
    empty = request.method == "HEAD" or response.status_code in (204, 304)
    framed = len(framings) == 1 or (not framings and empty)
    cipher = None
    if network is not None and not framings and not empty:
        cipher = network.get_extra_info("ssl_object")

    async def read_until_close() -> AsyncIterator[bytes]:
        async for piece in stream:
            yield piece
        assert cipher is not None
        try:
            # OpenSSL ignores bytes after a proper end, so a second read returns that end again.
            cipher.read(1)
        except ssl.SSLError as error:
            raise httpx2.ReadError(f"the connection was cut off: {error}") from error

    class EndedProperly(httpx2.AsyncByteStream):
        def __aiter__(self) -> AsyncIterator[bytes]:
            iterator: AsyncIterator[bytes] = stream.__aiter__()
            return iterator if cipher is None else read_until_close()

        async def aclose(self) -> None:
            try:
                if network is not None and not (framed and _is_alone(stream, network)):
                    await network.aclose()
            finally:
                await stream.aclose()

    return EndedProperly()


def _is_alone(stream: Any, network: Any) -> bool:
    """Return True if nothing after the response was read from the connection; False if unknown."""
    try:
        kept, _ = stream._httpcore_stream._stream._connection._h11_state.trailing_data
        layer = network._stream
        while hasattr(layer, "transport_stream"):
            kept = kept or layer._ssl_object.pending() or layer._read_bio.pending
            layer = layer.transport_stream
        return not (kept or layer._protocol.read_queue)
    except AttributeError:
        return False


async def _send_pinned(
    transport: httpx2.AsyncHTTPTransport, request: httpx2.Request, addresses: Sequence[str]
) -> httpx2.Response:
    """Send a request to the first of these addresses that accepts a connection.

    The `host` header and the TLS server name of the request are kept.
    """
    import httpx2

    host = request.url.host
    for address in addresses:
        pinned = httpx2.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )
        try:
            return await transport.handle_async_request(pinned)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            # The body has not been read yet.
            if address == addresses[-1]:
                raise
    raise httpx2.ConnectError(f"{host} has no address")
