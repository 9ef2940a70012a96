"""The file of runs: what comes together is committed together, each wholly or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from vibe_llms.base.exceptions import LeaseLost, StorageError
from vibe_llms.runs.database import RunFile


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[RunFile]:
    added = ("create table if not exists words (word text primary key)",)
    file = RunFile(tmp_path / "runs.sqlite", lock_seconds=10, added=added)
    yield file
    await file.close()


def add(*words: str, error: Exception | None = None) -> Callable[[sqlite3.Connection], None]:
    def work(database: sqlite3.Connection) -> None:
        database.executemany("insert into words values (?)", [(word,) for word in words])
        if error is not None:
            raise error

    return work


def read(database: sqlite3.Connection) -> list[str]:
    return [word for (word,) in database.execute("select word from words order by word")]


class Gate:
    """Holds the thread of the database, so that work comes together behind it."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.end = threading.Event()

    def __call__(self, _: sqlite3.Connection) -> None:
        self.begun.set()
        assert self.end.wait(60)


async def test_work_that_comes_together_is_one_transaction(file: RunFile) -> None:
    await file.write(add())
    statements: list[str] = []
    await file.run(lambda database: database.set_trace_callback(statements.append))
    gate = Gate()
    held = asyncio.ensure_future(file.run(gate))
    await asyncio.to_thread(gate.begun.wait, 60)
    writing = [asyncio.ensure_future(file.write(add(f"word {i}"))) for i in range(9)]
    await asyncio.sleep(0)
    statements.clear()
    gate.end.set()
    await asyncio.gather(held, *writing)
    found = await file.run(read)
    await file.run(lambda database: database.set_trace_callback(None))
    assert found == [f"word {i}" for i in range(9)]
    assert statements.count("begin immediate") == 1
    assert statements.count("pragma synchronous = full") == 1


async def test_what_is_refused_leaves_nothing_and_spoils_nothing(file: RunFile) -> None:
    outcomes = await asyncio.gather(
        file.write(add("first")),
        file.write(add("second")),
        file.write(add("lost", error=LeaseLost("another has it"))),
        file.write(add("twice", "twice")),
        file.write(add("large", error=OverflowError("too large"))),
        file.write(add("third")),
        file.run(read),
        return_exceptions=True,
    )
    assert [type(one) for one in outcomes[:6]] == [
        *(type(None), type(None), LeaseLost, StorageError, StorageError, type(None))
    ]
    assert await file.run(read) == outcomes[6] == ["first", "second", "third"]


async def test_nothing_is_answered_before_it_is_committed(file: RunFile, tmp_path: Path) -> None:
    await asyncio.gather(file.write(add("first")), file.write(add("second")))
    with sqlite3.connect(tmp_path / "runs.sqlite") as other:
        assert read(other) == ["first", "second"]
    other.close()


async def test_work_that_nobody_waits_for_is_not_begun(file: RunFile) -> None:
    gate = Gate()
    held = asyncio.ensure_future(file.run(gate))
    await asyncio.to_thread(gate.begun.wait, 60)
    given_up = asyncio.ensure_future(file.write(add("late")))
    await asyncio.sleep(0)
    given_up.cancel()
    gate.end.set()
    await held
    assert await file.run(read) == []


async def test_closing_waits_for_what_was_begun(file: RunFile, tmp_path: Path) -> None:
    writing = [asyncio.ensure_future(file.write(add(f"word {i}"))) for i in range(3)]
    await asyncio.sleep(0)
    await file.close()
    await asyncio.gather(*writing)
    with pytest.raises(StorageError, match="closed"):
        await file.run(read)
