"""`Endpoint`: handler of a path and method, and the types for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.spaces import UserSpace

UserHandler: TypeAlias = Callable[[ServerCore, HttpExchange, UserSpace], Awaitable[None]]
ServerHandler: TypeAlias = Callable[[ServerCore, HttpExchange], Awaitable[None]]
JSON = "application/json"
#: Media type of responses whose type depends on their data.
ANY = "*/*"


class ApiOperation(Struct, frozen=True, kw_only=True):
    """A method of a path, as the OpenAPI document describes it.

    `query` is a type whose members are the query parameters, `headers` describes request headers,
    and `body` is the type of the JSON body, or `bytes`; or else `form` is the type of the form. The
    response has the `status` and JSON of type `reply`, or else data of the `media` type, of which
    clients may request a part if `ranges` is True. If `events` is set, the response may be a stream
    of events with data of this type; `last` is the data of the last event if that is not JSON. If
    `acknowledges` is True, some requests get an empty response with status 202. Errors have the
    type `failure`, or else one of OpenAI's and Anthropic's.
    """

    query: type[Struct] | None = None
    headers: Mapping[str, str] = {}
    body: Any = None
    form: type[Struct] | None = None
    reply: Any = None
    status: int = 200
    media: str = JSON
    ranges: bool = False
    events: Any = None
    last: str = ""
    acknowledges: bool = False
    failure: type[Struct] | None = None


class UserEndpoint(ApiOperation, frozen=True, kw_only=True):
    """An endpoint for the data of the user whose key the request has.

    `controls` maps controls to request members with different names.
    """

    handler: UserHandler
    controls: Mapping[str, str] = {}


class ServerEndpoint(ApiOperation, frozen=True, kw_only=True):
    """An endpoint about the server itself, usually without a key.

    Frequent requests, such as those of load balancers, are not logged.
    """

    handler: ServerHandler
    keyless: bool = True
    logged: bool = True
