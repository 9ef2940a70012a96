"""The application: who may ask what, the table of endpoints, errors, counts and the log."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias
from urllib.parse import urlsplit

from vibe_llms.credentials import get_logger
from vibe_llms.exceptions import VibeLlmsError
from vibe_llms.server.api_runs import (
    cancel_run,
    decide_call,
    follow_run,
    list_runs,
    show_run,
)
from vibe_llms.server.chat_completions import complete_chat
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import Disconnected, Exchange, Receive, Scope, Send
from vibe_llms.server.failures import Rejected, describe_failure
from vibe_llms.server.messages import count_message_tokens, create_message
from vibe_llms.server.metrics import MEDIA_TYPE
from vibe_llms.server.model_lists import list_models, show_model
from vibe_llms.server.responses import (
    cancel_response,
    create_response,
    delete_response,
    list_input_items,
    show_response,
)
from vibe_llms.server.spaces import UserSpace
from vibe_llms.server.users import LOCAL, UserStore

Handler: TypeAlias = Callable[[ServerCore, Exchange, UserSpace], Awaitable[None]]

_LOGGER = get_logger("vibe_llms.server")
#: Logged for a request whose client closed the connection.
_CLOSED = 499
_BEARER = b"bearer "
#: The handlers by path and method. `*` stands for any text without `/`, `**` for any text.
ENDPOINTS: Mapping[str, Mapping[str, Handler]] = {
    "/api/runs": {"GET": list_runs},
    "/api/runs/*": {"GET": show_run},
    "/api/runs/*/cancel": {"POST": cancel_run},
    "/api/runs/*/decide": {"POST": decide_call},
    "/api/runs/*/events": {"GET": follow_run},
    "/v1/chat/completions": {"POST": complete_chat},
    "/v1/messages": {"POST": create_message},
    "/v1/messages/count_tokens": {"POST": count_message_tokens},
    "/v1/models": {"GET": list_models},
    "/v1/responses": {"POST": create_response},
    "/v1/responses/*": {"GET": show_response, "DELETE": delete_response},
    "/v1/responses/*/cancel": {"POST": cancel_response},
    "/v1/responses/*/input_items": {"GET": list_input_items},
    "/v1/models/**": {"GET": show_model},
}
_PATTERNS = {
    path: re.compile(re.escape(path).replace(r"\*\*", "(.+)").replace(r"\*", "([^/]+)"), re.DOTALL)
    for path in ENDPOINTS
    if "*" in path
}
#: Stands in counts and in the log for paths that clients have chosen.
_OTHER = "other"


class Application:
    """An ASGI application.

    `users` are asked who has a key; without them, every request is one of the user `local`.
    `log` receives a line about each request, without content or keys.
    """

    def __init__(
        self, core: ServerCore, users: UserStore | None, log: Callable[[str], object]
    ) -> None:
        self._core = core
        self._users = users
        self._log = log
        self._hosts = {"localhost", *core.settings.allowed_hosts}
        self._origins = {*core.settings.allowed_origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; every error becomes a response."""
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        exchange, begun = Exchange(scope, receive, send), time.perf_counter()
        try:
            await self._answer(exchange)
        except Disconnected:
            exchange.status = _CLOSED
        except asyncio.CancelledError:
            # The server ends, and this request has used up its time.
            exchange.status = exchange.status or 503
            raise
        except Exception as error:  # noqa: BLE001  (a request: the server goes on)
            await self._report(exchange, error)
        finally:
            self._record(exchange, time.perf_counter() - begun)

    async def _answer(self, exchange: Exchange) -> None:
        exchange.check_headers(self._core.settings)
        self._check_sender(exchange)
        if exchange.method == "OPTIONS" and b"origin" in exchange.headers:
            # A browser asks before a page may send a key.
            await exchange.reply(b"", status=204)
            return
        if exchange.path in ("/health", "/ready"):
            ready = exchange.path == "/health" or not self._core.ending
            text = b'{"status":"ok"}' if ready else b'{"status":"ending"}'
            await exchange.reply(text, status=200 if ready else 503)
            return
        exchange.user = self._identify(exchange)
        if exchange.path == "/metrics":
            await exchange.reply(self._core.metrics.render(), media_type=MEDIA_TYPE)
            return
        handler = _find_handler(exchange)
        with self._core.spaces.enter(exchange.user) as space:
            await handler(self._core, exchange, space)

    def _check_sender(self, exchange: Exchange) -> None:
        """Refuse requests that another site's page, or a rebound name, sends in a browser."""
        host = exchange.headers.get(b"host", b"").decode("latin-1")
        name = urlsplit(f"//{host}").hostname or ""
        if name not in self._hosts and not _is_address(name):
            raise Rejected(
                f"the server is not called {name!r}; it can be told so: allowed-hosts in [server]",
                status=403,
                code="host_not_allowed",
            )
        origin = exchange.headers.get(b"origin", b"").decode("latin-1")
        if origin and origin not in self._origins and urlsplit(origin).netloc != host:
            raise Rejected(
                f"pages of {origin} may not call this server; see allowed-origins in [server]",
                status=403,
                code="origin_not_allowed",
            )
        if origin in self._origins:
            exchange.headers_sent = (
                *exchange.headers_sent,
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"access-control-allow-headers", b"authorization, content-type, x-api-key"),
                (b"vary", b"origin"),
            )

    def _identify(self, exchange: Exchange) -> str:
        """The user whose key a request has."""
        if self._users is None:
            return LOCAL
        key, headers = b"", exchange.headers
        if (header := headers.get(b"authorization", b""))[: len(_BEARER)].lower() == _BEARER:
            key = header[len(_BEARER) :].strip()
        key = key or headers.get(b"x-api-key") or headers.get(b"api-key") or b""
        user = self._users.find(key.decode("latin-1")) if key else None
        if user is None:
            raise Rejected(
                "the key is not valid" if key else "a key is needed: Authorization: Bearer KEY",
                status=401,
                code="invalid_api_key",
            )
        return user

    async def _report(self, exchange: Exchange, error: Exception) -> None:
        failure = describe_failure(error)
        if not isinstance(error, VibeLlmsError | Rejected):
            _LOGGER.error("the request %s failed", exchange.request_id, exc_info=error)
        if exchange.status:
            # The response has begun; all that is left is to end the connection early.
            raise error
        headers = []
        if failure.retry_after is not None:
            headers.append((b"retry-after", str(max(1, round(failure.retry_after))).encode()))
        if failure.status == 413:
            # The rest of the body is not read.
            headers.append((b"connection", b"close"))
        await exchange.fail(failure, headers)

    def _record(self, exchange: Exchange, seconds: float) -> None:
        path, _ = _match_path(exchange.path)
        self._core.metrics.count_request(path, exchange.status, seconds)
        who = exchange.user or "-"
        self._log(f"{exchange.method} {path} {exchange.status} {seconds * 1000:.1f} ms {who}")


def _match_path(path: str) -> tuple[str, str]:
    """The path of `ENDPOINTS` that a path is one of, and what it leaves open."""
    if path in ENDPOINTS:
        return path, ""
    for known, pattern in _PATTERNS.items():
        if found := pattern.fullmatch(path):
            return known, found[1]
    return _OTHER, ""


def _find_handler(exchange: Exchange) -> Handler:
    path, exchange.argument = _match_path(exchange.path)
    if path == _OTHER:
        raise Rejected(f"there is no {exchange.path}", status=404, code="unknown_url")
    if (handler := ENDPOINTS[path].get(exchange.method)) is None:
        raise Rejected(
            f"{exchange.path} does not take {exchange.method}",
            status=405,
            code="method_not_allowed",
        )
    return handler


def _is_address(name: str) -> bool:
    """Whether a host is an address rather than a name, which could be another's."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
