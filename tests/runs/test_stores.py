"""The store of runs: who may write a run, what is unique, and what other users see."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from vibe_llms.exceptions import ConversationBusy, LeaseLost
from vibe_llms.runs import CallApproval, RunStatus
from vibe_llms.runs.events import first_cursor
from vibe_llms.runs.interfaces import Lease, Recipe, RunRecord
from vibe_llms.runs.sqlite import SqliteRunStore

USER = "ada"
CALL = CallApproval(invocation="call", name="transfer", definition="one")
NOW = datetime.now(UTC)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteRunStore]:
    store = SqliteRunStore(tmp_path / "runs.sqlite")
    yield store
    await store.close()


def record_of(run: str = "run-1", conversation: str = "c", user: str = "ada") -> RunRecord:
    return RunRecord(
        identity=run,
        user=user,
        conversation=conversation,
        status=RunStatus.QUEUED,
        recipe=Recipe(model="scripted/demo"),
        prompt=b"",
        created=NOW,
        updated=NOW,
    )


async def claim(store: SqliteRunStore, seconds: float = 60) -> Lease:
    record = await store.claim(USER, seconds, known=())
    assert record is not None
    return Lease(record.user, record.identity, record.epoch)


#: Everything that the worker of a run writes.
WRITES: dict[str, Callable[[SqliteRunStore, Lease], Awaitable[object]]] = {
    "check": lambda store, lease: store.check(lease),
    "vouch": lambda store, lease: store.vouch(lease, ["d"]),
    "begin": lambda store, lease: store.begin_call(lease, "call"),
    "again": lambda store, lease: store.begin_again(lease, "call"),
    "events": lambda store, lease: store.append_events(lease, [(7, b"{}")]),
    "suspend": lambda store, lease: store.suspend(lease, [CALL]),
    "release": lambda store, lease: store.release(lease),
    "finish": lambda store, lease: store.finish(lease, RunStatus.FAILED, [(7, b"{}")]),
}


@pytest.mark.parametrize("name", WRITES)
async def test_only_the_last_worker_of_a_run_writes_it(store: SqliteRunStore, name: str) -> None:
    await store.create(record_of())
    earlier = await claim(store, seconds=0)
    later = await claim(store)
    assert (earlier.epoch, later.epoch) == (1, 2)
    with pytest.raises(LeaseLost):
        await WRITES[name](store, earlier)
    assert await store.read_events("ada", "run-1") == []
    assert (await store.access("ada", "run-1")).status is RunStatus.RUNNING
    assert await store.renew([earlier, later], 60) == [earlier]
    await WRITES[name](store, later)


async def test_a_run_that_a_worker_has_is_not_claimed(store: SqliteRunStore) -> None:
    await store.create(record_of())
    lease = await claim(store)
    assert await store.claim(USER, 60, known=()) is None
    await store.release(lease)
    assert (await claim(store)).epoch == 2
    assert await store.claim("eve", 60, known=()) is None


async def test_a_run_is_left_to_those_who_have_its_tools(store: SqliteRunStore) -> None:
    recipe = Recipe(model="scripted/talk", invokers=("transfer",))
    await store.create(msgspec.structs.replace(record_of(), recipe=recipe))
    await store.create(record_of("run-2", "d"))
    claimed = await store.claim(USER, 60, known=())
    assert claimed is not None
    assert claimed.identity == "run-2"
    assert not (await store.read_orders(None, (), known=("look",))).claimable
    claimed = await store.claim(None, 60, known=("transfer", "look"))
    assert claimed is not None
    assert claimed.identity == "run-1"


async def test_a_conversation_has_one_run_at_a_time(store: SqliteRunStore) -> None:
    await store.create(record_of())
    with pytest.raises(ConversationBusy, match="run-1"):
        await store.create(record_of("run-2"))
    # Another user may have one of the same name.
    await store.create(record_of("run-1", user="eve"))
    await store.finish(await claim(store), RunStatus.COMPLETED)
    await store.create(record_of("run-2"))


async def test_a_decision_on_a_tool_that_has_changed_is_asked_for_again(
    store: SqliteRunStore,
) -> None:
    await store.create(record_of())
    assert await store.suspend(await claim(store), [CALL]) is RunStatus.WAITING
    await store.decide("ada", "run-1", "call", allowed=True)
    lease = await claim(store)
    changed = CallApproval(invocation="call", name="transfer", definition="two")
    assert await store.suspend(lease, [changed]) is RunStatus.WAITING
    (approval,) = await store.survey_approvals("ada", "run-1")
    assert (approval.allowed, approval.definition) == (None, "two")


async def test_a_run_that_no_worker_has_is_cancelled_with_its_last_event(
    store: SqliteRunStore,
) -> None:
    await store.create(record_of())
    lease = await claim(store)
    assert await store.cancel("ada", "run-1", b"end") is RunStatus.RUNNING
    assert (await store.read_orders(USER, [Lease(USER, "run-1", 1)], known=())).cancel == ["run-1"]
    await store.suspend(lease, [CALL])
    assert await store.cancel("ada", "run-1", b"end") is RunStatus.CANCELLED
    assert await store.read_events("ada", "run-1") == [(first_cursor(2) + 1, b"end")]
