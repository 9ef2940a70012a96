"""Controls as members of a request, and the errors for what a model does not take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.fakes.clients import assemble, produce_client, produce_model
from vibe_llms.base.exceptions import ConfigurationError, ControlInvalid
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.controls import Controls
from vibe_llms.providers.anthropic.controls import nativize_choice, nativize_controls, read_native
from vibe_llms.providers.anthropic.model import AnthropicCache

HI = [UserCanister.from_text("Hi")]
SCHEMA = {
    "title": "City",
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
ADAPTIVE = {"type": "adaptive", "display": "summarized"}


async def nativize(name: str, controls: Controls, **options: Any) -> Mapping[str, Any]:
    """What controls become for a model; `streaming` and what a user's file says may be given."""
    streaming = options.pop("streaming", True)
    model = await produce_model(name=name, **options)
    return nativize_controls(controls, model, streaming=streaming)


@pytest.mark.parametrize(
    ("name", "controls", "members"),
    [
        ("claude-opus-5", Controls(), {"max_tokens": 128_000}),
        ("claude-opus-5", Controls(output_tokens=9), {"max_tokens": 9}),
        ("claude-haiku-4-5", Controls(), {"max_tokens": 64_000}),
        ("unheard-of", Controls(), {"max_tokens": 8_192}),
        (
            "claude-opus-5",
            Controls(stop=("END", "\n."), service_tier="standard_only"),
            {
                "max_tokens": 128_000,
                "stop_sequences": ("END", "\n."),
                "service_tier": "standard_only",
            },
        ),
        (
            "claude-opus-5",
            Controls(effort="high"),
            {"max_tokens": 128_000, "output_config": {"effort": "high"}, "thinking": ADAPTIVE},
        ),
        (
            "claude-opus-4-5",
            Controls(effort="low"),
            {"max_tokens": 64_000, "output_config": {"effort": "low"}},
        ),
        (
            "claude-opus-5",
            Controls(reasoning_tokens=0),
            {"max_tokens": 128_000, "thinking": {"type": "disabled"}},
        ),
        (
            "claude-sonnet-5-5",
            Controls(reasoning_tokens=0, effort="high"),
            {
                "max_tokens": 128_000,
                "output_config": {"effort": "high"},
                "thinking": {"type": "between_tools"},
            },
        ),
        ("claude-fable-5", Controls(), {"max_tokens": 128_000, "thinking": ADAPTIVE}),
        (
            "claude-sonnet-4-5",
            Controls(reasoning_tokens=2048),
            {"max_tokens": 64_000, "thinking": {"type": "enabled", "budget_tokens": 2048}},
        ),
        (
            "unheard-of",
            Controls(reasoning_tokens=2048),
            {"max_tokens": 10_240, "thinking": {"type": "enabled", "budget_tokens": 2048}},
        ),
        (
            "claude-opus-5",
            Controls(effort="max", response_schema=SCHEMA),
            {
                "max_tokens": 128_000,
                "output_config": {
                    "effort": "max",
                    "format": {"type": "json_schema", "schema": SCHEMA},
                },
                "thinking": ADAPTIVE,
            },
        ),
    ],
)
async def test_controls_become_members(
    name: str, controls: Controls, members: Mapping[str, Any]
) -> None:
    assert await nativize(name, controls) == members
    await assemble(await produce_model(name=name), HI, controls=controls)


@pytest.mark.parametrize(
    ("name", "budget", "bound"),
    [
        ("claude-opus-5", None, 21_333),
        ("claude-sonnet-4-5", 30_000, 38_192),
        ("claude-sonnet-4-5", 63_000, 64_000),
        ("unheard-of", None, 8_192),
    ],
)
async def test_an_unstreamed_reply_is_bounded_so_that_it_ends_in_time(
    name: str, budget: int | None, bound: int
) -> None:
    members = await nativize(name, Controls(reasoning_tokens=budget), streaming=False)
    assert members["max_tokens"] == bound


async def test_a_bound_that_was_asked_for_holds_for_unstreamed_replies_too() -> None:
    members = await nativize("claude-opus-5", Controls(output_tokens=100_000), streaming=False)
    assert members["max_tokens"] == 100_000


@pytest.mark.parametrize(
    ("attributes", "bound"),
    [
        ({"default-output-tokens": 500}, 500),
        ({"default-output-tokens": 500, "output-tokens": 9_000}, 500),
    ],
)
async def test_the_users_own_default_bounds_a_reply(attributes: dict[str, Any], bound: int) -> None:
    members = await nativize("mine", Controls(), models={"mine": attributes})
    assert members["max_tokens"] == bound


async def test_a_default_bound_makes_room_for_a_budget() -> None:
    models = {"mine": {"default-output-tokens": 2_000}}
    members = await nativize("mine", Controls(reasoning_tokens=4_096), models=models)
    assert members["max_tokens"] == 4_096 + 8_192
    models["mine"]["output-tokens"] = 6_000
    members = await nativize("mine", Controls(reasoning_tokens=4_096), models=models)
    assert members["max_tokens"] == 6_000


REFUSED = [
    ("claude-opus-5", Controls(temperature=0.5), "temperature", "this model does not accept it"),
    ("claude-opus-5", Controls(top_p=0.5), "top-p", "this model does not accept it"),
    ("claude-opus-5", Controls(top_k=5), "top-k", "this model does not accept it"),
    ("claude-opus-5", Controls(seed=5), "seed", "this model does not accept it"),
    ("claude-opus-5", Controls(effort="much"), "effort", "one of low, medium, high, xhigh, max"),
    ("claude-opus-4-6", Controls(effort="xhigh"), "effort", "one of low, medium, high, max"),
    ("claude-sonnet-4-5", Controls(effort="low"), "effort", "this model does not accept it"),
    ("claude-opus-5", Controls(output_tokens=0), "output-tokens", "at least 1"),
    ("claude-opus-5", Controls(output_tokens=128_001), "output-tokens", "at most 128000"),
    ("claude-opus-5", Controls(reasoning_tokens=2048), "reasoning-tokens", "at most 0"),
    ("claude-fable-5", Controls(reasoning_tokens=0), "reasoning-tokens", "does not accept it"),
    ("claude-sonnet-4-5", Controls(reasoning_tokens=64_000), "reasoning-tokens", "at most 63999"),
    ("claude-sonnet-4-5", Controls(reasoning_tokens=1), "reasoning-tokens", "0 or at least 1024"),
    ("unheard-of", Controls(reasoning_tokens=-1), "reasoning-tokens", "0 or at least 1024"),
    (
        "claude-sonnet-4-5",
        Controls(reasoning_tokens=2048, output_tokens=2048),
        "reasoning-tokens",
        "less than output-tokens, which is 2048",
    ),
    (
        "claude-sonnet-4-5",
        Controls(reasoning_tokens=2048, tool_choice="any"),
        "reasoning-tokens",
        "where a call is demanded",
    ),
    ("claude-opus-5", Controls(stop=("a", " \n")), "stop", "white space"),
    ("claude-opus-5", Controls(service_tier="priority"), "service-tier", "auto, standard_only"),
    ("claude-opus-5", Controls(response_schema={"a": object()}), "response-schema", "object"),
]


@pytest.mark.parametrize(("name", "controls", "control", "words"), REFUSED)
async def test_what_a_model_does_not_take_is_refused_before_anything_is_sent(
    name: str, controls: Controls, control: str, words: str
) -> None:
    model = await produce_model(name=name)
    with pytest.raises(ControlInvalid, match=words) as caught:
        model.check((), controls)
    assert (caught.value.control, caught.value.model) == (control, name)
    with pytest.raises(ControlInvalid, match=words):
        await assemble(model, HI, controls=controls)


@pytest.mark.parametrize(("name", "controls", "control", "words"), REFUSED)
async def test_a_configured_default_that_a_model_does_not_take_is_left_out_with_a_notice(
    name: str, controls: Controls, control: str, words: str
) -> None:
    model = await produce_model(name=name)
    members, notices = await assemble(model, HI, default_controls=controls)
    reported = [text for text in notices if f"the configured control {control}" in text]
    assert len(reported) == 1
    assert words in reported[0]
    # What is left of it is not sent by halves.
    await assemble(model, HI, controls=Controls(output_tokens=5), default_controls=controls)
    assert members["model"] == name


async def test_what_this_call_asks_for_goes_before_a_default_that_does_not_fit_it() -> None:
    model = await produce_model(name="claude-sonnet-4-5")
    members, notices = await assemble(
        model,
        HI,
        controls=Controls(output_tokens=1000),
        default_controls=Controls(reasoning_tokens=2048),
    )
    assert (members["max_tokens"], "thinking" in members) == (1000, False)
    assert "the configured control reasoning-tokens is not sent" in notices[0]


async def test_the_users_file_widens_what_a_model_takes() -> None:
    models = {"claude-opus-5": {"controls": {"seed": {"minimum": 1}}, "native": {"thinking": []}}}
    model = await produce_model(models=models)
    model.check((), Controls(seed=1))
    assert "thinking" not in await nativize("claude-opus-5", Controls(effort="low"), models=models)


async def test_a_budget_that_no_reply_has_room_for_is_refused() -> None:
    models = {"mine": {"output-tokens": 4_000}}
    with pytest.raises(ControlInvalid, match="which is 4000"):
        await nativize("mine", Controls(reasoning_tokens=4_000), models=models)


@pytest.mark.parametrize(
    ("thinking", "budget", "words"),
    [
        (["adaptive", "disabled"], 2048, "it decides on its own; use effort"),
        (["adaptive"], 0, "it always thinks"),
    ],
)
async def test_a_kind_of_thinking_that_a_model_has_not_is_refused(
    thinking: list[str], budget: int, words: str
) -> None:
    models = {"mine": {"native": {"thinking": thinking}}}
    with pytest.raises(ControlInvalid, match=words):
        await nativize("mine", Controls(reasoning_tokens=budget), models=models)


@pytest.mark.parametrize(
    ("name", "controls", "words"),
    [
        (
            "claude-sonnet-5-5",
            Controls(reasoning_tokens=0, effort="max"),
            "accepts it up to 'high'",
        ),
        ("claude-sonnet-5-5", Controls(tool_choice="any"), "one of auto, none"),
        ("claude-fable-5-2", Controls(tool_choice="time/now"), "one of auto, none"),
        ("claude-opus-5-5", Controls(reasoning_tokens=0), "does not accept it"),
    ],
)
async def test_what_the_newest_models_answer_400_to_is_refused(
    name: str, controls: Controls, words: str
) -> None:
    with pytest.raises(ControlInvalid, match=words):
        await assemble(await produce_model(name=name), HI, controls=controls)


NAMES = {"time/now": "time__now", "web_search": "web_search"}


@pytest.mark.parametrize(
    ("controls", "choice"),
    [
        (Controls(), None),
        (Controls(tool_choice="auto"), {"type": "auto"}),
        (Controls(tool_choice="any"), {"type": "any"}),
        (Controls(tool_choice="none"), {"type": "none"}),
        (Controls(tool_choice="time/now"), {"type": "tool", "name": "time__now"}),
        (
            Controls(parallel_invocations=False),
            {"type": "auto", "disable_parallel_tool_use": True},
        ),
        (
            Controls(tool_choice="web_search", parallel_invocations=True),
            {"type": "tool", "name": "web_search", "disable_parallel_tool_use": False},
        ),
        (Controls(tool_choice="none", parallel_invocations=False), {"type": "none"}),
    ],
)
def test_a_choice_among_tools(controls: Controls, choice: Mapping[str, Any] | None) -> None:
    assert nativize_choice(controls, NAMES, offered=True) == choice


@pytest.mark.parametrize(
    "controls",
    [
        Controls(tool_choice="auto"),
        Controls(tool_choice="none"),
        Controls(parallel_invocations=False),
    ],
)
async def test_without_tools_a_choice_that_demands_nothing_is_left_unsaid(
    controls: Controls,
) -> None:
    model = await produce_model()
    members, notices = await assemble(model, HI, controls=controls)
    assert "tool_choice" not in members
    assert notices == []


@pytest.mark.parametrize("choice", ["any", "time/now"])
async def test_a_call_of_a_tool_that_there_is_not_cannot_be_demanded(choice: str) -> None:
    model = await produce_model()
    with pytest.raises(ControlInvalid, match="cannot be required; no tools are offered"):
        await assemble(model, HI, controls=Controls(tool_choice=choice))
    members, notices = await assemble(model, HI, default_controls=Controls(tool_choice=choice))
    assert "tool_choice" not in members
    assert "the configured control tool-choice is not sent" in notices[0]


async def test_a_choice_of_an_unknown_tool_names_those_that_there_are() -> None:
    with pytest.raises(ControlInvalid, match="known tools: time/now, web_search"):
        nativize_choice(Controls(tool_choice="weather"), NAMES, offered=True)


async def test_wrong_native_attributes_of_a_model_are_named() -> None:
    client = produce_client(models={"claude-opus-5": {"native": {"thinking": ["much"]}}})
    with pytest.raises(ConfigurationError, match=r"models\], key 'native'.*'claude-opus-5'"):
        await client.access_model("claude-opus-5")


async def test_what_the_files_say_of_every_model_can_be_read() -> None:
    for name in ("claude-fable-5", "claude-mythos-preview", "claude-opus-4-7", "unheard-of"):
        model = await produce_model(name=name)
        assert read_native(model) is not None
        assert isinstance(model.produce_cache(), AnthropicCache)
