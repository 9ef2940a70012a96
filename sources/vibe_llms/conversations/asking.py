"""Asks a model one question and returns a typed answer, without storing anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from vibe_llms.base.configuration import Budget
from vibe_llms.base.exceptions import ModelNotFound
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.history import History
from vibe_llms.conversations.settings import ConversationSettings, Services
from vibe_llms.messages.canisters import SupervisorCanister, Usage
from vibe_llms.messages.controls import Controls
from vibe_llms.messages.events import Event, TurnEndedEvent
from vibe_llms.messages.tracing import Tracer
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.limits import Limiter
from vibe_llms.providers.spending import Spending

T = TypeVar("T")


async def _access_none(name: str) -> Model:
    raise ModelNotFound(f"a question cannot use another model: {name!r}")


class ModelAsker:
    """A client for typed questions to any model, with a schema or with an instruction.

    An answer that does not match is requested again, at most twice. `output_tokens` limits each
    answer, including reasoning, if the model supports such a limit. `access_controls`,
    `access_limiter`, and `access_spending` apply a session's settings.
    """

    def __init__(
        self,
        model: Model,
        *,
        output_tokens: int = 2000,
        access_controls: Callable[[Model], Controls] = lambda _: Controls(),
        access_limiter: Callable[[Model], Limiter | None] = lambda _: None,
        access_spending: Callable[[Mapping[str, Budget]], Spending | None] = lambda _: None,
        tracer: Tracer = Tracer(),
    ) -> None:
        self.usage = Usage()
        services = Services(
            event_handler=self._count_usage,
            access_model=_access_none,
            access_controls=access_controls,
            access_limiter=access_limiter,
            access_spending=access_spending,
        )
        # Controls of the conversation rather than the call: unsupported ones are ignored.
        controls = Controls(output_tokens=output_tokens)
        self._settings = ConversationSettings(
            model=model, services=services, controls=controls, tracer=tracer
        )

    async def ask(self, supervisor: str, text: str, output: type[T]) -> T:
        """Ask one question; see `Asker.ask`."""
        instructions = SupervisorCanister.from_text(supervisor)
        history = History.begin(None, canisters=[instructions])
        conversation = Conversation(history, self._settings, enter=lambda _: None)
        return (await conversation.converse(text, output=output)).output

    def _count_usage(self, event: Event) -> None:
        if isinstance(event, TurnEndedEvent):
            self.usage += event.turn.usage
