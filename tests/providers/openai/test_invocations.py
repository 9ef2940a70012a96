"""Tools of both interfaces: declared, chosen, and mixed with native ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.openai import FakeOpenAI
from tests.fakes.openai_clients import INTERFACES, produce_openai_model
from vibe_llms.base.exceptions import ControlInvalid
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.interfaces import TurnContext

HI = [UserCanister.from_text("Hi")]
NATIVE = {
    "chat": {
        "type": "function",
        "function": {"name": "mine", "parameters": {"type": "object", "properties": {}}},
    },
    "responses": {
        "type": "function",
        "name": "mine",
        "parameters": {"type": "object", "properties": {}},
        "strict": False,
    },
}


def weather(city: str) -> str:
    """The weather of a city."""
    return city


async def send(server: FakeOpenAI, interface: str, controls: Controls, *tools: Any) -> Any:
    """The body of a request that the strict server takes."""
    model = await produce_openai_model(interface, server.url)
    await model.converse(HI, [Invoker.from_function(one) for one in tools], controls)
    await model.client.close()
    assert server.refusals == []
    return server.requests[-1].json


def name_of(tool: dict[str, Any]) -> str:
    return str(tool.get("function", tool)["name"])


@pytest.mark.parametrize("interface", INTERFACES)
async def test_native_tools_are_sent_with_ours_and_may_be_chosen(
    interface: str, fake_openai: FakeOpenAI
) -> None:
    controls = Controls(tool_choice="mine", extras={interface: {"tools": [NATIVE[interface]]}})
    body = await send(fake_openai, interface, controls, weather)
    assert [name_of(tool) for tool in body["tools"]] == ["mine", "weather"]
    assert name_of(body["tool_choice"]) == "mine"
    ours = body["tools"][1]
    assert ours.get("function", ours)["description"] == "The weather of a city."


@pytest.mark.parametrize("interface", INTERFACES)
async def test_a_tool_that_is_not_there_cannot_be_chosen(
    interface: str, fake_openai: FakeOpenAI
) -> None:
    with pytest.raises(ControlInvalid, match=r"tool 'other' cannot be required; .* weather"):
        await send(fake_openai, interface, Controls(tool_choice="other"), weather)
    assert fake_openai.requests == []


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize(
    ("choice", "sent"), [("any", "required"), ("none", "none"), ("auto", "auto"), (None, None)]
)
async def test_the_choice_of_tools_is_sent_in_the_words_of_the_interface(
    interface: str, choice: str | None, sent: str | None, fake_openai: FakeOpenAI
) -> None:
    controls = Controls(tool_choice=choice, parallel_invocations=False)
    body = await send(fake_openai, interface, controls, weather)
    assert body.get("tool_choice") == sent
    assert body["parallel_tool_calls"] is False
    # Without tools there is nothing to choose, and nothing is said of it.
    quiet = await send(fake_openai, interface, Controls(parallel_invocations=False))
    assert "tool_choice" not in quiet
    assert "parallel_tool_calls" not in quiet


async def test_controls_without_a_member_are_refused_before_anything_is_sent() -> None:
    for interface, controls in (
        ("chat", Controls(reasoning_tokens=1024)),
        ("responses", Controls(top_k=3)),
        ("responses", Controls(stop=("x",))),
    ):
        model = await produce_openai_model(interface, name="some-model")
        with pytest.raises(ControlInvalid, match="cannot be sent"):
            model.check(HI, controls)
    model = await produce_openai_model("chat", name="some-model")
    body = json.loads(
        await model.preview(HI, (), Controls(top_k=3, seed=4, stop=("x",)), TurnContext())
    )
    assert (body["top_k"], body["seed"], body["stop"]) == (3, 4, ["x"])
    own = Controls(extras={"chat": {"messages": []}})
    with pytest.raises(ControlInvalid, match="'messages' cannot be set in extras"):
        await model.preview(HI, (), own, TurnContext())
