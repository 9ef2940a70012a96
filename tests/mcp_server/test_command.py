"""`vibe-llms mcp serve` in a process of its own, with the official client as the judge."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.terminal import COMMAND, LONGEST_SECONDS
from tests.mcp_server.clients import ERAS, call, furnish, start
from vibe_llms.mcp_server.offer import TOOLS
from vibe_llms.mcp_server.stdio import MOST_BYTES
from vibe_llms.opening import open_session
from vibe_llms.runs.interfaces import RunStatus


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_continues_a_conversation_by_its_id(home: Path, mode: str) -> None:
    async with start(mode=mode) as client:
        assert client.protocol_version == ERAS[mode]
        assert [tool.name for tool in (await client.list_tools()).tools] == [*TOOLS]
        first = await call(client, "chat", message="Hello", model="scripted/demo")
        assert (first["status"], first["text"][:6]) == ("completed", "Hello!")
    # Another process goes on with it.
    async with start(mode=mode) as client:
        second = await call(client, "chat", message="Go on", conversation=first["conversation"])
        assert second["conversation"] == first["conversation"]
        (listed,) = (await call(client, "list_conversations"))["conversations"]
        assert (listed["id"], listed["messages"]) == (first["conversation"], 4)


async def test_a_run_goes_on_when_the_client_leaves(home: Path) -> None:
    furnish(home)
    async with start() as client:
        begun = await call(client, "chat", message="x", model="scripted/late", wait_seconds=0)
        assert begun["status"] in ("queued", "running")
    async with open_session(home=home) as session:
        async with asyncio.timeout(LONGEST_SECONDS):
            # This session does not work on runs: another process does.
            while not (run := await session.access_run(begun["run"])).record.status.ended:
                await asyncio.sleep(0.1)
        turn = await run.read()
    assert (run.record.status, turn.text) == (RunStatus.COMPLETED, "At last.")


NOISY = """
import sys
from vibe_llms.cli.main import main
from vibe_llms.mcp_server.core import McpServer

def introduce(self, client):
    print("noise")
    sys.stdout.buffer.write(b"more of it\\n")
    return before(self, client)

before, McpServer.introduce = McpServer.introduce, introduce
sys.exit(main(["mcp", "serve"]))
"""


def test_what_a_tool_prints_does_not_reach_the_client(home: Path) -> None:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}}
    line = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    done = subprocess.run(
        [sys.executable, "-c", NOISY],
        input=json.dumps(line).encode(),
        capture_output=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )
    assert (done.returncode, json.loads(done.stdout)["id"]) == (0, 1)
    assert {*done.stderr.splitlines()} == {b"noise", b"more of it"}


def test_a_line_that_is_too_long_ends_the_command(home: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "mcp", "serve"],
        input=b"x" * (MOST_BYTES + 100_000),
        capture_output=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )
    assert done.returncode == 2
    assert "a line is longer than" in json.loads(done.stdout)["error"]["message"]
    assert b"a line is longer than" in done.stderr


def test_a_signal_ends_the_command_while_it_waits(home: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "mcp", "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        process.stdin.write(json.dumps(ping).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["result"] == {}
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONGEST_SECONDS) == 0


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_that_shows_texts_only_learns_the_ids(home: Path, mode: str) -> None:
    # https://github.com/openai/codex/issues/8580: the id of the conversation was not in the text.
    async with start(mode=mode) as client:
        arguments = {"message": "Hello", "model": "scripted/demo"}
        result = await client.call_tool("chat", arguments)
    (block,) = result.content
    assert json.loads(vars(block)["text"]) == result.structured_content
