"""Reads requests of the Responses API."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from vibe_llms.messages.controls import Controls
from vibe_llms.server.failures import Rejected
from vibe_llms.server.omissions import Omissions
from vibe_llms.server.responses_requests import read_count, read_order, read_request
from vibe_llms.server.turns import TurnOrder

LOOK_UP = {"type": "function", "name": "look_up", "parameters": {"type": "object"}}


def read(**members: Any) -> tuple[TurnOrder, str]:
    """Read a request; returns the order, and what is left out."""
    omissions = Omissions()
    request = read_request(msgspec.json.encode({"model": "m", "input": "Hi", **members}))
    return read_order(request, "m", omissions), str(omissions)


def test_each_control_is_asked_for_as_it_is_named() -> None:
    order, left_out = read(
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=7,
        reasoning={"effort": "low"},
        service_tier="flex",
        tools=[LOOK_UP],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    assert order.controls == Controls(
        temperature=0.5,
        top_p=0.9,
        output_tokens=7,
        effort="low",
        service_tier="flex",
        tool_choice="any",
        parallel_invocations=False,
    )
    assert left_out == ""


@pytest.mark.parametrize(
    ("choice", "left_out"),
    [("required", "tool web_search, tool_choice required"), ("auto", "tool web_search")],
)
def test_a_call_is_not_required_where_all_tools_are_left_out(choice: str, left_out: str) -> None:
    order, named = read(tools=[{"type": "web_search"}], tool_choice=choice)
    assert (order.tools, order.controls.tool_choice) == ((), None)
    assert named == left_out


@pytest.mark.parametrize("member", ["conversation", "prompt"])
def test_tokens_are_counted_of_a_request_that_names_nothing_stored_elsewhere(member: str) -> None:
    body: dict[str, Any] = {"model": "m", "input": "Hi"}
    assert read_count(msgspec.json.encode({**body, member: None})).input == "Hi"
    with pytest.raises(Rejected, match=f"{member} is not supported"):
        read_count(msgspec.json.encode({**body, member: "a"}))
