"""`McpCalls`: the calls of MCP clients that run, and the requests to clients that wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from vibe_llms.mcp_server.jsonrpc import (
    INTERNAL_ERROR,
    MessageId,
    ProtocolError,
    RpcResponse,
    write_message,
)
from vibe_llms.messages.identities import produce_identity

#: Maximum number of sessions whose wanted log messages are known.
_MOST_LEVELS = 1000
#: Maximum number of messages that wait for a client.
_MOST_MESSAGES = 1000
#: User, session, and id of a request.
_Key: TypeAlias = tuple[str, str, MessageId]
_Result: TypeAlias = Mapping[str, Any]


class McpCalls:
    """The calls and questions of all users in this process."""

    def __init__(self) -> None:
        self._running: dict[_Key, asyncio.Task[_Result]] = {}
        self._asked: dict[tuple[str, MessageId], asyncio.Future[_Result]] = {}
        self._levels: dict[str, str] = {}

    @contextmanager
    def running(self, key: _Key, task: asyncio.Task[_Result]) -> Iterator[None]:
        """Let the client cancel a call within the block."""
        # A client that gives two calls one id cancels the later one.
        self._running[key] = task
        try:
            yield
        finally:
            if self._running.get(key) is task:
                del self._running[key]

    def cancel(self, key: _Key) -> None:
        """Cancel a call, if it runs."""
        task = self._running.get(key)
        if task is not None:
            task.cancel()

    @contextmanager
    def asking(self, user: str, identity: str) -> Iterator[asyncio.Future[_Result]]:
        """Yield the future of a client's response to a request with this id."""
        answer = self._asked[user, identity] = asyncio.get_running_loop().create_future()
        try:
            yield answer
        finally:
            del self._asked[user, identity]

    def take(self, user: str, response: RpcResponse) -> None:
        """Pass on a client's response, or ignore it if no request waits for it."""
        answer = self._asked.get((user, response.id))
        if answer is None or answer.done():
            return
        if response.result is not None:
            answer.set_result(response.result)
        else:
            said = (response.error or {}).get("message") or "the client sent an error"
            answer.set_exception(ProtocolError(INTERNAL_ERROR, str(said)))

    def set_level(self, session: str, level: str) -> None:
        """Note which log messages a session wants."""
        self._levels.pop(session, None)
        self._levels[session] = level
        while len(self._levels) > _MOST_LEVELS:
            del self._levels[next(iter(self._levels))]

    def find_level(self, session: str) -> str:
        """Return the mildest severity of log messages that a session wants."""
        return self._levels.get(session, "info")


class StreamChannel:
    """The way back to a client: messages for the event stream of its request."""

    def __init__(self, calls: McpCalls, user: str) -> None:
        self._calls = calls
        self._user = user
        #: Messages to send, and an event that is set when there are some, or the call has ended.
        self.messages: deque[bytes] = deque()
        self.changed = asyncio.Event()

    def _put(self, message: bytes) -> None:
        self.messages.append(message)
        self.changed.set()

    async def notify(self, method: str, params: _Result) -> None:
        """Send a notification; it is left out if the client does not read."""
        if len(self.messages) < _MOST_MESSAGES:
            self._put(write_message(method, params))

    async def request(self, method: str, params: _Result) -> _Result:
        """Send a request, and return its result; `ProtocolError` if the client sends an error."""
        # Another client of the user must not guess it.
        identity = produce_identity()
        with self._calls.asking(self._user, identity) as answer:
            self._put(write_message(method, params, identity))
            try:
                return await answer
            except asyncio.CancelledError:
                params = {"requestId": identity, "reason": "the server does not wait any longer"}
                self._put(write_message("notifications/cancelled", params))
                raise


class DeafChannel:
    """The way back to a client that accepts no event streams: there is none."""

    async def notify(self, method: str, params: _Result) -> None:
        """Send nothing."""

    async def request(self, method: str, params: _Result) -> _Result:
        """Refuse to send a request."""
        raise ProtocolError(
            INTERNAL_ERROR, f"{method} needs an event stream; accept text/event-stream"
        )
