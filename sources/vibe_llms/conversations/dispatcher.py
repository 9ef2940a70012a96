"""Passes the events of one turn to the handler."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from vibe_llms.invocation.invokers import Invoker, find_invoker
from vibe_llms.messages.canisters import AssistantCanister, InvocationCanister, ReplyCanister
from vibe_llms.messages.contents import Citation, TextualContent
from vibe_llms.messages.events import (
    Event,
    EventHandler,
    MessageCompletedEvent,
    MessageFailedEvent,
    MessageProgressEvent,
    MessageStartedEvent,
    NoticeEvent,
    SteeringDeliveredEvent,
    SteeringEvent,
    SteeringQueuedEvent,
    SteeringWithdrawnEvent,
)

#: Events that say nothing about the reply.
_ASIDE = (NoticeEvent, SteeringQueuedEvent, SteeringDeliveredEvent, SteeringWithdrawnEvent)


class Dispatcher:
    """An event handler that passes events on until the next one raises, and collects replies.

    A call by an alias, or in another spelling, gets the canonical name of its tool; a citation gets
    its place in the document.
    """

    def __init__(
        self,
        handler: EventHandler,
        invokers: Mapping[str, Invoker],
        locate: Callable[[Citation], Citation],
    ) -> None:
        self._handler: EventHandler | None = handler
        self._locate = locate
        self.invokers = invokers
        self.received: list[ReplyCanister] = []
        #: True if a request whose reply does not begin may be repeated.
        self.holds = False
        #: Events of a message that has no content yet.
        self._held: list[Event] = []

    def __call__(self, event: Event) -> None:
        """Pass an event on; after an error of the handler, it is not called again."""
        kind = type(event)
        if kind is not MessageProgressEvent:
            match event:
                case MessageStartedEvent(role="invocation", name=name):
                    event = replace(event, name=self._name(name))
                case MessageStartedEvent() if self.holds:
                    # Its first content follows at once, unless it fails.
                    self._held.append(event)
                    return
                case MessageCompletedEvent(canister=canister):
                    event = replace(event, canister=self.canonicalize(canister))
                    self.received.append(event.canister)
                case MessageFailedEvent(partial=partial):
                    event = replace(event, partial=self.canonicalize(partial))
                    self.received.append(event.partial)
                    if self._held and not event.partial.contents:
                        self._held.append(event)
                        return
        if self._held and kind not in _ASIDE:
            self.release()
        self._pass_on(event)

    def report(self, event: SteeringEvent) -> None:
        """Pass on an event from outside of the turn, whose caller gets an error of the handler."""
        if self._handler is not None:
            self._handler(event)

    @property
    def began(self) -> bool:
        """True if anything of a reply has arrived."""
        return any(one.contents or isinstance(one, InvocationCanister) for one in self.received)

    def release(self) -> None:
        """Pass on the events of a message that failed before it had content."""
        held, self._held = self._held, []
        for event in held:
            self._pass_on(event)

    def drop(self) -> None:
        """Forget a message that failed before it had content."""
        self._held.clear()
        self.received.clear()

    def _pass_on(self, event: Event) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            handler(event)
            self._handler = handler

    def canonicalize(self, canister: ReplyCanister) -> ReplyCanister:
        """Return the message with canonical tool names and the places of citations."""
        if isinstance(canister, AssistantCanister):
            canister = self._locate_citations(canister)
        ending = canister.ending
        if ending is not None and ending.severed:
            severed = tuple(map(self._name, ending.severed))
            canister = replace(canister, ending=replace(ending, severed=severed))
        if isinstance(canister, InvocationCanister) and canister.name not in self.invokers:
            # With another name, it is no longer the exact message of the provider.
            name = self._name(canister.name)
            if name != canister.name:
                return replace(canister, name=name, native=None)
        return canister

    def _locate_citations(self, canister: AssistantCanister) -> AssistantCanister:
        contents = list(canister.contents)
        for index, content in enumerate(contents):
            if isinstance(content, TextualContent) and content.citations:
                citations = tuple(map(self._locate, content.citations))
                contents[index] = replace(content, citations=citations)
        if all(new is old for new, old in zip(contents, canister.contents, strict=True)):
            return canister
        return replace(canister, contents=tuple(contents))

    def _name(self, name: str) -> str:
        meant = find_invoker(self.invokers, name)
        return name if meant is None else meant.name
