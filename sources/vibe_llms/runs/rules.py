"""Rules and error messages shared by all run stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from vibe_llms.base.exceptions import (
    ConversationBusy,
    DecisionRefused,
    LeaseLost,
    RequestError,
    RequestKeyReused,
    RequestRepeated,
    RunNotFound,
    RunUnreadable,
    SteeringQueueFull,
    SteeringRefused,
    TooManyRuns,
)
from vibe_llms.invocation.questions import ElicitationAnswer
from vibe_llms.runs.interfaces import CallApproval, Lease, RequestKey, RunQuestion, RunStatus

_SHORTEST_PREFIX = 4
#: Maximum number of messages that wait in a run, and of their bytes together.
MOST_QUEUED, MOST_QUEUED_BYTES = 64, 16 * 1024 * 1024


def lost(lease: Lease) -> LeaseLost:
    """Return the error for a worker that has lost its run."""
    return LeaseLost(f"another process has taken over the run {lease.run}")


def not_found(run: str) -> RunNotFound:
    """Return the error for a run that the user does not have."""
    return RunNotFound(f"run {run!r} not found")


@contextmanager
def readable(run: str) -> Iterator[None]:
    """Raise `RunUnreadable` if data of the run cannot be decoded within the block."""
    try:
        yield
    except ValueError as error:
        raise RunUnreadable(
            f"the run {run} cannot be read; it may need a newer version of vibe-llms: {error}",
            run=run,
        ) from error


def busy(run: str, status: str) -> ConversationBusy:
    """Return the error for a second run of a conversation."""
    return ConversationBusy(
        f"the run {run} of this conversation is {status}; wait for it, cancel it, or fork"
    )


def require_room(running: int, most: int) -> None:
    """Raise `TooManyRuns` if the user already has `most` runs queued or running."""
    if running >= most:
        raise TooManyRuns(f"too many runs at once ({running} of {most}); wait until one ends")


def refuse_request(request: RequestKey, digest: bytes, run: str) -> NoReturn:
    """Refuse a request whose key is known; `digest` and `run` are those of the known request."""
    require_same(request, digest)
    raise RequestRepeated(f"the run {run} already has this request", run=run)


def require_same(request: RequestKey, digest: bytes) -> None:
    """Raise `RequestKeyReused` if the known request with this key has another digest."""
    if digest != request.digest:
        raise RequestKeyReused(
            "this key belongs to another request; use a new key for each request"
        )


def require_one(text: str, found: Sequence[str]) -> None:
    """Raise unless the text is the identity or a unique prefix of the first run found.

    `found` has the runs that begin with the text, in order. A prefix has at least 4 characters.
    """
    if not found or (len(text) < _SHORTEST_PREFIX and found[0] != text):
        raise not_found(text)
    if len(found) > 1 and found[0] != text:
        raise RequestError(f"several runs begin with {text!r}; give more characters")


def judge_decision(
    run: str, status: RunStatus, invocation: str, known: CallApproval | None, *, allowed: bool
) -> CallApproval:
    """Return the call to decide, or the call if it was decided in the same way before."""
    if known is None:
        raise DecisionRefused(f"the run {run} is not waiting for the call {invocation!r}")
    if known.allowed is not None:
        if known.allowed is allowed:
            return known
        was = "allowed" if known.allowed else "denied"
        raise DecisionRefused(f"{known.name} was already {was}; the decision cannot be changed")
    _require_going(run, status)
    return known


def judge_answer(
    run: str,
    status: RunStatus,
    question: str,
    known: RunQuestion | None,
    answer: ElicitationAnswer,
) -> RunQuestion:
    """Return the question to answer, or the question if it was answered in the same way before."""
    if known is None:
        raise DecisionRefused(f"the run {run} is not asking the question {question!r}")
    if known.answer is not None:
        if known.answer == answer:
            return known
        raise DecisionRefused("the question was already answered; the answer cannot be changed")
    _require_going(run, status)
    return known


def require_steerable(run: str, status: RunStatus, *, ending: bool) -> None:
    """Raise `SteeringRefused` if a run takes no more messages of the user."""
    if status.ended or ending:
        how = f"has ended: it is {status}" if status.ended else "is about to end"
        raise SteeringRefused(f"the run {run} {how}; send the message in another turn")


def added_before(run: str, message: str) -> SteeringRefused:
    """Return the error for a message that the run already has."""
    return SteeringRefused(
        f"message {message!r} was already added to the run {run}; add it once, or make another one"
    )


def require_queue_room(run: str, waiting: int, size: int, added: int) -> None:
    """Raise `SteeringQueueFull` if a message of `added` bytes has no room beside those that wait.

    The caller limits the size of one message, so an empty queue has room for each.
    """
    if waiting >= MOST_QUEUED or (waiting and size + added > MOST_QUEUED_BYTES):
        raise SteeringQueueFull(
            f"too many messages wait in the run {run} ({waiting} of {MOST_QUEUED}, {size:,} of "
            f"{MOST_QUEUED_BYTES:,} bytes); wait until they are sent, or take one back"
        )


def not_queued(run: str, message: str) -> SteeringRefused:
    """Return the error for a message that cannot be taken back."""
    return SteeringRefused(
        f"message {message!r} of the run {run} is not queued; it was sent or taken back before"
    )


def _require_going(run: str, status: RunStatus) -> None:
    if status.ended:
        raise DecisionRefused(f"the run {run} has already ended: it is {status}")
