"""Recorded events of a run, and the cursors that order them.

A cursor is the run's epoch times 2**32, plus a position. A structural event advances the position
by 1, a delta by its number of characters. So any division of a text into deltas gives the same
cursors, and a follower may resume within a delta.

Events contain the identities of messages, not their bodies, which are in the history.
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
    """A message of the model starts; `role` is `assistant` or `invocation`, `name` is the tool."""

    message: str
    role: str
    reply: str = ""
    name: str = ""


class MessageDelta(_RunEvent, frozen=True, tag="delta"):
    """More text, reasoning, or arguments of a message."""

    message: str
    text: str
    kind: DeltaKind = "text"


class MessageCompleted(_RunEvent, frozen=True, tag="message-completed"):
    """A message is complete and durable in the history."""

    message: str


class MessageFailed(_RunEvent, frozen=True, tag="message-failed"):
    """The reply broke off in this message; `error` is the reason."""

    message: str
    error: str


class CallStarted(_RunEvent, frozen=True, tag="call-started"):
    """A tool starts."""

    invocation: str
    name: str


class CallProgress(_RunEvent, frozen=True, tag="call-progress"):
    """A tool reports progress: a text, and `done` of `total` if known."""

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
    """Information for the user; see `vibe_llms.messages.events.Notice`."""

    subject: str
    text: str
    message: str = ""
    name: str = ""


class MessageAdded(_RunEvent, frozen=True, tag="message-added"):
    """A message that the user added to the run is durable and goes to the model."""

    message: str


class ApprovalRequested(_RunEvent, frozen=True, tag="approval-requested"):
    """The run waits for a decision on a call; `reason` is why the call needs one."""

    invocation: str
    name: str
    reason: str = ""


class AnswerRequested(_RunEvent, frozen=True, tag="answer-requested"):
    """The run asks the user a question for a call of the tool `name`.

    If `held`, the call is running and waits only briefly.
    """

    question: str
    invocation: str
    name: str
    held: bool = False


class RunContinued(_RunEvent, frozen=True, tag="continued"):
    """A worker continues the run after a decision, or because another worker stopped.

    `message` is the unfinished message that starts again as a new one, or empty.
    """

    message: str = ""


class ConversationChanged(_RunEvent, frozen=True, tag="conversation-changed"):
    """The run continues in a fork, because its conversation was changed meanwhile."""

    conversation: str


class RunEnded(_RunEvent, frozen=True, tag="ended"):
    """The last event; `status` is a `RunStatus`, `error` is the reason if the run failed.

    `retry_after` is the number of seconds after which the same turn may succeed, if known.
    """

    status: str
    error: str = ""
    retry_after: float | None = None


class RunExpired(_RunEvent, frozen=True, tag="expired"):
    """The only event of an old run whose events were deleted.

    `status` is a `RunStatus`, `error` is the reason if the run failed. Messages are in the history.
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
    | MessageAdded
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
    """Encode an event for the record."""
    return _ENCODER.encode(event)


def decode_event(data: bytes) -> RunEvent:
    """Decode a recorded event."""
    return _DECODER.decode(data)


def first_cursor(epoch: int) -> int:
    """Return the cursor before the first event of an epoch."""
    return epoch << EPOCH_BITS


def measure(event: RunEvent) -> int:
    """Return the distance by which an event advances the cursor."""
    return len(event.text) if isinstance(event, MessageDelta) else 1


def is_more(first: RunEvent | None, second: RunEvent) -> bool:
    """Return True if the second event is a delta that continues the first."""
    # Called for each piece of text, so it must be cheap.
    return (
        isinstance(first, MessageDelta)
        and isinstance(second, MessageDelta)
        and first.message == second.message
        and first.kind == second.kind
    )


def join(first: RunEvent, second: RunEvent) -> RunEvent | None:
    """Join two deltas of the same message and kind, or return None."""
    match first, second:
        case MessageDelta(), MessageDelta() if is_more(first, second):
            return MessageDelta(first.message, first.text + second.text, first.kind)
    return None


def cut(events: Iterable[tuple[int, RunEvent]], after: int) -> Iterator[tuple[int, RunEvent]]:
    """Yield the events after a cursor; the first may be the rest of a delta.

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
