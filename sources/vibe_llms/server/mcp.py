"""The endpoint `/mcp`: the MCP server over streamable HTTP, in both eras, without sessions here.

Up to 2025-11-25, the id of a session is a signed state with the client's capabilities, so that any
server process can answer each request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Annotated, Any

from msgspec import Meta, Struct

from vibe_llms.base.exceptions import RequestError
from vibe_llms.mcp_server.core import McpServer, read_level
from vibe_llms.mcp_server.eras import (
    McpClient,
    check_version,
    is_stateless,
    negotiate,
    read_client,
)
from vibe_llms.mcp_server.jsonrpc import (
    CAPABILITY_MISSING,
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    VERSION_UNSUPPORTED,
    ProtocolError,
    RpcNotification,
    RpcRequest,
    RpcResponse,
    find_id,
    read_message,
    write_error,
    write_result,
)
from vibe_llms.mcp_server.offer import IDENTITY, choose_tools, produce_catalog
from vibe_llms.mcp_server.states import StateSeal
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.failures import ClientFailure, Rejected
from vibe_llms.server.mcp_calls import DeafChannel, StreamChannel
from vibe_llms.server.mcp_converser import SpaceConverser, describe_error
from vibe_llms.server.mcp_headers import (
    SESSION,
    check_agreement,
    find_version,
    is_stateless_header,
    read_header,
)
from vibe_llms.server.reading import read_query
from vibe_llms.server.spaces import UserSpace

#: Statuses of errors from 2026-07-28 on; before, errors of requests have the status 200.
_STATUSES = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    CAPABILITY_MISSING: 400,
    VERSION_UNSUPPORTED: 400,
    METHOD_NOT_FOUND: 404,
}
#: Purpose of the signature of a session.
_PURPOSE = b"session"
#: Capabilities, and parts of them, that a session notes.
_CAPABILITIES = ("elicitation", "sampling", "roots")
_PARTS = ("form", "url", "tools")
_JSON, _EVENTS = "application/json", "text/event-stream"
#: Seconds after which the response becomes a stream, in which comments keep it open.
_SILENT_SECONDS = 10.0


class McpQuery(Struct):
    """Tools to offer; the client's user writes them into the address of the server."""

    tools: Annotated[str, Meta(description="Names of the tools, separated by commas.")] = ""
    read_only: Annotated[bool, Meta(description="Only tools that change nothing.")] = False


async def serve_mcp(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Answer a message of an MCP client, in the versions up to 2025-11-25 and 2026-07-28.

    The response to a request is JSON, or a stream of events if the client accepts one and there is
    something to say before the result. A disconnect ends the call, but no run.
    """
    query = read_query(McpQuery, exchange.query)
    body = await exchange.read(core.settings)
    try:
        message = await exchange.offload(lambda: read_message(body))
        match message:
            case RpcRequest():
                await _Request(core, exchange, space, message, await _seal(core, space)).serve(
                    query
                )
            case RpcNotification(method, params):
                if not is_stateless_header(exchange.headers):
                    find_version(exchange.headers)
                    _cancel(core, exchange, method, params)
                await exchange.reply(b"", status=202)
            case RpcResponse():
                core.mcp.take(space.user, message)
                await exchange.reply(b"", status=202)
    except ProtocolError as error:
        if exchange.status:
            raise
        status = _STATUSES.get(error.code, 200)
        await exchange.reply(write_error(find_id(body), error), status=status)


def _cancel(
    core: ServerCore, exchange: HttpExchange, method: str, params: Mapping[str, Any]
) -> None:
    identity = params.get("requestId")
    if method == "notifications/cancelled" and isinstance(identity, str | int):
        core.mcp.cancel((exchange.user, read_header(exchange.headers, SESSION), identity))


async def _seal(core: ServerCore, space: UserSpace) -> StateSeal:
    return StateSeal(await core.secrets.access(), space.user)


class _Request:
    """A request of a client, and its response."""

    def __init__(
        self,
        core: ServerCore,
        exchange: HttpExchange,
        space: UserSpace,
        request: RpcRequest,
        seal: StateSeal,
    ) -> None:
        self._core = core
        self._exchange = exchange
        self._space = space
        self._request = request
        self._seal = seal
        self._session = read_header(exchange.headers, SESSION)

    async def serve(self, query: McpQuery) -> None:
        """Send the response."""
        server = self._produce_server(query)
        request, params = self._request, self._request.params
        if is_stateless(params) or is_stateless_header(self._exchange.headers):
            client = read_client(params)
            check_agreement(request, client, self._exchange.headers)
            check_version(client.version)
        elif request.method == "initialize":
            await self._introduce(server)
            return
        else:
            client = self._find_client()
        await self._answer(server, client)

    def _produce_server(self, query: McpQuery) -> McpServer:
        converser = SpaceConverser(self._space)
        named = [one for part in query.tools.split(",") if (one := part.strip())]
        try:
            tools = choose_tools(named or None, read_only=query.read_only)
        except RequestError as error:
            raise Rejected(str(error), param="tools") from error

        async def access() -> SpaceConverser:
            return converser

        return McpServer(IDENTITY, produce_catalog(access, tools), self._seal, describe_error)

    async def _introduce(self, server: McpServer) -> None:
        client = negotiate(self._request.params)
        state = {"version": client.version, "capabilities": _reduce(client.capabilities)}
        session = self._seal.write(state, _PURPOSE).encode()
        await self._exchange.reply(
            write_result(self._request.id, server.introduce(client)), headers=[(SESSION, session)]
        )

    def _find_client(self) -> McpClient:
        """Return the client of a session, or one without capabilities."""
        version = find_version(self._exchange.headers)
        if not self._session:
            return McpClient(version=version)
        state = self._seal.read(self._session, _PURPOSE)
        if state is None:
            # The client then begins another session.
            raise Rejected(
                "the session is not valid; send initialize", status=404, code="session_not_found"
            )
        level = self._core.mcp.find_level(self._session)
        return McpClient(version=state["version"], capabilities=state["capabilities"], level=level)

    async def _answer(self, server: McpServer, client: McpClient) -> None:
        request, user = self._request, self._space.user
        if request.method == "logging/setLevel" and not client.stateless and self._session:
            self._core.mcp.set_level(self._session, read_level(request))
        json, events = self._read_accepted()
        stream = StreamChannel(self._core.mcp, user)
        channel = stream if events else DeafChannel()
        task = asyncio.create_task(server.answer(request, client, channel))
        task.add_done_callback(lambda _: stream.changed.set())
        key = user, self._session, request.id
        try:
            with self._core.mcp.running(key, task):
                async with self._exchange.until_disconnect():
                    if not events:
                        await asyncio.wait([task])
                    if json and await _is_silent(task, stream):
                        await self._reply(task, client)
                    else:
                        parts = self._write_events(task, stream)
                        async with aclosing(parts):
                            await self._exchange.stream(parts, self._fail)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _read_accepted(self) -> tuple[bool, bool]:
        """Return if the client accepts JSON, and if it accepts streams of events."""
        header = self._exchange.headers.get(b"accept", b"*/*").decode("latin-1").lower()
        kinds = {part.partition(";")[0].strip() for part in header.split(",")}
        json = not kinds.isdisjoint((_JSON, "application/*", "*/*"))
        events = not kinds.isdisjoint((_EVENTS, "text/*", "*/*"))
        if not json and not events:
            raise Rejected(f"accept {_JSON} and {_EVENTS}", status=406, code="not_acceptable")
        return json, events

    async def _reply(self, task: asyncio.Task[Mapping[str, Any]], client: McpClient) -> None:
        if task.cancelled():
            # The client has cancelled it, and expects no response.
            await self._exchange.reply(b"", status=202)
            return
        try:
            result = await task
        except ProtocolError as error:
            status = _STATUSES.get(error.code, 200) if client.stateless else 200
            await self._exchange.reply(write_error(self._request.id, error), status=status)
            return
        await self._exchange.reply(write_result(self._request.id, result))

    async def _write_events(
        self, task: asyncio.Task[Mapping[str, Any]], stream: StreamChannel
    ) -> AsyncGenerator[bytes, None]:
        while not task.done() or stream.messages:
            await stream.changed.wait()
            stream.changed.clear()
            while stream.messages:
                yield _write_event(stream.messages.popleft())
        if task.cancelled():
            return
        try:
            yield _write_event(write_result(self._request.id, await task))
        except ProtocolError as error:
            yield _write_event(write_error(self._request.id, error))

    def _fail(self, failure: ClientFailure) -> bytes:
        error = ProtocolError(INTERNAL_ERROR, failure.message)
        return _write_event(write_error(self._request.id, error))


async def _is_silent(task: asyncio.Task[Mapping[str, Any]], stream: StreamChannel) -> bool:
    """Wait for the end of a call, or its first message; return True if it ended without any."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_SILENT_SECONDS):
            await stream.changed.wait()
    return task.done() and not stream.messages


def _write_event(message: bytes) -> bytes:
    return b"event: message\ndata: %b\n\n" % message


def _reduce(capabilities: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the capabilities that matter here; the id of a session is short."""
    return {
        name: {part: {} for part in _PARTS if part in given}
        for name in _CAPABILITIES
        if isinstance(given := capabilities.get(name), Mapping)
    }
