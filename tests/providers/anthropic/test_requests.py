"""Requests put together: what is sent of controls, history and tools, and what is kept encoded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from tests.fakes.clients import assemble, produce_model
from vibe_llms.base.exceptions import (
    ContentNotLoaded,
    ContentUnsupported,
    ControlInvalid,
    RequestTooLarge,
)
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    AudioContent,
    FileContent,
    ImageContent,
    Reference,
    TextualContent,
)
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Notice
from vibe_llms.providers.anthropic.model import AnthropicModel
from vibe_llms.providers.interfaces import TurnContext

HI = [UserCanister.from_text("Hi")]
MARK = {"type": "ephemeral"}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}


def user(text: str) -> UserCanister:
    return UserCanister.from_text(text)


def said(text: str) -> AssistantCanister:
    return AssistantCanister.from_text(text)


def picture(data: bytes = b"png", **options: Any) -> UserCanister:
    return UserCanister((ImageContent(data, "image/png"),), **options)


def add(a: int) -> int:
    """Add."""
    return a


def subtract(a: int) -> int:
    """Subtract."""
    return a


ADD, SUBTRACT = Invoker.from_function(add), Invoker.from_function(subtract)


# Members.


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_request_names_its_model_and_whether_it_streams(streaming: bool) -> None:
    model = await produce_model()
    members, notices = await assemble(model, HI, streaming=streaming)
    assert (members["model"], members["stream"]) == ("claude-opus-5", streaming)
    assert sorted(members) == ["max_tokens", "messages", "model", "stream"]
    assert notices == []


async def test_what_stays_the_same_from_turn_to_turn_comes_first() -> None:
    model = await produce_model()
    body = await model.preview(HI, [ADD], Controls(), TurnContext())
    assert list(json.loads(body))[:2] == ["messages", "tools"]


async def test_extras_go_to_the_wire_as_they_are_and_to_this_row_only() -> None:
    model = await produce_model()
    extras: dict[str, dict[str, Any]] = {
        "anthropic": {"metadata": {"user_id": "\ud800u"}, "output_config": {"effort": "low"}},
        "openai": {"verbosity": "low"},
    }
    controls = Controls(effort="max", output_tokens=9, extras=extras)
    defaults = Controls(extras={"anthropic": {"speed": "fast"}})
    members, _ = await assemble(model, HI, controls=controls, default_controls=defaults)
    assert members["metadata"] == {"user_id": "\ufffdu"}
    assert members["output_config"] == {"effort": "low"}
    assert (members["speed"], members["max_tokens"]) == ("fast", 9)
    assert "verbosity" not in members


@pytest.mark.parametrize("name", ["messages", "system", "model", "stream"])
async def test_what_belongs_to_the_conversation_cannot_be_given_as_it_is(name: str) -> None:
    model = await produce_model()
    controls = Controls(extras={"anthropic": {name: "x"}})
    with pytest.raises(ControlInvalid, match=f"'{name}' cannot be set in extras") as caught:
        model.check(HI, controls)
    assert (caught.value.control, caught.value.model) == ("extras", "claude-opus-5")
    with pytest.raises(ControlInvalid):
        await assemble(model, HI, controls=controls)


@pytest.mark.parametrize("tools", ["web_search", {"name": "a"}, ["web_search"], 5, [None]])
async def test_tools_that_are_no_list_of_tables_are_refused(tools: Any) -> None:
    model = await produce_model()
    with pytest.raises(ControlInvalid, match="'tools' must be a list of tables"):
        model.check(HI, Controls(extras={"anthropic": {"tools": tools}}))


async def test_thinking_that_was_given_as_it_is_is_sent() -> None:
    model = await produce_model(name="claude-sonnet-4-5")
    thinking = {"type": "enabled", "budget_tokens": 5000}
    for given, sent in ((thinking, thinking), ("odd", "odd")):
        controls = Controls(extras={"anthropic": {"thinking": given}})
        body = await model.preview(HI, (), controls, TurnContext())
        assert json.loads(body)["thinking"] == sent


async def test_a_body_of_some_members_only() -> None:
    model = await produce_model()
    request = await model.assemble(HI, [ADD], Controls(), TurnContext())
    members = json.loads(b"".join(await request.produce_body(["model"])))
    assert sorted(members) == ["messages", "model", "tools"]


# Tools.


async def test_tools_are_declared_behind_those_that_were_given_as_they_are() -> None:
    model = await produce_model()
    controls = Controls(extras={"anthropic": {"tools": [SEARCH]}}, tool_choice="web_search")
    members, _ = await assemble(model, HI, ADD, SUBTRACT, controls=controls)
    assert [tool["name"] for tool in members["tools"]] == ["web_search", "add", "subtract"]
    assert [tool.get("cache_control") for tool in members["tools"]] == [None, None, MARK]
    assert members["tool_choice"] == {"type": "tool", "name": "web_search"}


async def test_a_given_marker_replaces_ours() -> None:
    model = await produce_model()
    marked = {**SEARCH, "cache_control": MARK}
    controls = Controls(extras={"anthropic": {"tools": [marked]}})
    for invokers in ((), (ADD,)):
        members, _ = await assemble(model, HI, *invokers, controls=controls)
        assert members["tools"][0] == marked
        assert sum("cache_control" in tool for tool in members["tools"]) == 1


async def test_a_toolset_without_a_name_is_a_tool_to_choose_among() -> None:
    model = await produce_model()
    toolset = {"type": "mcp_toolset", "mcp_server_name": "time"}
    controls = Controls(
        extras={"anthropic": {"tools": [toolset]}}, tool_choice="any", parallel_invocations=False
    )
    body = await model.preview(HI, (), controls, TurnContext())
    members = json.loads(body)
    assert members["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}
    assert members["tools"][0]["type"] == "mcp_toolset"


async def test_tools_are_encoded_once_as_long_as_they_are_the_same() -> None:
    model = await produce_model()
    cache = model.produce_cache()
    await assemble(model, HI, ADD, cache=cache)
    first = cache._tools[2]
    await assemble(model, [*HI, said("a"), *HI], ADD, cache=cache)
    assert cache._tools[2] is first
    members, _ = await assemble(model, HI, SUBTRACT, cache=cache)
    assert [tool["name"] for tool in members["tools"]] == ["subtract"]
    members, _ = await assemble(model, HI, ADD, SUBTRACT, cache=cache)
    assert [tool["name"] for tool in members["tools"]] == ["add", "subtract"]
    native = Controls(extras={"anthropic": {"tools": [SEARCH]}})
    members, _ = await assemble(model, HI, ADD, SUBTRACT, cache=cache, controls=native)
    assert len(members["tools"]) == 3
    members, _ = await assemble(model, HI, cache=cache)
    assert "tools" not in members


# The cache.


@pytest.mark.parametrize("again", [0, 1, 2, 3])
async def test_another_history_is_encoded_anew(again: int) -> None:
    model = await produce_model()
    cache = model.produce_cache()
    canisters: list[Canister] = [user("a"), said("b"), user("c")]
    await assemble(model, canisters, cache=cache)
    # As after a turn that was withdrawn, or undone: shorter, or another one of the same length.
    other = [*canisters[:again], user("d"), said("e"), user("f")]
    members, _ = await assemble(model, other, cache=cache)
    assert members == (await assemble(model, other))[0]


async def test_texts_are_loaded_once() -> None:
    model = await produce_model()
    cache = model.produce_cache()
    loaded: list[Reference] = []
    references = [Reference.from_bytes(data) for data in (b"one", b"two")]

    async def load(wanted: Sequence[Reference]) -> Mapping[str, bytes]:
        loaded.extend(wanted)
        return {one.hash: b"one" if one is references[0] else b"two" for one in wanted}

    canisters: list[Canister] = [UserCanister((TextualContent(references[0]),))]
    await assemble(model, canisters, cache=cache, load=load)
    canisters += [said("a"), UserCanister((TextualContent(references[1]),))]
    members, _ = await assemble(model, canisters, cache=cache, load=load)
    assert loaded == references
    assert [one["content"][0]["text"] for one in members["messages"]] == ["one", "a", "two"]


async def test_a_text_that_cannot_be_loaded_leaves_the_cache_as_it_was() -> None:
    model = await produce_model()
    cache = model.produce_cache()
    await assemble(model, HI, cache=cache)
    missing = UserCanister((TextualContent(Reference.from_bytes(b"x")),))
    with pytest.raises(ContentNotLoaded):
        await assemble(model, [*HI, missing], cache=cache)
    members, _ = await assemble(model, [*HI, user("b")], cache=cache)
    assert len(members["messages"][0]["content"]) == 2


async def test_what_a_conversion_leaves_out_is_reported_once() -> None:
    model = await produce_model()
    cache = model.produce_cache()
    canisters: list[Canister] = [UserCanister((AudioContent(b"x", "audio/wav"),))]
    assert len((await assemble(model, canisters, cache=cache))[1]) == 1
    canisters += [said("a"), user("b")]
    assert (await assemble(model, canisters, cache=cache))[1] == []


async def test_what_this_call_adds_is_refused_and_the_next_call_works() -> None:
    model = await produce_model()
    cache = model.produce_cache()
    await assemble(model, HI, cache=cache)
    sound = UserCanister((AudioContent(b"x", "audio/wav"),))
    with pytest.raises(ContentUnsupported):
        await assemble(model, [*HI, sound], cache=cache, fresh=frozenset([sound.identity]))
    assert (await assemble(model, [*HI, user("b")], cache=cache))[1] == []


async def test_a_foreign_cache_is_not_used() -> None:
    model = await produce_model()
    assert (await assemble(model, HI, cache={"not": "ours"}))[0] == (await assemble(model, HI))[0]


# Citations.


DOCUMENTS: list[Canister] = [
    DocumentCanister.from_text("The sky is blue."),
    UserCanister((FileContent(b"x", "application/pdf"),)),
]


@pytest.mark.parametrize("document", DOCUMENTS)
async def test_a_reply_that_follows_a_schema_cites_no_documents(document: Canister) -> None:
    model = await produce_model()
    cache = model.produce_cache()
    canisters = [document, *HI]
    cited, notices = await assemble(model, canisters, cache=cache)
    assert cited["messages"][0]["content"][0]["citations"] == {"enabled": True}
    assert notices == []
    typed = Controls(response_schema=SCHEMA)
    members, (notice,) = await assemble(model, canisters, cache=cache, controls=typed)
    assert "citations" not in json.dumps(members)
    assert notice.endswith("documents are not cited in a reply that follows a schema")
    assert (await assemble(model, canisters, cache=cache))[0] == cited


async def test_without_documents_a_schema_changes_nothing_else() -> None:
    model = await produce_model()
    members, notices = await assemble(model, HI, controls=Controls(response_schema=SCHEMA))
    assert members["output_config"]["format"]["schema"] == SCHEMA
    assert notices == []
    quiet = await produce_model(citations=False)
    typed = Controls(response_schema=SCHEMA)
    assert (await assemble(quiet, [*DOCUMENTS, *HI], controls=typed))[1] == []


# Size.


async def limited(size: int, **options: Any) -> AnthropicModel:
    """A model whose requests may have so many bytes."""
    return await produce_model(models={"claude-opus-5": {"request-bytes": size}}, **options)


async def test_the_oldest_pictures_and_files_give_way_first_and_each_is_reported() -> None:
    canisters: list[Canister] = [
        picture(b"1" * 3000),
        said("a"),
        UserCanister((FileContent(b"2" * 3000, "application/pdf", "b.pdf"),)),
        said("c"),
        picture(b"3" * 3000),
    ]
    model = await limited(7_000)
    notices: list[Notice] = []
    context = TurnContext(notify=notices.append)
    body = await model.preview(canisters, (), Controls(), context)
    assert len(body) <= 7_000
    kinds = [one["content"][0]["type"] for one in json.loads(body)["messages"]]
    assert kinds == ["text", "text", "text", "text", "image"]
    assert b"[an image image/png, left out to save room]" in body
    assert b"[a file 'b.pdf' application/pdf, left out to save room]" in body
    assert [notice.canister for notice in notices] == [canisters[0].identity, canisters[2].identity]
    assert "is left out: the request would have more than 7000 bytes" in notices[0].text
    # The last two messages of the user's are marked all the same, in place of what stood there.
    marked = ["cache_control" in str(one) for one in json.loads(body)["messages"]]
    assert marked == [False, False, True, False, True]


async def test_a_request_that_stays_too_large_is_an_error_before_it_is_sent() -> None:
    model = await limited(1_000)
    with pytest.raises(RequestTooLarge, match=r"would have \d+ bytes, claude-opus-5 takes 1000"):
        await assemble(model, [user("x" * 2_000)])
    with pytest.raises(RequestTooLarge):
        await assemble(model, HI, controls=Controls(stop=("x" * 2_000,)))


async def test_without_a_limit_nothing_gives_way() -> None:
    model = await limited(1_000)
    model.attributes = msgspec.structs.replace(model.attributes, request_bytes=None)
    assert (await assemble(model, [picture(b"1" * 3000)]))[1] == []
