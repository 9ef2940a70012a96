"""Stored conversations, memory, documents and agents, as an MCP client sees them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import (
    ReadResourceResult,
    ResourceTemplateReference,
    TextContent,
    TextResourceContents,
)

from tests.mcp_server.clients import ERAS, WAYS, call, connect, furnish, refused, start
from vibe_llms.mcp_server.bounds import MOST_BYTES
from vibe_llms.opening import open_session

each_way = pytest.mark.parametrize(("way", "mode"), WAYS)


async def read(client: Client, uri: str) -> str:
    """The text of a resource."""
    result = await client.read_resource(uri)
    assert isinstance(result, ReadResourceResult)
    (content,) = result.contents
    assert isinstance(content, TextResourceContents)
    return content.text


@each_way
async def test_conversations_are_listed_searched_read_and_forked(
    home: Path, way: str, mode: str
) -> None:
    async with connect(way, mode, home) as client:
        ids = []
        for number in range(3):
            message = f"Tell me about heron {number}"
            report = await call(client, "chat", message=message, model="scripted/demo")
            ids.append(report["conversation"])
        first = await call(client, "list_conversations", limit=2)
        rest = await call(client, "list_conversations", limit=2, after=first["cursor"])
        listed = [one["id"] for one in first["conversations"] + rest["conversations"]]
        assert (listed, rest["cursor"]) == (ids[::-1], "")

        found = await call(client, "search_messages", text="heron 1")
        assert [one["conversation"] for one in found["messages"]] == [ids[1]]
        message = found["messages"][0]["message"]

        page = await call(client, "read_conversation", conversation=ids[1], limit=1)
        assert [one["id"] for one in page["messages"]] == [message]
        assert (page["total"], page["cursor"]) == (2, message)
        page = await call(client, "read_conversation", conversation=ids[1], after=message)
        assert [one["role"] for one in page["messages"]] == ["assistant"]
        assert page["cursor"] == ""

        fork = await call(client, "fork", conversation=ids[1], message=message, name="Other")
        assert (fork["forked_from"], fork["messages"]) == (ids[1], 1)
        page = await call(client, "read_conversation", conversation=fork["id"])
        assert (page["name"], page["total"]) == ("Other", 1)


@each_way
async def test_unknown_ids_are_not_found(home: Path, way: str, mode: str) -> None:
    async with connect(way, mode, home) as client:
        report = await call(client, "chat", message="Hello", model="scripted/demo")
        known = report["conversation"]
        cases: list[tuple[str, dict[str, Any]]] = [
            ("chat", {"message": "x", "conversation": "nothing"}),
            # A prefix is not enough.
            ("chat", {"message": "x", "conversation": known[:6]}),
            ("chat", {"message": "x", "agent": "nothing"}),
            ("chat", {"message": "x", "model": "scripted/nothing"}),
            ("wait", {"run": "nothing"}),
            ("wait", {"run": report["run"][:6]}),
            ("cancel", {"run": "nothing"}),
            ("read_conversation", {"conversation": "nothing"}),
            ("read_conversation", {"conversation": known, "after": "nothing"}),
            ("fork", {"conversation": "nothing"}),
            ("fork", {"conversation": known, "message": "nothing"}),
            ("list_conversations", {"after": "nothing"}),
            ("search_documents", {"text": "x", "collection": "nothing"}),
        ]
        for tool, arguments in cases:
            said = await refused(client, tool, **arguments)
            assert "not found" in said or "no script" in said, (tool, said)
        with pytest.raises(MCPError, match="tool 'nothing' not found"):
            await client.call_tool("nothing", {})
        with pytest.raises(MCPError, match="not found"):
            await client.read_resource("conversation://nothing")
        with pytest.raises(MCPError, match="prompt 'nothing' not found"):
            await client.get_prompt("nothing", {})
        stored = await call(client, "read_conversation", conversation=known)
        assert (
            stored["total"],
            len((await call(client, "list_conversations"))["conversations"]),
        ) == (2, 1)


@each_way
async def test_arguments_that_do_not_fit_are_refused_in_words(
    home: Path, way: str, mode: str
) -> None:
    async with connect(way, mode, home) as client:
        cases: list[tuple[dict[str, Any], str]] = [
            ({}, "message"),
            ({"message": ""}, "message"),
            ({"message": 1}, "message"),
            ({"message": "x", "wait_seconds": 601}, "wait_seconds"),
            ({"message": "x", "unknown": 1}, "unknown"),
        ]
        for arguments, name in cases:
            assert name in await refused(client, "chat", **arguments)
        both = await refused(client, "chat", message="x", agent="keeper", model="scripted/demo")
        assert both == "give either a model or an agent"
        # Models write null for what they leave out.
        report = await call(
            client, "chat", message="x", model="scripted/demo", conversation=None, agent=None
        )
        assert report["status"] == "completed"


@each_way
async def test_a_conversation_is_a_resource(home: Path, way: str, mode: str) -> None:
    async with connect(way, mode, home) as client:
        report = await call(client, "chat", message="Go", model="scripted/long")
        identity = report["conversation"]
        (listed,) = (await client.list_resources()).resources
        assert (listed.uri, listed.mime_type) == (f"conversation://{identity}", "text/markdown")
        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "conversation://{id}"
        reference = ResourceTemplateReference(type="ref/resource", uri="conversation://{id}")
        for begun, values in ((identity[:3], [identity]), ("?", [])):
            completed = await client.complete(reference, {"name": "id", "value": begun})
            assert completed.completion.values == values
        text, uri, pages = "", f"conversation://{identity}", 0
        while uri:
            page = await read(client, uri)
            assert len(page.encode()) < MOST_BYTES * 1.1
            text, pages = text + page, pages + 1
            _, _, uri = page.partition("The next page: ")
            uri = uri.strip()
    assert (text.count("ä"), pages) == (50_000, 4)
    assert text.startswith("# Conversation\n\n## user\n\nGo\n\n## assistant\n\nä")


@each_way
async def test_an_agent_with_a_template_is_a_prompt(home: Path, way: str, mode: str) -> None:
    async with connect(way, mode, home) as client:
        (prompt,) = (await client.list_prompts()).prompts
        assert (prompt.name, prompt.description) == ("poet", "Writes poems.")
        assert [(one.name, one.required) for one in prompt.arguments or ()] == [
            ("input", True),
            ("form", False),
            ("language", True),
        ]
        given = {"input": "tea", "language": "Latin"}
        (message,) = (await client.get_prompt("poet", given)).messages
        assert isinstance(message.content, TextContent)
        assert message.content.text == "A poem in Latin about: tea"
        for wrong, words in (
            ({"input": "tea"}, "needs a value for .language"),
            ({"language": "x"}, "needs input"),
            ({**given, "x": "x"}, "has no .x"),
        ):
            with pytest.raises(MCPError, match=words):
                await client.get_prompt("poet", wrong)


@pytest.mark.parametrize("mode", ERAS)
async def test_memory_and_documents_are_searched(home: Path, mode: str) -> None:
    furnish(home)
    async with open_session(home=home) as session:
        memory = session.access_memory()
        await memory.memory.add("Ada keeps herons.", scope=memory.user)  # type: ignore[attr-defined]
        catalog = session.access_documents().catalog
        await catalog.upload("papers", b"Herons eat fish.", "birds.txt", "text/plain")
        await session.access_documents().refresh("papers")
    async with start(mode=mode) as client:
        (entry,) = (await call(client, "search_memory", text="herons"))["entries"]
        assert entry["content"] == "Ada keeps herons."
        (passage,) = (await call(client, "search_documents", text="herons"))["passages"]
        assert (passage["collection"], passage["document"]) == ("papers", "birds.txt")
        assert "eat fish" in passage["text"]


async def test_a_hint_says_which_tools_only_read(home: Path) -> None:
    async with start() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    reading = {name for name, one in tools.items() if one.annotations.read_only_hint}  # type: ignore[union-attr]
    assert reading == {
        *("list_conversations", "search_messages", "read_conversation"),
        *("search_memory", "search_documents"),
    }
    for name in (*reading, "chat", "wait"):
        # Text that others wrote is said to be data.
        assert "data from others" in str(tools[name].description)
    for one in tools.values():
        schemas = json.dumps([one.input_schema, one.output_schema])
        assert '"type": "object"' in schemas
        assert "allOf" not in schemas


async def test_a_list_of_long_titles_is_bounded(home: Path) -> None:
    furnish(home)
    async with open_session(home=home) as session:
        for number in range(60):
            name = f"{number} " + "\x01" * 300
            conversation = await session.begin("scripted/demo", name=name)
            await conversation.converse("Hello")
    async with start() as client:
        found, cursor, pages = list[str](), "", 0
        while pages == 0 or cursor:
            page = await call(client, "list_conversations", limit=100, after=cursor)
            assert len(json.dumps(page)) <= MOST_BYTES * 1.1
            found += [one["id"] for one in page["conversations"]]
            cursor, pages = page["cursor"], pages + 1
    assert len({*found}) == len(found) == 60
    assert pages > 1


async def test_many_small_messages_make_pages(home: Path) -> None:
    furnish(home)
    async with open_session(home=home) as session:
        conversation = await session.begin("scripted/demo")
        for number in range(30):
            await conversation.converse(f"{number} " + "ä" * 2000)
    async with start() as client:
        texts, cursor, pages = list[str](), "", 0
        while pages == 0 or cursor:
            page = await call(
                client,
                "read_conversation",
                conversation=conversation.identity,
                limit=100,
                after=cursor,
            )
            assert len(json.dumps(page, ensure_ascii=False).encode()) <= MOST_BYTES * 1.1
            texts += [one["text"] for one in page["messages"] if one["role"] == "user"]
            cursor, pages = page["cursor"], pages + 1
    # No message that fits on a page is divided.
    assert texts == [f"{number} " + "ä" * 2000 for number in range(30)]
    assert pages > 3
