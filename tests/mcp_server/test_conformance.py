"""The fixture that the MCP authors' suite judges, with a client that needs no npm.

The suite itself runs nightly: .auxiliary/conformance/run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types
import pytest
from mcp import Client, MCPError
from mcp.shared.exceptions import MCPDeprecationWarning

from tests.mcp_server import fixture
from tests.mcp_server.clients import ERAS, attach
from tests.server.conftest import serving
from vibe_llms.server import mcp

each_era = pytest.mark.parametrize("mode", ERAS)
VALUES: dict[str, Any] = {"name": "Ada", "ok": True, "color": "green", "context": "tea"}


async def elicit(_: Any, params: Any) -> mcp_types.ElicitResult:
    """Fill in any form."""
    names = params.requested_schema["properties"]
    content = {name: VALUES.get(name, "x") for name in names}
    return mcp_types.ElicitResult(action="accept", content=content)


async def sample(_: Any, params: Any) -> mcp_types.CreateMessageResult:
    """Answer any question."""
    content = mcp_types.TextContent(type="text", text="Paris")
    return mcp_types.CreateMessageResult(role="assistant", content=content, model="m")


async def list_roots(_: Any) -> mcp_types.ListRootsResult:
    """One folder."""
    root = mcp_types.Root.model_validate({"uri": "file:///home/ada", "name": "ada"})
    return mcp_types.ListRootsResult(roots=[root])


@asynccontextmanager
async def connect(
    home: Path, mode: str, monkeypatch: pytest.MonkeyPatch, **callbacks: Any
) -> AsyncIterator[Client]:
    """A client of the fixture."""
    monkeypatch.setattr(mcp, "produce_catalog", fixture.produce_catalog)
    async with serving(home) as served, attach(served, mode=mode, **callbacks) as client:
        yield client


async def read(client: Client, tool: str, **arguments: Any) -> str:
    """The text that a tool returns."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    (block,) = result.content
    assert isinstance(block, mcp_types.TextContent)
    return block.text


@each_era
async def test_each_request_to_the_client_is_answered(
    home: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    callbacks = {
        "elicitation_callback": elicit,
        "sampling_callback": sample,
        "list_roots_callback": list_roots,
    }
    async with connect(home, mode, monkeypatch, **callbacks) as client:
        assert await read(client, "test_sampling", prompt="x") == "LLM response: Paris"
        assert '"username": "x"' in await read(client, "test_elicitation", message="x")
        assert await read(client, f"{fixture.PREFIX}_elicitation") == "Hello, Ada!"
        assert "Paris" in await read(client, f"{fixture.PREFIX}_sampling")
        assert "file:///home/ada" in await read(client, f"{fixture.PREFIX}_list_roots")
        several = await read(client, f"{fixture.PREFIX}_multiple_inputs")
        assert all(one in several for one in ("Ada", "Paris", "file:///home/ada"))
        assert await read(client, f"{fixture.PREFIX}_multi_round") == "Ada likes green"
        stated = await read(client, f"{fixture.PREFIX}_request_state")
        assert stated.startswith("state-ok") == (mode == "auto")
        if mode == "auto":
            # Only tools ask up to 2025-11-25.
            prompt = await client.get_prompt(f"{fixture.PREFIX}_prompt", {})
            assert "tea" in str(prompt.messages)


@each_era
async def test_a_client_is_not_asked_for_what_it_cannot_do(
    home: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(home, mode, monkeypatch, sampling_callback=sample) as client:
        said = await read(client, f"{fixture.PREFIX}_capabilities")
        assert ("capital_question" in said, "user_name" in said) == (True, False)
        with pytest.raises(MCPError, match="the client needs the capability elicitation") as raised:
            await client.call_tool(f"{fixture.PREFIX}_elicitation", {})
    assert raised.value.code == -32021


@each_era
async def test_contents_arrive_as_they_are(
    home: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(home, mode, monkeypatch) as client:
        result = await client.call_tool("test_multiple_content_types", {})
        assert [one.type for one in result.content] == ["text", "image", "resource"]
        (audio,) = (await client.call_tool("test_audio_content", {})).content
        assert (audio.type, vars(audio)["mime_type"]) == ("audio", "audio/wav")
        failed = await client.call_tool("test_error_handling", {})
        assert failed.is_error
        told: list[float] = []

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            told.append(progress)

        await client.call_tool("test_tool_with_progress", {}, progress_callback=progress)
        assert told == [0, 50, 100]
        (blob,) = (await client.read_resource("test://static-binary")).contents
        assert vars(blob)["blob"] == fixture.PNG
        (text,) = (await client.read_resource("test://template/7/data")).contents
        assert '"id": "7"' in vars(text)["text"]


async def test_logs_are_sent_from_the_level_that_a_session_wants(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []

    async def hear(params: Any) -> None:
        heard.append(params.data)

    async with connect(home, "legacy", monkeypatch, logging_callback=hear) as client:
        await client.call_tool("test_tool_with_logging", {})
        assert len(heard) == 3
        with pytest.warns(MCPDeprecationWarning):
            await client.set_logging_level("error")
        await client.call_tool("test_tool_with_logging", {})
    assert len(heard) == 3
