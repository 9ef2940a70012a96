"""The official client of MCP, in both eras, for the command and for the HTTP server."""

from __future__ import annotations

import os
from typing import Any

from mcp import Client, StdioServerParameters

from tests.cli.terminal import COMMAND

#: How the client opens a connection: with a handshake, and without one.
ERAS = {"legacy": "2025-11-25", "auto": "2026-07-28"}


def start(*options: str, mode: Any = "auto", **callbacks: Any) -> Client:
    """A client of `vibe-llms mcp serve`, in the environment of the test."""
    command, *arguments = [*COMMAND, "mcp", "serve", *options]
    server = StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
    return Client(server, mode=mode, read_timeout_seconds=60, **callbacks)


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The object that a tool returns."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert result.structured_content is not None
    returned: dict[str, Any] = result.structured_content
    return returned


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """The words with which a tool refuses a call."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result.content
    (block,) = result.content
    assert block.type == "text"
    return block.text
