"""Runs as values, and the protocol of the store that keeps them for all processes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from vibe_llms.configuration import ToolMode
from vibe_llms.controls import Controls
from vibe_llms.conversations.outputs import OutputForm, produce_form
from vibe_llms.conversations.settings import TurnState
from vibe_llms.invocation.questions import ElicitationAnswer, ElicitationRequest
from vibe_llms.messages.canisters import Canister, SupervisorCanister, UserCanister
from vibe_llms.messages.codecs import decode_canister, encode_canister
from vibe_llms.messages.contents import TextualContent
from vibe_llms.runs.news import News
from vibe_llms.storage.interfaces import Details

#: So many characters of a message are in an outline.
_OUTLINED = 200


class RunStatus(StrEnum):
    """What a run is doing."""

    QUEUED = "queued"
    RUNNING = "running"
    #: For a decision on a call, or an answer.
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing more happens in the run."""
        return self in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)


class DeclaredTool(Struct, frozen=True, omit_defaults=True):
    """A tool that runs elsewhere: where the model calls it, the run ends."""

    name: str
    schema: Mapping[str, Any]
    description: str = ""


class Recipe(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How any process rebuilds the conversation of a run: by names, which its registries know.

    `agent` is the one that answers; a record without it means that of the conversation. With
    `agents`, those that it may ask are offered as tools. With `claims`, replies in the history that
    no model has made are untrusted text. `instructions` are for this run only, and are not kept in
    the conversation. `unshown` are tools whose arguments and results are not shown in stages.
    `output` is the JSON Schema of the turn's output, which prompt and controls ask for. `parent` is
    the span that it was started in, for a process that claims it (`Tracer.continuing`).
    """

    model: str
    agent: str | None = None
    agents: bool = False
    claims: bool = False
    declared: tuple[DeclaredTool, ...] = ()
    instructions: tuple[str, ...] = ()
    ensembles: tuple[str, ...] = ()
    collections: tuple[str, ...] = ()
    invokers: tuple[str, ...] = ()
    unshown: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    tool_mode: ToolMode | None = None
    controls: Mapping[str, Any] = {}
    output: Mapping[str, Any] | None = None
    parent: Mapping[str, str] = {}

    def produce_controls(self) -> Controls:
        """Its controls."""
        return msgspec.convert(self.controls, Controls)

    def produce_form(self) -> OutputForm | None:
        """The form of its output, if it has one; values are plain ones."""
        return None if self.output is None else produce_form(self.output)


class RequestKey(Struct, frozen=True):
    """What a client calls its request, to be able to repeat it, and a hash of all of it."""

    key: str
    digest: bytes


class Outline(Struct, frozen=True):
    """Lines that take the place of a run's `prompt` and `opening`; see `outline_lines`."""

    prompt: bytes
    opening: bytes


class RunRecord(Struct, frozen=True, kw_only=True):
    """A run as it is stored.

    `prompt` are the lines of its first messages, `opening` those of messages before them that its
    conversation has not stored yet, and `details` the conversation's. `outline` replaces both some
    days after the end, and the prompt in lists. `state` is that of its turn. `origin` is what its
    starter wants to find with it, in a form of its own. `request` and `outline` are kept when the
    run is created, and not read with it again. `reason` says why its turn ended, as a `StopReason`;
    `error` why it failed, and `kind` is the class of the error.
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
    reason: str = ""
    error: str = ""
    kind: str = ""


class Lease(Struct, frozen=True):
    """The right of one worker to write a run, until another has a later epoch."""

    user: str
    run: str
    epoch: int


class CallApproval(Struct, frozen=True, kw_only=True):
    """A call that a run waits for, or waited for.

    `definition` is a hash of the tool's definition and rule: if these change, the decision no
    longer holds. `allowed` is `None` until it is decided.
    """

    invocation: str
    name: str
    reason: str = ""
    definition: str = ""
    allowed: bool | None = None
    explanation: str = ""


class RunQuestion(Struct, frozen=True, kw_only=True):
    """A question to the user of a run, of a call of the tool `name`.

    `answer` is `None` until it is answered.

    If it is `held`, the call that asks is running, and does not wait for long.
    """

    identity: str
    invocation: str
    name: str
    request: ElicitationRequest
    held: bool = False
    answer: ElicitationAnswer | None = None


class Orders(Struct, frozen=True):
    """What a worker should do: runs to cancel, and whether one can be claimed."""

    cancel: Collection[str] = ()
    claimable: bool = False


class RunStore(Protocol):
    """Keeps runs; several processes use it at the same time.

    What a worker writes is refused with `LeaseLost` if another has taken the run over. Methods that
    name a run raise `RunNotFound` if its user has no such run. Times are the store's own.
    """

    @property
    def ended(self) -> Mapping[RunStatus, int]:
        """How many runs it has ended since it was opened, by their status."""
        ...

    @property
    def hears(self) -> bool:
        """Whether it reports now what other processes do, so that it need not be read often."""
        ...

    def listen(self, news: News) -> None:
        """Report there what other processes do, from now on, if the store can learn of it.

        That may come late, or never: a process that waits for something also looks for it.
        """
        ...

    def exists(self) -> bool:
        """Whether there may be any runs; a store need not be created to say that there are none."""
        ...

    async def create(
        self, record: RunRecord, seconds: float = 0.0, *, most: int | None = None
    ) -> None:
        """Keep a new run; `ConversationBusy` if its conversation has a run that has not ended.

        One that is running already, in its epoch, is its creator's for so many seconds. If it has a
        request whose key is known, nothing is kept; see `find_request`. `TooManyRuns` if `most` of
        its user are queued or worked on by then, also where several are created at the same time.
        """
        ...

    async def find_request(self, user: str, request: RequestKey) -> None:
        """Raise `RequestRepeated` if a run has the request.

        `RequestKeyReused` if another request has its key, which is known for 24 hours, as long as
        there is its run.
        """
        ...

    async def access(self, user: str, run: str) -> RunRecord:
        """A run, by its identity or a prefix of it that only one has."""
        ...

    async def refresh(self, record: RunRecord) -> RunRecord:
        """A run as it is now. What it was begun with, and its `state`, are those of the record."""
        ...

    async def survey(
        self,
        user: str,
        *,
        status: RunStatus | None = None,
        after: str = "",
        limit: int | None = None,
    ) -> Sequence[RunRecord]:
        """The runs of a user, the newest first; those that are older than the run `after`.

        Of what each was begun with, they have the model and the outline of the prompt; without an
        outline, they may have all of it.
        """
        ...

    async def count_going(self) -> Mapping[RunStatus, int]:
        """How many runs of all users have not ended, by their status."""
        ...

    async def claim(
        self, user: str | None, seconds: float, *, known: Collection[str]
    ) -> RunRecord | None:
        """A run that no worker has, for so many seconds; its epoch is a new one.

        It is of one user, or of any, and needs no registered tools besides those that are `known`.
        `RunUnreadable` if it cannot be read: no worker is given it while the lease lasts.
        """
        ...

    async def renew(self, leases: Collection[Lease], seconds: float) -> Collection[Lease]:
        """Hold runs for so many seconds more; returns the leases that were lost."""
        ...

    async def read_orders(
        self, user: str | None, leases: Collection[Lease], *, known: Collection[str]
    ) -> Orders:
        """What to do about the runs of one user, or of all; `leases` are what the worker has."""
        ...

    async def check(self, lease: Lease) -> None:
        """Raise `LeaseLost` if the lease was lost."""
        ...

    def fenced(self, lease: Lease) -> AbstractContextManager[None]:
        """Within the block, and in tasks that begin there, a lost lease keeps messages out.

        What is added to conversations then raises `LeaseLost`, in the same transaction, if the
        archive is kept where the runs are and that can be done.
        """
        ...

    async def record_state(self, lease: Lease, state: TurnState) -> None:
        """Record, durably, the state of the turn."""
        ...

    async def begin_call(self, lease: Lease, invocation: str) -> int:
        """Record, durably, that a call runs now; returns the epoch in which it began before, or 0.

        A call that began in an earlier epoch is not recorded again.
        """
        ...

    async def begin_again(self, lease: Lease, invocation: str) -> None:
        """Record, durably, that a call that began before runs again."""
        ...

    async def append_events(
        self,
        lease: Lease,
        events: Sequence[tuple[int, bytes]],
        *,
        conversation: str = "",
    ) -> None:
        """Record events by their cursors, and the conversation if the run continues in another."""
        ...

    async def read_events(
        self, user: str, run: str, *, after: int = 0, limit: int = 1000
    ) -> Sequence[tuple[int, bytes]]:
        """The events after a cursor, in order."""
        ...

    async def suspend(
        self,
        lease: Lease,
        approvals: Sequence[CallApproval],
        events: Sequence[tuple[int, bytes]] = (),
        *,
        questions: Sequence[RunQuestion] = (),
    ) -> RunStatus:
        """Give a run back until one of some calls is decided, or one of some questions answered.

        It is queued if one is by now, and if it is to be cancelled. The last events are recorded at
        the same time.
        """
        ...

    async def release(self, lease: Lease, seconds: float = 0.0) -> None:
        """Give a run back, so that any worker continues it, after so many seconds.

        One that is to be cancelled does not wait.
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
        """End a run; its last events are recorded at the same time."""
        ...

    async def cancel(self, user: str, run: str, ended: bytes) -> RunStatus:
        """Ask for the end of a run; returns its status.

        A run that no worker has, or whose worker has gone, ends at once, with the event `ended`.
        """
        ...

    async def decide(
        self, user: str, run: str, invocation: str, *, allowed: bool, explanation: str = ""
    ) -> CallApproval:
        """Decide on a call, and queue its run. The same decision again changes nothing.

        `DecisionRefused` if another decision was made, or the run does not wait for this call.
        """
        ...

    async def survey_approvals(self, user: str, run: str) -> Sequence[CallApproval]:
        """The calls that a run waits or waited for."""
        ...

    async def ask(self, lease: Lease, question: RunQuestion) -> None:
        """Record, durably, the question of a call that is running."""
        ...

    async def settle(
        self, lease: Lease, question: str, otherwise: ElicitationAnswer
    ) -> ElicitationAnswer:
        """The answer to a question; if there is none, `otherwise` becomes the answer."""
        ...

    async def answer(
        self, user: str, run: str, question: str, answer: ElicitationAnswer
    ) -> RunQuestion:
        """Answer a question, and queue its run if it waits. The same answer again changes nothing.

        `DecisionRefused` if it was answered otherwise, or the run does not ask this.
        """
        ...

    async def survey_questions(self, user: str, run: str) -> Sequence[RunQuestion]:
        """The questions that a run asks or asked, in order."""
        ...

    async def remove(self, user: str, conversation: str) -> None:
        """Delete the runs of a conversation, with their events."""
        ...

    async def remove_run(self, user: str, run: str) -> None:
        """Delete a run, with its events."""
        ...

    async def close(self) -> None:
        """Close what is open; safe to call twice."""
        ...


def write_lines(canisters: Sequence[Canister]) -> bytes:
    """Canisters as the lines of a record."""
    return b"\n".join(map(encode_canister, canisters))


def outline_lines(canisters: Sequence[Canister]) -> bytes:
    """Lines with the identities of canisters, and with the beginning of what the user said."""
    return write_lines([*map(_outline, canisters)])


def _outline(canister: Canister) -> Canister:
    identity, created = canister.identity, canister.created
    if not isinstance(canister, UserCanister):
        return SupervisorCanister(identity=identity, created=created)
    texts = (one.data for one in canister.contents if isinstance(one, TextualContent))
    text = "".join(one for one in texts if isinstance(one, str))[:_OUTLINED]
    contents = (TextualContent(text),)
    return UserCanister(identity=identity, created=created, contents=contents)


def read_lines(lines: bytes) -> list[Canister]:
    """The canisters of the lines of a record."""
    return [decode_canister(line) for line in lines.split(b"\n") if line]
