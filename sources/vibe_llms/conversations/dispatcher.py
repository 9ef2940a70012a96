"""The events of one turn, on their way to the handler."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from vibe_llms.events import (
    Event,
    EventHandler,
    MessageCompletedEvent,
    MessageFailedEvent,
    MessageProgressEvent,
    MessageStartedEvent,
)
from vibe_llms.invocation.invokers import Invoker, find_invoker
from vibe_llms.messages.canisters import InvocationCanister, ReplyCanister


class Dispatcher:
    """Passes events to the handler until it raises, and records the messages that arrived.

    A call by an alias, or in another spelling, gets the canonical name of its tool.
    """

    def __init__(self, handler: EventHandler, invokers: Mapping[str, Invoker]) -> None:
        self._handler: EventHandler | None = handler
        self._invokers = invokers
        self.received: list[ReplyCanister] = []

    def __call__(self, event: Event) -> None:
        """Pass an event on; raises what the handler raises, and does not call it again then."""
        kind = type(event)
        if kind is not MessageProgressEvent:
            match event:
                case MessageStartedEvent(role="invocation", name=name):
                    event = replace(event, name=self._name(name))
                case MessageCompletedEvent(canister=canister):
                    event = replace(event, canister=self.settle(canister))
                    self.received.append(event.canister)
                case MessageFailedEvent(partial=partial):
                    event = replace(event, partial=self.settle(partial))
                    self.received.append(event.partial)
        handler, self._handler = self._handler, None
        if handler is not None:
            handler(event)
            self._handler = handler

    def settle(self, canister: ReplyCanister) -> ReplyCanister:
        """The canister, with the canonical names of tools."""
        ending = canister.ending
        if ending is not None and ending.severed:
            severed = tuple(map(self._name, ending.severed))
            canister = replace(canister, ending=replace(ending, severed=severed))
        if isinstance(canister, InvocationCanister) and canister.name not in self._invokers:
            # Under another name it is not word for word what its provider sent.
            name = self._name(canister.name)
            if name != canister.name:
                return replace(canister, name=name, native=None)
        return canister

    def _name(self, name: str) -> str:
        meant = find_invoker(self._invokers, name)
        return name if meant is None else meant.name
