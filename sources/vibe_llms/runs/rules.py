"""What a store of runs refuses, and in which words: the same for every store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from vibe_llms.exceptions import (
    ConversationBusy,
    DecisionRefused,
    LeaseLost,
    RequestError,
    RequestKeyReused,
    RequestRepeated,
    RunNotFound,
    RunUnreadable,
    TooManyRuns,
)
from vibe_llms.invocation.questions import ElicitationAnswer
from vibe_llms.runs.interfaces import CallApproval, Lease, RequestKey, RunQuestion, RunStatus

_PREFIX = 4


def lost(lease: Lease) -> LeaseLost:
    """The error of a worker whose run has another one."""
    return LeaseLost(f"another process has taken the run {lease.run} over")


def not_found(run: str) -> RunNotFound:
    """The error for a run that the user does not have."""
    return RunNotFound(f"there is no run {run!r}")


@contextmanager
def readable(run: str) -> Iterator[None]:
    """Within the block, what cannot be decoded of a run raises `RunUnreadable`."""
    try:
        yield
    except ValueError as error:
        raise RunUnreadable(
            f"the run {run} cannot be read; a newer version of vibe-llms may: {error}", run=run
        ) from error


def busy(run: str, status: str) -> ConversationBusy:
    """The error for another run of a conversation that has one."""
    return ConversationBusy(
        f"the run {run} of this conversation is {status}; wait for it, cancel it, or fork"
    )


def require_room(running: int, most: int) -> None:
    """Refuse another run of a user who has so many that are queued or worked on."""
    if running >= most:
        raise TooManyRuns(f"too many runs at once ({running} of {most}); wait until one ends")


def refuse_request(request: RequestKey, digest: bytes, run: str) -> NoReturn:
    """Refuse a request whose key is known, of a request with this digest, which made a run."""
    if digest != request.digest:
        raise RequestKeyReused("this key belongs to another request; give each its own")
    raise RequestRepeated(f"the run {run} has this request", run=run)


def require_one(text: str, found: Sequence[str]) -> None:
    """Refuse a text that does not mean the first of the runs, in order, that begin with it.

    It is an identity, or a part of at least 4 characters that only one run begins with.
    """
    if not found or (len(text) < _PREFIX and found[0] != text):
        raise not_found(text)
    if len(found) > 1 and found[0] != text:
        raise RequestError(f"several runs begin with {text!r}; give more characters")


def judge_decision(
    run: str, status: RunStatus, invocation: str, known: CallApproval | None, *, allowed: bool
) -> CallApproval:
    """The call that a run waits for: to be decided, unless it was decided in the same way."""
    if known is None:
        raise DecisionRefused(f"the run {run} does not wait for the call {invocation!r}")
    if known.allowed is not None:
        if known.allowed is allowed:
            return known
        was = "allowed" if known.allowed else "denied"
        raise DecisionRefused(f"{known.name} was {was} before; that decision stays")
    _require_going(run, status)
    return known


def judge_answer(
    run: str,
    status: RunStatus,
    question: str,
    known: RunQuestion | None,
    answer: ElicitationAnswer,
) -> RunQuestion:
    """The question that a run asks: to be answered, unless it was answered in the same way."""
    if known is None:
        raise DecisionRefused(f"the run {run} does not ask the question {question!r}")
    if known.answer is not None:
        if known.answer == answer:
            return known
        raise DecisionRefused("the question was answered before; that answer stays")
    _require_going(run, status)
    return known


def _require_going(run: str, status: RunStatus) -> None:
    if status.ended:
        raise DecisionRefused(f"the run {run} has ended: it is {status}")
