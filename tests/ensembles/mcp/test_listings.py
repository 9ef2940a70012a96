"""Odd lists of tools, as servers were seen to send them: a tool costs itself, and not the agent."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from tests.ensembles.mcp.servers import opened
from tests.fakes.mcp_http import SCHEMA, FakeMcp
from tests.fakes.models import says
from vibe_llms.conversations.hosts import EnsembleHost
from vibe_llms.ensembles.mcp import listings
from vibe_llms.ensembles.mcp.listings import find_fault
from vibe_llms.ensembles.mcp.tool_lists import ServerTool
from vibe_llms.messages.events import Notice, NoticeEvent
from vibe_llms.opening import open_session
from vibe_llms.testing import Script, scripted_model

GOOD = {"name": "good", "description": "Do it.", "inputSchema": SCHEMA}
EMPTY: dict[str, Any] = {"type": "object"}


@pytest.fixture
async def server() -> AsyncIterator[FakeMcp]:
    async with FakeMcp() as fake:
        yield fake


async def list_tools(server: FakeMcp, *tools: Any) -> tuple[list[str], list[str]]:
    """The names of the tools that are offered after one that is good, and the notices."""
    notices: list[Notice] = []
    server.override = lambda method, message: (
        server.reply(message, {"tools": [*tools, GOOD]}) if method == "tools/list" else None
    )
    host = EnsembleHost(notify=notices.append)
    async with opened(host, url=f"{server.url}/mcp") as ensemble:
        names = [one.name.removeprefix("fake/") for one in ensemble.invokers]
    return names, [one.text for one in notices]


#: Tools that no model can be offered, and why.
REFUSED: dict[str, tuple[Any, str]] = {
    "no-schema": ({"name": "odd"}, "it has no inputSchema"),
    "null-schema": ({"name": "odd", "inputSchema": None}, "it has no inputSchema"),
    "list-schema": ({"name": "odd", "inputSchema": []}, "is not an object"),
    "array": ({"name": "odd", "inputSchema": {"type": "array"}}, "does not describe an object"),
    "type": (
        {"name": "odd", "inputSchema": {"properties": {"a": {"type": "int"}}}},
        "not valid at '#/properties/a/type'",
    ),
    "properties": ({"name": "odd", "inputSchema": {"properties": []}}, "at '#/properties'"),
    "required": (
        {"name": "odd", "inputSchema": {"properties": {"a": {"items": {"required": "b"}}}}},
        "at '#/properties/a/items/required'",
    ),
    "variants": ({"name": "odd", "inputSchema": {"anyOf": [5]}}, "at '#/anyOf/0'"),
    "name": ({"name": "", "inputSchema": EMPTY}, "number 1 is not offered: its name"),
    "no-name": ({"inputSchema": EMPTY}, "number 1 is not offered: its name"),
    "number": ({"name": 7, "inputSchema": EMPTY}, "number 1 is not offered: its name"),
    "escape": ({"name": "a\x1b[2J", "inputSchema": EMPTY}, "number 1 is not offered: its name"),
    "long": ({"name": "x" * 200, "inputSchema": EMPTY}, "number 1 is not offered: its name"),
    "description": (
        {"name": "odd", "description": ["a"], "inputSchema": EMPTY},
        "its description is not text",
    ),
    "text": ("odd", "number 1 is not offered: it is not an object"),
    "null": (None, "number 1 is not offered: it is not an object"),
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_a_tool_that_cannot_be_used_is_left_out_with_a_notice(
    server: FakeMcp, kind: str
) -> None:
    tool, words = REFUSED[kind]
    names, notices = await list_tools(server, tool)
    assert names == ["good"]
    (notice,) = notices
    assert notice.startswith("fake: the tool ")
    assert words in notice


@pytest.mark.parametrize(
    "odd",
    [
        {"description": None},
        {"title": None, "annotations": None, "outputSchema": None, "_meta": None},
        {"annotations": "read-only"},
        {"annotations": {"readOnlyHint": "yes"}},
        {"icons": [{"source": "a.png"}]},
        {"inputSchema": {}},
        {"inputSchema": {"properties": {"a": {}}, "required": []}},
        {"inputSchema": {"type": "object", "properties": {"a": True}, "additionalProperties": {}}},
        {"outputSchema": "text"},
        {"execution": {"taskSupport": "sometimes"}},
        {"name": "look up/now"},
    ],
)
async def test_what_is_odd_about_a_tool_that_can_be_used_is_overlooked(
    server: FakeMcp, odd: dict[str, Any]
) -> None:
    tool = {"name": "odd", "inputSchema": EMPTY, **odd}
    assert await list_tools(server, tool) == ([tool["name"], "good"], [])


def reported(repository: str, number: int, tool: Any, kept: bool) -> Any:
    link = f"https://github.com/{repository}/issues/{number}"
    return pytest.param({"name": "odd", **tool}, kept, id=link)


@pytest.mark.parametrize(
    ("tool", "kept"),
    [
        reported("sandialabs/atlas-ui-3", 727, {"inputSchema": {"type": "string"}}, False),
        reported("IvanMurzak/Unity-MCP", 440, {"inputSchema": None}, False),
        reported("mastra-ai/mastra", 21859, {"description": "Do it."}, False),
        reported(
            "mastra-ai/mastra",
            23731,
            {"inputSchema": {**EMPTY, "properties": {"coin": {}, "required": ["coin"]}}},
            False,
        ),
        reported(
            "modelcontextprotocol/servers",
            3051,
            {"inputSchema": {"$schema": "http://json-schema.org/draft-07/schema#"}},
            True,
        ),
        reported("anthropics/claude-code", 88049, {"inputSchema": {"anyOf": [EMPTY, {}]}}, True),
        reported(
            "Anil-matcha/awesome-gpt-6-astra",
            11,
            {"inputSchema": EMPTY, "outputSchema": {"type": "array"}},
            True,
        ),
        reported(
            "ThinkInAIXYZ/deepchat",
            2075,
            {"inputSchema": EMPTY, "outputSchema": {**EMPTY, "properties": {"type": "x"}}},
            True,
        ),
    ],
)
async def test_one_tool_that_was_reported_does_not_break_the_others(
    server: FakeMcp, tool: Any, kept: bool
) -> None:
    names, notices = await list_tools(server, tool)
    assert names == ["odd"] * kept + ["good"]
    assert len(notices) == (not kept)


async def test_what_is_odd_costs_no_hint_and_no_description(server: FakeMcp) -> None:
    server.override = lambda method, message: (
        server.reply(
            message,
            {
                "tools": [
                    {
                        **GOOD,
                        "annotations": {"readOnlyHint": True},
                        "outputSchema": {"type": "array"},
                        "icons": 5,
                    }
                ]
            },
        )
        if method == "tools/list"
        else None
    )
    async with opened(url=f"{server.url}/mcp") as ensemble:
        (tool,) = ensemble.invokers
    assert (tool.description, tool.approval) == ("Do it.", "allow")


async def test_of_tools_with_one_name_the_first_is_offered(server: FakeMcp) -> None:
    second = {**GOOD, "description": "Do something else."}
    names, notices = await list_tools(server, GOOD, second)
    assert names == ["good"]
    assert notices == [
        "fake: the tool good is not offered: it is listed twice, and the first one is offered"
    ]


@pytest.mark.parametrize("tools", [None, {}, "good"])
async def test_a_list_that_is_none_has_no_tools(server: FakeMcp, tools: Any) -> None:
    server.override = lambda method, message: (
        server.reply(message, {"tools": tools}) if method == "tools/list" else None
    )
    async with opened(url=f"{server.url}/mcp") as ensemble:
        assert ensemble.invokers == ()


async def test_a_conversation_goes_on_with_the_other_tools(server: FakeMcp) -> None:
    server.override = lambda method, message: (
        server.reply(message, {"tools": [GOOD, GOOD, {"name": "odd"}]})
        if method == "tools/list"
        else None
    )
    events: list[Any] = []
    rows = {"odd": {"module": "vibe_llms.ensembles.mcp", "url": f"{server.url}/mcp"}}
    async with open_session(
        configuration={"ensembles": rows}, event_handler=events.append
    ) as session:
        model = scripted_model(Script((says("Hi."),)))
        conversation = await session.begin(model, ensembles=["odd"], save=False)
        assert [*conversation.invokers] == ["odd/good"]
        assert (await conversation.converse("Hi.")).text == "Hi."
    texts = [one.notice.text for one in events if isinstance(one, NoticeEvent)]
    assert len([text for text in texts if "is not offered" in text]) == 2


def test_a_schema_is_looked_at_in_bounded_time() -> None:
    deep: dict[str, Any] = {}
    for _ in range(20_000):
        deep = {"items": deep}
    assert find_fault({"name": "deep", "inputSchema": deep}) == ""
    itself: dict[str, Any] = {}
    itself["not"] = itself
    assert find_fault({"name": "itself", "inputSchema": itself}) == ""


def test_long_names_in_a_schema_are_not_copied_to_each_part() -> None:
    inner: dict[str, Any] = {"properties": {str(number): {} for number in range(9_000)}}
    tool = {"name": "long", "inputSchema": {"properties": {"n" * 100_000: inner}}}
    tracemalloc.start()
    try:
        assert find_fault(tool) == ""
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_members_that_the_package_ignores_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    accept = listings._is_accepted

    def count(page: Any, tool: Any, version: str) -> bool:
        tried.append(len(tool))
        return accept(page, tool, version)

    monkeypatch.setattr(listings, "_is_accepted", count)
    odd = {**GOOD, "icons": 5, **{f"x{number}": number for number in range(1_000)}}
    assert listings.repair_tools({"tools": [odd]}, "2025-06-18", print) == [GOOD]
    assert len(tried) < 10


async def test_a_list_is_looked_through_in_a_thread_and_reported_in_the_loop(
    server: FakeMcp, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()

    def look(tool: Mapping[str, Any]) -> str:
        threads.add(threading.get_ident())
        return find_fault(tool)

    monkeypatch.setattr(listings, "find_fault", look)
    names, notices = await list_tools(server, {"name": "odd"})
    assert (names, len(notices)) == (["good"], 1)
    assert threads
    assert threading.get_ident() not in threads


def test_a_tool_of_a_list_that_is_remembered_has_no_task() -> None:
    assert not ServerTool("a", "", {}).needs_task
