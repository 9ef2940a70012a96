"""The endpoints of logins: the web page exchanges a code or a key for a cookie."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import Struct

from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.spaces import UserSpace


class LoginState(Struct):
    """The user of a request; `login` is False if the server asks for no key.

    `expires` is when the login ends, if the request has one.
    """

    user: str
    name: str
    expires: datetime | None
    login: bool


async def show_session(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Show the user of the request, and when the login ends."""
    state = LoginState(space.user, space.user, None, core.keys)
    await exchange.reply(msgspec.json.encode(state))
