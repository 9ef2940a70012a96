"""Works on runs: claims them, holds their leases, continues what other workers left."""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

import msgspec

from vibe_llms.configuration import RunSettings
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.streams import RunningTurn
from vibe_llms.credentials import get_logger
from vibe_llms.exceptions import LeaseLost, StorageError, VibeLlmsError
from vibe_llms.invocation.approval import ApprovalRequest, Decision
from vibe_llms.invocation.execution import INTERRUPTED, CallSuspended
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
    StopReason,
    role_of,
)
from vibe_llms.messages.codecs import decode_canister, encode_canister
from vibe_llms.messages.contents import ReasoningContent, TextualContent
from vibe_llms.redaction import redact
from vibe_llms.runs.events import (
    ApprovalRequested,
    CallEnded,
    CallStarted,
    ConversationChanged,
    DeltaKind,
    MessageCompleted,
    MessageDelta,
    MessageFailed,
    MessageStarted,
    RunContinued,
    RunEnded,
    RunEvent,
    decode_event,
)
from vibe_llms.runs.interfaces import CallApproval, Lease, RunRecord, RunStatus, RunStore
from vibe_llms.runs.recorder import RunRecorder

_LOGGER = get_logger("vibe_llms.runs")

#: How often a worker looks for orders of other processes while it works, and while it does not.
_BUSY_SECONDS = 0.2
_IDLE_SECONDS = 1.0
#: So many events are read at once.
_BATCH = 1000


#: Gives the conversation of a run, rebuilt from its recipe where this process has not got it.
#: Its history does not have the prompt yet, or has all of the run so far.
ConversationOpener: TypeAlias = Callable[[RunRecord], Awaitable[Conversation]]


class RunWorker:
    """Works on the runs of some users, several at the same time."""

    def __init__(
        self,
        store: RunStore,
        users: Collection[str],
        open_conversation: ConversationOpener,
        settings: RunSettings,
    ) -> None:
        self._store = store
        self._users = users
        self._open = open_conversation
        self._lease_seconds = settings.lease_seconds
        self._parallel = settings.parallel
        self._jobs: dict[str, RunJob] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._problem = ""
        self._paused = False
        self._burying: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Whether it has a run."""
        return bool(self._jobs)

    def access_recorder(self, run: str) -> RunRecorder | None:
        """What followers in this process listen to, if this worker has the run."""
        job = self._jobs.get(run)
        return None if job is None else job.recorder

    def pause(self) -> None:
        """Claim no runs in this process until `resume`; they are left to others."""
        self._paused = True

    def resume(self) -> None:
        """Work on runs in this process again."""
        self._paused = False
        self.poke()

    def poke(self) -> None:
        """Start if it has not, and look for orders now."""
        if self._paused:
            return
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="worker of runs")
            self._beating = asyncio.create_task(self._beat(), name="leases of runs")
        self._news.set()

    async def close(self) -> None:
        """Give back the runs it has, so that another worker continues them; safe to call twice."""
        tasks = [task for task in (self._task, self._beating) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        jobs = [*self._jobs.values()]
        for job in jobs:
            job.give_back()
        await asyncio.gather(*(job.task for job in jobs), return_exceptions=True)
        await asyncio.gather(*self._burying, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            try:
                await self._look()
                self._problem = ""
            except StorageError as error:
                # The store may be back in a moment; the leases end if it is not.
                if str(error) != self._problem:
                    self._problem = str(error)
                    _LOGGER.warning("runs cannot be looked for: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(_BUSY_SECONDS if self._jobs else _IDLE_SECONDS):
                    await self._news.wait()
            self._news.clear()

    async def _look(self) -> None:
        orders = await self._store.read_orders(self._users, self._jobs.keys())
        for run in orders.cancel:
            if run in self._jobs:
                self._jobs[run].cancel()
        while orders.claimable and len(self._jobs) < self._parallel:
            record = await self._store.claim(self._users, self._lease_seconds)
            if record is None:
                break
            if (earlier := self._jobs.get(record.identity)) is not None:
                # This process was stopped for longer than its lease.
                earlier.lose()
            job = RunJob(self._store, record, self._open)
            self._jobs[record.identity] = job
            job.task.add_done_callback(functools.partial(self._forget, job))

    def _forget(self, job: RunJob, task: asyncio.Task[None]) -> None:
        if self._jobs.get(job.lease.run) is job:
            del self._jobs[job.lease.run]
        self._news.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            # A fault in this library or in a plugin: another worker would meet it too.
            _LOGGER.error("the run %s failed", job.lease.run, exc_info=error)
            self._burying.add(burial := asyncio.create_task(job.fail(error)))
            burial.add_done_callback(self._burying.discard)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            leases = [job.lease for job in self._jobs.values()]
            if leases:
                with suppress(StorageError):
                    for lost in await self._store.renew(leases, self._lease_seconds):
                        if (job := self._jobs.get(lost.run)) is not None and job.lease == lost:
                            job.lose()


class RunJob:
    """One run while this process works on it; the `TurnRecord` of its turn."""

    def __init__(
        self, store: RunStore, record: RunRecord, open_conversation: ConversationOpener
    ) -> None:
        self.lease = Lease(record.user, record.identity, record.epoch)
        self._store = store
        self._run = record
        self._open = open_conversation
        self._conversation = record.conversation
        self._approvals: Mapping[str, CallApproval] = {}
        self._wanted: list[CallApproval] = []
        self._turn: RunningTurn | None = None
        self._lost = self._cancelled = False
        self._identity: Callable[[], str] = lambda: record.conversation
        self.recorder = RunRecorder(store, self.lease, fail=self.lose)
        self.resumed = False
        self.vouched: Collection[str] = record.vouched
        self.task = asyncio.create_task(self._hold(), name=f"run {record.identity}")

    def cancel(self) -> None:
        """Cancel the turn, because its user wants that; what arrived is kept."""
        self._cancelled = True
        if self._turn is not None:
            self._turn.interrupt(quietly=True)

    def lose(self) -> None:
        """Stop at once, and keep nothing: another process has the run."""
        self._lost = True
        self.recorder.drop()
        if self._turn is not None:
            self._turn.interrupt()

    def give_back(self) -> None:
        """Stop at once, so that another process continues from what is durable."""
        self._lost = True
        self.recorder.drop()
        self.task.cancel()

    async def vouch(self, documents: Collection[str]) -> None:
        """Record which documents are trusted, before the prompt is kept."""
        await self._store.vouch(self.lease, documents)

    async def begin_call(self, invocation: InvocationCanister, invoker: Invoker) -> str:
        """Record that a call runs now; returns why it cannot, if it may have run before."""
        self.check()
        earlier = await self._guard(self._store.begin_call(self.lease, invocation.identity))
        if not earlier:
            return ""
        if not (invoker.pure or invoker.idempotent):
            return INTERRUPTED
        await self._guard(self._store.begin_again(self.lease, invocation.identity))
        return ""

    async def decide(self, request: ApprovalRequest) -> Decision:
        """The decision on a call; raises `CallSuspended` if there is none yet."""
        call, invoker = request.invocation, request.invoker
        known = self._approvals.get(call.identity)
        definition = hash_definition(invoker, request.reason)
        if known is not None and known.allowed is not None and known.definition == definition:
            return Decision(known.allowed, reason=known.explanation)
        self._wanted.append(
            CallApproval(
                invocation=call.identity,
                name=invoker.name,
                reason=request.reason,
                definition=definition,
            )
        )
        raise CallSuspended(invoker.name)

    async def confirm(self) -> None:
        """Ask whether the run is still this process's."""
        await self._guard(self._store.check(self.lease))

    def check(self) -> None:
        """The same, by what this process knows."""
        if self._lost:
            raise LeaseLost(f"another process has taken the run {self._run.identity} over")

    def report_kept(self, canisters: Sequence[Canister]) -> None:
        """Report that messages are durable."""
        if (conversation := self._identity()) != self._conversation:
            self._conversation = conversation
            self.recorder.put(ConversationChanged(conversation))
        self.recorder.report_kept([one.identity for one in canisters])

    async def fail(self, error: BaseException) -> None:
        """End the run because of an error that nothing foresaw."""
        self.recorder.drop()
        with suppress(StorageError):
            text = redact(f"{type(error).__name__}: {error}")
            await self._store.finish(
                self.lease, RunStatus.FAILED, error=text, kind=type(error).__name__
            )

    async def _guard(self, work: Awaitable[object]) -> int:
        """The result of work of the store; where the lease is lost, nothing more is kept."""
        try:
            result = await work
        except LeaseLost:
            self._lost = True
            raise
        return result if isinstance(result, int) else 0

    async def _hold(self) -> None:
        status, error = RunStatus.COMPLETED, None
        try:
            reason = await self._hold_turn()
            if reason == StopReason.SUSPENDED:
                await self._suspend()
                return
            if reason == StopReason.INTERRUPTED:
                status = RunStatus.CANCELLED
        except LeaseLost:
            self.lose()
            return
        except asyncio.CancelledError:
            await self._release()
            raise
        except VibeLlmsError as failure:
            if self._lost:
                return
            status, error = RunStatus.FAILED, failure
        await self._finish(status, error)

    async def _hold_turn(self) -> str:
        run = self._run
        conversation = await self._open(run)
        self._identity = lambda: conversation.identity
        prompt = [*read_lines(run.prompt)]
        history = conversation.canisters
        self.resumed = any(one.identity == prompt[0].identity for one in history)
        if run.epoch > 1:
            await self._continue(history, {one.identity for one in prompt})
        self._approvals = {
            one.invocation: one
            for one in await self._store.survey_approvals(run.user, run.identity)
        }
        if self._cancelled or run.cancelling:
            return StopReason.INTERRUPTED
        self._turn = conversation.begin_recorded(prompt, event_handler=self.recorder, record=self)
        try:
            turn = await asyncio.shield(self._turn.task)
        except asyncio.CancelledError:
            self._turn.interrupt()
            # How it ends makes no difference now.
            await asyncio.gather(self._turn.task, return_exceptions=True)
            if not asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise LeaseLost(f"the run {run.identity} was lost") from None
            raise
        return turn.stop_reason

    async def _continue(self, history: Sequence[Canister], prompt: Collection[str]) -> None:
        """Say where the run continues, and record what the history has beyond the events."""
        events: list[RunEvent] = []
        after = 0
        while batch := await self._store.read_events(
            self._run.user, self._run.identity, after=after, limit=_BATCH
        ):
            events += [decode_event(data) for _, data in batch]
            after = batch[-1][0]
        places = [index for index, one in enumerate(history) if one.identity in prompt]
        added = history[places[-1] + 1 :] if places else ()
        missing = [*find_missing(events, added)]
        known = {one.identity for one in added}
        self.recorder.put(RunContinued(find_open(events, known)))
        for event in missing:
            self.recorder.put(event)

    async def _suspend(self) -> None:
        for one in self._wanted:
            self.recorder.put(ApprovalRequested(one.invocation, one.name, one.reason))
        with suppress(LeaseLost):
            await self.recorder.close()
            await self._store.suspend(self.lease, self._wanted)

    async def _release(self) -> None:
        with suppress(LeaseLost):
            await self._store.release(self.lease)

    async def _finish(self, status: RunStatus, error: VibeLlmsError | None) -> None:
        text = "" if error is None else redact(str(error))
        self.recorder.put(RunEnded(status, text))
        with suppress(LeaseLost):
            await self.recorder.close()
            await self._store.finish(
                self.lease, status, error=text, kind="" if error is None else type(error).__name__
            )


def find_open(events: Sequence[RunEvent], stored: Collection[str]) -> str:
    """The message that was begun last and is not in the history; empty if there is none."""
    opened = ""
    for event in events:
        match event:
            case MessageStarted(message=message):
                opened = message
            case MessageCompleted() | MessageFailed() | RunContinued():
                opened = ""
    return "" if opened in stored else opened


def find_missing(events: Sequence[RunEvent], added: Sequence[Canister]) -> Iterator[RunEvent]:
    """The events that were lost with a worker, for what it had added to the history."""
    started = {one.message for one in events if isinstance(one, MessageStarted)}
    ended = {one.message for one in events if isinstance(one, MessageCompleted | MessageFailed)}
    running = {one.invocation for one in events if isinstance(one, CallStarted)}
    returned = {one.invocation for one in events if isinstance(one, CallEnded)}
    shown: dict[tuple[str, DeltaKind], int] = {}
    for one in events:
        if isinstance(one, MessageDelta):
            key = (one.message, one.kind)
            shown[key] = shown.get(key, 0) + len(one.text)
    names = {one.identity: one.name for one in added if isinstance(one, InvocationCanister)}
    for canister in added:
        identity = canister.identity
        match canister:
            case AssistantCanister() | InvocationCanister() if identity not in ended:
                if identity not in started:
                    name = getattr(canister, "name", "")
                    yield MessageStarted(identity, role_of(canister), canister.reply, name)
                for kind, text in _texts_of(canister):
                    if rest := text[shown.get((identity, kind), 0) :]:
                        yield MessageDelta(identity, rest, kind)
                yield MessageCompleted(identity)
            case ResultCanister(invocation=call) if call not in returned:
                if call not in running:
                    yield CallStarted(call, names.get(call, ""))
                yield CallEnded(call, identity, canister.failed)


def _texts_of(canister: AssistantCanister | InvocationCanister) -> Iterator[tuple[DeltaKind, str]]:
    if isinstance(canister, InvocationCanister):
        yield "arguments", canister.arguments
        return
    for kind, cls in (("reasoning", ReasoningContent), ("text", TextualContent)):
        texts = [one.text for one in canister.contents if isinstance(one, cls)]
        yield kind, "".join(texts)  # type: ignore[misc]


def hash_definition(invoker: Invoker, reason: str) -> str:
    """A hash of what a decision on a call was made for: the tool, and why it asked."""
    data = (invoker.name, invoker.description, invoker.arguments_schema, invoker.approval, reason)
    return hashlib.sha256(msgspec.json.encode(data, order="sorted")).hexdigest()


def read_lines(lines: bytes) -> Iterator[Canister]:
    """The canisters of lines."""
    for line in lines.split(b"\n"):
        if line:
            yield decode_canister(line)


def write_lines(canisters: Sequence[Canister]) -> bytes:
    """Canisters as lines."""
    return b"\n".join(map(encode_canister, canisters))
