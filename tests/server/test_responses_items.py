"""The items of an input of Responses, of all types that OpenAI's package knows and of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import pytest
from openai.types.responses.response_input_item_param import ResponseInputItemParam

from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
    UserCanister,
    role_of,
)
from vibe_llms.messages.contents import FileContent, ImageContent, Location, text_of
from vibe_llms.server.chat_requests import read_messages
from vibe_llms.server.failures import Rejected
from vibe_llms.server.omissions import Omissions
from vibe_llms.server.responses_items import Continued, ItemReader, find_reference, survey_tools
from vibe_llms.server.responses_requests import ResponseRequest, read_order
from vibe_llms.server.turns import TurnOrder

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGA"
    "WjR9awAAAABJRU5ErkJggg=="
)


def read(
    items: Sequence[Mapping[str, Any]],
    omissions: Omissions | None = None,
    continued: Continued = Continued(),
) -> Sequence[Canister]:
    """Return the messages of items."""
    reader = ItemReader(items, continued, Omissions() if omissions is None else omissions)
    return read_messages([one for _, one in reader.read()], continued.open_calls)


def name_types() -> list[str]:
    """Return the types of all items that OpenAI's package knows."""
    kinds: list[str] = []
    for item in get_args(ResponseInputItemParam):
        kind = item.__annotations__.get("type")
        kinds += [one for one in _survey_words(kind) if one not in ("item_reference",)]
    return kinds


def _survey_words(annotation: Any) -> list[str]:
    text = str(getattr(annotation, "__forward_arg__", annotation))
    return text.split('"')[1::2] or text.split("'")[1::2]


def test_the_package_has_the_types_that_are_tried() -> None:
    assert {"message", "reasoning", "custom_tool_call", "shell_call", "program"} <= {*name_types()}


@pytest.mark.parametrize("kind", sorted({*name_types()} - {"message", "compaction_trigger"}))
def test_an_item_of_any_known_type_is_accepted(kind: str) -> None:
    item: dict[str, Any] = {"type": kind, "id": "i_1", "call_id": "c_1", "name": "tool"}
    items: list[Mapping[str, Any]] = [{"role": "user", "content": "One?"}, item]
    if kind.endswith("_call") and read_as_call(item):
        items.append({"type": f"{kind}_output", "call_id": "c_1", "output": "done"})
    if kind.endswith("_output"):
        items.insert(1, {**item, "type": kind.removesuffix("_output")})
    said = read([*items, {"role": "user", "content": "Two?"}])
    assert [role_of(one) for one in (said[0], said[-1])] == ["user", "user"]
    assert text_of(said[-1].contents) == "Two?"


def read_as_call(item: Mapping[str, Any]) -> bool:
    """Return True if the reader takes an item for a call that needs an output."""
    return any(isinstance(one, InvocationCanister) for one in read([item]))


def test_calls_of_types_that_nothing_is_known_of_keep_their_outputs() -> None:
    omissions = Omissions()
    said = read(
        [
            {"type": "robot_call", "call_id": "c", "action": {"move": "left"}},
            {"role": "user", "content": "Quick!"},
            {"type": "robot_call_output", "call_id": "c", "output": [{"moved": "a metre"}]},
        ],
        omissions,
    )
    call, result, user = said
    assert isinstance(call, InvocationCanister)
    assert (call.name, call.parsed) == ("robot", {"action": {"move": "left"}})
    assert isinstance(result, ResultCanister)
    assert text_of(result.contents) == "moved: a metre"
    assert isinstance(user, UserCanister)
    assert not omissions


def test_what_is_not_known_becomes_text_and_is_named() -> None:
    omissions = Omissions()
    said = read([{"type": "dream", "about": "sheep", "data": "A" * 5000}], omissions)
    assert "about: sheep" in text_of(said[0].contents)
    assert "AAAA" not in text_of(said[0].contents)
    assert str(omissions) == "item dream"


def test_pictures_that_a_tool_returned_are_read() -> None:
    parts = [{"type": "input_text", "text": "Look:"}, {"type": "input_image", "image_url": PIXEL}]
    said = read(
        [
            {"type": "function_call", "call_id": "c", "name": "shoot", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": parts},
        ]
    )
    assert [type(one) for one in said[1].contents][1:] == [ImageContent]


def test_a_long_text_without_spaces_in_an_output_stays_whole() -> None:
    said = read(
        [
            {"type": "custom_tool_call", "call_id": "c", "name": "cat", "input": "x"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "A" * 5000},
        ]
    )
    assert text_of(said[1].contents) == "A" * 5000


def test_reasoning_is_passed_over_in_all_its_forms() -> None:
    said = read(
        [
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "t"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]},
            {"type": "reasoning", "encrypted_content": "E"},
            {"role": "assistant", "content": "b"},
        ]
    )
    assert [type(one) for one in said] == [AssistantCanister]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"role": "wizard", "content": "x"}, "input[0].role"),
        ({"role": "user", "content": 3}, "input[0].content"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_smell"}]}, "input[0].content[0]"),
        ({"type": "function_call", "name": "a", "arguments": "{}"}, "input[0].call_id"),
        ({"type": "function_call", "call_id": "c", "arguments": "{}"}, "input[0].name"),
        ({"type": "function_call_output", "call_id": "c", "output": "x"}, "input[0]"),
        ({"type": "compaction_trigger"}, "input[0]"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(item: Mapping[str, Any], param: str) -> None:
    with pytest.raises(Rejected) as refused:
        read([item])
    assert str(refused.value.failure.param).startswith(param)


def test_references_are_found_with_and_without_a_type() -> None:
    assert find_reference({"type": "item_reference", "id": "a"}) == "a"
    assert find_reference({"id": "b"}) == "b"
    assert find_reference({"id": "c", "role": "user", "content": "x"}) is None


def test_items_add_tools_to_a_request() -> None:
    tool = {"type": "function", "name": "new"}
    items = [{"type": kind, "tools": [tool]} for kind in ("additional_tools", "tool_search_output")]
    assert [*survey_tools(items)] == [[tool], [tool]]


def test_items_that_the_continued_response_has_are_passed_over() -> None:
    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
    said = read(
        [
            {**call, "id": "item_run_0", "call_id": "call_0"},
            {
                "type": "function_call_output",
                "id": "item_run_1",
                "call_id": "call_0",
                "output": "red",
            },
            {"type": "message", "id": "msg_run_1", "role": "assistant", "content": "I look."},
            call,
            {"type": "function_call_output", "call_id": "call_1", "output": "blue"},
            {"role": "user", "content": "And?"},
        ],
        continued=Continued("run", {"call_1": "1"}),
    )
    result, user = said
    assert isinstance(result, ResultCanister)
    assert result.invocation == "1"
    assert isinstance(user, UserCanister)


def test_the_address_of_a_file_is_given_to_the_provider() -> None:
    part = {"type": "input_file", "file_url": "https://example.org/a.pdf", "filename": "a.pdf"}
    (said,) = read([{"role": "user", "content": [part]}])
    location = Location("https://example.org/a.pdf")
    assert said.contents == (FileContent(location, "application/pdf", "a.pdf"),)


def test_a_text_of_the_history_may_be_null() -> None:
    part = {"type": "output_text", "text": None}
    said = read([{"role": "assistant", "content": [part]}, {"role": "user", "content": "?"}])
    assert text_of(said[0].contents) == ""


@pytest.mark.parametrize("kind", [[], {}])
def test_a_type_that_is_not_a_text_is_that_of_a_message(kind: Any) -> None:
    (said,) = read([{"type": kind, "call_id": "c", "role": "user", "content": "Hi"}])
    assert isinstance(said, UserCanister)


def order(**members: Any) -> TurnOrder:
    """Return what a request asks for."""
    return read_order(ResponseRequest(**members), "m", Omissions())


def test_an_input_that_is_nested_too_deeply_is_refused() -> None:
    value: Any = "sheep"
    for _ in range(2_000):
        value = [value]
    with pytest.raises(Rejected) as refused:
        order(input=[{"type": "dream", "about": value}])
    assert refused.value.failure.param == "input"


def test_an_image_that_cannot_be_read_is_refused_with_the_place_of_its_item() -> None:
    part = {"type": "input_image", "image_url": "data:image/png;base64,%"}
    with pytest.raises(Rejected) as refused:
        order(input=[{"type": "reasoning"}, {"role": "user", "content": [part]}])
    assert refused.value.failure.param == "input[1].content"


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ({"include": ["message.output_text.logprobs"]}, "member include"),
        ({"truncation": "disabled", "include": ["reasoning.encrypted_content"]}, ""),
    ],
)
def test_members_without_effect_are_named(members: dict[str, Any], named: str) -> None:
    assert str(order(input="Hi", **members).omissions) == named
