"""How a worker goes on where a run fails, and what it does while it is paused."""

from __future__ import annotations

import asyncio
import errno
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.runs.rig import TEXT, Rig, follow, text_of, wait_for
from vibe_llms import Session
from vibe_llms.base.exceptions import RunFailed, RunUnreadable, StorageUnavailable
from vibe_llms.base.folders import explain
from vibe_llms.messages.canisters import StopReason
from vibe_llms.providers.scripted.client import ScriptedModel
from vibe_llms.runs import MessageDelta, Run, RunStatus, recorder
from vibe_llms.runs.interfaces import Lease
from vibe_llms.runs.sqlite import SqliteRunStore


def ask(home: Path, statement: str, *values: Any) -> list[Any]:
    """Read or change what is recorded of runs, as another program would."""
    with closing(sqlite3.connect(home / "server" / "runs.sqlite")) as database, database:
        return database.execute(statement, values).fetchall()


@pytest.mark.parametrize("column", ["bodies.recipe", "runs.state", "runs.details"])
async def test_a_run_that_cannot_be_read_is_left_to_others_and_stops_no_worker(
    rig: Rig, caplog: pytest.LogCaptureFixture, column: str
) -> None:
    session = await rig.open()
    worker = session.access_runs().worker
    worker.pause()
    newer, readable = [await rig.start(session, "talk") for _ in range(2)]
    table, name = column.split(".")
    run = "run" if table == "bodies" else "identity"
    damage = f"update {table} set {name} = ? where {run} = ?"
    ask(rig.home, damage, b'["of a newer version"]', newer.identity)
    worker.resume()
    async with asyncio.timeout(10):
        await readable.result()
        # It is tried again whenever the lease ends, and reported once.
        epoch = "select epoch from runs where identity = ?"
        while ask(rig.home, epoch, newer.identity) < [(3,)]:
            await asyncio.sleep(0.05)
    with pytest.raises(RunUnreadable, match=newer.identity):
        await session.access_run(newer.identity)
    (reported,) = caplog.records
    assert reported.levelno == logging.WARNING
    assert newer.identity in reported.message


async def test_a_worker_that_a_fault_has_ended_says_so(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    session = await rig.open()
    monkeypatch.setattr(SqliteRunStore, "read_orders", fail)
    session.access_runs().resume()
    async with asyncio.timeout(10):
        while not caplog.records:
            await asyncio.sleep(0.01)
    (reported,) = caplog.records
    assert reported.exc_info is not None
    assert str(reported.exc_info[1]) == "a bug"


async def test_a_worker_that_is_paused_claims_nothing_although_it_works(rig: Rig) -> None:
    one, other = await rig.open(), await rig.open()
    working = await rig.start(one, "slow")
    worker = one.access_runs().worker
    worker.pause()
    other.access_runs().worker.pause()
    waiting = await rig.start(other, "talk")
    # It goes on looking for orders about the run that it has.
    await working.cancel()
    assert (await working.result()).stop_reason == StopReason.INTERRUPTED
    await asyncio.sleep(0.6)
    assert (await waiting.access()).status is RunStatus.QUEUED
    worker.resume()
    await waiting.result()


async def test_what_a_cancelled_request_cleans_up_is_not_cancelled_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, cleaned = asyncio.Event(), False

    async def converse(*_: object) -> None:
        nonlocal cleaned
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            # For longer than until a worker looks for orders again.
            await asyncio.sleep(0.5)
            cleaned = True

    monkeypatch.setattr(ScriptedModel, "converse", converse)
    run = await rig.start(await rig.open(), "talk")
    await asked.wait()
    await run.cancel()
    await run.result()
    assert cleaned


async def test_a_cancel_while_the_start_of_a_call_is_recorded_ends_the_run(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = SqliteRunStore.append_events
    started: asyncio.Future[Run] = asyncio.get_running_loop().create_future()

    async def cancel_meanwhile(store: SqliteRunStore, *given: Any, **options: Any) -> None:
        recorded = asyncio.ensure_future(append(store, *given, **options))
        if any(b"call-started" in data for _, data in given[1]):
            run = await started
            await run.cancel()
            session.access_runs().worker._jobs[run.identity].cancel()
            await asyncio.sleep(0)
        # As the store of PostgreSQL, it commits what is no longer waited for.
        await recorded

    session = await rig.open()
    monkeypatch.setattr(SqliteRunStore, "append_events", cancel_meanwhile)
    started.set_result(run := await rig.start(session, "call"))
    async with asyncio.timeout(1):
        await run.result()
    assert run.record.status is RunStatus.CANCELLED
    assert run.record.epoch == 1


class Watch:
    """What workers of a session do: how often they ask the model, and put their runs off.

    No run is really put off.
    """

    def __init__(self, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.waits: list[float] = []
        converse, release = ScriptedModel.converse, SqliteRunStore.release

        async def count(*given: Any) -> Any:
            self.asked += 1
            return await converse(*given)

        async def hurry(store: SqliteRunStore, lease: Lease, seconds: float = 0.0) -> None:
            self.waits.append(seconds)
            await release(store, lease)
            session.access_runs().worker.poke()

        monkeypatch.setattr(ScriptedModel, "converse", count)
        monkeypatch.setattr(SqliteRunStore, "release", hurry)


async def away(*_: object, **__: object) -> Any:
    raise StorageUnavailable("the bucket cannot be used now")


async def test_a_run_that_can_never_be_kept_waits_longer_each_time_and_ends_after_an_hour(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await rig.open()
    watch = Watch(session, monkeypatch)
    # The prompt is kept, and no reply is.
    monkeypatch.setattr(session.archive, "append", away)
    run = await rig.start(session, "talk")
    with pytest.raises(RunFailed, match="the bucket cannot be used now"):
        await run.result()
    assert watch.waits == [1, *(2**number for number in range(12))]
    assert sum(watch.waits) > 3600
    assert watch.asked == len(watch.waits) + 1


async def test_a_run_whose_reply_does_not_fit_on_the_disk_ends_after_one_request(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fill(*_: object, **__: object) -> Any:
        raise explain(OSError(errno.ENOSPC, "no space"), rig.home)

    session = await rig.open()
    watch = Watch(session, monkeypatch)
    monkeypatch.setattr(session.archive, "append", fill)
    run = await rig.start(session, "talk")
    with pytest.raises(RunFailed, match="the disk is full"):
        await run.result()
    assert (watch.asked, watch.waits) == (1, [])


async def test_a_run_whose_user_cancels_it_does_not_wait_for_what_is_away(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await rig.open()
    monkeypatch.setattr(session.archive, "append", away)
    run = await rig.start(session, "talk")
    while (await run.access()).status is not RunStatus.QUEUED:
        await asyncio.sleep(0.01)
    assert await run.cancel() is RunStatus.CANCELLED


@pytest.mark.parametrize("committed", [True, False])
async def test_events_are_recorded_once_although_the_store_was_away_for_a_moment(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    append = SqliteRunStore.append_events
    breaks = 3

    async def at_times(store: SqliteRunStore, *given: Any, **options: Any) -> None:
        nonlocal breaks
        breaks -= 1
        if breaks >= 0:
            if committed:
                await append(store, *given, **options)
            raise StorageUnavailable("the database cannot be used now")
        await append(store, *given, **options)

    session = await rig.open()
    watch = Watch(session, monkeypatch)
    monkeypatch.setattr(SqliteRunStore, "append_events", at_times)
    run = await rig.start(session, "talk")
    assert text_of(await follow(run)) == TEXT
    assert ((await run.access()).epoch, watch.asked, watch.waits) == (1, 1, [])


async def test_a_run_whose_events_cannot_be_recorded_for_long_is_put_off(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    append = SqliteRunStore.append_events

    async def at_first(store: SqliteRunStore, lease: Lease, *given: Any, **options: Any) -> None:
        if lease.epoch == 1:
            await away()
        await append(store, lease, *given, **options)

    session = await rig.open()
    watch = Watch(session, monkeypatch)
    monkeypatch.setattr(recorder, "_AWAY_SECONDS", 0)
    monkeypatch.setattr(SqliteRunStore, "append_events", at_first)
    run = await rig.start(session, "talk")
    assert (await run.result()).text == TEXT
    assert watch.waits == [1]
    assert [one.message for one in caplog.records] == [
        f"the run {run.identity} could not be recorded: the bucket cannot be used now"
    ]


async def test_a_run_with_an_event_that_cannot_be_encoded_ends_and_says_why(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    session = await rig.open()
    run = await rig.start(session, "slow")
    await wait_for(run, MessageDelta)
    recording = session.access_runs().worker.access_recorder(run.identity)
    assert recording is not None
    recording.put(MessageDelta("said", "\ud800"))
    with pytest.raises(RunFailed, match="surrogates not allowed"):
        await run.result()
    assert [one.message for one in caplog.records] == [f"the run {run.identity} failed"]
