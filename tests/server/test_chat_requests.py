"""What a body of Chat Completions asks for, member by member."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    AudioContent,
    FileContent,
    ImageContent,
    Location,
    TextualContent,
)
from vibe_llms.messages.controls import Controls
from vibe_llms.server.chat_requests import JSON_ONLY, read_order, read_request
from vibe_llms.server.failures import Rejected
from vibe_llms.server.omissions import Omissions
from vibe_llms.server.turns import TurnOrder

DATA = base64.b64encode(b"data").decode()
FUNCTION = {"name": "look", "parameters": {"type": "object"}}


def read(**members: Any) -> TurnOrder:
    said = [{"role": "user", "content": "Hello!"}]
    body = msgspec.json.encode({"model": "one", "messages": said, **members})
    return read_order(read_request(body), Omissions())


def say(*messages: Any) -> list[Canister]:
    return [*read(messages=[*messages]).said]


@pytest.mark.parametrize(
    ("members", "controls"),
    [
        ({"stop": "END"}, Controls(stop=("END",))),
        ({"stop": ["END", "."]}, Controls(stop=("END", "."))),
        ({"stop": []}, Controls()),
        ({"stop": None}, Controls()),
        ({"max_tokens": 5}, Controls(output_tokens=5)),
        ({"max_completion_tokens": 7}, Controls(output_tokens=7)),
        # The old name counts only where the new one is not given.
        ({"max_completion_tokens": 7, "max_tokens": 5}, Controls(output_tokens=7)),
        ({"max_completion_tokens": None, "max_tokens": 5}, Controls(output_tokens=5)),
        (
            {"temperature": 0.0, "top_p": 0.5, "top_k": 3},
            Controls(temperature=0.0, top_p=0.5, top_k=3),
        ),
        ({"seed": 0, "reasoning_effort": "low"}, Controls(seed=0, effort="low")),
        ({"service_tier": "flex"}, Controls(service_tier="flex")),
        ({"tool_choice": "required"}, Controls(tool_choice="any")),
        ({"tool_choice": "none"}, Controls(tool_choice="none")),
        ({"tool_choice": {"function": {"name": "look"}}}, Controls(tool_choice="look")),
        ({"parallel_tool_calls": False}, Controls()),
        (
            {"parallel_tool_calls": False, "tools": [{"function": FUNCTION}]},
            Controls(parallel_invocations=False),
        ),
    ],
)
def test_controls_are_those_that_the_client_names(
    members: dict[str, Any], controls: Controls
) -> None:
    order = read(**members)
    assert order.controls == controls
    assert [tool.name for tool in order.tools] == ["look"] * len(members.get("tools", ()))


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"messages": []}, "messages"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema",
        ),
    ],
)
def test_what_no_model_here_can_do_is_refused_by_its_name(
    members: dict[str, Any], param: str
) -> None:
    with pytest.raises(Rejected) as caught:
        read(**members)
    assert caught.value.failure.param == param


@pytest.mark.parametrize(
    "members", [{"n": 1}, {"n": None}, {"modalities": ["text"]}, {"modalities": None}]
)
def test_what_every_model_does_anyhow_is_accepted(members: dict[str, Any]) -> None:
    assert read(**members).controls == Controls()


@pytest.mark.parametrize(
    ("store", "stored"), [(True, True), (False, False), (None, True), (msgspec.UNSET, True)]
)
def test_a_turn_is_stored_unless_the_client_wants_it_otherwise(store: Any, stored: bool) -> None:
    assert read(**{} if store is msgspec.UNSET else {"store": store}).store is stored


def test_the_form_of_a_reply_is_a_schema_or_an_instruction() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    named = {"name": "Answer", "schema": schema}
    given = {"type": "json_schema", "json_schema": named}
    order = read(response_format=given)
    assert (order.schema, order.instruction) == ({"title": "Answer", **schema}, "")
    order = read(response_format={"type": "json_object", "json_schema": named})
    assert (order.schema, order.instruction) == (None, JSON_ONLY)
    order = read(response_format={"type": "text"})
    assert (order.schema, order.instruction) == (None, "")


def test_each_role_is_read_as_what_it_is() -> None:
    call = {"id": "c1", "function": {"name": "look", "arguments": '{"a": 1}'}}
    other = {"id": "c2", "function": {"name": "look"}}
    said = say(
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": None, "tool_calls": [call, other]},
        {"role": "tool", "tool_call_id": "c1", "content": "seen"},
        {"role": "tool", "tool_call_id": "c2"},
        {"role": "assistant", "refusal": "No."},
        {"role": "assistant", "content": "Yes.", "refusal": "No."},
    )
    assert [type(one) for one in said] == [
        *(SupervisorCanister, SupervisorCanister, UserCanister),
        *(InvocationCanister, InvocationCanister, ResultCanister, ResultCanister),
        *(AssistantCanister, AssistantCanister),
    ]
    first, second, seen, nothing = said[3:7]
    assert isinstance(first, InvocationCanister)
    assert isinstance(second, InvocationCanister)
    assert (first.name, first.arguments, first.call) == ("look", '{"a": 1}', "c1")
    assert (second.arguments, second.call) == ("{}", "c2")
    assert isinstance(seen, ResultCanister)
    assert isinstance(nothing, ResultCanister)
    assert (seen.invocation, nothing.invocation) == (first.identity, second.identity)
    assert nothing.contents == ()
    assert [one.contents for one in said[-2:]] == [
        (TextualContent("No."),),
        (TextualContent("Yes."),),
    ]


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ({"type": "text", "text": "a"}, TextualContent("a")),
        ({"type": "refusal", "refusal": "a"}, TextualContent("a")),
        (
            {"type": "image_url", "image_url": {"url": "https://far.test/a.png"}},
            ImageContent(Location("https://far.test/a.png")),
        ),
        (
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}},
            ImageContent(b"data", "image/png"),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}},
            AudioContent(b"data", "audio/wav"),
        ),
        (
            {
                "type": "file",
                "file": {"file_data": f"data:text/plain;base64,{DATA}", "filename": "a.txt"},
            },
            FileContent(b"data", "text/plain", "a.txt"),
        ),
        (
            {"type": "file", "file": {"file_data": f"data:text/plain;base64,{DATA}"}},
            FileContent(b"data", "text/plain", ""),
        ),
    ],
)
def test_each_part_is_read_as_what_it_is(part: dict[str, Any], content: Any) -> None:
    (canister,) = say({"role": "user", "content": [part]})
    assert canister.contents == (content,)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "tool", "tool_call_id": "c9"}, "messages[1].tool_call_id"),
        ({"role": "assistant", "tool_calls": [{"id": "c1"}]}, "messages[1].tool_calls"),
        (
            {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": ""}}]},
            "messages[1].tool_calls",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "look"}}]},
            "messages[1].tool_calls",
        ),
        (
            {"role": "user", "content": [{"type": "file", "file": {"filename": "a"}}]},
            "messages[1].content",
        ),
        (
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}],
            },
            "messages[1].content",
        ),
    ],
)
def test_what_is_wrong_in_a_message_is_named_with_its_place(
    message: dict[str, Any], param: str
) -> None:
    with pytest.raises(Rejected) as caught:
        say({"role": "user", "content": "Hello!"}, message)
    assert caught.value.failure.param == param


@pytest.mark.parametrize(
    ("options", "included"), [(None, False), ({}, False), ({"include_usage": True}, True)]
)
def test_usage_is_in_a_stream_if_it_is_asked_for(options: Any, included: bool) -> None:
    body = {"model": "one", "messages": [{"role": "user"}], "stream_options": options}
    assert read_request(msgspec.json.encode(body)).includes_usage is included


def test_the_model_is_told_the_grammar_of_a_custom_tool() -> None:
    grammar = {"syntax": "lark", "definition": "start: LINE"}
    custom = {"name": "patch", "format": {"type": "grammar", "grammar": grammar}}
    (tool,) = read(tools=[{"type": "custom", "custom": custom}]).tools
    assert "must match this lark grammar:\nstart: LINE" in tool.description
