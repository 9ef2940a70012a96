"""Prompts, resources and templates of servers, page by page; tools that change in between."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any, NoReturn

import pytest
from mcp import MCPError
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import (
    EmbeddedResource,
    GetPromptResult,
    PromptMessage,
    TextContent,
    TextResourceContents,
)

from tests.ensembles.mcp.servers import ASKING, ERAS, FAKE, opened, produce_ensemble
from tests.faults.virtual import run_virtually
from vibe_llms.base.exceptions import EnsembleFailed, InvokerInvalid
from vibe_llms.ensembles.mcp import connection as connections
from vibe_llms.ensembles.mcp.ensemble import McpEnsemble
from vibe_llms.ensembles.mcp.reading import (
    PromptArgument,
    ResourceTemplate,
    ServerPrompt,
    ServerResource,
    assimilate_messages,
)
from vibe_llms.messages.canisters import UserCanister, is_untrusted
from vibe_llms.messages.contents import Content, FileContent, ImageContent, TextualContent

pytestmark = pytest.mark.usefixtures("warm_process")


@pytest.mark.parametrize("era", ERAS)
async def test_prompts_and_resources_are_listed_and_read(era: str) -> None:
    async with opened(command=ASKING, protocol=era) as ensemble:
        assert await ensemble.survey_prompts() == [
            ServerPrompt(
                "review",
                "Review",
                "Look at something",
                (PromptArgument("code", required=True), PromptArgument("style")),
            )
        ]
        said = await ensemble.read_prompt("review", {"code": "x = 1"})
        assert all(isinstance(one, UserCanister) for one in said)
        contents = [content for one in said for content in getattr(one, "contents", ())]
        assert contents == [
            TextualContent("Review x = 1, be kind."),
            ImageContent(b"PNG", "image/png"),
        ]
        assert await ensemble.survey_resources() == [
            ServerResource("notes://today", "today", "Today", "What is to be done", "text/md"),
            ServerResource("notes://picture", "picture", mimetype="image/png"),
        ]
        assert await ensemble.read_resource("notes://today") == (
            TextualContent("# Today", "text/md"),
        )
        assert await ensemble.read_resource("notes://picture") == (
            ImageContent(b"PNG", "image/png"),
        )
        assert await ensemble.survey_templates() == [
            ResourceTemplate("notes://day/{day}", "some_day", "", "One day", "text/plain")
        ]
        assert await ensemble.read_resource("notes://day/monday") == (
            TextualContent("on monday", "text/plain"),
        )


@pytest.mark.parametrize(
    ("text", "mimetype", "content"),
    [
        ("# A", "text/markdown", FileContent(b"# A", "text/markdown", "a.md")),
        ("{}", "application/json", FileContent(b"{}", "text/plain", "a.md")),
        ("", None, TextualContent("")),
    ],
)
def test_the_text_of_a_resource_in_a_prompt_is_a_file_which_is_untrusted(
    text: str, mimetype: str | None, content: Content
) -> None:
    resource = TextResourceContents(uri="file:///a.md", text=text, mime_type=mimetype)
    blocks: list[TextContent | EmbeddedResource] = [
        TextContent(type="text", text="Read:"),
        EmbeddedResource(type="resource", resource=resource),
    ]
    messages = [PromptMessage(role="user", content=block) for block in blocks]
    said, attached = assimilate_messages(GetPromptResult(messages=messages))
    assert said.contents == (TextualContent("Read:"),)
    assert attached.contents == (content,)
    assert [is_untrusted(said), is_untrusted(attached)] == [False, bool(text)]


async def test_what_does_not_exist_is_reported() -> None:
    async with opened(command=ASKING) as ensemble:
        with pytest.raises(EnsembleFailed, match=r"fake: reading notes://no: .*notes://no"):
            await ensemble.read_resource("notes://no")
        with pytest.raises(EnsembleFailed, match="fake: reading the prompt no: "):
            await ensemble.read_prompt("no")
        with pytest.raises(InvokerInvalid, match="'fake' has no tool 'no'; known tools: fake/"):
            await ensemble.invoke("no")


async def test_a_server_without_prompts_and_resources_has_none() -> None:
    async with opened(command=FAKE) as ensemble:
        assert await ensemble.survey_prompts() == []
        assert await ensemble.survey_resources() == []
        assert await ensemble.survey_templates() == []


def tools_of(ensemble: McpEnsemble) -> list[str]:
    return [one.name.partition("/")[2] for one in ensemble.invokers]


@pytest.mark.parametrize("era", ERAS)
async def test_a_tool_that_a_server_has_added_is_offered(era: str) -> None:
    async with opened(command=ASKING, protocol=era) as ensemble:
        assert "grown" not in tools_of(ensemble)
        async with asyncio.timeout(60):
            while "grown" not in tools_of(ensemble):
                # The server may not hear yet that we listen.
                await ensemble.invoke("grow")
                await asyncio.sleep(0.2)
        assert (await ensemble.invoke("grown")).text == "new"


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_does_not_hear_of_changes_would_be_seen(
    era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(McpEnsemble, "_refresh_soon", lambda _: None)
    async with opened(command=ASKING, protocol=era) as ensemble:
        for _ in range(5):
            await ensemble.invoke("grow")
            await asyncio.sleep(0.2)
        assert "grown" not in tools_of(ensemble)


async def test_a_subscription_that_breaks_is_taken_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_LISTEN_AGAIN_SECONDS", 0.01)
    async with opened(command=ASKING, protocol="stateless") as ensemble:
        client = ensemble._connection._client
        assert client is not None
        async with asyncio.timeout(60):
            while not (routes := client.session._listen_routes):
                await asyncio.sleep(0.01)
            (first,) = routes.values()
            first.settle("lost")
            while first in client.session._listen_routes.values() or not routes:
                await asyncio.sleep(0.01)
            while "grown" not in tools_of(ensemble):
                await ensemble.invoke("grow")
                await asyncio.sleep(0.1)


def test_changes_that_come_together_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> list[float]:
        ensemble, loop = produce_ensemble(command=FAKE), asyncio.get_running_loop()
        begin, lists = loop.time(), list[float]()

        async def list_tools() -> None:
            lists.append(round(loop.time() - begin, 3))

        monkeypatch.setattr(ensemble, "_list_tools", list_tools)
        for _ in range(3):
            ensemble._refresh_soon()
            await asyncio.sleep(0.01)
        assert ensemble._refresh is not None
        await ensemble._refresh
        return lists

    assert run_virtually(work()) == [0.1]


class Unsteady:
    """A client whose subscriptions break at once, and that is not to listen in the end."""

    def __init__(self, breaks: int) -> None:
        self._breaks = breaks

    def listen(self, *, tools_list_changed: bool) -> NoReturn:
        self._breaks -= 1
        if self._breaks < 0:
            raise MCPError(-32601, "Method not found")
        raise SubscriptionLost


def test_a_subscription_is_taken_up_again_after_longer_and_longer_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> list[float]:
        loop = asyncio.get_running_loop()
        times = [loop.time()]
        connection = produce_ensemble(command=FAKE)._connection
        monkeypatch.setattr(connection, "_changed", lambda: times.append(loop.time()))
        client: Any = Unsteady(8)
        await connection._listen(client)
        return [later - time for time, later in pairwise(times)]

    assert run_virtually(work()) == [1, 2, 4, 8, 16, 32, 60, 60]


@pytest.mark.parametrize(
    ("protocol", "mode"), [("handshake", "legacy"), ("auto", "auto"), ("stateless", "auto")]
)
async def test_a_row_decides_how_the_protocol_begins(protocol: str, mode: str) -> None:
    ensemble = produce_ensemble(url="http://127.0.0.1:1/mcp", protocol=protocol)
    client = await ensemble._connection._produce_client()
    assert client.mode == mode


async def test_tools_come_in_pages() -> None:
    async with opened(command=[*FAKE, "pages"]) as ensemble:
        assert tools_of(ensemble) == ["echo", "pid", *(f"tool-{n}" for n in range(48))]


@pytest.mark.parametrize("behaviour", ["endless-pages", "empty-pages"])
async def test_endless_pages_are_cut_off(behaviour: str) -> None:
    with pytest.raises(EnsembleFailed, match="listing: it has more than 10,000 tools or 1,000"):
        async with opened(command=[*FAKE, behaviour]):
            pass


async def test_a_server_of_the_other_era_is_reported() -> None:
    with pytest.raises(
        EnsembleFailed, match='it uses protocol version 2025-11-25; to allow it: protocol = "auto"'
    ):
        async with opened(command=FAKE, protocol="stateless"):
            pass
