"""What a body of the Messages interface asks for, member by member."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from vibe_llms.messages.canisters import (
    Canister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    role_of,
)
from vibe_llms.messages.contents import TextualContent
from vibe_llms.messages.controls import Controls
from vibe_llms.server.failures import Rejected
from vibe_llms.server.messages_requests import read_count, read_order, read_request
from vibe_llms.server.omissions import Omissions
from vibe_llms.server.turns import TurnOrder

LOOK = {"name": "look", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "c1", "name": "look", "input": {"a": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "seen", "is_error": True}
PLAIN = Controls(output_tokens=5)


def read(*, counts: bool = False, **members: Any) -> TurnOrder:
    said = [{"role": "user", "content": "Hello!"}]
    body = msgspec.json.encode({"model": "one", "max_tokens": 5, "messages": said, **members})
    omissions = Omissions()
    request = read_count(body, omissions) if counts else read_request(body, omissions)
    return read_order(request, omissions)


def choose(**choice: Any) -> dict[str, Any]:
    return {"tools": [LOOK], "tool_choice": choice}


@pytest.mark.parametrize(
    ("members", "controls"),
    [
        ({}, PLAIN),
        ({"stop_sequences": ["END", "."]}, Controls(output_tokens=5, stop=("END", "."))),
        ({"stop_sequences": []}, PLAIN),
        (
            {"temperature": 0.0, "top_p": 0.5, "top_k": 3},
            Controls(output_tokens=5, temperature=0.0, top_p=0.5, top_k=3),
        ),
        ({"service_tier": "auto"}, PLAIN),
        (
            {"service_tier": "standard_only"},
            Controls(output_tokens=5, service_tier="standard_only"),
        ),
        ({"output_config": {"effort": "low"}}, Controls(output_tokens=5, effort="low")),
        (choose(type="any"), Controls(output_tokens=5, tool_choice="any")),
        (choose(type="auto"), Controls(output_tokens=5, tool_choice="auto")),
        (choose(type="none"), Controls(output_tokens=5, tool_choice="none")),
        (choose(type="tool", name="look"), Controls(output_tokens=5, tool_choice="look")),
        (
            choose(type="auto", disable_parallel_tool_use=True),
            Controls(output_tokens=5, tool_choice="auto", parallel_invocations=False),
        ),
        (
            choose(type="auto", disable_parallel_tool_use=False),
            Controls(output_tokens=5, tool_choice="auto", parallel_invocations=True),
        ),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 2000}},
            Controls(output_tokens=5, reasoning_tokens=2000),
        ),
        (
            {"thinking": {"type": "disabled"}},
            Controls(output_tokens=5, reasoning_tokens=0),
        ),
        ({"thinking": {"type": "adaptive", "budget_tokens": 0}}, PLAIN),
    ],
)
def test_controls_are_those_that_the_client_names(
    members: dict[str, Any], controls: Controls
) -> None:
    assert read(**members).controls == controls


def test_where_tokens_are_counted_only_what_changes_them_is_read() -> None:
    order = read(counts=True, temperature=0.5, **choose(type="any"))
    assert order.controls == Controls(tool_choice="any")
    assert (order.store, [tool.name for tool in order.tools]) == (True, ["look"])


@pytest.mark.parametrize(("store", "stored"), [(True, True), (False, False), (None, True)])
def test_a_turn_is_stored_unless_the_client_wants_it_otherwise(store: Any, stored: bool) -> None:
    assert read(store=store).store is stored


def test_the_form_of_a_reply_may_be_in_either_member() -> None:
    schema = {"type": "object"}
    form = {"type": "json_schema", "schema": schema}
    assert read(output_format=form).schema == schema
    assert read(output_config={"format": form}).schema == schema
    assert read(output_config={"effort": "low"}).schema is None


def say(*messages: dict[str, Any], **members: Any) -> list[Canister]:
    return [*read(messages=[*messages], **members).said]


def test_each_role_and_block_is_read_as_what_it_is() -> None:
    text = {"type": "text", "text": "More."}
    said = say(
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": [{"type": "text", "text": "Well."}, USE]},
        {"role": "user", "content": [RESULT, text]},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "So?"},
        system=[{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}],
    )
    roles = [role_of(one) for one in said]
    assert roles == ["supervisor", "user", "assistant", "invocation", "result", "user", "user"]
    assert isinstance(said[0], SupervisorCanister)
    assert said[0].contents == (TextualContent("Be brief.\n\nBe kind."),)
    call, result = said[3:5]
    assert isinstance(call, InvocationCanister)
    assert isinstance(result, ResultCanister)
    assert (call.name, call.arguments, call.call) == ("look", '{"a":1}', "c1")
    assert (result.invocation, result.failed) == (call.identity, True)
    assert result.contents == (TextualContent("seen"),)


HELLO = {"role": "user", "content": "Hello!"}
ASSISTED = {"role": "assistant", "content": [USE]}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([HELLO, {"role": "user", "content": [RESULT]}], "messages[1].content"),
        ([HELLO, ASSISTED, {"role": "assistant", "content": [RESULT]}], "messages[2].content"),
        ([{"role": "user", "content": [USE]}], "messages[0].content"),
        (
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "source": {"type": "url", "url": "file:///etc/passwd"}}
                    ],
                }
            ],
            "messages[0].content",
        ),
    ],
)
def test_what_is_wrong_in_a_message_is_named_with_its_place(
    messages: list[dict[str, Any]], param: str
) -> None:
    with pytest.raises(Rejected) as caught:
        say(*messages)
    assert caught.value.failure.param == param


def test_a_choice_of_a_tool_needs_its_name() -> None:
    with pytest.raises(Rejected) as caught:
        read(**choose(type="tool"))
    assert caught.value.failure.param == "tool_choice"


def test_a_change_of_tools_keeps_those_without_a_name() -> None:
    functions = [{"type": "function", "function": {"name": name}} for name in ("a", "b", "c")]
    toolset = {"type": "mcp_toolset", "mcp_server_name": "m"}
    changes = [{"type": "tool_removal", "tool": {"type": "tool_reference", "name": "c"}}]
    said = [{"role": "user", "content": "Hi"}, {"role": "system", "content": changes}]
    order = read(messages=said, tools=[*functions, toolset, {**toolset, "mcp_server_name": "n"}])
    assert [tool.name for tool in order.tools] == ["a", "b"]
    assert str(order.omissions) == "tool mcp_toolset"


def test_blocks_that_do_not_belong_into_a_result_become_text() -> None:
    blocks = [
        {"type": "compaction", "content": "We build a boat.", "encrypted_content": "abc"},
        {"type": "compaction", "content": None, "encrypted_content": "vibe1.abc"},
        {"type": "redacted_thinking", "data": "abc"},
        {"type": "thinking", "thinking": "Hm.", "signature": "abc"},
        {"type": "text", "text": "seen"},
    ]
    messages = [
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": [USE]},
        {"role": "user", "content": [{**RESULT, "content": blocks}]},
    ]
    result = read(tools=[LOOK], messages=messages).said[-1]
    texts = [one.data for one in result.contents if isinstance(one, TextualContent)]
    assert texts == ["We build a boat.", "thinking: Hm.", "seen"]
