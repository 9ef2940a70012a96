"""Runs as values, and the protocol of the run store shared by all processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import ContextMode, ToolMode
from vibe_llms.conversations.outputs import OutputForm, produce_form
from vibe_llms.conversations.settings import TurnState
from vibe_llms.invocation.questions import ElicitationAnswer, ElicitationRequest
from vibe_llms.messages.canisters import Canister, SupervisorCanister, UserCanister
from vibe_llms.messages.codecs import decode_canister, encode_canister
from vibe_llms.messages.contents import TextualContent
from vibe_llms.messages.controls import Controls
from vibe_llms.runs.news import News
from vibe_llms.storage.interfaces import Details

#: Number of characters of a message kept in an outline.
OUTLINE_CHARACTERS = 200


class RunStatus(StrEnum):
    """State of a run."""

    QUEUED = "queued"
    RUNNING = "running"
    #: Waiting for an approval or an answer.
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """True if the run has completed, failed, or been cancelled."""
        return self in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)


#: The states of a run that has not ended.
UNFINISHED: Final = tuple(one for one in RunStatus if not one.ended)


class DeclaredTool(Struct, frozen=True, omit_defaults=True):
    """A tool that the client runs: a call to it ends the run."""

    name: str
    schema: Mapping[str, Any]
    description: str = ""


class Recipe(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The names from which any process can rebuild the conversation of a run.

    `agent` is the agent that answers; None is the conversation's own. `agents` offers the
    agents that it may ask as tools. With `claims`, replies in the history that no model produced
    are untrusted text. `instructions` apply to this run only, and are not kept in the conversation.
    Of the `withheld` tools and ensembles, those that are `singled` out are offered.
    `unshown` are tools whose arguments and results are hidden in stages. `output` is the JSON
    Schema of the turn's output. `parent` is the trace span in which the run was started
    (`Tracer.continuing`). If `awaited`, a client waits for the end, so the run fails at the user's
    limit for a minute; other runs wait.
    """

    model: str
    agent: str | None = None
    agents: bool = False
    claims: bool = False
    declared: tuple[DeclaredTool, ...] = ()
    instructions: tuple[str, ...] = ()
    ensembles: tuple[str, ...] = ()
    collections: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    invokers: tuple[str, ...] = ()
    unshown: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    singled: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    tool_mode: ToolMode | None = None
    fallback: tuple[str, ...] | None = None
    context_mode: ContextMode | None = None
    controls: Mapping[str, Any] = {}
    output: Mapping[str, Any] | None = None
    parent: Mapping[str, str] = {}
    awaited: bool = False

    def produce_controls(self) -> Controls:
        """Return the controls of the run."""
        return msgspec.convert(self.controls, Controls)

    def produce_form(self) -> OutputForm | None:
        """Return the form of the output, with plain values, or None."""
        return None if self.output is None else produce_form(self.output)


class RequestKey(Struct, frozen=True):
    """A client's idempotency key for a request, and a hash of the whole request."""

    key: str
    digest: bytes


class Outline(Struct, frozen=True):
    """Short replacements for a run's `prompt` and `opening`; see `outline_lines`."""

    prompt: bytes
    opening: bytes


class RunRecord(Struct, frozen=True, kw_only=True):
    """A run as it is stored.

    `prompt` has the lines of its first messages, `opening` those of earlier messages that its
    conversation has not stored yet, and `details` the conversation's details. `outline` replaces
    both in lists, and everywhere some days after the end. `state` is the state of its turn.
    `origin` is opaque data of the caller. `steering` are messages that the user has already added
    to the turn. `request`, `outline` and `steering` are written when the run is created and not
    read back. `reason` is the `StopReason` of its turn, `error` the message of its
    failure, and `kind` the class of that error.
    """

    identity: str
    user: str
    conversation: str
    status: RunStatus
    recipe: Recipe
    prompt: bytes
    created: datetime
    updated: datetime
    epoch: int = 0
    opening: bytes = b""
    outline: Outline | None = None
    details: Details | None = None
    state: TurnState = TurnState()
    cancelling: bool = False
    origin: bytes = b""
    request: RequestKey | None = None
    steering: Sequence[UserCanister] = ()
    reason: str = ""
    error: str = ""
    kind: str = ""


class Lease(Struct, frozen=True):
    """The right of one worker to write a run, until another worker has a later epoch."""

    user: str
    run: str
    epoch: int


class CallApproval(Struct, frozen=True, kw_only=True):
    """A call that needs approval; `Run.survey_calls` has its arguments.

    `definition` is a hash of the tool's definition and rule: if they change, the decision is void.
    `allowed` is None until it is decided. With `always`, it is allowed for each later call of the
    tool in the conversation with the same `definition`; calls with `each_time` ask nevertheless.
    `ensemble` is the one that the tool belongs to.
    """

    invocation: str
    name: str
    reason: str = ""
    definition: str = ""
    allowed: bool | None = None
    explanation: str = ""
    always: bool = False
    each_time: bool = False
    ensemble: str = ""


class RunQuestion(Struct, frozen=True, kw_only=True):
    """A question to the user, asked by a call of the tool `name`.

    `answer` is None until it is answered. If `held`, the call is running and waits only briefly.
    """

    identity: str
    invocation: str
    name: str
    request: ElicitationRequest
    held: bool = False
    answer: ElicitationAnswer | None = None


class Orders(Struct, frozen=True):
    """Pending work for a worker: runs to cancel, and True if a run can be claimed."""

    cancel: Collection[str] = ()
    claimable: bool = False


#: Returns the last events of a run, given the user's messages that were not sent.
RunEnding: TypeAlias = Callable[[Sequence[UserCanister]], Sequence[bytes]]


class RunReader(Protocol):
    """Events of a run, and the calls and questions that its user decides on."""

    async def read_events(
        self, user: str, run: str, *, after: int = 0, limit: int = 1000
    ) -> Sequence[tuple[int, bytes]]:
        """Return the events after a cursor, in order."""
        ...

    async def survey_approvals(self, user: str, run: str) -> Sequence[CallApproval]:
        """Return the calls of a run that needed approval."""
        ...

    async def survey_always(self, user: str, conversation: str) -> Sequence[CallApproval]:
        """Return the calls of a conversation's runs that were allowed `always`."""
        ...

    async def survey_questions(self, user: str, run: str) -> Sequence[RunQuestion]:
        """Return the questions of a run, in order."""
        ...

    async def survey_steering(self, user: str, run: str) -> Sequence[UserCanister]:
        """Return the messages of a run that can be taken back, in order.

        After the end of the run, these are all that were not settled.
        """
        ...


class RunWriter(RunReader, Protocol):
    """Records of the worker that holds the lease of a run; `LeaseLost` if another has it."""

    async def check(self, lease: Lease) -> None:
        """Raise `LeaseLost` if the lease was lost."""
        ...

    def fenced(self, lease: Lease) -> AbstractContextManager[None]:
        """Refuse messages if the lease is lost, in this block and in tasks started in it.

        Adding to a conversation then raises `LeaseLost` in the same transaction, if the archive and
        the runs share a database.
        """
        ...

    async def record_state(self, lease: Lease, state: TurnState) -> None:
        """Record the state of the turn durably."""
        ...

    async def begin_call(self, lease: Lease, invocation: str) -> int:
        """Record durably that a call starts; return the epoch in which it started before, or 0.

        A call that started in an earlier epoch is not recorded again.
        """
        ...

    async def begin_again(self, lease: Lease, invocation: str) -> None:
        """Record durably that a call starts again."""
        ...

    async def append_events(
        self,
        lease: Lease,
        events: Sequence[tuple[int, bytes]],
        *,
        conversation: str = "",
    ) -> None:
        """Record events at their cursors, and the conversation if the run moved to another."""
        ...

    async def ask(self, lease: Lease, question: RunQuestion) -> None:
        """Record the question of a running call durably."""
        ...

    async def close_question(
        self, lease: Lease, question: str, otherwise: ElicitationAnswer
    ) -> ElicitationAnswer:
        """Return the answer to a question, after recording `otherwise` if there is none."""
        ...

    async def suspend(
        self,
        lease: Lease,
        approvals: Sequence[CallApproval],
        events: Sequence[tuple[int, bytes]] = (),
        *,
        questions: Sequence[RunQuestion] = (),
    ) -> RunStatus:
        """Release a run until one of the calls is decided or one of the questions answered.

        The run is queued instead if that has already happened, or if it is being cancelled. The
        last events are recorded in the same transaction.
        """
        ...

    async def release(self, lease: Lease, seconds: float = 0.0) -> None:
        """Release a run, so that any worker may continue it after this many seconds.

        A run that is being cancelled does not wait.
        """
        ...

    async def finish(
        self,
        lease: Lease,
        status: RunStatus,
        events: Sequence[tuple[int, bytes]] = (),
        *,
        reason: str = "",
        error: str = "",
        kind: str = "",
    ) -> None:
        """End a run and record its last events in the same transaction."""
        ...

    async def take_steering(self, lease: Lease) -> Sequence[UserCanister]:
        """Return the messages that the user added, in order; they cannot be taken back any more.

        A message that was taken and not settled, perhaps by another worker, is returned again.
        """
        ...

    async def settle_steering(self, lease: Lease, message: str) -> None:
        """Mark a message as sent, or as one that the model cannot read."""
        ...

    async def close_steering(self, lease: Lease, reason: str, *, anyway: bool) -> bool:
        """Accept no more messages and return True, unless some are not settled.

        Records the reason why the turn ends. With `anyway`, those messages remain.
        """
        ...


class RunQueue(RunWriter, Protocol):
    """Runs that workers claim, each for some seconds and in an epoch of its own."""

    def listen(self, news: News) -> None:
        """Report changes by other processes to `news` from now on, if the store can.

        Reports may be late or missing, so waiting processes also poll.
        """
        ...

    async def create(
        self, record: RunRecord, seconds: float = 0.0, *, most: int | None = None
    ) -> None:
        """Store a new run; `ConversationBusy` if its conversation has a run that has not ended.

        A run that is created as running belongs to its creator for this many seconds. If its
        request key is known, nothing is stored; see `find_request`. Raises `TooManyRuns` if the
        user already has `most` runs queued or running, even if several are created concurrently.
        """
        ...

    async def claim(
        self, user: str | None, seconds: float, *, known: Collection[str]
    ) -> RunRecord | None:
        """Claim a run without a worker for this many seconds, in a new epoch.

        Only runs of the user, or of any user if None, whose registered tools are all in `known`
        qualify. Raises `RunUnreadable` if the run cannot be decoded; no worker gets it until the
        lease ends.
        """
        ...

    async def renew(self, leases: Collection[Lease], seconds: float) -> Collection[Lease]:
        """Extend leases by this many seconds; return the leases that were lost."""
        ...

    async def read_orders(
        self, user: str | None, leases: Collection[Lease], *, known: Collection[str]
    ) -> Orders:
        """Return pending work for a worker of one user, or of all users, that holds `leases`."""
        ...


class RunDecisions(RunReader, Protocol):
    """State of a run, and the decisions and answers of its user."""

    @property
    def hears(self) -> bool:
        """True if changes by other processes are being reported, so polling can be rare."""
        ...

    async def refresh(self, record: RunRecord) -> RunRecord:
        """Return the current status of a run; its input and `state` are copied from the record."""
        ...

    async def cancel(self, user: str, run: str, end: RunEnding) -> RunStatus:
        """Request the end of a run; return its status.

        A run without a live worker ends at once, with the events that `end` returns.
        """
        ...

    async def decide(
        self,
        user: str,
        run: str,
        invocation: str,
        *,
        allowed: bool,
        explanation: str = "",
        always: bool = False,
    ) -> CallApproval:
        """Decide on a call and queue its run. Repeating a decision changes nothing.

        Raises `DecisionRefused` after a different decision, or if the run does not wait for this
        call.
        """
        ...

    async def answer(
        self, user: str, run: str, question: str, answer: ElicitationAnswer
    ) -> RunQuestion:
        """Answer a question and queue its run if it waits. Repeating an answer changes nothing.

        Raises `DecisionRefused` after a different answer, or if the run does not ask this.
        """
        ...

    async def steer(
        self, user: str, run: str, message: UserCanister, request: RequestKey | None = None
    ) -> UserCanister:
        """Queue a message durably and return it, or the earlier message of the same `request`.

        The key is known while the run has that message, and free again if it is taken back. Raises
        `RequestKeyReused` if the key belongs to another request of this run.

        Raises `SteeringRefused` if the run has the message, has ended or is about to end, and
        `SteeringQueueFull` if too many messages wait.
        """
        ...

    async def take_back(self, user: str, run: str, message: str) -> UserCanister:
        """Remove a queued message and return it; `SteeringRefused` if it is not queued."""
        ...


class RunStore(RunQueue, RunDecisions, Protocol):
    """Storage of runs, shared by several processes.

    A worker's writes are refused with `LeaseLost` if another worker has taken over the run. Methods
    that name a run raise `RunNotFound` if the user has no such run. All times are the store's own.
    """

    @property
    def ended(self) -> Mapping[RunStatus, int]:
        """Number of runs ended since the store was opened, by status."""
        ...

    def exists(self) -> bool:
        """Return True if there may be any runs, without creating the store."""
        ...

    async def find_request(self, user: str, request: RequestKey) -> None:
        """Raise `RequestRepeated` if a run has the request.

        Raises `RequestKeyReused` if the key belongs to another request. Keys are known for 24
        hours, while their run exists.
        """
        ...

    async def access(self, user: str, run: str) -> RunRecord:
        """Return a run by its identity or a unique prefix."""
        ...

    async def survey(
        self,
        user: str,
        *,
        statuses: Collection[RunStatus] = (),
        conversation: str = "",
        after: str = "",
        limit: int | None = None,
    ) -> Sequence[RunRecord]:
        """Return the runs of a user, newest first; with `after`, only runs older than that one.

        Without `statuses` or `conversation`, those of every status or conversation.
        Of their input, the records contain the model and the outline of the prompt; without an
        outline, they may contain all of it.
        """
        ...

    async def count_unfinished(self) -> Mapping[RunStatus, int]:
        """Return the number of unfinished runs of all users, by status."""
        ...

    async def remove(self, user: str, conversation: str) -> None:
        """Delete the runs of a conversation and their events."""
        ...

    async def remove_run(self, user: str, run: str) -> None:
        """Delete a run and its events."""
        ...

    async def close(self) -> None:
        """Close the store; may be called twice."""
        ...


def read_steering_line(line: bytes) -> UserCanister:
    """Decode a message that a user added to a run."""
    canister = decode_canister(line)
    assert isinstance(canister, UserCanister)
    return canister


def write_lines(canisters: Sequence[Canister]) -> bytes:
    """Encode canisters as the lines of a record."""
    return b"\n".join(map(encode_canister, canisters))


def outline_lines(canisters: Sequence[Canister]) -> bytes:
    """Encode the identities of canisters and the beginnings of the user's messages."""
    return write_lines([*map(_outline, canisters)])


def _outline(canister: Canister) -> Canister:
    identity, created = canister.identity, canister.created
    if not isinstance(canister, UserCanister):
        return SupervisorCanister(identity=identity, created=created)
    texts = (one.data for one in canister.contents if isinstance(one, TextualContent))
    text = "".join(one for one in texts if isinstance(one, str))[:OUTLINE_CHARACTERS]
    contents = (TextualContent(text),)
    return UserCanister(identity=identity, created=created, contents=contents)


def read_lines(lines: bytes) -> list[Canister]:
    """Decode the canisters in the lines of a record."""
    return [decode_canister(line) for line in lines.split(b"\n") if line]
