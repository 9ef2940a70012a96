"""The official client of MCP, in both eras, for the command and for the HTTP server."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from tests.ensembles.mcp.servers import ASKING
from tests.fakes.warm import warm_module
from tests.server.conftest import Served, serving

#: How the client opens a connection: with a handshake, and without one.
ERAS = {"legacy": "2025-11-25", "auto": "2026-07-28"}
#: Each transport in each era; the ordinary run has each transport and each era once.
WAYS = [
    pytest.param(way, mode, marks=() if (way == "http") == (mode == "legacy") else pytest.mark.slow)
    for way in ("stdio", "http")
    for mode in ERAS
]
#: What the scripted models do.
SCRIPTS = {
    "keeper": """
        [[replies]]
        parts = [{ invocation = "memory/delete_memories", arguments = { query = "tea" } }]
        [[replies]]
        parts = [{ text = "That is settled." }]
        """,
    "asker": """
        [[replies]]
        parts = [{ invocation = "user/ask", arguments = { question = "Which tea?" } }]
        [[replies]]
        parts = [{ text = "Then this one." }]
        """,
    "slow": """
        [[replies]]
        when = ".*"
        parts = [{ text = "It begins." }, { stall = true }]
        """,
    "booker": """
        [[replies]]
        when = "book"
        parts = [{ invocation = "asking/book" }]
        [[replies]]
        when = "pay"
        parts = [{ invocation = "asking/visit", arguments = { address = "https://a.test" } }]
        [[replies]]
        when = ".*"
        parts = [{ text = "Booked." }]
        """,
    "late": """
        [[replies]]
        parts = [{ delay-seconds = 2.0 }, { text = "At last." }]
        """,
    "long": """
        [[replies]]
        parts = [{ text = "%s" }]
        """
    % ("ä" * 50_000),
}
AGENTS = """
[agents.keeper]
model = "scripted/keeper"
ensembles = ["memory"]
[agents.asker]
model = "scripted/asker"
ensembles = ["user"]
[agents.booker]
model = "scripted/booker"
ensembles = ["asking"]
[agents.poet]
model = "scripted/demo"
description = "Writes poems."
prompt = "A $form in $language about: $input"
defaults = { form = "poem" }
"""


def furnish(home: Path) -> None:
    """Write the configuration with scripted models and agents."""
    home.mkdir(exist_ok=True)
    rows = ""
    for name, script in SCRIPTS.items():
        (home / f"{name}.toml").write_text(script, "utf-8")
        rows += f'{name} = "{home / name}.toml"\n'
    asking = f"""[ensembles.asking]
module = "vibe_llms.ensembles.mcp"
command = {json.dumps(ASKING)}
approval = "allow"
protocol = "handshake"
open-seconds = 60
"""
    text = f"[providers.scripted.scripts]\n{rows}{AGENTS}{asking}"
    (home / "config.toml").write_text(text, "utf-8")


def start(*options: str, mode: Any = "auto", **callbacks: Any) -> Client:
    """A client of `vibe-llms mcp serve`, in the environment of the test."""
    command, *arguments = warm_module("vibe_llms", "mcp", "serve", *options)
    server = StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
    return Client(server, mode=mode, read_timeout_seconds=60, **callbacks)


@asynccontextmanager
async def attach(
    served: Served, user: str = "local", *, mode: Any = "auto", query: str = "", **callbacks: Any
) -> AsyncIterator[Client]:
    """A client of `/mcp`, with the key of a user."""
    headers = {"authorization": f"Bearer {served.key(user)}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(f"{served.url}/mcp{query}", http_client=http)
        async with Client(transport, mode=mode, read_timeout_seconds=60, **callbacks) as client:
            yield client


@asynccontextmanager
async def connect(way: str, mode: str, home: Path, **callbacks: Any) -> AsyncIterator[Client]:
    """A client of a furnished home over one of the transports."""
    furnish(home)
    if way == "stdio":
        async with start(mode=mode, **callbacks) as client:
            yield client
    else:
        async with serving(home) as served, attach(served, mode=mode, **callbacks) as client:
            yield client


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The object that a tool returns."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    returned: dict[str, Any] = result.structured_content
    return returned


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """The words with which a tool refuses a call."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result.content
    (block,) = result.content
    assert block.type == "text"
    return block.text
