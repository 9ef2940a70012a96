"""The endpoints of logins: the web page exchanges a code or a key for a cookie."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.failures import Rejected
from vibe_llms.server.logins import check_page
from vibe_llms.server.reading import read_body
from vibe_llms.server.spaces import UserSpace
from vibe_llms.storage.logins import Login

#: Largest body of a login, which has no key yet.
_LOGIN_BYTES = 4096


class LoginOrder(Struct, forbid_unknown_fields=True):
    """Either a one-time code, which `vibe-llms web` prints, or the key of a user."""

    code: str = ""
    key: str = ""


class LoginBegun(Struct):
    """A login that has begun; the response has its cookie."""

    user: str
    expires: datetime


class LoginState(Struct):
    """The user of a request; `login` is False if the server asks for no key.

    `expires` is when the login ends, if the request has one.
    """

    user: str
    name: str
    expires: datetime | None
    login: bool


class LoginView(Struct):
    """A login; `client` is the name of its browser, and `current` is True for this request's."""

    id: str
    created: datetime
    expires: datetime
    client: str
    current: bool = False


class LoginList(Struct):
    """Logins, newest first."""

    sessions: list[LoginView]


_DECODER = msgspec.json.Decoder(LoginOrder)


async def log_in(core: ServerCore, exchange: HttpExchange) -> None:
    """Exchange a one-time code or a key for the cookie of a login.

    The cookie opens what is below `/api`, and only for pages of the server.
    """
    if not core.keys:
        raise Rejected("the server asks for no key, so nobody logs in", code="login_not_needed")
    check_page(exchange, browser=False)
    if exchange.media_type != "application/json":
        raise Rejected(
            "the body must be JSON; send Content-Type: application/json",
            status=415,
            code="unsupported_media_type",
        )
    body = await exchange.read(replace(core.settings, body_bytes=_LOGIN_BYTES))
    order = read_body(_DECODER, body, most_bytes=_LOGIN_BYTES)
    if bool(order.code) == bool(order.key):
        raise Rejected("send either a code or a key")
    with core.logins.attempt():
        if order.code:
            user = core.logins.redeem(order.code)
        else:
            user = await core.users.find(order.key)
        if user is None:
            raise Rejected(
                "the link has been used, or has expired; open a new one, or use a key"
                if order.code
                else "the key is not valid",
                status=401,
                code="invalid_code" if order.code else "invalid_api_key",
            )
    exchange.user = user
    login = await core.logins.begin(exchange, user, order.key)
    await exchange.reply(msgspec.json.encode(LoginBegun(user, login.expires)))


async def log_out(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """End the login of the request, if it has one, and remove its cookie."""
    if exchange.login is not None:
        await core.logins.end(exchange, exchange.login)
    await _show(core, exchange, space)


async def show_session(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Show the user of the request, and when the login ends."""
    await _show(core, exchange, space)


async def list_sessions(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """List the user's logins, newest first."""
    found = await core.logins.store.survey(space.user)
    views = [_describe(exchange, one) for one in found]
    await exchange.reply(msgspec.json.encode(LoginList(views)))


async def end_session(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """End a login of the user."""
    identity = exchange.argument
    for login in await core.logins.store.survey(space.user):
        if login.id == identity:
            await core.logins.store.end(login)
            await exchange.reply(msgspec.json.encode(_describe(exchange, login)))
            return
    raise Rejected(f"session {identity!r} not found", status=404, code="session_not_found")


async def _show(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    expires = exchange.login.expires if exchange.login is not None else None
    state = LoginState(space.user, space.user, expires, core.keys)
    await exchange.reply(msgspec.json.encode(state))


def _describe(exchange: HttpExchange, login: Login) -> LoginView:
    current = exchange.login is not None and exchange.login.id == login.id
    return LoginView(login.id, login.created, login.expires, login.client, current)
