"""`Run`: a recorded turn that any process can follow, approve, or cancel."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic

from vibe_llms.base.exceptions import DecisionRefused, RunFailed
from vibe_llms.conversations.prompts import Prompt
from vibe_llms.conversations.steering import read_steering
from vibe_llms.invocation.approval import Decision
from vibe_llms.invocation.questions import ElicitationAnswer
from vibe_llms.messages.canisters import InvocationCanister, T, Turn, UserCanister
from vibe_llms.runs.events import (
    RunEnded,
    RunEvent,
    RunExpired,
    cut,
    decode_event,
    first_cursor,
)
from vibe_llms.runs.interfaces import (
    CallApproval,
    RequestKey,
    RunDecisions,
    RunQuestion,
    RunRecord,
    RunStatus,
)
from vibe_llms.runs.news import wait_for
from vibe_llms.runs.steering import end_cancelled
from vibe_llms.runs.worker import RunWorker

#: Seconds between polls of a follower in another process, without and with notifications.
_POLL_SECONDS = 0.2
_LISTENING_POLL_SECONDS = 2.0
#: Maximum number of events read at once.
_BATCH = 1000


class Run(Generic[T]):
    """A recorded turn, started with `session.start` or found with `session.access_run`."""

    def __init__(
        self,
        record: RunRecord,
        store: RunDecisions,
        worker: RunWorker,
        read_turn: Callable[[RunRecord], Awaitable[Turn[T]]],
        conversation: object = None,
    ) -> None:
        """Create a run; it keeps a reference to `conversation`."""
        self._record = record
        self._store = store
        self._worker = worker
        self._read_turn = read_turn
        self._conversation = conversation

    @property
    def identity(self) -> str:
        """Identity by which any process finds the run."""
        return self._record.identity

    @property
    def record(self) -> RunRecord:
        """The record as last read."""
        return self._record

    async def access(self) -> RunRecord:
        """Read the current record."""
        self._record = await self._store.refresh(self._record)
        return self._record

    async def events(self, *, after: int = 0) -> AsyncGenerator[tuple[int, RunEvent], None]:
        """Yield the events after a cursor, each with its cursor, until the run ends.

        May be called at any time, even after the end. A follower that resumes with the cursor of
        its last event gets each later event exactly once. If the events were deleted, some days
        after the end, it gets `RunExpired` instead.
        """
        with self._worker.expecting(self.identity) as news:
            while True:
                # Before the store is read, so that changes in between are not missed.
                news.clear()
                recorder = self._worker.access_recorder(self.identity)
                recorded = 0 if recorder is None else recorder.recorded
                if recorder is not None and after >= recorder.start:
                    events = recorder.read(after)
                else:
                    events = await self._read(after)
                for cursor, event in events:
                    yield cursor, event
                    after = cursor
                    if isinstance(event, RunEnded):
                        return
                if recorder is not None:
                    if not events:
                        # No events in between.
                        after = max(after, recorded)
                        await recorder.wait(after)
                    continue
                if not events and await self._has_ended(after):
                    for cursor, event in await self._find_end(after):
                        yield cursor, event
                    return
                if len(events) < _BATCH:
                    await wait_for(
                        news, _LISTENING_POLL_SECONDS if self._store.hears else _POLL_SECONDS
                    )

    async def _read(self, after: int) -> Sequence[tuple[int, RunEvent]]:
        user = self._record.user
        found = await self._store.read_events(user, self.identity, after=after, limit=_BATCH)
        return [*cut([(cursor, decode_event(data)) for cursor, data in found], after)]

    async def _has_ended(self, after: int) -> bool:
        """Return True if the run has ended and no events were recorded after the cursor."""
        return (await self.access()).status.ended and not await self._read(after)

    async def _find_end(self, after: int) -> Sequence[tuple[int, RunEvent]]:
        """Return an event that replaces deleted ones, unless the follower has seen the end."""
        record, end = self._record, first_cursor(self._record.epoch + 1)
        seen = [event for cursor, event in await self._read(after - 1) if cursor == after]
        if after >= end or any(isinstance(event, RunEnded) for event in seen):
            return ()
        return [(end, RunExpired(record.status, record.error))]

    async def survey_events(self) -> Sequence[RunEvent]:
        """Return the events recorded so far."""
        found: list[RunEvent] = []
        after = 0
        while events := await self._read(after):
            found += [event for _, event in events]
            after = events[-1][0]
        return found

    async def survey_approvals(self) -> Sequence[CallApproval]:
        """Return the calls that needed approval; their arguments are in `survey_calls`."""
        return await self._store.survey_approvals(self._record.user, self.identity)

    async def survey_calls(self) -> Mapping[str, InvocationCanister]:
        """Return the stored calls of the turn with their arguments, by identity.

        An approval names its call in `invocation`. The call is stored before it is requested.
        """
        return find_calls(await self.read())

    async def decide(
        self, invocation: str | InvocationCanister, decision: Decision
    ) -> CallApproval:
        """Decide on a call; any process that works on runs then continues the run.

        `Decision.ALWAYS_TOOL` also allows the later calls of the tool in this conversation, while
        its definition is the same, unless a call asks each time; any other decision applies to this
        call only. Raises `DecisionRefused` if it was decided differently before.
        """
        call = invocation if isinstance(invocation, str) else invocation.identity
        asked = await self.survey_approvals()
        always = decision.allowed and decision.remember == "tool"
        known = next((one for one in asked if one.invocation == call), None)
        made = await self._decide(call, decision, always=always and not (known and known.each_time))
        for one in asked if made.always else ():
            same = (one.name, one.definition) == (made.name, made.definition)
            if same and one.allowed is None and one.invocation != call and not one.each_time:
                # Somebody else may have decided on it.
                with suppress(DecisionRefused):
                    await self._decide(one.invocation, decision, always=True)
        self._worker.expect(self.identity)
        return made

    async def _decide(self, call: str, decision: Decision, *, always: bool) -> CallApproval:
        return await self._store.decide(
            self._record.user,
            self.identity,
            call,
            allowed=decision.allowed,
            explanation=decision.reason,
            always=always,
        )

    async def survey_questions(self) -> Sequence[RunQuestion]:
        """Return the questions that the run has asked."""
        return await self._store.survey_questions(self._record.user, self.identity)

    async def answer(self, question: str, answer: ElicitationAnswer) -> RunQuestion:
        """Answer a question; any process that works on runs then continues the run.

        Raises `AnswerInvalid` if the answer does not fit the form, and `DecisionRefused` if the
        question was answered differently before.
        """
        asked = {one.identity: one.request for one in await self.survey_questions()}
        if question in asked and answer.action == "accept" and not asked[question].url:
            answer = ElicitationAnswer("accept", asked[question].check(answer.values))
        made = await self._store.answer(self._record.user, self.identity, question, answer)
        self._worker.expect(self.identity)
        return made

    async def steer(self, prompt: Prompt) -> str:
        """Add a message to the turn and return its identity.

        The worker stores it and sends it with the next request, after the results of the calls; if
        the run waits for a decision, after that. If the model has just given its last reply, it is
        asked again. Raises `SteeringRefused` if the run has ended or is about to end, and
        `SteeringQueueFull` if too many messages wait.
        """
        return (await self.steer_once(prompt, None)).identity

    async def steer_once(self, prompt: Prompt, request: RequestKey | None) -> UserCanister:
        """Add a message like `steer` and return it, or the earlier message of the same request.

        Raises `RequestKeyReused` if the key belongs to another request.
        """
        message = read_steering(prompt, None)
        return await self._store.steer(self._record.user, self.identity, message, request)

    async def survey_queued(self) -> Sequence[UserCanister]:
        """Return the messages of `steer` that are not sent yet, in order."""
        return await self._store.survey_steering(self._record.user, self.identity)

    async def take_back(self, message: str) -> UserCanister:
        """Remove a message that is not sent yet and return it.

        Raises `SteeringRefused` if it was sent, or taken back before.
        """
        return await self._store.take_back(self._record.user, self.identity, message)

    async def cancel(self) -> RunStatus:
        """Request the end of the run, and return its status.

        Its worker stops within a second. Messages that arrived are kept.
        """
        status = await self._store.cancel(self._record.user, self.identity, end_cancelled)
        self._worker.poke()
        return status

    async def result(self) -> Turn[T]:
        """Wait for the end, and return the finished turn.

        `output` has the type given when the run was started here, and plain values in other
        processes or for runs found by identity.

        Raises:
            RunFailed: The run failed.
            OutputInvalid: The output fits the schema but not the type.
        """
        async for _ in self.events():
            pass
        record = await self.access()
        if record.status is RunStatus.FAILED:
            raise RunFailed(record.error, error=record.kind)
        return await self._read_turn(record)

    async def read(self) -> Turn[T]:
        """Return the durable part of the turn; it has no output before the run has completed."""
        return await self._read_turn(await self.access())


def find_calls(turn: Turn[Any]) -> Mapping[str, InvocationCanister]:
    """Return the calls of a turn by identity."""
    return {one.identity: one for one in turn.canisters if isinstance(one, InvocationCanister)}
