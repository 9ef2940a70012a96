"""Contract checks for implementations of `RunStore`."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any, TypeAlias

import msgspec

from vibe_llms.base.exceptions import (
    ConversationBusy,
    DecisionRefused,
    LeaseLost,
    RequestError,
    RequestKeyReused,
    RequestRepeated,
    RunNotFound,
    SteeringQueueFull,
    SteeringRefused,
    StorageError,
    TooManyRuns,
    VibeLlmsError,
)
from vibe_llms.conversations.settings import TurnState
from vibe_llms.invocation.questions import (
    ElicitationAnswer,
    ElicitationField,
    ElicitationRequest,
)
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.runs.events import first_cursor
from vibe_llms.runs.interfaces import (
    UNFINISHED,
    CallApproval,
    Lease,
    Outline,
    Recipe,
    RequestKey,
    RunQuestion,
    RunRecord,
    RunStatus,
    RunStore,
)
from vibe_llms.runs.rules import MOST_QUEUED, MOST_QUEUED_BYTES
from vibe_llms.testing.limits import require

_Check: TypeAlias = "Callable[[_Stores], Awaitable[None]]"

#: Seconds to wait for the end of a lease whose time has passed.
_WAIT_SECONDS = 10.0
_LONG_SECONDS = 600.0
#: Number of tasks that do the same at the same time in two stores.
_RIVALS = 8
#: Number of runs that a user may have, in the check of this limit.
_MAX_RUNS = 3
_CALL = CallApproval(invocation="call", name="transfer", reason="it asks", definition="one")
_QUESTION = RunQuestion(
    identity="q",
    invocation="call",
    name="user/ask",
    request=ElicitationRequest(
        ensemble="the model",
        message="Which?",
        fields=(ElicitationField(name="answer", choices=(("a", "A"), ("b", "B")), default="a"),),
    ),
)
_STATE = TurnState(frozenset({"d"}), tainted=True)
_YES, _NO = ElicitationAnswer("accept", {"answer": "b"}), ElicitationAnswer("decline")
_EVENT = b'{"event":"completed","message":"m"}'
_ENDED = b'{"event":"ended","status":"cancelled"}'


def _end(left: Sequence[UserCanister]) -> Sequence[bytes]:
    return [*(one.identity.encode() for one in left), _ENDED]


async def check_run_store(open_store: Callable[[], Awaitable[RunStore]]) -> None:
    """Raise `AssertionError` if a run store breaks its contract.

    `open_store` opens the same store each time, as another process would; it is empty at first.
    Most checks use two stores. All are closed at the end.
    """
    stores = _Stores(await open_store(), await open_store())
    try:
        for check in _CHECKS:
            stores.begin(check.__name__.removeprefix("_check_").replace("_", "-"))
            await check(stores)
    finally:
        for store in (stores.one, stores.other):
            await store.close()
            # A second `close` must be harmless.
            await store.close()


class _Stores:
    """One store, opened twice, and a user of the current check only."""

    def __init__(self, one: RunStore, other: RunStore) -> None:
        self.one, self.other = one, other
        self.user = ""
        self._numbers = count(1)
        #: Numbers for conversations that no other run has.
        self.conversations = count(1)

    def begin(self, user: str) -> None:
        """Continue with another user."""
        self.user = user

    def record(self, conversation: str = "c", **changes: object) -> RunRecord:
        """Return a new run of the user, not stored yet."""
        now = datetime.now(UTC)
        record = RunRecord(
            identity=f"{self.user}-{next(self._numbers):04}",
            user=self.user,
            conversation=conversation,
            status=RunStatus.QUEUED,
            recipe=Recipe(model="scripted/demo"),
            prompt=b"a prompt",
            created=now,
            updated=now,
        )
        return msgspec.structs.replace(record, **changes)

    async def create(self, conversation: str = "c", **changes: object) -> RunRecord:
        """Store a new run of the user."""
        record = self.record(conversation, **changes)
        await self.one.create(record)
        return record

    async def claim(self, seconds: float = _LONG_SECONDS) -> Lease:
        """Wait for the next run of the user that can be claimed, and return its lease."""
        end = time.monotonic() + _WAIT_SECONDS
        while (record := await self.other.claim(self.user, seconds, known=())) is None:
            require(time.monotonic() < end, "a run that no worker has cannot be claimed")
            await asyncio.sleep(0.01)
        require(record.status is RunStatus.RUNNING, f"a claimed run is {record.status}")
        return Lease(record.user, record.identity, record.epoch)

    async def status(self, run: str) -> RunStatus:
        """Return the status of a run of the user."""
        return (await self.one.access(self.user, run)).status

    async def race(
        self, work: Callable[[RunStore], Awaitable[object]]
    ) -> tuple[Sequence[object], Sequence[VibeLlmsError]]:
        """Run the same work at the same time on both stores; return its results and errors."""
        stores = [self.one, self.other] * (_RIVALS // 2)
        done = await asyncio.gather(*map(work, stores), return_exceptions=True)
        failed = [one for one in done if isinstance(one, BaseException)]
        for error in failed:
            if not isinstance(error, VibeLlmsError):
                raise error
        results = [one for one in done if not isinstance(one, BaseException)]
        return results, [one for one in failed if isinstance(one, VibeLlmsError)]


async def _refuses(work: Awaitable[object], kind: type[VibeLlmsError], what: str) -> VibeLlmsError:
    """Require that the work raises this kind of error, and return the error."""
    try:
        await work
    except kind as error:
        return error
    raise AssertionError(f"{what}: no {kind.__name__} is raised")


async def _check_runs_are_found(stores: _Stores) -> None:
    first = stores.record("one", origin=b"from here", opening=b"before", state=_STATE)
    await stores.one.create(first)
    second = await stores.create("two")
    found = await stores.other.access(stores.user, first.identity)
    kept = {"updated": found.updated, "created": found.created}
    require(
        found == msgspec.structs.replace(first, **kept),
        f"{first} was stored, but {found} was found",
    )
    prefix = first.identity[: len(stores.user) + 1]
    await _refuses(stores.one.access(stores.user, prefix), RequestError, "two runs have a prefix")
    shorter = first.identity[:-1]
    await _refuses(stores.one.access(stores.user, shorter + "x"), RunNotFound, "an unknown run")
    await _refuses(stores.one.access(stores.user, first.identity[:3]), RunNotFound, "3 characters")
    await stores.one.cancel(stores.user, first.identity, _end)
    newest = [one.identity for one in await stores.other.survey(stores.user)]
    require(newest == [second.identity, first.identity], "runs are not listed from the newest on")
    limited = [one.identity for one in await stores.other.survey(stores.user, limit=1)]
    require(limited == [second.identity], "the limit of a list is exceeded")
    older = await stores.other.survey(stores.user, after=second.identity)
    require(
        [one.identity for one in older] == [first.identity], "a list does not continue after a run"
    )
    require(
        not await stores.other.survey(stores.user, after=first.identity),
        "a list continues after the oldest run",
    )
    for unknown in (first.identity + "x", first.identity[:-1]):
        await _refuses(
            stores.one.survey(stores.user, after=unknown), RunNotFound, "a list after no run"
        )
    choices: list[tuple[dict[str, Any], list[RunRecord]]] = [
        ({"statuses": [RunStatus.QUEUED]}, [second]),
        ({"statuses": [RunStatus.WAITING, RunStatus.QUEUED]}, [second]),
        ({"statuses": RunStatus}, [second, first]),
        ({"conversation": first.conversation}, [first]),
        ({"conversation": first.conversation, "statuses": UNFINISHED}, []),
        ({"conversation": first.conversation[:-1]}, []),
    ]
    for chosen, expected in choices:
        listed = [one.identity for one in await stores.other.survey(stores.user, **chosen)]
        require(listed == [one.identity for one in expected], f"{chosen} is ignored")


async def _check_lists_are_light(stores: _Stores) -> None:
    recipe, outline = Recipe(model="scripted/demo", hooks=("one",)), Outline(b"short", b"")
    made = await stores.create(recipe=recipe, opening=b"o", origin=b"from here", outline=outline)
    run, user = made.identity, stores.user
    whole = await stores.other.access(user, run)
    kept = {"outline": None, "created": whole.created, "updated": whole.updated}
    require(whole == msgspec.structs.replace(made, **kept), f"{made} was stored, not {whole}")
    (listed,) = await stores.other.survey(user)
    shown = msgspec.structs.replace(
        whole, recipe=Recipe(model="scripted/demo"), prompt=b"short", opening=b"", origin=b""
    )
    require(listed == shown, f"{listed} is listed, not {shown}")
    going = await stores.one.count_unfinished()
    ended = dict(stores.other.ended)
    await stores.other.finish(await stores.claim(), RunStatus.FAILED, error="e", kind="k")
    now = await stores.one.refresh(whole)
    require(now == await stores.one.access(user, run), f"a run that has ended is {now}")
    left = await stores.one.count_unfinished()
    lost = {one: going[one] - left[one] for one in going}
    require(lost[RunStatus.QUEUED] == 1, f"a run that has ended is counted: {left}")
    counts = stores.other.ended.get(RunStatus.FAILED, 0), ended.get(RunStatus.FAILED, 0)
    require(counts[0] == counts[1] + 1, "the end of a run is not counted")
    await _refuses(
        stores.one.refresh(msgspec.structs.replace(whole, identity=run + "x")),
        RunNotFound,
        "an unknown run",
    )


async def _check_users_are_apart(stores: _Stores) -> None:
    run, user = (await stores.create()).identity, stores.user
    lease = await stores.claim()
    await stores.other.append_events(lease, [(first_cursor(1) + 1, _EVENT)])
    await stores.other.suspend(lease, [_CALL])
    stranger = f"not-{user}"
    one = stores.one
    require(not await one.survey(stranger), "another user sees the runs of a list")
    require(not await one.read_events(stranger, run), "another user reads the events")
    require(not await one.survey_approvals(stranger, run), "another user sees the calls")
    await _refuses(one.access(stranger, run), RunNotFound, "another user's run")
    await _refuses(one.cancel(stranger, run, _end), RunNotFound, "another user cancels")
    decision = one.decide(stranger, run, "call", allowed=True)
    await _refuses(decision, RunNotFound, "another user decides")
    await one.remove(stranger, "c")
    await one.remove_run(stranger, run)
    require(await stores.status(run) is RunStatus.WAITING, "another user changes a run")
    # Each user can have the same names.
    await one.create(msgspec.structs.replace(stores.record(), identity=run, user=stranger))
    require(await one.claim(user, 1, known=()) is None, "a run of another user is claimed")
    await one.remove(stranger, "c")


async def _check_one_run_at_a_time(stores: _Stores) -> None:
    made, refused = await stores.race(lambda store: store.create(stores.record()))
    require(len(made) == 1, f"a conversation has {len(made)} runs at the same time")
    busy = [one for one in refused if isinstance(one, ConversationBusy)]
    require(len(busy) == len(refused), f"not ConversationBusy, but {refused}")
    (active,) = await stores.one.survey(stores.user)
    require(active.identity in str(busy[0]), "the error does not name the run that is active")
    await stores.create("another")
    await stores.other.finish(await stores.claim(), RunStatus.COMPLETED)
    await stores.create()


async def _check_a_user_has_so_many_runs(stores: _Stores) -> None:
    # These two runs do not count: one waits, one has ended.
    await stores.create("waits")
    await stores.one.suspend(await stores.claim(), [_CALL])
    await stores.create("ends")
    await stores.other.finish(await stores.claim(), RunStatus.COMPLETED)
    numbers = itertools.count()

    async def create(store: RunStore) -> str:
        record = stores.record(f"c{next(numbers)}")
        await store.create(record, most=_MAX_RUNS)
        return record.identity

    made, refused = await stores.race(create)
    require(
        len(made) == _MAX_RUNS, f"{len(made)} runs are created at the same time, not {_MAX_RUNS}"
    )
    others = [one for one in refused if not isinstance(one, TooManyRuns)]
    require(not others, f"not TooManyRuns, but {others}")
    await _refuses(create(stores.other), TooManyRuns, "one run more")
    await stores.one.cancel(stores.user, str(made[0]), _end)
    await create(stores.one)


async def _check_a_run_has_one_worker(stores: _Stores) -> None:
    runs = [(await stores.create(f"c{number}")).identity for number in range(3)]
    claims, failed = await stores.race(
        lambda store: store.claim(stores.user, _LONG_SECONDS, known=())
    )
    claimed = [one.identity for one in claims if isinstance(one, RunRecord)]
    require(not failed, f"claiming at the same time fails: {failed}")
    require(sorted(claimed) == runs, f"of {runs}, {claimed} were claimed")
    orders = await stores.one.read_orders(stores.user, (), known=())
    require(not orders.claimable, "a run that a worker has can be claimed")


async def _check_a_creator_may_be_the_worker(stores: _Stores) -> None:
    record = stores.record(status=RunStatus.RUNNING, epoch=1)
    await stores.one.create(record, _LONG_SECONDS)
    lease = Lease(stores.user, record.identity, 1)
    require(
        await stores.other.claim(stores.user, 1, known=()) is None,
        "a run is claimed although its creator works on it",
    )
    require(not await stores.one.renew([lease], 0), "the creator has no lease")
    require((await stores.claim()).epoch == 2, "the lease of a creator does not end")


async def _check_leases_end(stores: _Stores) -> None:
    run = (await stores.create()).identity
    await stores.claim(seconds=0)
    later = await stores.claim()
    require(later.epoch == 2, f"the second epoch is {later.epoch}")
    lost = await stores.one.renew([Lease(stores.user, run, 1), later], _LONG_SECONDS)
    require([*lost] == [Lease(stores.user, run, 1)], f"{lost} is lost, not the first lease")
    await stores.other.renew([later], 0)
    require((await stores.claim()).epoch == 3, "a lease that was renewed for 0 s does not end")
    third = Lease(stores.user, run, 3)
    await stores.other.renew([third], _LONG_SECONDS)
    require(
        await stores.one.claim(stores.user, 1, known=()) is None, "a renewed lease can be claimed"
    )
    await stores.one.release(third)
    require(await stores.status(run) is RunStatus.QUEUED, "a run that was released is not queued")
    require((await stores.claim()).epoch == 4, "a run that was released has no new epoch")


async def _check_runs_are_deferred(stores: _Stores) -> None:
    await stores.create()
    await stores.one.release(await stores.claim(), 0.3)
    later = await stores.claim()
    require(later.epoch == 2, f"a deferred run has the epoch {later.epoch}")
    await stores.one.release(later, _LONG_SECONDS)
    require(await stores.status(later.run) is RunStatus.QUEUED, "a deferred run is not queued")
    orders = await stores.other.read_orders(stores.user, (), known=())
    require(not orders.claimable, "a deferred run is offered to a worker")
    require(await stores.other.claim(stores.user, 1, known=()) is None, "a deferred run is claimed")
    ended = await stores.other.cancel(stores.user, later.run, _end)
    require(ended is RunStatus.CANCELLED, "a deferred run is not cancelled at once")
    cancelling = (await stores.create("another")).identity
    lease = await stores.claim()
    await stores.other.cancel(stores.user, cancelling, _end)
    await stores.one.release(lease, _LONG_SECONDS)
    orders = await stores.one.read_orders(stores.user, (), known=())
    require(orders.claimable, "a run that is to be cancelled waits")


#: All writes by the worker of a run.
_WRITES: dict[str, Callable[[RunStore, Lease], Awaitable[object]]] = {
    "check": lambda store, lease: store.check(lease),
    "record_state": lambda store, lease: store.record_state(lease, _STATE),
    "begin_call": lambda store, lease: store.begin_call(lease, "call"),
    "begin_again": lambda store, lease: store.begin_again(lease, "call"),
    "append_events": lambda store, lease: store.append_events(lease, [(7, _EVENT)]),
    "suspend": lambda store, lease: store.suspend(
        lease, [_CALL], [(7, _EVENT)], questions=[_QUESTION]
    ),
    "ask": lambda store, lease: store.ask(lease, _QUESTION),
    "close_question": lambda store, lease: store.close_question(lease, "q", _NO),
    "release": lambda store, lease: store.release(lease),
    "finish": lambda store, lease: store.finish(lease, RunStatus.FAILED, [(7, _EVENT)]),
}


async def _check_only_the_last_worker_writes(stores: _Stores) -> None:
    for name, write in _WRITES.items():
        run = (await stores.create(name)).identity
        earlier = await stores.claim(seconds=0)
        later = await stores.claim()
        await _refuses(write(stores.one, earlier), LeaseLost, f"{name} of an earlier epoch")
        found = await stores.other.access(stores.user, run)
        require(found.status is RunStatus.RUNNING, f"{name} of an earlier epoch ends the run")
        require(found.state == TurnState(), f"{name} of an earlier epoch is kept")
        require(not await stores.other.read_events(stores.user, run), "its events are kept")
        require(not await stores.other.survey_approvals(stores.user, run), "its calls are kept")
        require(not await stores.other.survey_questions(stores.user, run), "it asks")
        if name.startswith("begin"):
            require(
                await stores.other.begin_call(later, "call") == 0,
                f"{name} of an earlier epoch marks the call",
            )
        await write(stores.other, later)
        if not (await stores.other.access(stores.user, run)).status.ended:
            await stores.other.cancel(stores.user, run, _end)
        # The worker may still have it.
        await _finish(stores, later)
        await _refuses(write(stores.other, later), LeaseLost, f"{name} after the end")


async def _finish(stores: _Stores, lease: Lease) -> None:
    if not (await stores.status(lease.run)).ended:
        await stores.other.finish(lease, RunStatus.CANCELLED)


async def _check_the_state_of_a_turn_is_kept(stores: _Stores) -> None:
    run = (await stores.create()).identity
    await stores.other.record_state(await stores.claim(seconds=0), _STATE)
    later = await stores.claim()
    found = (await stores.one.access(stores.user, run)).state
    require(found == _STATE, f"the state {_STATE} was recorded, but {found} was found")
    await stores.other.record_state(later, TurnState())
    found = (await stores.one.access(stores.user, run)).state
    require(found == TurnState(), "a state is not replaced by the next")


async def _check_calls_are_marked(stores: _Stores) -> None:
    await stores.create()
    first = await stores.claim(seconds=0)
    require(await stores.other.begin_call(first, "call") == 0, "a call began too early")
    second = await stores.claim(seconds=0)
    require(await stores.other.begin_call(second, "call") == 1, "the start of a call is lost")
    require(await stores.other.begin_call(second, "call") == 1, "a call is marked again")
    await stores.other.begin_again(second, "call")
    third = await stores.claim()
    require(await stores.one.begin_call(third, "call") == 2, "the second start of a call is lost")
    require(await stores.one.begin_call(third, "other") == 0, "a call is mistaken for another")


async def _check_tools_are_needed(stores: _Stores) -> None:
    recipe = Recipe(model="scripted/demo", invokers=("transfer",))
    run = (await stores.create(recipe=recipe)).identity
    lacking: Sequence[tuple[str, ...]] = ((), ("look",))
    for known in lacking:
        orders = await stores.one.read_orders(stores.user, (), known=known)
        require(not orders.claimable, "a run is offered to a worker without its tools")
        require(
            await stores.one.claim(stores.user, 1, known=known) is None,
            "a worker without the tools gets the run",
        )
    known = ("transfer", "look")
    require((await stores.one.read_orders(None, (), known=known)).claimable, "it is not offered")
    claimed = await stores.one.claim(stores.user, _LONG_SECONDS, known=known)
    require(claimed is not None and claimed.identity == run, "it cannot be claimed")


async def _check_events_are_kept_once(stores: _Stores) -> None:
    run = (await stores.create()).identity
    lease = await stores.claim()
    start = first_cursor(lease.epoch)
    events = [(start + 5 * number, b"%d" % number) for number in range(1, 8)]
    await stores.other.append_events(lease, events[3:])
    await stores.other.append_events(lease, events[:3])

    async def read(after: int = 0, limit: int = 1000) -> list[tuple[int, bytes]]:
        found = await stores.one.read_events(stores.user, run, after=after, limit=limit)
        return [(cursor, bytes(data)) for cursor, data in found]

    require(await read() == events, f"{events} were stored, but {await read()} are read")
    for place, (cursor, _) in enumerate(events):
        require(await read(cursor - 1) == events[place:], f"after {cursor - 1} one is missing")
        require(await read(cursor) == events[place + 1 :], f"after {cursor} it is read again")
    require(await read(limit=2) == events[:2], "the limit of events is exceeded")
    again = stores.other.append_events(lease, [(events[-1][0], b"again")])
    await _refuses(again, StorageError, "a second event of the same cursor")
    both = stores.other.append_events(lease, [(start + 99, b"new"), (start + 5, b"again")])
    await _refuses(both, StorageError, "events of which one exists")
    require(await read() == events, "a refused write is stored in part")
    await stores.other.append_events(lease, [(start + 100, b"last")], conversation="fork")
    found = await stores.one.access(stores.user, run)
    require(found.conversation == "fork", "the conversation to which the run moved is not kept")


async def _check_decisions_are_made_once(stores: _Stores) -> None:
    run, user = (await stores.create()).identity, stores.user
    lease, cursor = await stores.claim(), first_cursor(1) + 1
    status = await stores.other.suspend(lease, [_CALL], [(cursor, _EVENT)])
    require(status is RunStatus.WAITING, f"a run that waits for a decision is {status}")
    require(await stores.status(run) is RunStatus.WAITING, "a waiting run does not emit its event")
    require(await stores.one.claim(user, 1, known=()) is None, "a run that waits is claimed")
    require(len(await stores.one.read_events(user, run)) == 1, "its last event is not kept")
    unknown = stores.one.decide(user, run, "another", allowed=True)
    await _refuses(unknown, DecisionRefused, "a decision on another call")
    rivals = iter([True, False] * _RIVALS)
    made, refused = await stores.race(
        lambda store: store.decide(user, run, "call", allowed=next(rivals), explanation="why")
    )
    kinds = {one.allowed for one in made if isinstance(one, CallApproval)}
    require(len(kinds) == 1, f"both decisions on a call are accepted: {made}")
    require(all(isinstance(one, DecisionRefused) for one in refused), f"it fails: {refused}")
    (decided,) = await stores.other.survey_approvals(user, run)
    require({decided.allowed} == kinds, "the decision that was made first is not kept")
    expected = msgspec.structs.replace(_CALL, allowed=decided.allowed, explanation="why")
    require(decided == expected, f"{decided} is stored, not {expected}")
    require(await stores.status(run) is RunStatus.QUEUED, "a decision does not queue the run")
    same = await stores.other.decide(user, run, "call", allowed=decided.allowed is True)
    require(same == decided, f"the same decision again is {same}, not the first one")
    opposite = stores.other.decide(user, run, "call", allowed=not decided.allowed)
    await _refuses(opposite, DecisionRefused, "another decision on a call")
    again = await stores.claim()
    status = await stores.other.suspend(again, [_CALL])
    require(status is RunStatus.QUEUED, f"a run whose call has been decided is {status}")
    third = await stores.claim()
    changed = msgspec.structs.replace(_CALL, definition="two")
    status = await stores.other.suspend(third, [changed])
    require(status is RunStatus.WAITING, "the decision holds for a tool that has changed")
    (open_,) = await stores.one.survey_approvals(user, run)
    require(open_ == changed, f"{open_} is requested, not {changed}")
    await stores.one.cancel(user, run, _end)
    late = stores.one.decide(user, run, "call", allowed=True)
    await _refuses(late, DecisionRefused, "a decision after the end")


async def _check_tools_are_always_allowed(stores: _Stores) -> None:
    run, user = (await stores.create()).identity, stores.user
    conversation = (await stores.one.access(user, run)).conversation
    lease = await stores.claim()
    other = msgspec.structs.replace(_CALL, invocation="other")
    await stores.other.suspend(lease, [_CALL, other])
    await stores.one.decide(user, run, "other", allowed=True)
    require(not await stores.one.survey_always(user, conversation), "one call is allowed always")
    made = await stores.other.decide(user, run, "call", allowed=True, always=True)
    require(made.always, "a call is not allowed always")
    for store in (stores.one, stores.other):
        require([*await store.survey_always(user, conversation)] == [made], "it is not kept")
        require(not await store.survey_always(user, "elsewhere"), "it holds in a conversation more")
        stranger = await store.survey_always(f"not-{user}", conversation)
        require(not stranger, "another user sees what is allowed")
    await stores.one.cancel(user, run, _end)
    require([*await stores.one.survey_always(user, conversation)] == [made], "it ends with the run")
    await stores.one.remove(user, conversation)
    require(not await stores.one.survey_always(user, conversation), "it outlives the conversation")


async def _check_questions_are_answered_once(stores: _Stores) -> None:
    run, user, one = (await stores.create()).identity, stores.user, stores.one
    status = await stores.other.suspend(await stores.claim(), (), questions=[_QUESTION])
    require(status is RunStatus.WAITING, f"a run that waits for an answer is {status}")
    require([*await one.survey_questions(user, run)] == [_QUESTION], "the question is not kept")
    require(not await one.survey_questions(f"not-{user}", run), "another user sees the question")
    await _refuses(
        one.answer(user, run, "another", _YES), DecisionRefused, "an answer to another question"
    )
    answers = iter([_YES, _NO] * _RIVALS)
    made, refused = await stores.race(lambda store: store.answer(user, run, "q", next(answers)))
    kept = {one.answer.action for one in made if isinstance(one, RunQuestion) and one.answer}
    require(len(kept) == 1, f"several answers to a question are accepted: {made}")
    require(all(isinstance(one, DecisionRefused) for one in refused), f"it fails: {refused}")
    (found,) = await stores.other.survey_questions(user, run)
    require(found in made, f"{found} is stored, not the first answer")
    require(await stores.status(run) is RunStatus.QUEUED, "an answer does not queue the run")
    lease = await stores.claim()
    status = await stores.other.suspend(lease, (), questions=[_QUESTION])
    require(status is RunStatus.QUEUED, f"a run that has been answered is {status}")


async def _check_running_calls_ask(stores: _Stores) -> None:
    run, user, one = (await stores.create()).identity, stores.user, stores.one
    lease = await stores.claim()
    first = msgspec.structs.replace(_QUESTION, held=True)
    await stores.other.ask(lease, first)
    answered = await one.answer(user, run, "q", _YES)
    require(answered.answer == _YES, f"{answered.answer} is the answer, not {_YES}")
    require(await stores.status(run) is RunStatus.RUNNING, "an answer stops a call that runs")
    require(await stores.other.close_question(lease, "q", _NO) == _YES, "the answer is replaced")
    await stores.other.ask(lease, msgspec.structs.replace(first, identity="q2"))
    require(
        await stores.other.close_question(lease, "q2", _NO) == _NO,
        "the answer that closes the question is not returned",
    )
    late = one.answer(user, run, "q2", _YES)
    await _refuses(late, DecisionRefused, "an answer after the call has stopped waiting")
    await stores.other.finish(lease, RunStatus.COMPLETED)
    for write in (stores.other.ask(lease, first), stores.other.close_question(lease, "q", _NO)):
        await _refuses(write, LeaseLost, "a question after the end")


async def _check_added_messages_are_taken_once(stores: _Stores) -> None:
    run, user, one, other = (await stores.create()).identity, stores.user, stores.one, stores.other
    first, second, third = [UserCanister.from_text(text) for text in ("one", "two", "three")]
    for message in (first, second, third):
        await one.steer(user, run, message)
    queued = [*await other.survey_steering(user, run)]
    require(queued == [first, second, third], f"{queued} are queued, not in order")
    for work in (
        one.steer(f"not-{user}", run, first),
        one.steer(user, f"{run}x", first),
    ):
        await _refuses(work, RunNotFound, "a message to a run of nobody")
    require(not await one.survey_steering(f"not-{user}", run), "another user sees the messages")
    foreign = one.take_back(f"not-{user}", run, first.identity)
    await _refuses(foreign, SteeringRefused, "a message that another user takes back")
    back = await other.take_back(user, run, second.identity)
    require(back == second, f"{back} is taken back, not {second}")
    again = one.take_back(user, run, second.identity)
    await _refuses(again, SteeringRefused, "a message that is taken back twice")
    lease = await stores.claim(seconds=0)
    taken = [*await other.take_steering(lease)]
    require(taken == [first, third], f"{taken} are taken, not those that are queued")
    await _refuses(
        one.take_back(user, run, first.identity), SteeringRefused, "a message that was taken"
    )
    require(not await one.survey_steering(user, run), "a message that was taken is still queued")
    await other.settle_steering(lease, first.identity)
    late, lease = lease, await stores.claim()
    taken = [*await other.take_steering(lease)]
    require(taken == [third], f"the next worker takes {taken}, not those that are not settled")
    settling = one.settle_steering(late, third.identity)
    await _refuses(settling, LeaseLost, "a worker that has lost the run")
    closing = one.close_steering(late, "finished", anyway=True)
    await _refuses(closing, LeaseLost, "a worker that has lost the run")
    await one.steer(user, run, second)
    await _refuses(one.take_steering(late), LeaseLost, "a worker that has lost the run")
    closed = await other.close_steering(lease, "finished", anyway=False)
    require(not closed, "a run is closed although a message is queued")
    await other.take_steering(lease)
    closed = await other.close_steering(lease, "finished", anyway=False)
    require(not closed, "a run is closed although a message that was taken is not sent")
    for message in (second, third):
        await other.settle_steering(lease, message.identity)
    require(not await other.take_steering(lease), "a message that was sent is taken again")
    closed = await other.close_steering(lease, "finished", anyway=False)
    require(closed, "a run without queued messages is not closed")
    await _refuses(one.steer(user, run, first), SteeringRefused, "a message to a closed run")
    await other.finish(lease, RunStatus.COMPLETED, reason="finished")
    await _refuses(one.steer(user, run, first), SteeringRefused, "a message to an ended run")
    require(not await one.survey_steering(user, run), "a message that was sent is left")
    begun = await stores.create("begun", steering=(first, second))
    queued = [*await other.survey_steering(user, begun.identity)]
    require(queued == [first, second], f"a run begins with {queued}")
    await one.remove_run(user, begun.identity)
    require(not await one.survey_steering(user, begun.identity), "its messages are left")


async def _check_messages_that_were_not_sent_are_left(stores: _Stores) -> None:
    user, one, other = stores.user, stores.one, stores.other
    messages = [UserCanister.from_text(text) for text in ("one", "two", "three")]
    for how in ("failed", "cancelled"):
        run = (await stores.create(how, steering=messages[:2])).identity
        lease = await stores.claim(seconds=0 if how == "cancelled" else _LONG_SECONDS)
        await other.take_steering(lease)
        await other.settle_steering(lease, messages[0].identity)
        await one.steer(user, run, messages[2])
        if how == "cancelled":
            status = await one.cancel(user, run, _end)
            require(status is RunStatus.CANCELLED, f"a run without a worker is {status}")
            events = [bytes(data) for _, data in await other.read_events(user, run)]
            names = [message.identity.encode() for message in messages[1:]]
            require(events == [*names, _ENDED], f"{events} are the last events of a run")
        else:
            await other.finish(lease, RunStatus.FAILED)
        left = [*await one.survey_steering(user, run)]
        require(left == messages[1:], f"{left} are left of a run that is {how}")
        back = await one.take_back(user, run, messages[1].identity)
        require(back == messages[1], f"{back} is taken back, not {messages[1]}")


async def _check_a_request_adds_one_message(stores: _Stores) -> None:
    user, requests = stores.user, [RequestKey(key, b"digest") for key in ("a", "b")]
    run = (await stores.create("requests")).identity
    lease = await stores.claim()

    def steer(store: RunStore, text: str, request: RequestKey) -> Awaitable[UserCanister]:
        return store.steer(user, run, UserCanister.from_text(text), request)

    racing = (steer(store, "x", requests[0]) for store in _RIVALS * (stores.one, stores.other))
    first, *others = await asyncio.gather(*racing)
    require(others == [first] * len(others), "a request adds several messages")
    second = await steer(stores.one, "y", requests[1])
    queued = [*await stores.other.survey_steering(user, run)]
    require(queued == [first, second], f"two requests add {queued}")
    reused = steer(stores.one, "z", RequestKey("a", b"another"))
    await _refuses(reused, RequestKeyReused, "another message with the same key")
    await stores.one.take_back(user, run, second.identity)
    third = await steer(stores.other, "y", requests[1])
    require(third != second, "a message that was taken back is returned")
    await stores.one.take_steering(lease)
    await stores.one.settle_steering(lease, first.identity)
    await stores.one.finish(lease, RunStatus.FAILED)
    again = await steer(stores.other, "x", requests[0])
    require(again == first, "a request is not known after its message was sent")


async def _check_a_message_is_added_once(stores: _Stores) -> None:
    one, other, user = stores.one, stores.other, stores.user
    message = UserCanister.from_text("once")
    run = (await stores.create("once")).identity
    lease = await stores.claim()
    await one.steer(user, run, message)
    await _refuses(other.steer(user, run, message), SteeringRefused, "a message that waits")
    await other.take_back(user, run, message.identity)
    await one.steer(user, run, message)
    await other.take_steering(lease)
    await other.settle_steering(lease, message.identity)
    await _refuses(one.steer(user, run, message), SteeringRefused, "a message that was sent")
    await other.finish(lease, RunStatus.FAILED)
    require(not await one.survey_steering(user, run), "a message is added twice")


async def _check_a_run_has_room_for_so_many_messages(stores: _Stores) -> None:
    one, other, user = stores.one, stores.other, stores.user
    run = (await stores.create("queue")).identity
    lease = await stores.claim()
    for number in range(MOST_QUEUED):
        await (one, other)[number % 2].steer(user, run, UserCanister.from_text(str(number)))
    more = UserCanister.from_text("more")
    await _refuses(one.steer(user, run, more), SteeringQueueFull, "one message more")
    for message in await other.take_steering(lease):
        await _refuses(one.steer(user, run, more), SteeringQueueFull, "before one is sent")
        await other.settle_steering(lease, message.identity)
        break
    await one.steer(user, run, more)
    await other.finish(lease, RunStatus.FAILED)
    run = (await stores.create("bytes")).identity
    large = [UserCanister.from_text("x" * size) for size in (MOST_QUEUED_BYTES, 1)]
    await one.steer(user, run, large[0])
    await _refuses(other.steer(user, run, large[1]), SteeringQueueFull, "one byte more")
    await other.take_back(user, run, large[0].identity)
    await other.steer(user, run, large[1])
    await stores.one.cancel(user, run, _end)


async def _check_no_message_is_added_to_a_closed_run(stores: _Stores) -> None:
    user = stores.user
    for number in range(_RIVALS):
        run = (await stores.create(f"c{number}")).identity
        lease = await stores.claim()
        works = iter([None, *(UserCanister.from_text("x") for _ in range(_RIVALS))])

        async def work(
            store: RunStore,
            run: str = run,
            lease: Lease = lease,
            works: Iterator[UserCanister | None] = works,
        ) -> object:
            if (message := next(works)) is None:
                return await store.close_steering(lease, "finished", anyway=False)
            await store.steer(user, run, message)
            return None

        results, errors = await stores.race(work)
        require(all(isinstance(one, SteeringRefused) for one in errors), f"it fails: {errors}")
        queued = await stores.one.survey_steering(user, run)
        accepted = sum(one is None for one in results)
        require(len(queued) == accepted, f"{accepted} messages are accepted, {len(queued)} queued")
        require(
            (True in results) is (not accepted),
            "a run is closed although a message is accepted, or is not closed",
        )


async def _check_runs_are_cancelled(stores: _Stores) -> None:
    one, user = stores.one, stores.user
    run = (await stores.create("queued")).identity
    status = await one.cancel(user, run, _end)
    require(status is RunStatus.CANCELLED, f"a queued run that is cancelled is {status}")
    require(await stores.other.claim(user, 1, known=()) is None, "a cancelled run is claimed")
    ((cursor, data),) = await stores.other.read_events(user, run)
    require(
        (cursor > first_cursor(1), bytes(data)) == (True, _ENDED), "its end is not the last event"
    )
    run = (await stores.create("running")).identity
    lease = await stores.claim()
    status = await one.cancel(user, run, _end)
    require(status is RunStatus.RUNNING, f"a run that a worker has is {status} at once")
    orders = await stores.other.read_orders(user, [lease], known=())
    require([*orders.cancel] == [run], f"its worker is told to cancel {orders.cancel}")
    status = await stores.other.suspend(lease, [_CALL])
    require(status is RunStatus.QUEUED, f"a cancelled run that tries to wait is {status}")
    lease = await stores.claim()
    require((await one.access(user, run)).cancelling, "the next worker is not told to cancel")
    await stores.other.finish(lease, RunStatus.CANCELLED)
    run = (await stores.create("waiting")).identity
    await stores.other.suspend(await stores.claim(), [_CALL])
    status = await one.cancel(user, run, _end)
    require(status is RunStatus.CANCELLED, f"a waiting run that is cancelled is {status}")
    run = (await stores.create("left")).identity
    await stores.claim(seconds=0)
    status = await one.cancel(user, run, _end)
    require(status is RunStatus.CANCELLED, f"a run whose worker has gone is {status}")
    ((cursor, data),) = await stores.other.read_events(user, run)
    require((cursor > first_cursor(2), bytes(data)) == (True, _ENDED), "its end is not recorded")
    run = (await stores.create("ended")).identity
    await stores.other.finish(
        await stores.claim(),
        RunStatus.FAILED,
        [(first_cursor(1) + 1, _EVENT)],
        reason="r",
        error="e",
        kind="k",
    )
    require(await one.cancel(user, run, _end) is RunStatus.FAILED, "an ended run is cancelled")
    found = await one.access(user, run)
    kept = (found.reason, found.error, found.kind)
    require(kept == ("r", "e", "k"), "the reason of an end is not stored")
    require(len(await one.read_events(user, run)) == 1, "an ended run gets another event")


async def _check_runs_are_removed(stores: _Stores) -> None:
    run, user = (await stores.create()).identity, stores.user
    lease = await stores.claim()
    await stores.other.append_events(lease, [(first_cursor(1) + 1, _EVENT)])
    await stores.other.begin_call(lease, "call")
    await stores.other.suspend(lease, [_CALL], questions=[_QUESTION])
    kept = (await stores.create("kept")).identity
    await stores.one.remove(user, "c")
    await _refuses(stores.other.access(user, run), RunNotFound, "a run that was removed")
    require(not await stores.other.read_events(user, run), "its events are left")
    require(not await stores.other.survey_approvals(user, run), "its calls are left")
    require(not await stores.other.survey_questions(user, run), "its questions are left")
    require(await stores.status(kept) is RunStatus.QUEUED, "another run is removed with it")
    await stores.one.remove_run(user, kept)
    require(not await stores.other.survey(user), "a run is left")


async def _check_a_request_has_one_run(stores: _Stores) -> None:
    request, changed = RequestKey("key", b"one"), RequestKey("key", b"other")
    await stores.one.find_request(stores.user, request)

    async def create(store: RunStore) -> RunRecord:
        record = stores.record(f"c{next(stores.conversations)}", request=request)
        await store.create(record)
        return record

    results, errors = await stores.race(create)
    require(len(results) == 1, f"{len(results)} runs have the same request")
    (record,) = results
    assert isinstance(record, RunRecord)
    for error in errors:
        require(
            isinstance(error, RequestRepeated) and error.run == record.identity,
            f"a repeated request raises {error!r} instead of returning its run",
        )
    runs = await stores.one.survey(stores.user)
    require(len(runs) == 1, "a run is stored although its request already has one")
    for work in (
        stores.other.find_request(stores.user, changed),
        stores.other.create(stores.record("new", request=changed)),
    ):
        await _refuses(work, RequestKeyReused, "another request with the same key")
    await stores.other.find_request(f"not-{stores.user}", request)
    await stores.one.cancel(stores.user, record.identity, _end)
    await stores.one.remove_run(stores.user, record.identity)
    await stores.other.find_request(stores.user, request)


#: `_check_tools_are_needed` reads orders of all users, so it must run before other runs remain.
_CHECKS: Sequence[_Check] = (
    _check_a_request_has_one_run,
    _check_tools_are_needed,
    _check_runs_are_found,
    _check_lists_are_light,
    _check_users_are_apart,
    _check_one_run_at_a_time,
    _check_a_user_has_so_many_runs,
    _check_a_run_has_one_worker,
    _check_a_creator_may_be_the_worker,
    _check_leases_end,
    _check_runs_are_deferred,
    _check_only_the_last_worker_writes,
    _check_the_state_of_a_turn_is_kept,
    _check_calls_are_marked,
    _check_events_are_kept_once,
    _check_decisions_are_made_once,
    _check_tools_are_always_allowed,
    _check_questions_are_answered_once,
    _check_running_calls_ask,
    _check_added_messages_are_taken_once,
    _check_messages_that_were_not_sent_are_left,
    _check_a_request_adds_one_message,
    _check_a_message_is_added_once,
    _check_a_run_has_room_for_so_many_messages,
    _check_no_message_is_added_to_a_closed_run,
    _check_runs_are_cancelled,
    _check_runs_are_removed,
)
