"""`RunJob`: one run while this process works on it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from typing import TypeAlias, TypeVar

import msgspec

from vibe_llms.base.exceptions import (
    LeaseLost,
    LimitExceeded,
    StorageError,
    StorageUnavailable,
    VibeLlmsError,
    find_wait,
)
from vibe_llms.base.offloading import LOOP_BYTES, offload
from vibe_llms.base.redaction import redact
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.settings import TurnState
from vibe_llms.conversations.steering import FINAL_REASONS
from vibe_llms.conversations.streams import RunningTurn
from vibe_llms.invocation.approval import ApprovalRequest, Decision
from vibe_llms.invocation.execution import INTERRUPTED, CallSuspended
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.invocation.questions import ElicitationAnswer, ElicitationRequest
from vibe_llms.messages.canisters import (
    Canister,
    InvocationCanister,
    StopReason,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.identities import produce_identity
from vibe_llms.providers.pieces import with_texts
from vibe_llms.runs.events import (
    AnswerRequested,
    ApprovalRequested,
    ConversationChanged,
    RunContinued,
    RunEnded,
    RunEvent,
    decode_event,
    first_cursor,
)
from vibe_llms.runs.interfaces import (
    CallApproval,
    Lease,
    RunQuestion,
    RunRecord,
    RunStatus,
    RunWriter,
    read_lines,
)
from vibe_llms.runs.recorder import RunRecorder
from vibe_llms.runs.steering import RunSteering, notice_left, write_end
from vibe_llms.runs.takeover import (
    count_fruitless,
    describe_loss,
    find_end,
    find_missing,
    find_open,
)

T = TypeVar("T")

#: Seconds between polls for an answer while a call holds its run.
_ANSWER_SECONDS = 0.2
#: A run fails after this many workers in a row have stored nothing. Each doubles the delay, which
#: adds up to more than an hour.
_MOST_FRUITLESS = 12
#: Assumed number of such workers if the events cannot be read: the delay is then 16 s.
_ASSUMED_FRUITLESS = 4
#: Maximum number of events read at once.
_BATCH = 1000
#: Opens the conversation of a run, rebuilt from its recipe if this process does not have it. Its
#: history contains none of the prompt, or all of the run so far.
ConversationOpener: TypeAlias = Callable[[RunRecord], Awaitable[Conversation]]


class RunJob:
    """One run while this process works on it; also the `TurnRecord` of its turn."""

    def __init__(
        self,
        store: RunWriter,
        record: RunRecord,
        open_conversation: ConversationOpener,
        context: Context | None = None,
        *,
        answer_seconds: float,
    ) -> None:
        self.lease = Lease(record.user, record.identity, record.epoch)
        self._store = store
        self._run = record
        self._open = open_conversation
        self._conversation = record.conversation
        self._approvals: Mapping[str, CallApproval] = {}
        self._wanted: list[CallApproval] = []
        self._questions: Mapping[str, RunQuestion] = {}
        self._asked: list[RunQuestion] = []
        self._answer_seconds = answer_seconds
        self._turn: RunningTurn | None = None
        #: Messages that were sent, and then removed with the turn.
        self._removed: list[UserCanister] = []
        self.lost = self._cancelled = False
        #: The conversation of the turn, from its begin to its end.
        self._opened: Conversation | None = None
        #: The error that prevents recording while this process still has the run.
        self._problem: BaseException | None = None
        #: Number of earlier workers in a row that have stored nothing.
        self._fruitless = 0 if record.epoch == 1 else _ASSUMED_FRUITLESS
        self.recorder = RunRecorder(store, self.lease, fail=self._give_up)
        self.resumed = False
        self.state = record.state
        name = f"run {record.identity}"
        self.task = asyncio.create_task(self._work(), name=name, context=context)

    def cancel(self) -> None:
        """Cancel the turn at the user's request; messages that arrived are kept."""
        # Only once, because a repeated cancellation would interrupt the cleanup.
        if self._turn is not None and not self._cancelled:
            self._turn.interrupt(quietly=True)
        self._cancelled = True

    def lose(self) -> None:
        """Stop at once and store nothing, because another process has the run."""
        self.lost = True
        self.recorder.drop()
        if self._turn is not None:
            self._turn.interrupt()

    def _give_up(self, error: BaseException) -> None:
        """Stop at once, because events cannot be recorded."""
        self._stop_recording(error)
        self.lose()

    def _stop_recording(self, error: BaseException) -> None:
        """Store nothing more, because of an error of the store or the recorder."""
        self.lost = True
        self.recorder.drop()
        if self._problem is None and not isinstance(error, LeaseLost):
            self._problem = error

    def give_back(self) -> None:
        """Stop at once, so that another process continues from the durable messages."""
        self.lost = True
        self.recorder.drop()
        self.task.cancel()

    async def record_state(self, state: TurnState) -> None:
        """Record the state of the turn, before the messages that changed it are stored."""
        await self._guard(self._store.record_state(self.lease, state))
        self.state = state

    async def begin_call(self, invocation: InvocationCanister, invoker: Invoker) -> str:
        """Record that a call starts; return a reason if it must not, because it may have run."""
        # The fork that the run may have moved to must be known before any side effect.
        await self.flush()
        earlier = await self._guard(self._store.begin_call(self.lease, invocation.identity))
        if not earlier:
            return ""
        if not (invoker.pure or invoker.idempotent):
            return INTERRUPTED
        await self._guard(self._store.begin_again(self.lease, invocation.identity))
        return ""

    async def decide(self, request: ApprovalRequest) -> Decision:
        """Return the decision on a call, or raise `CallSuspended` if there is none yet."""
        call, invoker = request.invocation, request.invoker
        known = self._approvals.get(call.identity)
        definition = hash_definition(invoker, request.reason)
        if known is not None and known.allowed is not None and known.definition == definition:
            return Decision(known.allowed, reason=known.explanation)
        wanted = CallApproval(
            invocation=call.identity,
            name=invoker.name,
            reason=request.reason,
            definition=definition,
            each_time=request.each_time,
            ensemble=invoker.ensemble,
        )
        if await self._is_always_allowed(request.conversation, wanted):
            return Decision.ALLOW
        self._wanted.append(wanted)
        raise CallSuspended(invoker.name)

    async def _is_always_allowed(self, conversation: str, wanted: CallApproval) -> bool:
        if wanted.each_time:
            return False
        allowed = await self._guard(self._store.survey_always(self._run.user, conversation))
        return any(
            (one.name, one.definition) == (wanted.name, wanted.definition) for one in allowed
        )

    async def ask(
        self, invocation: InvocationCanister, request: ElicitationRequest, *, holds: bool
    ) -> ElicitationAnswer:
        """Return the answer to a call's question, and wait for it if the call `holds` the run.

        If the call does not hold the run, raise `CallSuspended` if there is no answer yet.
        """
        call, name = invocation.identity, invocation.name
        if holds:
            question = RunQuestion(
                identity=produce_identity(), invocation=call, name=name, request=request, held=True
            )
            return await self._await_answer(question)
        # Such a call asks one question, identified by the identity of the call.
        known = self._questions.get(call)
        if known is not None and known.answer is not None:
            return known.answer
        self._asked.append(RunQuestion(identity=call, invocation=call, name=name, request=request))
        raise CallSuspended(name)

    async def _await_answer(self, question: RunQuestion) -> ElicitationAnswer:
        await self._guard(self._store.ask(self.lease, question))
        self.recorder.put(_request_answer(question))
        with suppress(TimeoutError):
            async with asyncio.timeout(self._answer_seconds):
                while not await self._is_answered(question):  # noqa: ASYNC110  (others answer)
                    await asyncio.sleep(_ANSWER_SECONDS)
        return await self._store.close_question(
            self.lease, question.identity, ElicitationAnswer("decline")
        )

    async def _is_answered(self, question: RunQuestion) -> bool:
        asked = await self._store.survey_questions(self.lease.user, self.lease.run)
        return any(one.identity == question.identity and one.answer is not None for one in asked)

    async def confirm(self) -> None:
        """Raise `LeaseLost` if another process has the run."""
        await self._guard(self._store.check(self.lease))

    async def flush(self) -> None:
        """Record the events of messages before the messages are stored."""
        await self._guard(self.recorder.flush())
        self._check()

    def _check(self) -> None:
        if self.lost:
            raise LeaseLost(f"another process has taken over the run {self._run.identity}")

    def report_kept(self, canisters: Sequence[Canister]) -> None:
        """Report that messages are durable."""
        self._fruitless = 0
        self._report_moved()
        self.recorder.report_kept([one.identity for one in canisters])

    def _report_moved(self) -> None:
        if self._opened is not None and self._opened.identity != self._conversation:
            self._conversation = self._opened.identity
            self.recorder.put(ConversationChanged(self._conversation))

    async def fail(self, error: BaseException) -> None:
        """End the run because of an unexpected error."""
        self.recorder.drop()
        with suppress(StorageError):
            text = redact(f"{type(error).__name__}: {error}")
            left: Sequence[UserCanister] = ()
            with suppress(StorageError):
                left = await self._find_unsent()
            last = write_end(RunEnded(RunStatus.FAILED, text), left)
            # After all recorded events.
            events = [*enumerate(last, first_cursor(self.lease.epoch + 1))]
            try:
                await self._end(events, text, error)
            except StorageUnavailable as refusal:
                if not refusal.refused:
                    raise
                # Followers see the end in the record.
                await self._end((), text, error)

    async def _end(
        self, events: Sequence[tuple[int, bytes]], text: str, error: BaseException
    ) -> None:
        await self._store.finish(
            self.lease, RunStatus.FAILED, events, error=text, kind=type(error).__name__
        )

    async def defer(self, error: StorageError) -> None:
        """Release the run for a later retry, or fail it if a retry cannot help.

        A worker continues from the durable messages when the storage is back. Until then, each
        attempt calls the model again. A full disk or a revoked permission is not retried.
        """
        lasting = isinstance(error, StorageUnavailable) and (error.full or error.refused)
        if lasting or self._fruitless >= _MOST_FRUITLESS:
            await self.fail(error)
            return
        with suppress(StorageError):
            await self._store.release(self.lease, 2.0**self._fruitless)

    async def _guard(self, work: Awaitable[T]) -> T:
        """Await work of the store; on an error, store nothing more."""
        try:
            return await work
        except StorageError as error:
            self._stop_recording(error)
            raise

    async def _work(self) -> None:
        status, reason = RunStatus.COMPLETED, ""
        error: VibeLlmsError | None = None
        try:
            reason = await self._run_turn()
            if reason == StopReason.SUSPENDED:
                await self._suspend()
                return
            if reason == StopReason.INTERRUPTED:
                status = RunStatus.CANCELLED
        except asyncio.CancelledError:
            await self._release()
            raise
        except VibeLlmsError as failure:
            status, error = RunStatus.FAILED, failure
        match error:
            case LimitExceeded(retry_after=float(wait)) if not self._run.recipe.awaited:
                await self._release(wait)
                return
        if isinstance(error, StorageUnavailable):
            self._stop_recording(error)
        if self._problem is not None:
            self.lose()
            raise self._problem
        if self.lost or isinstance(error, LeaseLost):
            self.lose()
            return
        await self._finish(status, error, reason)
        # Break the reference cycle of this job with its turn and conversation.
        self._turn = self._opened = None

    async def _run_turn(self) -> str:
        run = self._run
        prompt = await offload(len(run.prompt) > LOOP_BYTES, read_lines, run.prompt)
        conversation = await self._open(run)
        if last := find_end(conversation.canisters, prompt):
            conversation = await conversation.fork(last)
        self._opened = conversation
        history = conversation.canisters
        self.resumed = any(one.identity == prompt[0].identity for one in history)
        if run.epoch > 1 or self.resumed:
            await self._continue(conversation, {one.identity for one in prompt})
        self._report_moved()
        if run.epoch > 1:
            await self._read_decisions()
        if self._cancelled or run.cancelling:
            return StopReason.INTERRUPTED
        self._check()
        instructions = [*run.recipe.instructions]
        if self.resumed:
            instructions += describe_loss(history, conversation.settings.toolbox.ensembles)
        traced = conversation.settings.tracer.continuing(run.recipe.parent)
        template = conversation.settings.template
        steering = RunSteering(self._store, self.lease, self._guard, template, self._removed)
        with self._store.fenced(self.lease), traced:
            self._turn = conversation.begin_recorded(
                prompt,
                instructions=[*map(SupervisorCanister.from_text, instructions)],
                controls=run.recipe.produce_controls(),
                form=run.recipe.produce_form(),
                event_handler=self.recorder,
                record=self,
                steering=steering,
            )
        try:
            turn = await asyncio.shield(self._turn.task)
        except asyncio.CancelledError:
            self._turn.interrupt()
            # The outcome does not matter anymore.
            await asyncio.gather(self._turn.task, return_exceptions=True)
            if self.task.cancelling():
                raise
            raise LeaseLost(f"the run {run.identity} was lost") from None
        return turn.stop_reason

    async def _read_decisions(self) -> None:
        """Read the approvals and questions of earlier epochs."""
        user, run = self._run.user, self._run.identity
        approvals = await self._guard(self._store.survey_approvals(user, run))
        self._approvals = {one.invocation: one for one in approvals}
        asked = await self._guard(self._store.survey_questions(user, run))
        self._questions = {one.identity: one for one in asked}
        for one in asked:
            if one.held and one.answer is None:
                # The process of the call that asked has ended.
                gone = ElicitationAnswer("cancel")
                await self._guard(self._store.close_question(self.lease, one.identity, gone))

    async def _continue(self, conversation: Conversation, prompt: Collection[str]) -> None:
        """Record that the run continues, and events that the history implies but were lost."""
        events: list[RunEvent] = []
        after = 0
        user, run = self._run.user, self._run.identity
        while batch := await self._guard(
            self._store.read_events(user, run, after=after, limit=_BATCH)
        ):
            events += [decode_event(data) for _, data in batch]
            after = batch[-1][0]
        history = conversation.canisters
        places = [index for index, one in enumerate(history) if one.identity in prompt]
        rest = history[places[-1] + 1 :] if places else ()
        self._fruitless = count_fruitless(events)
        self.recorder.put(RunContinued(find_open(events, {one.identity for one in rest})))
        added = await with_texts(rest, conversation.history.load)
        for event in find_missing(events, added):
            self.recorder.put(event)
        # Before the model is called again.
        await self.flush()

    async def _suspend(self) -> None:
        requests = [ApprovalRequested(one.invocation, one.name, one.reason) for one in self._wanted]
        with suppress(LeaseLost):
            events = await self.recorder.close(*requests, *map(_request_answer, self._asked))
            await self._store.suspend(self.lease, self._wanted, events, questions=self._asked)

    async def _release(self, seconds: float = 0.0) -> None:
        with suppress(LeaseLost):
            await self._store.release(self.lease, seconds)

    async def _finish(self, status: RunStatus, error: VibeLlmsError | None, reason: str) -> None:
        text = "" if error is None else redact(str(error))
        kind = "" if error is None else type(error).__name__
        wait = None if error is None else find_wait(error)
        with suppress(LeaseLost):
            early = status is not RunStatus.COMPLETED or reason in FINAL_REASONS
            if early and (left := await self._find_unsent()):
                self.recorder.put(notice_left(left))
            events = await self.recorder.close(RunEnded(status, text, wait))
            await self._store.finish(
                self.lease, status, events, reason=reason, error=text, kind=kind
            )

    async def _find_unsent(self) -> Sequence[UserCanister]:
        """Return the user's added messages that are not, or no longer, in the history."""
        history = () if self._opened is None else self._opened.canisters
        stored = {one.identity for one in history}
        unsent = [*self._removed]
        for message in await self._guard(self._store.take_steering(self.lease)):
            if message.identity in stored:
                # Its worker was killed after it stored the message.
                await self._guard(self._store.settle_steering(self.lease, message.identity))
            else:
                unsent.append(message)
        return unsent


def _request_answer(question: RunQuestion) -> AnswerRequested:
    return AnswerRequested(question.identity, question.invocation, question.name, question.held)


def hash_definition(invoker: Invoker, reason: str) -> str:
    """Hash the definition of a tool and the reason to ask, for which a decision is valid."""
    data = (invoker.name, invoker.description, invoker.arguments_schema, invoker.approval, reason)
    return hashlib.sha256(msgspec.json.encode(data, order="sorted")).hexdigest()
