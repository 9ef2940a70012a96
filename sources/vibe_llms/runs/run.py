"""`Run`: follow a recorded turn, decide on its calls, cancel it, from any process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from vibe_llms.exceptions import RunFailed
from vibe_llms.invocation.approval import Decision
from vibe_llms.messages.canisters import InvocationCanister, Turn
from vibe_llms.runs.events import RunEnded, RunEvent, cut, decode_event, encode_event
from vibe_llms.runs.interfaces import CallApproval, RunRecord, RunStatus, RunStore
from vibe_llms.runs.worker import RunWorker

#: How often a follower in another process looks for events.
_LOOK_SECONDS = 0.2


class Run:
    """A recorded turn. Made by `session.start`, found by `session.access_run`."""

    def __init__(
        self,
        record: RunRecord,
        store: RunStore,
        worker: RunWorker,
        read_turn: Callable[[RunRecord], Awaitable[Turn]],
    ) -> None:
        self._record = record
        self._store = store
        self._worker = worker
        self._read_turn = read_turn

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
        self._record = await self._store.access(self._record.user, self._record.identity)
        return self._record

    async def events(self, *, after: int = 0) -> AsyncIterator[tuple[int, RunEvent]]:
        """The events after a cursor, each with its own cursor, until the run ends.

        It can be called at any time, also after the end. A follower that continues with the cursor
        of the last event that arrived gets every later one once.
        """
        while True:
            recorder = self._worker.access_recorder(self.identity)
            if recorder is not None and after >= recorder.recorded:
                events = recorder.read(after)
            else:
                user = self._record.user
                found = await self._store.read_events(user, self.identity, after=after)
                events = [*cut([(one, decode_event(data)) for one, data in found], after)]
            for cursor, event in events:
                yield cursor, event
                after = cursor
                if isinstance(event, RunEnded):
                    return
            if events:
                continue
            if recorder is not None and after >= recorder.recorded:
                await recorder.wait(after)
            elif recorder is None:
                if (record := await self.access()).status.ended and not await self._has_more(after):
                    # Its events were deleted, some days after its end.
                    yield after, RunEnded(record.status, record.error)
                    return
                await asyncio.sleep(_LOOK_SECONDS)

    async def _has_more(self, after: int) -> bool:
        user = self._record.user
        return bool(await self._store.read_events(user, self.identity, after=after, limit=1))

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
        self._worker.poke()
        return made

    async def cancel(self) -> RunStatus:
        """Ask for its end; the worker that has it ends the request within a second.

        Returns its status. What arrived is kept.
        """
        ended = encode_event(RunEnded(RunStatus.CANCELLED))
        status = await self._store.cancel(self._record.user, self.identity, ended)
        self._worker.poke()
        return status

    async def result(self) -> Turn:
        """The finished turn; waits for its end. `RunFailed` says why there is none."""
        async for _ in self.events():
            pass
        record = await self.access()
        while not record.status.ended:
            # Its last event is recorded right before it ends.
            await asyncio.sleep(_LOOK_SECONDS / 10)
            record = await self.access()
        if record.status is RunStatus.FAILED:
            raise RunFailed(record.error, error=record.kind)
        return await self._read_turn(record)
