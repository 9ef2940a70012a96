"""The events of a turn, passed to one plain callback that uses `match`.

`vibe_llms.testing.check_events` checks this grammar:

```text
turn       = { notice | reply | invocation }, TurnEndedEvent
reply      = message, { message }                    one after the other
message    = MessageStartedEvent,
             { MessageProgressEvent | MessageUpdatedEvent },
             ( MessageCompletedEvent | MessageFailedEvent )
invocation = InvocationStartedEvent, { InvocationProgressEvent },
             ( InvocationCompletedEvent | InvocationFailedEvent )
```

A message completes before the next one of its reply begins, and the last one says how the reply
ended. After a failed message, its reply sends no more messages and none of its calls run. The
invocations of a reply run concurrently after its end, so their events may be interleaved. Notices
can come at any time; one says if a turn continues in another conversation. So can the events of
messages that the user adds to the turn: each is queued, and then delivered or withdrawn. Completed
means received; when `converse` returns, everything is on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from vibe_llms.messages.canisters import (
    InvocationCanister,
    ReplyCanister,
    ResultCanister,
    Turn,
    Usage,
    UserCanister,
)
from vibe_llms.messages.contents import Citation


class TextChunk(Struct, frozen=True, gc=False):
    """The next piece of a message's visible text."""

    text: str


class ReasoningChunk(Struct, frozen=True, gc=False):
    """The next piece of a model's reasoning."""

    text: str


class InvocationChunk(Struct, frozen=True, gc=False):
    """The next piece of a tool call's arguments, as text that may not be valid JSON yet."""

    text: str


Chunk: TypeAlias = TextChunk | ReasoningChunk | InvocationChunk


class Notice(Struct, frozen=True, gc=False):
    """Information for the user that is not a failure.

    `subject` is a word for programs: `conversion` (the model receives a changed part of the
    history), `address`, `model`, `retry`, `wait`, `repair`, `fork`, `output`, `contract`, `limit`,
    `reply`, `ensemble`, `documents`, `hook`, `memory`, `preview`, `run`, `fallback`, `context`,
    `window`, `upload` (a file is stored at the provider), `steering` (a message that the user added
    was not sent). `canister` is the identity of the message concerned, if any. `name` is the name
    of a file or other object in the text: notices that differ only in the name can be shown as one.
    """

    subject: str
    text: str
    canister: str = ""
    name: str = ""


class _MessageEvent(Struct, frozen=True, kw_only=True, gc=False):
    message: str = ""
    reply: str = ""
    conversation: str = ""


class MessageStartedEvent(_MessageEvent, frozen=True, gc=False):
    """A message of the model begins; `role` is `assistant` or `invocation`, `name` the tool's."""

    role: str
    name: str = ""


class MessageProgressEvent(_MessageEvent, frozen=True, gc=False):
    """A piece of the open message arrived."""

    chunk: Chunk


class MessageUpdatedEvent(_MessageEvent, frozen=True, gc=False):
    """The citations of the open message or the usage of its reply changed.

    `subject` is `citations` or `usage`. `citation` is the new citation, `usage` the total of the
    reply so far.
    """

    subject: str
    citation: Citation | None = None
    usage: Usage | None = None


class MessageCompletedEvent(_MessageEvent, frozen=True):
    """The message arrived completely."""

    canister: ReplyCanister


class MessageFailedEvent(_MessageEvent, frozen=True, gc=True):
    """The reply was cut off in this message; `partial` is what arrived, marked as interrupted."""

    error: BaseException
    partial: ReplyCanister


class _InvocationEvent(Struct, frozen=True, kw_only=True):
    invocation: InvocationCanister
    conversation: str = ""


class InvocationStartedEvent(_InvocationEvent, frozen=True):
    """A call begins. If it is refused, or its tool does not exist, it fails immediately."""


class InvocationProgressEvent(_InvocationEvent, frozen=True):
    """A running tool reports progress: `done` of `total`, if known, and a text."""

    text: str = ""
    done: float | None = None
    total: float | None = None


class InvocationCompletedEvent(_InvocationEvent, frozen=True):
    """A tool returned; `result` goes to the model."""

    result: ResultCanister


class InvocationFailedEvent(_InvocationEvent, frozen=True):
    """A tool failed or did not run; the model gets `result`."""

    result: ResultCanister


class NoticeEvent(Struct, frozen=True, kw_only=True, gc=False):
    """Information for the user that is not a failure."""

    notice: Notice
    conversation: str = ""


class _SteeringEvent(Struct, frozen=True, kw_only=True):
    canister: UserCanister
    conversation: str = ""


class SteeringQueuedEvent(_SteeringEvent, frozen=True):
    """The user added a message to the turn; it waits for the next request."""


class SteeringDeliveredEvent(_SteeringEvent, frozen=True):
    """A queued message is stored and goes to the model with the next request."""


class SteeringWithdrawnEvent(_SteeringEvent, frozen=True):
    """A queued message was taken back, or the model cannot read it, which `reason` explains."""

    reason: str = ""


class TurnEndedEvent(Struct, frozen=True, kw_only=True):
    """The last event of a turn; `reason` is a `StopReason`."""

    turn: Turn
    reason: str
    conversation: str = ""


MessageEvent: TypeAlias = (
    MessageStartedEvent
    | MessageProgressEvent
    | MessageUpdatedEvent
    | MessageCompletedEvent
    | MessageFailedEvent
)
InvocationEvent: TypeAlias = (
    InvocationStartedEvent
    | InvocationProgressEvent
    | InvocationCompletedEvent
    | InvocationFailedEvent
)
SteeringEvent: TypeAlias = SteeringQueuedEvent | SteeringDeliveredEvent | SteeringWithdrawnEvent
Event: TypeAlias = MessageEvent | InvocationEvent | SteeringEvent | NoticeEvent | TurnEndedEvent

EventHandler: TypeAlias = Callable[[Event], object]


def ignore_events(_: Event) -> None:
    """Ignore an event: a handler for callers that only need the result."""
