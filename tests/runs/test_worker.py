"""How a worker goes on where a run fails, and what it does while it is paused."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.runs.test_runs import Rig
from vibe_llms.exceptions import RunUnreadable
from vibe_llms.messages.canisters import StopReason
from vibe_llms.providers.scripted.client import ScriptedModel
from vibe_llms.runs import Run, RunStatus
from vibe_llms.runs.sqlite import SqliteRunStore


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        yield Rig(tmp_path, stack)


def ask(home: Path, statement: str, *values: Any) -> list[Any]:
    """Read or change what is recorded of runs, as another program would."""
    with closing(sqlite3.connect(home / "server" / "runs.sqlite")) as database, database:
        return database.execute(statement, values).fetchall()


@pytest.mark.parametrize("column", ["recipe", "state", "details"])
async def test_a_run_that_cannot_be_read_is_left_to_others_and_stops_no_worker(
    rig: Rig, caplog: pytest.LogCaptureFixture, column: str
) -> None:
    session = await rig.open()
    worker = session.access_runs().worker
    worker.pause()
    newer, readable = [await rig.start(session, "talk") for _ in range(2)]
    damage = f"update runs set {column} = ? where identity = ?"
    ask(rig.home, damage, b'["of a newer version"]', newer.identity)
    worker.resume()
    async with asyncio.timeout(10):
        await readable.result()
        # It is tried again whenever the lease ends, and reported once.
        epoch = "select epoch from runs where identity = ?"
        while ask(rig.home, epoch, newer.identity) < [(3,)]:
            await asyncio.sleep(0.05)
    with pytest.raises(RunUnreadable, match=newer.identity):
        await newer.access()
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
