"""A model as memory asks it: one question, one value of a type, nothing kept of either."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from vibe_llms.controls import Controls
from vibe_llms.conversation import Conversation
from vibe_llms.events import Event, TurnEndedEvent
from vibe_llms.exceptions import ModelNotFound
from vibe_llms.ledger import Ledger
from vibe_llms.messages.canisters import SupervisorCanister, Usage
from vibe_llms.outfit import ConversationDefaults, Outfit
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.limits import Limiter

T = TypeVar("T")


async def _access_none(name: str) -> Model:
    raise ModelNotFound(f"a conversation about what to remember does not change to {name!r}")


class ModelAsker:
    """Asks any model: with a schema where it takes one, in words where not.

    What is no value of the type is asked for again, twice at most. `output_tokens` bounds each
    answer, reasoning included, where the model can be bounded. `access_controls` and
    `access_limiter` are those of a session, whose settings for the model then hold here too.
    """

    def __init__(
        self,
        model: Model,
        *,
        output_tokens: int = 2000,
        access_controls: Callable[[Model], Controls] = lambda _: Controls(),
        access_limiter: Callable[[Model], Limiter | None] = lambda _: None,
    ) -> None:
        self.usage = Usage()
        self._model = model
        self._controls = Controls(output_tokens=output_tokens)
        self._defaults = ConversationDefaults(
            event_handler=self._hear,
            access_model=_access_none,
            access_controls=access_controls,
            access_limiter=access_limiter,
        )

    async def ask(self, supervisor: str, text: str, output: type[T]) -> T:
        """See `Asker.ask`."""
        instructions = SupervisorCanister.from_text(supervisor)
        # Controls of the conversation, not of the call: what the model does not take is left out.
        conversation = Conversation(
            Ledger.begin(None, canisters=[instructions]),
            Outfit(self._model, self._defaults, controls=self._controls),
            enter=lambda _: None,
        )
        turn = await conversation.converse(text, output=output)
        return cast("T", turn.output)

    def _hear(self, event: Event) -> None:
        if isinstance(event, TurnEndedEvent):
            self.usage += event.turn.usage
