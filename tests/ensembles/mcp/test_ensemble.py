"""MCP servers as ensembles: over standard streams, streamable HTTP and the older form of HTTP."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ensembles.mcp.servers import FAKE, opened, produce_ensemble
from tests.fakes import mcp_official
from tests.fakes.models import model_of, says
from tests.fakes.ports import find_port
from tests.fakes.warm import warm_command
from tests.faults.virtual import run_virtually
from vibe_llms import open_session
from vibe_llms.base.configuration import load_configuration
from vibe_llms.base.exceptions import ArgumentsInvalid, ConfigurationError, EnsembleFailed
from vibe_llms.base.meta import CONVERSATION_KEY
from vibe_llms.conversations.hosts import EnsembleConfiguration, EnsembleHost
from vibe_llms.ensembles.mcp.ensemble import MAX_RESTARTS, McpEnsemble
from vibe_llms.ensembles.mcp.tool_lists import assimilate_tool
from vibe_llms.invocation.approval import ApprovalRequest, Decision
from vibe_llms.invocation.invokers import InvocationContext
from vibe_llms.messages.canisters import InvocationCanister, ResultCanister
from vibe_llms.messages.contents import AudioContent, ImageContent, TextualContent
from vibe_llms.messages.events import Event, InvocationProgressEvent, Notice, NoticeEvent
from vibe_llms.testing import Part, ScriptedReply

pytestmark = pytest.mark.usefixtures("warm_process")

SERVER = str(Path(mcp_official.__file__))
MODULE = "vibe_llms.ensembles.mcp"
PATIENCE = {"open-seconds": 60, "list-seconds": 60}


@asynccontextmanager
async def serve(kind: str) -> AsyncIterator[dict[str, Any]]:
    """A row for a server that runs while the context is open."""
    if kind == "stdio":
        yield {"command": warm_command(SERVER)}
        return
    port = find_port()
    process = await asyncio.create_subprocess_exec(
        *warm_command(SERVER, kind, str(port)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(600):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError:
                await asyncio.sleep(0.1)
        path, transport = ("sse", "sse") if kind == "sse" else ("mcp", "http")
        yield {"url": f"http://127.0.0.1:{port}/{path}", "transport": transport}
    finally:
        process.kill()
        await process.wait()


def calls(*named: tuple[str, dict[str, Any]]) -> ScriptedReply:
    return ScriptedReply(
        parts=tuple(Part(invocation=name, arguments=arguments) for name, arguments in named)
    )


async def test_what_a_server_says_of_its_tools_makes_none_of_them_pure() -> None:
    again = calls(("home/add", {"a": 1}))
    async with serve("stdio") as row:
        rows = {"ensembles": {"home": {"module": MODULE, **PATIENCE, **row}}}
        async with open_session(configuration=rows) as session:
            model = model_of(again, again, says("Done."))
            conversation = await session.begin(model, ensembles=["home"], save=False)
            turn = await conversation.converse("Go.")
            tool = conversation.invokers["home/add"]
    assert (tool.pure, tool.annotations["annotations"]["idempotentHint"]) == (False, True)
    results = [one for one in turn.canisters if isinstance(one, ResultCanister)]
    assert [(one.text, one.reused) for one in results] == [("3", ""), ("3", "")]


@pytest.mark.parametrize("cage", ["required", "none"])
@pytest.mark.parametrize(
    ("hints", "outside", "sends"),
    [
        (None, True, True),
        ({"readOnlyHint": True}, True, True),
        ({"openWorldHint": False}, False, False),
        ({"openWorldHint": False, "readOnlyHint": True}, False, False),
    ],
)
def test_a_tool_is_described_by_its_server_and_its_row(
    hints: dict[str, bool] | None, outside: bool, sends: bool, cage: str
) -> None:
    from mcp_types import Tool

    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    reported = {"name": "add", "title": "Add.", "inputSchema": schema, "annotations": hints}
    limits: dict[str, Any] = {"call-seconds": 5, **PATIENCE}
    ensemble = produce_ensemble(command=FAKE, cage=cage, **limits)
    invoker = ensemble._produce_invoker(assimilate_tool(Tool.model_validate(reported)))
    assert (invoker.name, invoker.description) == ("fake/add", "Add.")
    assert (invoker.arguments_schema, invoker.ensemble) == (schema, "fake")
    assert (invoker.outside, invoker.sends) == (outside, sends)
    assert ("without a cage" in invoker.caution) == (cage == "none")
    assert invoker.annotations == {"title": "Add."} | ({"annotations": hints} if hints else {})
    assert invoker.timeout_seconds == 125
    with pytest.raises(ArgumentsInvalid):
        invoker.check('{"a": "x"}')


def test_a_server_is_started_again_after_longer_and_longer_waits() -> None:
    async def work() -> list[float]:
        ensemble = produce_ensemble(command=FAKE)
        loop, waits = asyncio.get_running_loop(), []
        for _ in range(MAX_RESTARTS + 1):
            begin = loop.time()
            await ensemble._wait_before_restart()
            waits.append(loop.time() - begin)
        with pytest.raises(EnsembleFailed, match="restarted 3 times"):
            await ensemble._wait_before_restart()
        return waits

    assert run_virtually(work()) == [0, 0, 0.5, 1.0]


@pytest.mark.parametrize("kind", ["stdio", "streamable-http", "sse"])
async def test_a_conversation_uses_the_tools_of_a_server(kind: str) -> None:
    asked: list[str] = []
    events: list[Event] = []

    async def approve(request: ApprovalRequest) -> Decision:
        asked.append(request.invocation.name)
        return Decision.ALLOW

    reply = calls(
        ("home/add", {"a": 1}),
        ("home/slow", {"seconds": 0.01}),
        ("home/show", {}),
        ("home/fail", {}),
        ("home/add", {"a": "x"}),
    )
    async with serve(kind) as row:
        rows = {"ensembles": {"home": {"module": MODULE, **PATIENCE, **row}}}
        async with open_session(
            configuration=rows, approver=approve, event_handler=events.append
        ) as session:
            conversation = await session.begin(
                model_of(reply, says("Done.")), ensembles=["home"], save=False
            )
            turn = await conversation.converse("Go.")
    assert not [one for one in events if isinstance(one, NoticeEvent)]
    landed = {one.invocation: one for one in turn.canisters if isinstance(one, ResultCanister)}
    added, slow, shown, failed, wrong = (
        landed[one.identity] for one in turn.canisters if one.identity in landed
    )
    assert (added.text, slow.text) == ("3", "done")
    assert shown.contents == (
        TextualContent("a picture"),
        ImageContent(b"PNG", "image/png"),
        AudioContent(b"WAV", "audio/wav"),
    )
    assert failed.failed
    assert wrong.failed
    progress = [one.text for one in events if isinstance(one, InvocationProgressEvent)]
    assert progress == ["step 0", "step 1", "step 2"]
    # What only reads runs unasked, all else asks.
    assert sorted(asked) == ["home/fail", "home/show", "home/slow"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({}, "a server must have either a command or a url"),
        ({"command": ["a"], "url": "http://x"}, "a server must have either a command or a url"),
        ({"command": ["a"], "environment": {"LD_PRELOAD": "x"}}, "load other code"),
        ({"command": "a b"}, "command"),
        ({"url": "http://x", "transport": "telepathy"}, "transport"),
        ({"comand": ["a"]}, "comand"),
    ],
)
def test_errors_of_a_row_are_reported(row: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        McpEnsemble("home", EnsembleConfiguration(load_configuration(), row))


async def test_an_address_where_nothing_listens_is_reported() -> None:
    row = {"url": "http://127.0.0.1:9/mcp", **PATIENCE}
    ensemble = McpEnsemble("home", EnsembleConfiguration(load_configuration(), row))
    with pytest.raises(EnsembleFailed, match="home: opening: All connection attempts failed"):
        await ensemble.open()
    await ensemble.close()


def test_a_server_learns_which_calls_belong_together_and_not_to_which_conversation() -> None:
    def word(row: str, conversation: str) -> str | None:
        settings = EnsembleConfiguration(load_configuration(), {"command": ["a"]})
        call = InvocationCanister(name="a", arguments="{}")
        context = InvocationContext(conversation, call, lambda *_, **__: None)
        reported = McpEnsemble(row, settings)._describe_conversation(context)
        return None if reported is None else str(reported[CONVERSATION_KEY])

    one = word("home", "abcdefghijkl")
    assert one is not None
    assert one == word("home", "abcdefghijkl")
    assert len({one, word("home", "mnopqrstuvwx"), word("far", "abcdefghijkl")}) == 3
    assert "abcd" not in one
    assert word("home", "") is None


async def test_a_tool_that_runs_only_as_a_task_is_not_offered_and_a_notice_says_so() -> None:
    reported: list[Notice] = []
    async with opened(EnsembleHost(notify=reported.append), command=[*FAKE, "tasks"]) as ensemble:
        assert [one.name for one in ensemble.invokers] == ["fake/echo", "fake/pid", "fake/optional"]
        assert (await ensemble.invoke("echo", '{"text": "hi"}')).text == "hi"
        # What has not changed is not reported again.
        await ensemble._list_tools()
    (notice,) = reported
    assert notice.subject == "ensemble"
    assert "the tool required is not offered" in notice.text
