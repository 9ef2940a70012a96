"""`vibe-llms mcp serve` in a process of its own, with the official client as the judge."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mcp_server.clients import ERAS, call, start
from vibe_llms.mcp_server.offer import TOOLS


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
