"""The client that the MCP authors' suite judges, against a server of our own that needs no npm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.mcp_http import FakeMcp
from vibe_llms.testing.listening import HttpAnswer

CLIENT = Path(__file__).parents[3] / ".auxiliary" / "conformance" / "mcp_client.py"
PICKY = {
    "type": "object",
    "properties": {"contact": {"enum": ["phone", "email"]}},
    "required": ["contact"],
}
LOOSE = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "region": {"type": "string"}},
    "required": ["text"],
}


def run_client(server: FakeMcp, tools: list[dict[str, Any]], context: Any) -> list[Any]:
    """Run the client, which must succeed; the calls that the server got."""
    calls: list[Any] = []

    def override(method: str, message: Any) -> HttpAnswer | None:
        if method == "tools/list":
            return server.reply(message, {"tools": tools})
        if method == "tools/call":
            calls.append(message["params"])
            return server.reply(message, {"content": []})
        return None

    server.override = override
    environment = {**os.environ, "MCP_CONFORMANCE_CONTEXT": json.dumps(context)}
    command = [sys.executable, str(CLIENT), f"{server.url}/mcp"]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return calls


@pytest.fixture
def server() -> Any:
    with FakeMcp() as fake:
        yield fake


def test_arguments_that_do_not_fit_one_tool_do_not_stop_the_client(server: FakeMcp) -> None:
    tools = [{"name": "picky", "inputSchema": PICKY}, {"name": "loose", "inputSchema": LOOSE}]
    (call,) = run_client(server, tools, {})
    assert (call["name"], call["arguments"]) == ("loose", {"text": "a", "region": "a"})


def test_null_for_an_optional_property_is_not_sent(server: FakeMcp) -> None:
    asked = {"name": "loose", "arguments": {"text": "hi", "region": None}}
    (call,) = run_client(server, [{"name": "loose", "inputSchema": LOOSE}], {"toolCalls": [asked]})
    assert call["arguments"] == {"text": "hi"}
