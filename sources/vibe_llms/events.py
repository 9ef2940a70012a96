"""What happens while a turn runs, told through one plain callback that is dispatched by `match`.

The grammar, which `vibe_llms.testing.check_events` states as code::

    turn       = { notice | reply | invocation }, TurnEndedEvent
    reply      = message, { message }                    one after the other
    message    = MessageStartedEvent,
                 { MessageProgressEvent | MessageUpdatedEvent },
                 ( MessageCompletedEvent | MessageFailedEvent )
    invocation = InvocationStartedEvent, { InvocationProgressEvent },
                 ( InvocationCompletedEvent | InvocationFailedEvent )

A message completes before the next one of its reply begins, and the last one tells how the reply
ended. After a failed message nothing of its reply follows, and no call of it runs. The invocations
of one reply run at the same time once it has ended, so their events may be mixed. Notices come at
any time, and in turns that go on in another conversation one of them says so. Completed means
received; that it is on the disk is told by the return of `converse`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from vibe_llms.messages.canisters import InvocationCanister, ReplyCanister, ResultCanister, Turn


class TextChunk(Struct, frozen=True, gc=False):
    """Some more of a message's visible text."""

    text: str


class ReasoningChunk(Struct, frozen=True, gc=False):
    """Some more of what the model thinks."""

    text: str


class InvocationChunk(Struct, frozen=True, gc=False):
    """Some more of the arguments of a tool call, as text; it need not be valid JSON yet."""

    text: str


Chunk: TypeAlias = TextChunk | ReasoningChunk | InvocationChunk


class Notice(Struct, frozen=True, gc=False):
    """Something a person should know that is no failure.

    `subject` is a word for programs: `conversion` (history that this model is not sent as it is),
    `model`, `retry`, `wait`, `repair`, `fork`, `output`, `contract`, `limit`, `ensemble`,
    `attendant`, `memory`. `canister` is the identity of the message concerned, if it is about one.
    """

    subject: str
    text: str
    canister: str = ""


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
    """Something other than the text of the open message changed: its citations, or the usage."""

    subject: str


class MessageCompletedEvent(_MessageEvent, frozen=True):
    """The message was received whole."""

    canister: ReplyCanister


class MessageFailedEvent(_MessageEvent, frozen=True, gc=True):
    """The reply was cut in this message; `partial` is what arrived of it, marked interrupted."""

    error: BaseException
    partial: ReplyCanister


class _InvocationEvent(Struct, frozen=True, kw_only=True):
    invocation: InvocationCanister
    conversation: str = ""


class InvocationStartedEvent(_InvocationEvent, frozen=True):
    """A tool begins to run."""


class InvocationProgressEvent(_InvocationEvent, frozen=True):
    """A running tool tells how far it is: `done` of `total`, if it knows them, and some words."""

    text: str = ""
    done: float | None = None
    total: float | None = None


class InvocationCompletedEvent(_InvocationEvent, frozen=True):
    """A tool returned; `result` goes to the model."""

    result: ResultCanister


class InvocationFailedEvent(_InvocationEvent, frozen=True):
    """A tool failed, or did not run; `result` tells the model so."""

    result: ResultCanister


class NoticeEvent(Struct, frozen=True, kw_only=True, gc=False):
    """Something a person should know that is no failure."""

    notice: Notice
    conversation: str = ""


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
Event: TypeAlias = MessageEvent | InvocationEvent | NoticeEvent | TurnEndedEvent

EventHandler: TypeAlias = Callable[[Event], object]


def ignore_events(_: Event) -> None:
    """The handler of those who want the result only."""
