"""A connection over lines, in this process: requests in both directions, and their ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Self

import pytest

from tests.mcp_server import fixture
from vibe_llms.mcp_server import stdio
from vibe_llms.mcp_server.calls import McpCall
from vibe_llms.mcp_server.catalog import McpCatalog, ServedTool, ToolOutput
from vibe_llms.mcp_server.core import McpIdentity, McpServer
from vibe_llms.mcp_server.states import StateSeal

INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"elicitation": {}, "sampling": {}},
}


class Line:
    """A client at the other end of a connection."""

    def __init__(self, catalog: McpCatalog) -> None:
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._written: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        identity = McpIdentity(name="test", version="1")
        server = McpServer(identity, catalog, StateSeal(b"x", "ada"), str)
        self._connection = stdio.StdioConnection(server, self._take)

    async def _take(self, data: bytes) -> None:
        self._written.put_nowait(json.loads(data))

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._connection.serve(self._lines.get))
        self.send("initialize", 0, **INITIALIZE)
        assert (await self.read())["id"] == 0
        return self

    async def __aexit__(self, *_: object) -> None:
        self._lines.put_nowait(b"")
        await self._task

    def put(self, message: Any) -> None:
        """Send a message."""
        self._lines.put_nowait(json.dumps(message).encode() + b"\n")

    def send(self, method: str, identity: Any = None, **params: Any) -> None:
        """Send a request, or without an id, a notification."""
        named = {} if identity is None else {"id": identity}
        self.put({"jsonrpc": "2.0", **named, "method": method, "params": params})

    async def read(self) -> dict[str, Any]:
        """The next message of the server."""
        async with asyncio.timeout(10):
            return await self._written.get()


class Gate:
    """A tool that waits, and tells that it was cancelled."""

    def __init__(self) -> None:
        self.entered, self.cancelled = asyncio.Event(), asyncio.Event()

    async def __call__(self, _: Mapping[str, Any], __: McpCall) -> ToolOutput:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        raise AssertionError


def offer(run: Callable[..., Any]) -> McpCatalog:
    """A catalog with one tool."""
    return McpCatalog(tools=[ServedTool({"name": "tool"}, run)])


async def test_a_request_to_the_client_is_answered_or_refused() -> None:
    async with Line(fixture.produce_catalog()) as line:
        for answer, words in (
            ({"result": {"content": {"text": "Paris"}}}, "LLM response: Paris"),
            ({"error": {"code": 1, "message": "no model"}}, "no model"),
            ({"error": {}}, "the client sent an error"),
        ):
            line.send("tools/call", 1, name="test_sampling", arguments={"prompt": "x"})
            asked = await line.read()
            assert asked["method"] == "sampling/createMessage"
            line.put({"jsonrpc": "2.0", "id": asked["id"], **answer})
            # A second answer is ignored.
            line.put({"jsonrpc": "2.0", "id": asked["id"], **answer})
            assert words in json.dumps(await line.read())


async def test_a_cancelled_call_takes_its_question_back() -> None:
    async with Line(fixture.produce_catalog()) as line:
        line.send("tools/call", 1, name="test_elicitation", arguments={"message": "x"})
        asked = await line.read()
        line.send("notifications/cancelled", requestId=1)
        taken = await line.read()
        assert taken["method"] == "notifications/cancelled"
        assert taken["params"]["requestId"] == asked["id"]
        line.send("ping", 2)
        # The cancelled request gets no response.
        assert (await line.read())["id"] == 2


async def test_a_request_with_the_id_of_a_running_one_is_refused() -> None:
    gate = Gate()
    async with Line(offer(gate)) as line:
        line.send("tools/call", 1, name="tool")
        await gate.entered.wait()
        line.send("ping", 1)
        refused = await line.read()
        assert (refused["id"], refused["error"]["code"]) == (1, -32600)
        line.send("notifications/cancelled", requestId=1)
        await gate.cancelled.wait()


async def test_there_are_not_too_many_requests_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "_MOST_CALLS", 1)
    gate = Gate()
    async with Line(offer(gate)) as line:
        line.send("tools/call", 1, name="tool")
        await gate.entered.wait()
        line.send("ping", 2)
        assert "too many requests" in (await line.read())["error"]["message"]
        line.send("notifications/cancelled", requestId=1)
        await gate.cancelled.wait()


async def test_calls_end_soon_after_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "_END_SECONDS", 0.05)
    gate = Gate()
    async with Line(offer(gate)) as line:
        line.send("tools/call", 1, name="tool")
        await gate.entered.wait()
    assert gate.cancelled.is_set()


async def test_an_error_of_a_tool_is_a_result_and_another_one_is_not() -> None:
    async def fail(_: Any, __: Any) -> ToolOutput:
        raise ValueError("broken")

    class Broken(fixture.Resources):
        async def read(self, uri: str) -> Any:
            raise ValueError("broken")

    tools = [ServedTool({"name": "tool"}, fail)]
    async with Line(McpCatalog(tools=tools, resources=Broken())) as line:
        line.send("tools/call", 1, name="tool")
        result = (await line.read())["result"]
        assert (result["isError"], result["content"][0]["text"]) == (True, "broken")
        line.send("resources/read", 2, uri="test://x")
        error = (await line.read())["error"]
        assert (error["code"], error["message"]) == (-32603, "broken")
        # Prompts are not offered, and not declared.
        line.send("prompts/list", 3)
        assert (await line.read())["error"]["code"] == -32601
