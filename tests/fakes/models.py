"""Scripted models that tests of conversations speak with."""

from __future__ import annotations

from collections.abc import Callable

from vibe_llms.base.configuration import StreamSettings
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.messages.canisters import (
    AssistantCanister,
)
from vibe_llms.messages.events import (
    Event,
    MessageProgressEvent,
)
from vibe_llms.testing import (
    Part,
    Script,
    ScriptedModel,
    ScriptedReply,
    scripted_model,
)

QUICK = StreamSettings(retries=0)
LONG = Part(delay_seconds=3600)


def says(*chunks: str) -> ScriptedReply:
    return ScriptedReply.from_chunks(*chunks)


def model_of(*replies: ScriptedReply) -> ScriptedModel:
    return scripted_model(Script(replies), stream=QUICK)


def endless(name: str = "script") -> ScriptedModel:
    """A model that answers everything, and `wait` after a long wait."""
    wait = ScriptedReply(parts=(Part(text=("It ", "is ")), LONG, Part(text="late.")), when="wait")
    return scripted_model(
        Script((wait, ScriptedReply(parts=(Part(text="Works."),), when="."))), name=name
    )


def progressed(text: str) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, MessageProgressEvent) and event.chunk.text == text


def last_of(conversation: Conversation) -> AssistantCanister:
    canister = conversation.canisters[-1]
    assert isinstance(canister, AssistantCanister)
    return canister
