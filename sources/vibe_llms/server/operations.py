"""What each endpoint takes and gives: the handler, and the types that the document is made of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import Exchange
from vibe_llms.server.spaces import UserSpace

UserHandler: TypeAlias = Callable[[ServerCore, Exchange, UserSpace], Awaitable[None]]
ServerHandler: TypeAlias = Callable[[ServerCore, Exchange], Awaitable[None]]
JSON = "application/json"


class Endpoint(Struct, frozen=True, kw_only=True):
    """A method of a path, as the OpenAPI document describes it.

    `query` is a type with the members of the query, `headers` describes headers that it reads, and
    `body` is the type of the JSON in the request, or `bytes`. With `status` it answers JSON of the
    type `reply`, or without one something else of a `media` type. Where `events` is the type of
    their data, it answers with a stream of events instead, or may do so; `last` is the data of the
    last event where that is not JSON.
    """

    query: type[Struct] | None = None
    headers: Mapping[str, str] = {}
    body: Any = None
    reply: Any = None
    status: int = 200
    media: str = JSON
    events: Any = None
    last: str = ""


class UserEndpoint(Endpoint, frozen=True, kw_only=True):
    """Works with what belongs to the user whose key the request has.

    `controls` are the members of the request for controls that have other names there.
    """

    handler: UserHandler
    controls: Mapping[str, str] = {}


class ServerEndpoint(Endpoint, frozen=True, kw_only=True):
    """Says something of the server itself; most of it without a key.

    Balancers ask some of it so often that it is not logged.
    """

    handler: ServerHandler
    keyless: bool = True
    logged: bool = True
