"""`McpCall`: one request of a client while it is answered, with progress and questions."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from vibe_llms.mcp_server.eras import LEVELS, McpClient
from vibe_llms.mcp_server.jsonrpc import (
    CAPABILITY_MISSING,
    INVALID_PARAMS,
    ProtocolError,
    RpcRequest,
)
from vibe_llms.mcp_server.states import StateSeal

#: Seconds for which the state of a question is valid.
_STATE_SECONDS = 24 * 3600.0
#: Capability that each request to a client needs.
_CAPABILITIES = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}


class McpChannel(Protocol):
    """The way back to the client while a request is answered."""

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification about the request."""
        ...

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request, and return its result; `ProtocolError` if the client sends an error.

        If this is cancelled, the client is told. Only up to 2025-11-25.
        """
        ...


class ClientRequest(Struct, frozen=True):
    """A request to the client, such as a form for its user to fill in."""

    method: str
    params: Mapping[str, Any]

    @property
    def capability(self) -> str:
        """The capability that the client needs for it."""
        return _CAPABILITIES[self.method]


class InputRequired(Exception):
    """The client must repeat its request with the answers to some requests."""

    def __init__(
        self, requests: Mapping[str, ClientRequest], state: Mapping[str, Any] | None
    ) -> None:
        super().__init__("input required")
        self.requests = requests
        self.state = state


class McpCall:
    """One request of a client while it is answered."""

    def __init__(
        self, request: RpcRequest, client: McpClient, channel: McpChannel, seal: StateSeal
    ) -> None:
        self.client = client
        self._channel = channel
        self._seal = seal
        self._purpose = _find_purpose(request)
        meta = request.params.get("_meta")
        self._token = meta.get("progressToken") if isinstance(meta, Mapping) else None
        #: State of an earlier round; None in the first one.
        self.state = self._read_state(request.params) if client.stateless else None
        given = request.params.get("inputResponses") if client.stateless else None
        #: Answers of the client that are not used yet.
        self._answers = dict(given) if isinstance(given, Mapping) else {}
        self._progress = -1.0

    def _read_state(self, params: Mapping[str, Any]) -> Mapping[str, Any] | None:
        given = params.get("requestState")
        if given is None:
            return None
        state = self._seal.read(given, self._purpose) if isinstance(given, str) else None
        if state is None:
            raise ProtocolError(
                INVALID_PARAMS,
                "requestState is not valid: it is old, changed, or belongs to another request",
            )
        return state

    async def report(self, done: float, total: float | None = None, text: str = "") -> None:
        """Report progress, if the client wants it. Each `done` must be more than the last one."""
        if self._token is None or done <= self._progress:
            return
        self._progress = done
        params: dict[str, Any] = {"progressToken": self._token, "progress": done}
        if total is not None:
            params["total"] = total
        if text:
            params["message"] = text
        await self._channel.notify("notifications/progress", params)

    async def log(self, level: str, data: Any, logger: str = "vibe-llms") -> None:
        """Send a log message, if the client wants those of this severity."""
        wanted = self.client.level
        if wanted and LEVELS.index(level) >= LEVELS.index(wanted):
            params = {"level": level, "logger": logger, "data": data}
            await self._channel.notify("notifications/message", params)

    async def ask(
        self,
        requests: Mapping[str, ClientRequest],
        state: Mapping[str, Any] | None = None,
        *,
        seconds: float | None = None,
    ) -> Mapping[str, Mapping[str, Any]]:
        """Return the client's answers to some requests by their keys.

        Up to 2025-11-25, those that came within some seconds. From 2026-07-28 on, this ends the
        request with `InputRequired` unless the client has sent them; it then repeats its request,
        with the `state`.
        """
        for one in requests.values():
            if not self.client.supports(one.capability):
                raise ProtocolError(
                    CAPABILITY_MISSING,
                    f"the client needs the capability {one.capability}",
                    {"requiredCapabilities": {one.capability: {}}},
                )
        if self.client.stateless:
            return self._take_answers(requests, state)
        return await self._send(requests, seconds)

    def _take_answers(
        self, requests: Mapping[str, ClientRequest], state: Mapping[str, Any] | None
    ) -> Mapping[str, Mapping[str, Any]]:
        answers = {key: self._answers.get(key) for key in requests}
        valid = {key: one for key, one in answers.items() if isinstance(one, Mapping)}
        if len(valid) < len(requests):
            raise InputRequired(requests, state)
        for key in valid:
            del self._answers[key]
        return valid

    async def _send(
        self, requests: Mapping[str, ClientRequest], seconds: float | None
    ) -> Mapping[str, Mapping[str, Any]]:
        tasks = {
            key: asyncio.create_task(self._channel.request(one.method, one.params))
            for key, one in requests.items()
        }
        try:
            done, _ = await asyncio.wait(tasks.values(), timeout=seconds)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        return {key: task.result() for key, task in tasks.items() if task in done}

    def describe(self, required: InputRequired) -> Mapping[str, Any]:
        """Return the result that tells the client which answers are needed."""
        result: dict[str, Any] = {
            "resultType": "input_required",
            "inputRequests": {
                key: {"method": one.method, "params": one.params}
                for key, one in required.requests.items()
            },
        }
        if required.state is not None:
            result["requestState"] = self._seal.write(
                required.state, self._purpose, seconds=_STATE_SECONDS
            )
        return result


def _find_purpose(request: RpcRequest) -> bytes:
    """Return the request that a state belongs to: its method, name, and arguments."""
    params = request.params
    about = [request.method, params.get("name"), params.get("uri"), params.get("arguments")]
    return hashlib.sha256(msgspec.json.encode(about, order="deterministic")).digest()
