"""Serving a client over standard input and output: one message a line.

The first request decides the era of the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from vibe_llms.base.exceptions import RequestError
from vibe_llms.mcp_server.core import McpServer, read_level
from vibe_llms.mcp_server.eras import McpClient, check_version, is_stateless, negotiate, read_client
from vibe_llms.mcp_server.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    MessageId,
    ProtocolError,
    RpcNotification,
    RpcRequest,
    RpcResponse,
    find_id,
    read_message,
    write_error,
    write_message,
    write_result,
)

#: Maximum length of a line.
MOST_BYTES = 16 * 1024 * 1024
#: Seconds for running calls after the end of the input.
_END_SECONDS = 0.5
#: Maximum number of requests that are answered at once.
_MOST_CALLS = 100


class StdioConnection:
    """A connection to one client: reads lines, and answers each request in a task of its own."""

    def __init__(self, server: McpServer, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._server = server
        self._write_line = write
        self._writing = asyncio.Lock()
        self._client: McpClient | None = None
        self._calls: dict[MessageId, asyncio.Task[None]] = {}
        self._asked: dict[MessageId, asyncio.Future[Mapping[str, Any]]] = {}
        self._count = 0

    async def serve(self, read: Callable[[], Awaitable[bytes]]) -> None:
        """Answer the lines of `read` until it returns an empty one at the end of the input.

        If it raises `RequestError`, the client is told.
        """
        try:
            while line := await read():
                if line.strip():
                    await self._take(line)
            if self._calls:
                # Their answers can still be read, if they come soon.
                await asyncio.wait(self._calls.values(), timeout=_END_SECONDS)
        except RequestError as error:
            failure = ProtocolError(INVALID_REQUEST, str(error))
            await self._write(write_error(None, failure))
            raise
        finally:
            for task in self._calls.values():
                task.cancel()
            await asyncio.gather(*self._calls.values(), return_exceptions=True)

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification."""
        await self._write(write_message(method, params))

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request, and return its result; `ProtocolError` if the client sends an error."""
        self._count += 1
        identity = f"vibe-llms-{self._count}"
        answer = self._asked[identity] = asyncio.get_running_loop().create_future()
        try:
            await self._write(write_message(method, params, identity))
            result: Mapping[str, Any] = await answer
            return result
        except asyncio.CancelledError:
            params = {"requestId": identity, "reason": "the server does not wait any longer"}
            await self.notify("notifications/cancelled", params)
            raise
        finally:
            del self._asked[identity]

    async def _write(self, message: bytes) -> None:
        async with self._writing:
            await self._write_line(message + b"\n")

    async def _take(self, line: bytes) -> None:
        try:
            message = read_message(line)
        except ProtocolError as error:
            await self._write(write_error(find_id(line), error))
            return
        match message:
            case RpcRequest() if message.id in self._calls:
                await self._refuse(message, INVALID_REQUEST, "a request with this id is running")
            case RpcRequest() if len(self._calls) >= _MOST_CALLS:
                await self._refuse(message, INTERNAL_ERROR, "too many requests; wait for some")
            case RpcRequest():
                self._start(message)
            case RpcNotification("notifications/cancelled", params):
                cancelled = params.get("requestId")
                if isinstance(cancelled, str | int) and cancelled in self._calls:
                    self._calls[cancelled].cancel()
            case RpcNotification():
                pass
            case RpcResponse(identity, result, failure):
                answer = self._asked.get(identity)
                if answer is None or answer.done():
                    return
                if result is not None:
                    answer.set_result(result)
                else:
                    said = (failure or {}).get("message") or "the client sent an error"
                    answer.set_exception(ProtocolError(INTERNAL_ERROR, str(said)))

    async def _refuse(self, request: RpcRequest, code: int, reason: str) -> None:
        await self._write(write_error(request.id, ProtocolError(code, reason)))

    def _start(self, request: RpcRequest) -> None:
        task = self._calls[request.id] = asyncio.create_task(self._answer(request))
        task.add_done_callback(lambda _: self._calls.pop(request.id))

    async def _answer(self, request: RpcRequest) -> None:
        # A cancelled request gets no response.
        with suppress(asyncio.CancelledError):
            try:
                reply = write_result(request.id, await self._find_result(request))
            except ProtocolError as error:
                reply = write_error(request.id, error)
            await self._write(reply)

    async def _find_result(self, request: RpcRequest) -> Mapping[str, Any]:
        if request.method == "initialize" and not is_stateless(request.params):
            self._client = negotiate(request.params)
            return self._server.introduce(self._client)
        if is_stateless(request.params) or (self._client is None and request.method != "ping"):
            # Without a handshake, what is missing is named.
            client = read_client(request.params)
            check_version(client.version)
            return await self._server.answer(request, client, self)
        if self._client is None:
            return {}
        if request.method == "logging/setLevel":
            self._client = replace(self._client, level=read_level(request))
        return await self._server.answer(request, self._client, self)
