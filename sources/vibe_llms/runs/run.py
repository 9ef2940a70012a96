"""`Run`: follow a recorded turn, decide on its calls, cancel it, from any process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Generic

from vibe_llms.exceptions import RunFailed
from vibe_llms.invocation.approval import Decision
from vibe_llms.invocation.questions import ElicitationAnswer
from vibe_llms.messages.canisters import InvocationCanister, T, Turn
from vibe_llms.runs.events import (
    RunEnded,
    RunEvent,
    RunExpired,
    cut,
    decode_event,
    encode_event,
    first_cursor,
)
from vibe_llms.runs.interfaces import (
    CallApproval,
    RunQuestion,
    RunRecord,
    RunStatus,
    RunStore,
)
from vibe_llms.runs.news import wait_for
from vibe_llms.runs.worker import RunWorker

#: How often a follower in another process looks for events, and how often if it hears of them.
_LOOK_SECONDS = 0.2
_HEARD_SECONDS = 2.0
#: So many events are read at once.
_BATCH = 1000


class Run(Generic[T]):
    """A recorded turn. Made by `session.start`, found by `session.access_run`."""

    def __init__(
        self,
        record: RunRecord,
        store: RunStore,
        worker: RunWorker,
        read_turn: Callable[[RunRecord], Awaitable[Turn[T]]],
        conversation: object = None,
    ) -> None:
        """A run; `conversation` is kept for as long as this is."""
        self._record = record
        self._store = store
        self._worker = worker
        self._read_turn = read_turn
        self._conversation = conversation

    @property
    def identity(self) -> str:
        """Its identity; any process finds the run by it."""
        return self._record.identity

    @property
    def record(self) -> RunRecord:
        """What was known of it when it was last looked at."""
        return self._record

    async def access(self) -> RunRecord:
        """What is known of it now."""
        self._record = await self._store.refresh(self._record)
        return self._record

    async def events(self, *, after: int = 0) -> AsyncGenerator[tuple[int, RunEvent], None]:
        """The events after a cursor, each with its own cursor, until the run ends.

        It can be called at any time, also after the end. A follower that continues with the cursor
        of the last event that arrived gets every later one once. If they were deleted, some days
        after the end, it gets `RunExpired` in their place.
        """
        with self._worker.expecting(self.identity) as news:
            while True:
                # Before the store is read: what happens then is either found or heard.
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
                        # There is nothing in between.
                        after = max(after, recorded)
                        await recorder.wait(after)
                    continue
                if not events and await self._has_ended(after):
                    for cursor, event in await self._find_end(after):
                        yield cursor, event
                    return
                if len(events) < _BATCH:
                    await wait_for(news, _HEARD_SECONDS if self._store.hears else _LOOK_SECONDS)

    async def _read(self, after: int) -> Sequence[tuple[int, RunEvent]]:
        user = self._record.user
        found = await self._store.read_events(user, self.identity, after=after, limit=_BATCH)
        return [*cut([(cursor, decode_event(data)) for cursor, data in found], after)]

    async def _has_ended(self, after: int) -> bool:
        """Whether it has ended, and nothing was recorded after a cursor."""
        return (await self.access()).status.ended and not await self._read(after)

    async def _find_end(self, after: int) -> Sequence[tuple[int, RunEvent]]:
        """The event in place of those that were deleted, unless a follower has seen the end."""
        record, end = self._record, first_cursor(self._record.epoch + 1)
        seen = [event for cursor, event in await self._read(after - 1) if cursor == after]
        if after >= end or any(isinstance(event, RunEnded) for event in seen):
            return ()
        return [(end, RunExpired(record.status, record.error))]

    async def survey_events(self) -> Sequence[RunEvent]:
        """The events that are recorded by now."""
        found: list[RunEvent] = []
        after = 0
        while events := await self._read(after):
            found += [event for _, event in events]
            after = events[-1][0]
        return found

    async def survey_approvals(self) -> Sequence[CallApproval]:
        """The calls that it waits or waited for."""
        return await self._store.survey_approvals(self._record.user, self.identity)

    async def decide(
        self, invocation: str | InvocationCanister, decision: Decision
    ) -> CallApproval:
        """Decide on a call that the run waits for; it continues in any process that works on runs.

        `DecisionRefused` if it was decided otherwise before. What a decision remembers is not used:
        it holds for this call.
        """
        call = invocation if isinstance(invocation, str) else invocation.identity
        made = await self._store.decide(
            self._record.user,
            self.identity,
            call,
            allowed=decision.allowed,
            explanation=decision.reason,
        )
        self._worker.expect(self.identity)
        return made

    async def survey_questions(self) -> Sequence[RunQuestion]:
        """The questions that it asks or asked."""
        return await self._store.survey_questions(self._record.user, self.identity)

    async def answer(self, question: str, answer: ElicitationAnswer) -> RunQuestion:
        """Answer a question of the run; it continues in any process that works on runs.

        `AnswerInvalid` if the answer does not fit the form, `DecisionRefused` if the question was
        answered otherwise before.
        """
        asked = {one.identity: one.request for one in await self.survey_questions()}
        if question in asked and answer.action == "accept" and not asked[question].url:
            answer = ElicitationAnswer("accept", asked[question].settle(answer.values))
        made = await self._store.answer(self._record.user, self.identity, question, answer)
        self._worker.expect(self.identity)
        return made

    async def cancel(self) -> RunStatus:
        """Ask for its end; the worker that has it ends the request within a second.

        Returns its status. What arrived is kept.
        """
        ended = encode_event(RunEnded(RunStatus.CANCELLED))
        status = await self._store.cancel(self._record.user, self.identity, ended)
        self._worker.poke()
        return status

    async def result(self) -> Turn[T]:
        """The finished turn; waits for its end. `RunFailed` says why there is none.

        Its `output` is of the type that the run was begun with here; in other processes, and for
        runs that are found by their identity, it has plain values. `OutputInvalid` if the type
        refuses what its schema allows.
        """
        async for _ in self.events():
            pass
        record = await self.access()
        if record.status is RunStatus.FAILED:
            raise RunFailed(record.error, error=record.kind)
        return await self._read_turn(record)

    async def read(self) -> Turn[T]:
        """What is durable of its turn by now; it has no output before it has completed."""
        return await self._read_turn(await self.access())
