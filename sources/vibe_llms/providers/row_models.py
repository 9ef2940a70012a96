"""Parts that the models of all rows share, whether a server, a file, or a script answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar, Generic, Protocol, TypeVar

from vibe_llms.base.configuration import StreamSettings
from vibe_llms.messages.canisters import Provenance, ReplyCanister
from vibe_llms.messages.events import EventHandler
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.providers.round_trip import attempt_reply
from vibe_llms.providers.watch import Watch


class RowClient(Protocol):
    """Part of the client that every model uses."""

    @property
    def provider(self) -> str:
        """Name of the row."""
        ...

    @property
    def stream(self) -> StreamSettings:
        """Limits of the row."""
        ...

    @property
    def event_handler(self) -> EventHandler:
        """Handler of events for turns without one."""
        ...

    async def close(self) -> None:
        """Release the client's resources; safe to call twice."""
        ...


C = TypeVar("C", bound=RowClient)


class RowModel(Generic[C]):
    """Model of a row; `module` is the provider's module."""

    module: ClassVar[str]
    #: See `TurnContext`.
    awaits_kept: bool = True
    #: True if it reserves its requests under a budget, and limits its replies; see `Spending`.
    caps_output: bool = False

    def __init__(self, client: C, name: str) -> None:
        self.client = client
        self.name = name
        #: Name of the row.
        self.provider = client.provider

    def produce_accumulator(self, context: TurnContext) -> Accumulator:
        """Return the accumulator for the reply of a round trip."""
        return Accumulator(
            Provenance(self.module, self.provider, self.name),
            context.event_handler or self.client.event_handler,
            context.conversation,
        )

    async def attempt(
        self, play: Callable[[Watch, Accumulator], Awaitable[None]], context: TurnContext
    ) -> tuple[ReplyCanister, ...]:
        """Return the reply that `play` feeds to an accumulator; see `attempt_reply`."""
        accumulator = self.produce_accumulator(context)

        async def attempt(watch: Watch) -> None:
            if context.kept is not None:
                watch.rest()
                accumulator.conversation = await context.kept()
                watch.expect("reply-seconds")
            await play(watch, accumulator)

        return await attempt_reply(
            attempt,
            accumulator,
            provider=self.provider,
            settings=self.client.stream,
            notify=context.notify,
            tracer=context.tracer,
        )
