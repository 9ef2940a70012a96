"""The client of the official package, `agent-client-protocol`, uses the command."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from acp.client.connection import ClientSideConnection
from acp.contrib.session_state import SessionAccumulator

from acp import PROTOCOL_VERSION, Client, spawn_agent_process, text_block
from acp.schema import (
    AllowedOutcome,
    McpServerStdio,
    PermissionOption,
    RequestPermissionResponse,
    SessionNotification,
    ToolCallUpdate,
)
from tests.acp.scripts import ECHO, call, replies, server
from tests.cli.command import script_of, write_script


class OfficialClient:
    """A client that keeps what it gets, and allows what it is asked."""

    def __init__(self) -> None:
        self.state = SessionAccumulator()
        self.asked: list[tuple[ToolCallUpdate, list[str]]] = []

    async def request_permission(
        self,
        session_id: str,
        tool_call: ToolCallUpdate,
        options: list[PermissionOption],
        **further: Any,
    ) -> RequestPermissionResponse:
        self.asked.append((tool_call, [one.kind for one in options]))
        chosen = AllowedOutcome(option_id=options[0].option_id, outcome="selected")
        return RequestPermissionResponse(outcome=chosen)

    async def session_update(self, session_id: str, update: Any, **further: Any) -> None:
        self.state.apply(SessionNotification(session_id=session_id, update=update))


@asynccontextmanager
async def connected(*arguments: str) -> AsyncIterator[tuple[OfficialClient, ClientSideConnection]]:
    client = OfficialClient()
    command = [sys.executable, "-m", "vibe_llms", "acp", *arguments]
    async with spawn_agent_process(
        cast("Client", client),
        *command,
        env=dict(os.environ),
        # The package ends a process with a signal that does not end by itself in two seconds.
        transport_kwargs={"shutdown_timeout": 100},
    ) as (agent, process):
        answer = await agent.initialize(protocol_version=PROTOCOL_VERSION)
        assert answer.protocol_version == PROTOCOL_VERSION
        yield client, agent
    assert process.returncode == 0


async def test_the_official_client_streams_a_turn_with_a_tool_call(tmp_path: Path) -> None:
    script = replies(
        f"{{ text = 'Now: ' }}, {call('fake/echo', text='hello')}", "{ text = 'Done.' }"
    )
    async with connected("-m", write_script(tmp_path, script)) as (client, agent):
        opened = await agent.new_session(
            cwd=str(tmp_path), mcp_servers=[McpServerStdio.model_validate(server(ECHO))]
        )
        done = await agent.prompt(session_id=opened.session_id, prompt=[text_block("Echo!")])
        assert done.stop_reason == "end_turn"
        seen = client.state.snapshot()
    (made,) = seen.tool_calls.values()
    assert (made.title, made.status) == ("fake/echo", "completed")
    assert made.raw_input == {"text": "hello"}
    texts = [chunk.content.text for chunk in seen.agent_messages]
    assert "".join(texts) == "Now: Done."
    ((asked, kinds),) = client.asked
    assert asked.raw_input == {"text": "hello"}
    assert kinds == ["allow_once", "allow_always", "allow_always", "reject_once"]


async def test_the_official_client_cancels_a_turn(tmp_path: Path) -> None:
    script = script_of("{ text = 'One ' }", "{ stall = true }")
    async with connected("-m", write_script(tmp_path, script)) as (client, agent):
        opened = await agent.new_session(cwd=str(tmp_path), mcp_servers=[])
        turn = asyncio.create_task(
            agent.prompt(session_id=opened.session_id, prompt=[text_block("Count")])
        )
        arrived = asyncio.Event()
        client.state.subscribe(lambda *_: arrived.set())
        await arrived.wait()
        await agent.cancel(session_id=opened.session_id)
        assert (await turn).stop_reason == "cancelled"
