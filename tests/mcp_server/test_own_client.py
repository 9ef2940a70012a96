"""Our own client of MCP servers, with our own server behind it: a model calls another one."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import vibe_llms
from tests.fakes.models import model_of, says
from tests.mcp_server.clients import furnish
from tests.server.conftest import serving
from vibe_llms.messages.canisters import ResultCanister
from vibe_llms.opening import open_session
from vibe_llms.testing import Part, ScriptedReply

MODULE = "vibe_llms.ensembles.mcp"
OTHER = "other"
SOURCES = str(Path(vibe_llms.__file__).parents[1])
#: The command of the package under test, wherever it is: a row may set no PYTHONPATH.
PROGRAM = f"""
import sys
sys.path.insert(0, {SOURCES!r})
from vibe_llms.cli.main import main
sys.exit(main(["mcp", "serve"]))
"""
COMMAND = [sys.executable, "-c", PROGRAM]


@asynccontextmanager
async def offering(way: str, home: Path) -> AsyncIterator[dict[str, Any]]:
    """The row of a server in a home of its own."""
    other = home.with_name(OTHER)
    furnish(other)
    if way == "stdio":
        yield {"command": COMMAND, "environment": {"VIBE_LLMS_HOME": str(other)}}
        return
    async with serving(other) as served:
        yield {"url": f"{served.url}/mcp", "headers": {"Authorization": f"Bearer {served.key()}"}}


@pytest.mark.parametrize("way", ["stdio", "http"])
@pytest.mark.parametrize("protocol", ["handshake", "stateless"])
async def test_a_model_asks_another_one_in_a_stored_conversation(
    home: Path, way: str, protocol: str
) -> None:
    async with offering(way, home) as offered:
        row = {"module": MODULE, "approval": "allow", "protocol": protocol, **offered}
        rows = {"ensembles": {"other": row}}
        async with open_session(configuration=rows) as session:
            ensemble = await session.open_ensemble("other")
            tools = {one.name for one in ensemble.invokers}
            assert {"other/chat", "other/wait", "other/read_conversation"} <= tools
            arguments = {"message": "Hello", "model": "scripted/demo"}
            asking = ScriptedReply(parts=(Part(invocation="other/chat", arguments=arguments),))
            model = model_of(asking, says("Done."))
            conversation = await session.begin(model, ensembles=["other"], save=False)
            turn = await conversation.converse("Ask it")
    (result,) = [one for one in turn.canisters if isinstance(one, ResultCanister)]
    report = msgspec.json.decode(result.text)
    assert (report["status"], report["text"][:6]) == ("completed", "Hello!")
    # Text of others is not trusted.
    assert not result.trusted
