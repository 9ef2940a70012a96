"""What turns are held with: put together anew for each, copied by forks, encoded once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.models import endless
from vibe_llms.configuration import ToolMode, ToolSettings
from vibe_llms.controls import ControlRange, Controls
from vibe_llms.events import ignore_events
from vibe_llms.exceptions import ControlInvalid, ModelNotFound, RequestError
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.outfit import ConversationDefaults, Outfit
from vibe_llms.outputs import produce_form
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.interfaces import Model
from vibe_llms.session import Session
from vibe_llms.testing import ScriptedModel
from vibe_llms.turns import TurnSettings

HI = [UserCanister.from_text("Hi")]


def look() -> str:
    """Look."""
    return ""


def caching() -> ScriptedModel:
    """A model that keeps something for a conversation."""
    model = endless()
    model.produce_cache = list  # type: ignore[method-assign, assignment]
    return model


async def access(name: str) -> Model:
    if name != "scripted/other":
        raise ModelNotFound(name)
    return endless("other")


DEFAULTS = ConversationDefaults(
    event_handler=ignore_events,
    access_model=access,
    access_controls=lambda model: Controls(seed=1, top_k=1),
    tools=ToolSettings(),
)


def prepare(outfit: Outfit, **given: Any) -> tuple[list[Canister], TurnSettings]:
    nothing = {"invokers": None, "controls": None, "event_handler": None, "form": None}
    options: dict[str, Any] = {**nothing, "throttle": None, "streaming": True, **given}
    said, settings = outfit.prepare(HI, **options)
    return list(said), settings


def test_a_turn_has_what_the_conversation_has_unless_it_brings_its_own() -> None:
    events: list[object] = []
    outfit = Outfit(
        endless(), DEFAULTS, invokers=[look], controls=Controls(seed=2), event_handler=events.append
    )
    said, settings = prepare(outfit)
    assert said == HI
    assert list(settings.invokers) == ["look"]
    assert settings.controls == Controls()
    assert settings.default_controls == Controls(seed=2, top_k=1)
    assert settings.event_handler == events.append
    _, other = prepare(outfit, invokers=[], controls=Controls(seed=3), event_handler=ignore_events)
    assert other.invokers == {}
    assert other.controls == Controls(seed=3)
    assert other.event_handler is ignore_events
    assert prepare(Outfit(endless(), DEFAULTS))[1].event_handler is ignore_events


@pytest.mark.parametrize("takes", [True, False])
def test_a_form_goes_to_the_model_as_a_schema_or_in_words(takes: bool) -> None:
    model = endless()
    if takes:
        model.attributes = ModelAttributes(controls={"response-schema": ControlRange()})
    form = produce_form({"type": "object"})
    said, settings = prepare(Outfit(model, DEFAULTS), form=form, controls=Controls(seed=3))
    assert settings.form is form
    assert settings.controls == Controls(seed=3, response_schema=form.schema if takes else None)
    asked = [one.text for one in said if isinstance(one, SupervisorCanister)]
    assert asked == ([] if takes else [form.instruction])
    assert said[-1:] == HI


@pytest.mark.parametrize(("choice", "mode"), [("find", "auto"), ("look", "off")])
def test_a_tool_that_is_not_offered_cannot_be_chosen(choice: str, mode: ToolMode) -> None:
    outfit = Outfit(endless(), DEFAULTS, invokers=[look], tool_mode=mode)
    with pytest.raises(ControlInvalid, match=f"no tool '{choice}' to choose") as caught:
        prepare(outfit, controls=Controls(tool_choice=choice))
    assert caught.value.control == "tool-choice"


@pytest.mark.parametrize("choice", ["auto", "any", "none", "look"])
def test_what_is_offered_can_be_chosen(choice: str) -> None:
    outfit = Outfit(endless(), DEFAULTS, invokers=[look])
    assert prepare(outfit, controls=Controls(tool_choice=choice))[1].controls.tool_choice == choice


async def test_a_copy_goes_its_own_way_and_has_nothing_encoded() -> None:
    outfit = Outfit(caching(), DEFAULTS, invokers=[look], controls=Controls(seed=2))
    _, settings = prepare(outfit)
    cache = settings.access_cache(outfit.model)
    assert settings.access_cache(outfit.model) is cache
    settings.told.add(("", "something"))
    twin = outfit.copy()
    _, copied = prepare(twin)
    assert copied.access_cache(twin.model) is not cache
    assert copied.told == set()
    assert (copied.invokers, copied.default_controls) == (
        settings.invokers,
        settings.default_controls,
    )
    assert await twin.switch("scripted/other") == "scripted/other"
    twin.toolbox.withhold("look")
    assert (outfit.model.name, list(outfit.invokers)) == ("script", ["look"])
    assert (twin.model.name, list(twin.invokers)) == ("other", [])


async def test_a_model_that_is_not_there_leaves_the_one_that_is() -> None:
    outfit = Outfit(endless(), DEFAULTS)
    with pytest.raises(ModelNotFound):
        await outfit.switch("scripted/none")
    assert outfit.model.name == "script"


def test_nobody_is_dismissed_who_does_not_attend() -> None:
    with pytest.raises(RequestError, match="nobody called 'x' attends; there are \\[\\]"):
        Outfit(endless(), DEFAULTS).dismiss("x")


def test_what_was_encoded_is_forgotten_only_when_the_instructions_change() -> None:
    one, two = Teaching("one", "Use one."), Teaching("two", "Use two.")
    outfit = Outfit(caching(), DEFAULTS, ensembles=[one, two])
    _, first = prepare(outfit)
    assert [canister.text for canister in first.instructions] == ["Use one.", "Use two."]
    cache = first.access_cache(outfit.model)
    _, second = prepare(outfit)
    assert second.instructions is first.instructions
    assert second.access_cache(outfit.model) is cache
    outfit.toolbox.withhold("two")
    model, tools, instructions = outfit.settle()
    assert (model, [tool.name for tool in tools]) == (outfit.model, ["one/do"])
    assert [canister.text for canister in instructions] == ["Use one."]
    assert second.access_cache(outfit.model) is not cache


# Instructions of ensembles.


class Teaching:
    """An ensemble with words of its own about its tools."""

    def __init__(self, name: str, instructions: str) -> None:
        self.name = name
        self.instructions = instructions
        self.invokers = [
            Invoker.from_function(lambda: "x", name=f"{name}/do", ensemble=name)  # type: ignore[call-arg]
        ]

    async def open(self) -> None:
        """Nothing is to be opened."""

    async def close(self) -> None:
        """Nothing is to be closed."""


def system(request: Any) -> list[str]:
    return [
        one["contents"][0]["text"] for one in request["messages"] if one["role"] == "supervisor"
    ]


async def test_what_an_ensemble_tells_stands_before_the_history_and_is_not_kept(
    session: Session,
) -> None:
    model = endless()
    conversation = await session.begin(
        model, supervisor="Be brief.", ensembles=[Teaching("one", "Use one."), Teaching("two", "")]
    )
    await conversation.converse("One")
    assert system(model.requests[0]) == ["Use one.", "Be brief."]
    assert [type(canister) for canister in conversation.canisters] == [
        SupervisorCanister, UserCanister, AssistantCanister
    ]  # fmt: skip
    assert "Use one." in await conversation.preview("x")
    before = await conversation.count_tokens()
    conversation.withhold("one")
    assert (await conversation.count_tokens()).tokens < before.tokens
    await conversation.converse("Two")
    assert system(model.requests[-1]) == ["Be brief."]
    await conversation.offer("one")
    await conversation.converse("Three", invokers=[])
    assert system(model.requests[-1]) == ["Be brief."]
    await conversation.converse("Four", controls=Controls())
    assert system(model.requests[-1]) == ["Use one.", "Be brief."]


async def test_other_words_in_the_same_place_are_read_anew(session: Session) -> None:
    model = endless()
    one, two = Teaching("one", "Use one."), Teaching("two", "Use two.")
    conversation = await session.begin(model, ensembles=[one, two])
    conversation.withhold("two")
    await conversation.converse("One")
    conversation.withhold("one")
    await conversation.offer("two")
    await conversation.converse("Two")
    assert [system(request) for request in model.requests] == [["Use one."], ["Use two."]]


async def test_without_tools_nothing_is_told_of_them(session: Session) -> None:
    model = endless()
    conversation = await session.begin(
        model, ensembles=[Teaching("one", "Use one.")], tool_mode="off"
    )
    await conversation.converse("One")
    assert system(model.requests[0]) == []
