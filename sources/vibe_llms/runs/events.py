"""The recorded events of a run, and the cursors that order them.

A cursor is the run's epoch times 2**32, plus a position. A structural event advances the position
by 1, a delta by the number of its characters. So every division of a text gives the same cursors,
and a follower may continue within a delta.

Events have the identities of messages, never their bodies: those are in the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

EPOCH_BITS = 32
DeltaKind: TypeAlias = Literal["text", "reasoning", "arguments"]


class _RunEvent(Struct, frozen=True, omit_defaults=True, tag_field="event"):
    """An event of a run."""


class MessageStarted(_RunEvent, frozen=True, tag="message-started"):
    """A message of the model begins; `role` is `assistant` or `invocation`, `name` the tool's."""

    message: str
    role: str
    reply: str = ""
    name: str = ""


class MessageDelta(_RunEvent, frozen=True, tag="delta"):
    """More text, reasoning or arguments of a message."""

    message: str
    text: str
    kind: DeltaKind = "text"


class MessageCompleted(_RunEvent, frozen=True, tag="message-completed"):
    """A message is complete, and durable in the history."""

    message: str


class MessageFailed(_RunEvent, frozen=True, tag="message-failed"):
    """The reply was cut off in this message; `error` says why."""

    message: str
    error: str


class CallStarted(_RunEvent, frozen=True, tag="call-started"):
    """A tool starts to run."""

    invocation: str
    name: str


class CallProgress(_RunEvent, frozen=True, tag="call-progress"):
    """A tool reports progress: `done` of `total`, if it knows them, and a text."""

    invocation: str
    text: str = ""
    done: float | None = None
    total: float | None = None


class CallEnded(_RunEvent, frozen=True, tag="call-ended"):
    """A tool returned or failed; `result` is durable in the history."""

    invocation: str
    result: str
    failed: bool = False


class RunNotice(_RunEvent, frozen=True, tag="notice"):
    """Information for the user; see `vibe_llms.events.Notice`."""

    subject: str
    text: str
    message: str = ""
    name: str = ""


class ApprovalRequested(_RunEvent, frozen=True, tag="approval-requested"):
    """The run waits for a decision on a call; `reason` says why it needs one."""

    invocation: str
    name: str
    reason: str = ""


class AnswerRequested(_RunEvent, frozen=True, tag="answer-requested"):
    """The run asks the user a question for a call, of the tool `name`.

    If it is `held`, the call is running, and does not wait for long.
    """

    question: str
    invocation: str
    name: str
    held: bool = False


class RunContinued(_RunEvent, frozen=True, tag="continued"):
    """A worker continues the run, after a decision or because another worker stopped.

    `message` was begun and starts again in a new message; empty if none was.
    """

    message: str = ""


class ConversationChanged(_RunEvent, frozen=True, tag="conversation-changed"):
    """The run continues in a fork, because something else was added to its conversation."""

    conversation: str


class RunEnded(_RunEvent, frozen=True, tag="ended"):
    """The last event; `status` is a `RunStatus`, `error` says why it failed.

    `retry_after` is after how many seconds the same turn may succeed, if that is known.
    """

    status: str
    error: str = ""
    retry_after: float | None = None


class RunExpired(_RunEvent, frozen=True, tag="expired"):
    """The only event of a run that ended so long ago that its events were deleted: how it ended.

    `status` is a `RunStatus`, `error` says why it failed. Its messages are in the history.
    """

    status: str
    error: str = ""


RunEvent: TypeAlias = (
    MessageStarted
    | MessageDelta
    | MessageCompleted
    | MessageFailed
    | CallStarted
    | CallProgress
    | CallEnded
    | RunNotice
    | ApprovalRequested
    | AnswerRequested
    | RunContinued
    | ConversationChanged
    | RunEnded
    | RunExpired
)

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[RunEvent] = msgspec.json.Decoder(RunEvent)


def encode_event(event: RunEvent) -> bytes:
    """An event as it is recorded."""
    return _ENCODER.encode(event)


def decode_event(data: bytes) -> RunEvent:
    """A recorded event."""
    return _DECODER.decode(data)


def first_cursor(epoch: int) -> int:
    """The cursor before the first event of an epoch."""
    return epoch << EPOCH_BITS


def measure(event: RunEvent) -> int:
    """By how much an event advances the cursor."""
    return len(event.text) if isinstance(event, MessageDelta) else 1


def is_more(first: RunEvent | None, second: RunEvent) -> bool:
    """Whether the second is a delta that continues the first."""
    # Asked for each piece of a text, so it costs little.
    return (
        isinstance(first, MessageDelta)
        and isinstance(second, MessageDelta)
        and first.message == second.message
        and first.kind == second.kind
    )


def join(first: RunEvent, second: RunEvent) -> RunEvent | None:
    """Two deltas as one, if they continue each other."""
    match first, second:
        case MessageDelta(), MessageDelta() if is_more(first, second):
            return MessageDelta(first.message, first.text + second.text, first.kind)
    return None


def cut(events: Iterable[tuple[int, RunEvent]], after: int) -> Iterator[tuple[int, RunEvent]]:
    """The events after a cursor, the first of them perhaps the rest of a delta.

    >>> [*cut([(7, MessageDelta("m", "abcdefg")), (8, MessageCompleted("m"))], 5)]
    [(7, MessageDelta(message='m', text='fg', kind='text')), (8, MessageCompleted(message='m'))]
    """
    for cursor, event in events:
        if cursor <= after:
            continue
        if isinstance(event, MessageDelta) and cursor - len(event.text) < after:
            yield cursor, msgspec.structs.replace(event, text=event.text[after - cursor :])
        else:
            yield cursor, event
