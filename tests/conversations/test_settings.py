"""What the turns of a conversation use, and what forks of it take along."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.hooks import Companion
from tests.fakes.models import endless
from vibe_llms.base.configuration import ToolMode
from vibe_llms.base.exceptions import ControlInvalid, ModelNotFound, RequestError
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.history import History
from vibe_llms.conversations.outputs import produce_form
from vibe_llms.conversations.settings import ConversationSettings, Services, TurnMemo
from vibe_llms.conversations.tools import Tool, Toolbox
from vibe_llms.invocation.invokers import Invoker, gather_invokers
from vibe_llms.messages.canisters import (
    AssistantCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.controls import ControlRange, Controls
from vibe_llms.messages.events import Event, ignore_events
from vibe_llms.providers.attributes import ModelAttributes
from vibe_llms.providers.interfaces import Model
from vibe_llms.session.core import Session
from vibe_llms.testing import ScriptedModel


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


def held(model: Model | None = None, *tools: Tool, **given: Any) -> ConversationSettings:
    services = Services(
        event_handler=ignore_events,
        access_model=access,
        access_controls=lambda model: Controls(seed=1, top_k=1),
    )
    toolbox = Toolbox(own=tuple(gather_invokers(tools).values()))
    return ConversationSettings(
        model=model or endless(), services=services, toolbox=toolbox, **given
    )


def conversation(settings: ConversationSettings) -> Conversation:
    return Conversation(History.begin(None), settings, enter=lambda _: None)


async def requests(settings: ConversationSettings, **given: Any) -> Any:
    """What the model is sent first in a turn."""
    return json.loads(await conversation(settings).preview("Hi", **given))


async def test_a_turn_has_what_the_conversation_has_unless_it_brings_its_own() -> None:
    events: list[Event] = []
    others: list[Event] = []
    model = endless()
    model.attributes = ModelAttributes(controls=dict.fromkeys(["seed", "top-k"], ControlRange()))
    settings = held(model, look, controls=Controls(seed=2), handler=events.append)
    sent = await requests(settings)
    assert [tool["name"] for tool in sent["tools"]] == ["look"]
    assert (sent["controls"]["seed"], sent["controls"]["top-k"]) == (2, 1)
    sent = await requests(settings, invokers=[], controls=Controls(seed=3))
    assert (sent["tools"], sent["controls"]["seed"]) == ([], 3)
    talk = conversation(settings)
    await talk.converse("Hi")
    seen = len(events)
    await talk.converse("Hi", event_handler=others.append)
    assert (seen > 0, len(events) == seen, len(others) > 0) == (True, True, True)


@pytest.mark.parametrize("takes", [True, False])
async def test_a_form_goes_to_the_model_as_a_schema_or_in_words(takes: bool) -> None:
    model = endless()
    if takes:
        model.attributes = ModelAttributes(controls={"response-schema": ControlRange()})
    sent = await requests(held(model), output={"type": "object"})
    schema, words = produce_form({"type": "object"}).schema, produce_form({"type": "object"})
    assert sent["controls"].get("response-schema") == (schema if takes else None)
    assert system(sent) == ([] if takes else [words.instruction])


@pytest.mark.parametrize(("choice", "mode"), [("find", "auto"), ("look", "off")])
async def test_a_tool_that_is_not_offered_cannot_be_chosen(choice: str, mode: ToolMode) -> None:
    settings = held(None, look, tool_mode=mode)
    with pytest.raises(ControlInvalid, match=f"tool '{choice}' not found") as caught:
        await requests(settings, controls=Controls(tool_choice=choice))
    assert caught.value.control == "tool-choice"


@pytest.mark.parametrize("choice", ["auto", "any", "none", "look"])
async def test_what_is_offered_can_be_chosen(choice: str) -> None:
    model = endless()
    model.attributes = ModelAttributes(controls={"tool-choice": ControlRange()})
    sent = await requests(held(model, look), controls=Controls(tool_choice=choice))
    assert sent["controls"]["tool-choice"] == choice


async def test_a_fork_changes_on_its_own() -> None:
    talk = conversation(held(None, look))
    fork = await talk.fork()
    await fork.switch("scripted/other")
    fork.withhold("look")
    fork.add_hook(Companion())
    assert (talk.model.name, list(talk.invokers), talk.hooks) == ("script", ["look"], ())
    assert (fork.model.name, list(fork.invokers), len(fork.hooks)) == ("other", [], 1)


async def test_a_model_that_is_not_there_leaves_the_one_that_is() -> None:
    talk = conversation(held())
    with pytest.raises(ModelNotFound):
        await talk.switch("scripted/none")
    assert talk.model.name == "script"


def test_a_hook_that_is_not_there_cannot_be_removed() -> None:
    with pytest.raises(RequestError, match="hook 'x' not found; known hooks: none"):
        conversation(held()).remove_hook("x")


def test_what_was_encoded_is_forgotten_only_when_the_instructions_change() -> None:
    model, memo = caching(), TurnMemo()
    first = memo.instruct(["Use one.", "Use two."])
    cache = memo.access_cache(model)
    assert memo.instruct(["Use one.", "Use two."]) is first
    assert memo.access_cache(model) is cache
    assert [canister.text for canister in memo.instruct(["Use one."])] == ["Use one."]
    assert memo.access_cache(model) is not cache


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


async def test_instructions_of_an_ensemble_precede_the_history_and_are_not_kept(
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


async def test_without_tools_the_prompt_does_not_mention_them(session: Session) -> None:
    model = endless()
    conversation = await session.begin(
        model, ensembles=[Teaching("one", "Use one.")], tool_mode="off"
    )
    await conversation.converse("One")
    assert system(model.requests[0]) == []
