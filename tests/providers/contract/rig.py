"""A model under the contract, around a script that speaks it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.fakes.contract import improvise
from vibe_llms.base.configuration import StreamSettings
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, ReplyCanister, UserCanister
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Event, MessageProgressEvent, Notice, TextChunk
from vibe_llms.providers.contract.model import ContractModel
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.testing import Part, Script, ScriptedModel, ScriptedReply, scripted_model
from vibe_llms.testing.events import check_events

HELLO = [UserCanister.from_text("What is above?")]


def look(where: str = "up") -> str:
    """Look somewhere."""
    return f"the sky, {where}"


def listen() -> str:
    """Listen."""
    return "wind"


TOOLS = (Invoker.from_function(look), Invoker.from_function(listen))


def reply_of(*chunks: str, **more: Any) -> ScriptedReply:
    """A reply of text in these chunks."""
    return ScriptedReply(parts=(Part(text=chunks),), **more)


def script_of(*replies: str | ScriptedReply) -> Script:
    """Replies in their order; a text is one that comes in a single chunk."""
    return Script(tuple(reply_of(one) if isinstance(one, str) else one for one in replies))


class Bench:
    """A model under the contract, and what it reports."""

    def __init__(self, *replies: str | ScriptedReply) -> None:
        self.inner: ScriptedModel = scripted_model(
            script_of(*replies) if replies else improvise, stream=StreamSettings(retries=0)
        )
        self.model = ContractModel(self.inner)
        self.events: list[Event] = []
        self.notices: list[Notice] = []

    async def ask(
        self,
        said: Sequence[Canister] = HELLO,
        controls: Controls = Controls(),
        tools: Sequence[Invoker] = TOOLS,
        **context: Any,
    ) -> tuple[ReplyCanister, ...]:
        """A reply, whose events are in order."""
        self.events.clear()
        options = {"event_handler": self.events.append, "notify": self.notices.append, **context}
        try:
            return await self.model.converse(said, tools, controls, TurnContext(**options))
        finally:
            if "event_handler" not in context:
                check_events(self.events, turn=False)

    @property
    def reported(self) -> list[str]:
        """What the notices say."""
        return [notice.text for notice in self.notices]

    def sent(self, number: int = -1) -> list[tuple[str, str]]:
        """Roles and texts of a request."""
        return [
            (
                record["role"],
                "\n".join(part.get("text", "?") for part in record.get("contents", ())),
            )
            for record in self.inner.requests[number]["messages"]
        ]


def shown(events: Sequence[Event]) -> str:
    """The words that were shown."""
    return "".join(
        event.chunk.text
        for event in events
        if isinstance(event, MessageProgressEvent) and isinstance(event.chunk, TextChunk)
    )
