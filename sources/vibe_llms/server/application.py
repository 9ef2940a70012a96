"""`Application`: the ASGI app, with authentication, error responses, metrics, and log."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import ceil
from urllib.parse import urlsplit

from vibe_llms.base.configuration import LOCAL
from vibe_llms.base.credentials import check_key, get_logger
from vibe_llms.base.exceptions import ConfigurationError, VibeLlmsError
from vibe_llms.providers.caller_keys import calling_with
from vibe_llms.providers.passed_servers import HEADER, MOST_SERVERS, passing, read_servers
from vibe_llms.runs.rates import reporting_rates
from vibe_llms.server.bodies import BodyRoom
from vibe_llms.server.core import ServerCore
from vibe_llms.server.descriptors import ConnectionLimits
from vibe_llms.server.endpoints import find_endpoint, match_path
from vibe_llms.server.exchanges import Disconnected, HttpExchange, Receive, Scope, Send
from vibe_llms.server.failures import Rejected, describe_failure
from vibe_llms.server.logins import check_page, comes_from_own_page
from vibe_llms.server.operations import ServerEndpoint, UserEndpoint

_LOGGER = get_logger("vibe_llms.server")
_SERVERS = HEADER.encode()
#: Logged status of a request whose client closed the connection.
_CLOSED = 499
_BEARER = b"bearer "
#: Begins the paths that the login of a browser opens.
_COOKIE_PATHS = "/api/"
#: CORS permissions for pages of allowed origins, cached by browsers for 600 seconds.
_PAGES = (
    (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE"),
    (
        b"access-control-expose-headers",
        b"retry-after, x-left-out, x-request-id, request-id, mcp-session-id",
    ),
    (b"access-control-max-age", b"600"),
    (b"vary", b"origin, access-control-request-headers"),
)


class Application:
    """The server as an ASGI application.

    `log` receives a line about each request, without content or keys.
    """

    def __init__(
        self, core: ServerCore, log: Callable[[str], object], *, limits: ConnectionLimits
    ) -> None:
        self._core = core
        self._limits = limits
        self._log = log
        self._room = BodyRoom(core.settings)
        self._hosts = {"localhost", *core.settings.allowed_hosts}
        self._origins = {*core.settings.allowed_origins}
        self._name = secrets.token_hex(8)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; every error becomes a response."""
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        exchange, begun = HttpExchange(scope, receive, send, self._room), time.perf_counter()
        try:
            passed = read_servers(exchange.headers.get(_SERVERS, b"").decode("latin-1"))
            with passing((*passed, self._name)):
                async with calling_with(exchange.provider_key):
                    await self._serve(exchange, begun, passed)
        finally:
            exchange.close()

    async def _serve(self, exchange: HttpExchange, begun: float, passed: Sequence[str]) -> None:
        path, _ = match_path(exchange.path)
        with self._core.tracer.serve(exchange.method, path, exchange.headers) as span:
            try:
                self._check_passed(passed)
                await self._answer(exchange)
            except Disconnected:
                exchange.status = _CLOSED
            except asyncio.CancelledError:
                # The server is shutting down, and the grace period of this request is over.
                if not exchange.status:
                    await self._report(exchange, _produce_ending())
                raise
            except Exception as error:  # noqa: BLE001  (a request: the server goes on)
                await self._report(exchange, error)
            finally:
                span.answer(exchange.status, exchange.conversation)
                self._record(exchange, path, time.perf_counter() - begun)

    async def _answer(self, exchange: HttpExchange) -> None:
        exchange.check_headers(self._core.settings)
        self._check_sender(exchange)
        if exchange.method == "OPTIONS" and b"origin" in exchange.headers:
            # A CORS preflight request, which has no key.
            await exchange.reply(b"", status=204)
            return
        endpoint = find_endpoint(exchange)
        if isinstance(endpoint, ServerEndpoint):
            exchange.logged = endpoint.logged
        if not (isinstance(endpoint, ServerEndpoint) and endpoint.keyless):
            exchange.user = await self._identify(exchange)
        match endpoint:
            case ServerEndpoint():
                await endpoint.handler(self._core, exchange)
            case UserEndpoint():
                exchange.controls = endpoint.controls
                if exchange.provider_key:
                    _check_provider_key(exchange.provider_key)
                user = exchange.user
                with (
                    self._limits.counting(user),
                    self._core.spaces.enter(user) as space,
                    reporting_rates() as exchange.rates,
                ):
                    if exchange.login is None:
                        await endpoint.handler(self._core, exchange, space)
                    else:
                        async with self._core.logins.holding(exchange):
                            await endpoint.handler(self._core, exchange, space)

    def _check_passed(self, passed: Sequence[str]) -> None:
        """Reject a request that this server sent to itself, before its key is read."""
        if self._name not in passed and len(passed) < MOST_SERVERS:
            return
        error = Rejected(
            "this server sent the request to itself, because the model's provider has the "
            "server's address. Its administrator must set base-url in the provider's row, "
            "or start the server without the variable that contains this address, such as "
            "OPENAI_BASE_URL",
            code="request_loop",
        )
        _LOGGER.warning("refused: %s", error)
        raise error

    def _check_sender(self, exchange: HttpExchange) -> None:
        """Reject requests that a browser sends for another site's page or a rebound DNS name."""
        host = exchange.headers.get(b"host", b"").decode("latin-1")
        name = _read_name(host)
        if name not in self._hosts and not _is_address(name):
            raise Rejected(
                f"host {name!r} is not allowed; add it to allowed-hosts in [server]",
                status=403,
                code="host_not_allowed",
            )
        origin = exchange.headers.get(b"origin", b"").decode("latin-1")
        # A proxy may change the host, but no page can set the other header.
        same = origin.partition("://")[2] == host or comes_from_own_page(exchange)
        if origin and origin not in self._origins and not same:
            raise Rejected(
                f"pages of {origin} are not allowed; add the origin to allowed-origins in [server]",
                status=403,
                code="origin_not_allowed",
            )
        if origin in self._origins:
            # Official clients send many headers; any are allowed, because only the key matters.
            wanted = exchange.headers.get(b"access-control-request-headers", b"")
            exchange.headers_sent = (
                *exchange.headers_sent,
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"access-control-allow-headers", wanted),
                *_PAGES,
            )

    async def _identify(self, exchange: HttpExchange) -> str:
        """Return the user whose key or login a request has."""
        if not self._core.keys:
            return LOCAL
        key, headers = b"", exchange.headers
        if (header := headers.get(b"authorization", b""))[: len(_BEARER)].lower() == _BEARER:
            key = header[len(_BEARER) :].strip()
        key = key or headers.get(b"x-api-key") or headers.get(b"api-key") or b""
        if not key and exchange.path.startswith(_COOKIE_PATHS):
            exchange.login = await self._core.logins.find(exchange)
        if exchange.login is not None:
            check_page(exchange, browser=True)
            return exchange.login.user
        user = await self._core.users.find(key.decode("latin-1")) if key else None
        if user is None:
            raise Rejected(
                "the key is not valid"
                if key
                else "a key is required; send Authorization: Bearer KEY",
                status=401,
                code="invalid_api_key",
            )
        return user

    async def _report(self, exchange: HttpExchange, error: Exception) -> None:
        failure = describe_failure(error, exchange.controls)
        if not isinstance(error, VibeLlmsError | Rejected):
            _LOGGER.error("the request %s failed", exchange.request_id, exc_info=error)
        elif not exchange.logged:
            # The storage watch has logged the reason.
            pass
        elif isinstance(error, VibeLlmsError) and not str(error).startswith(failure.message):
            # The operator is told, because the client is not.
            _LOGGER.warning("%s failed: %s", exchange.request_id, error)
        if exchange.status:
            if not await exchange.end_stream(failure):
                # The response has begun, so the connection can only be closed early.
                raise error
            return
        headers = []
        if failure.retry_after is not None:
            headers.append((b"retry-after", str(max(1, ceil(failure.retry_after))).encode()))
        if exchange.unread:
            # The rest of the body is not read.
            headers.append((b"connection", b"close"))
        await exchange.fail(failure, headers)

    def _record(self, exchange: HttpExchange, path: str, seconds: float) -> None:
        self._core.metrics.count_request(path, exchange.status, seconds)
        if not exchange.logged:
            return
        took, who = f"{seconds * 1000:.1f} ms", exchange.user or "-"
        told = f"; left out: {exchange.omissions}" if exchange.omissions else ""
        words = (exchange.method, path, str(exchange.status), took, exchange.request_id, who)
        self._log(f"{' '.join(words)}{told}")


def _produce_ending() -> Rejected:
    return Rejected(
        "the server is shutting down; try again in a moment",
        status=503,
        type="server_error",
        code="shutting_down",
        retry_after=1.0,
    )


def _check_provider_key(key: str) -> None:
    try:
        check_key(key, "X-Provider-Key")
    except ConfigurationError as error:
        raise Rejected(str(error), code="caller_key") from error


@lru_cache(64)
def _read_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


@lru_cache(64)
def _is_address(name: str) -> bool:
    """Return True if a host is an IP address, which cannot be rebound like a name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
