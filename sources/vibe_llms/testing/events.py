"""A check of the grammar of events."""

from __future__ import annotations

from collections.abc import Iterable

from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
)
from vibe_llms.messages.contents import ReasoningContent
from vibe_llms.messages.events import (
    Event,
    InvocationChunk,
    InvocationCompletedEvent,
    InvocationFailedEvent,
    InvocationProgressEvent,
    InvocationStartedEvent,
    MessageCompletedEvent,
    MessageFailedEvent,
    MessageProgressEvent,
    MessageStartedEvent,
    MessageUpdatedEvent,
    NoticeEvent,
    ReasoningChunk,
    SteeringDeliveredEvent,
    SteeringQueuedEvent,
    SteeringWithdrawnEvent,
    TextChunk,
    TurnEndedEvent,
)
from vibe_llms.providers.repairs import unwrap_arguments


def check_events(events: Iterable[Event], *, turn: bool = True) -> None:
    """Raise `AssertionError` if events break the grammar of `vibe_llms.messages.events`.

    With `turn`, the events are those of whole turns of one conversation and end with
    `TurnEndedEvent`; without it, those of single round trips.
    """
    checker = _Checker(turn)
    for number, event in enumerate(events):
        problem = checker.accept(event)
        if problem:
            raise AssertionError(f"event {number}, {type(event).__name__}: {problem}")
    if problem := checker.conclude():
        raise AssertionError(f"at the end: {problem}")


class _Checker:
    def __init__(self, turn: bool) -> None:
        self._turn = turn
        self._conversation: str | None = None
        # The open message, and its contents so far.
        self._open: MessageStartedEvent | None = None
        self._text = self._reasoning = self._arguments = ""
        # The open reply, and earlier messages, replies and calls.
        self._reply = ""
        self._completed: set[str] = set()
        self._replies: set[str] = set()
        self._calls: dict[str, str] = {}
        self._running: set[str] = set()
        # Messages that the user added to turns.
        self._queued: set[str] = set()
        self._settled: set[str] = set()
        self._ended = True

    def accept(self, event: Event) -> str:
        """Return the problem with the next event, or an empty text."""
        if isinstance(event, NoticeEvent):
            if event.notice.subject == "fork":
                self._conversation = None
            return ""
        if self._conversation not in (None, event.conversation):
            return f"it is of the conversation {event.conversation!r}, not {self._conversation!r}"
        self._conversation = event.conversation
        if isinstance(event, SteeringQueuedEvent | SteeringDeliveredEvent | SteeringWithdrawnEvent):
            return self._steer(event)
        if isinstance(event, TurnEndedEvent):
            return self._end(event)
        self._ended = False
        match event:
            case MessageStartedEvent():
                return self._start(event)
            case MessageProgressEvent() | MessageUpdatedEvent():
                return self._continue(event)
            case MessageCompletedEvent(canister=canister):
                return self._complete(event, canister, failed=False)
            case MessageFailedEvent(partial=partial):
                return self._complete(event, partial, failed=True)
            case InvocationStartedEvent():
                return self._invoke(event)
            case InvocationProgressEvent(invocation=invocation):
                return "" if invocation.identity in self._running else "it is not running"
            case _:
                return self._return(event)

    def conclude(self) -> str:
        """Return the problem with an end of the events here, or an empty text."""
        if self._turn and not self._ended:
            return "the turn has not ended"
        return self._pending()

    def _pending(self) -> str:
        if self._open is not None:
            return f"the message {self._open.message} is open"
        if self._reply:
            return f"the reply {self._reply} is open"
        if self._running:
            return f"the invocations {self._running} are running"
        return ""

    def _steer(
        self, event: SteeringQueuedEvent | SteeringDeliveredEvent | SteeringWithdrawnEvent
    ) -> str:
        identity = event.canister.identity
        if isinstance(event, SteeringQueuedEvent):
            if identity in self._queued:
                return f"the message {identity} was queued before"
            self._queued.add(identity)
            self._settled.discard(identity)
            return ""
        if identity in self._settled:
            return f"the message {identity} was delivered or withdrawn before"
        self._settled.add(identity)
        self._queued.discard(identity)
        return self._pending() if isinstance(event, SteeringDeliveredEvent) else ""

    def _start(self, event: MessageStartedEvent) -> str:
        if self._open is not None or self._running:
            return self._pending()
        if not event.message or event.message in self._completed:
            return f"there was a message {event.message!r} before"
        if not event.reply or event.reply in self._replies:
            return f"there was a reply {event.reply!r} before"
        if self._reply not in ("", event.reply):
            return self._pending()
        if event.role not in ("assistant", "invocation"):
            return f"a model has no role {event.role!r}"
        self._open, self._reply = event, event.reply
        self._text = self._reasoning = self._arguments = ""
        return ""

    def _continue(self, event: MessageProgressEvent | MessageUpdatedEvent) -> str:
        if problem := self._elsewhere(event):
            return problem
        if isinstance(event, MessageUpdatedEvent):
            return ""
        if not event.chunk.text:
            return "an empty chunk"
        assert self._open is not None
        if (self._open.role == "invocation") != isinstance(event.chunk, InvocationChunk):
            return f"a {self._open.role} has no {type(event.chunk).__name__}"
        match event.chunk:
            case TextChunk(text):
                self._text += text
            case ReasoningChunk(text):
                self._reasoning += text
            case _:
                self._arguments += event.chunk.text
        return ""

    def _complete(
        self,
        event: MessageCompletedEvent | MessageFailedEvent,
        canister: Canister,
        *,
        failed: bool,
    ) -> str:
        if problem := self._elsewhere(event):
            return problem
        assert self._open is not None
        role, name = self._open.role, self._open.name
        self._completed.add(event.message)
        self._open = None
        if not isinstance(canister, AssistantCanister | InvocationCanister):
            return f"a model cannot say a {type(canister).__name__}"
        if (canister.identity, canister.reply) != (event.message, event.reply):
            return f"its canister is {canister.identity} of the reply {canister.reply}"
        ending = canister.ending
        if failed != (ending is not None and ending.interrupted):
            return "the event and the ending of its canister disagree on whether it was cut"
        if ending is not None:
            self._reply = ""
            self._replies.add(event.reply)
        if failed:
            self._calls = {
                call: reply for call, reply in self._calls.items() if reply != event.reply
            }
        if isinstance(canister, InvocationCanister):
            if (role, name) != ("invocation", canister.name):
                return f"as {role} {name!r} it began, as a call of {canister.name!r} it ends"
            if unwrap_arguments(self._arguments) != canister.arguments:
                return "its chunks are not the arguments"
            if not failed:
                self._calls[canister.identity] = event.reply
            return ""
        if role == "invocation":
            severed = () if ending is None else ending.severed
            return "" if severed == (name,) else "it began as a call, but its end is not severed"
        reasoning = "".join(
            content.text for content in canister.contents if isinstance(content, ReasoningContent)
        )
        if (self._text, self._reasoning) != (canister.text, reasoning):
            return "its chunks are not the text"
        return ""

    def _invoke(self, event: InvocationStartedEvent) -> str:
        if self._open is not None or self._reply:
            return self._pending()
        if event.invocation.identity not in self._calls:
            return "this call was not complete, or was already run"
        del self._calls[event.invocation.identity]
        self._running.add(event.invocation.identity)
        return ""

    def _return(self, event: InvocationCompletedEvent | InvocationFailedEvent) -> str:
        identity = event.invocation.identity
        if identity not in self._running:
            return "it is not running"
        self._running.discard(identity)
        if event.result.invocation != identity:
            return "its result belongs to another call"
        if event.result.failed != isinstance(event, InvocationFailedEvent):
            return "the event and its result disagree on whether the call failed"
        return ""

    def _end(self, event: TurnEndedEvent) -> str:
        if not self._turn:
            return "a single round trip is not a turn"
        if problem := self._pending():
            return problem
        if event.reason != event.turn.stop_reason:
            return f"its turn ended {event.turn.stop_reason}, not {event.reason}"
        self._ended = True
        self._calls.clear()
        return ""

    def _elsewhere(
        self,
        event: MessageProgressEvent
        | MessageUpdatedEvent
        | MessageCompletedEvent
        | MessageFailedEvent,
    ) -> str:
        here = None if self._open is None else (self._open.message, self._open.reply)
        if (event.message, event.reply) == here:
            return ""
        return f"it is about {event.message} of {event.reply}, open is {here}"
