"""The thread of a model: one thing after the other, without flooding or blocking the loop."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import aclosing
from typing import Any, cast

import pytest

from vibe_llms.base.exceptions import SessionClosed
from vibe_llms.providers.llamacpp import engines
from vibe_llms.providers.llamacpp.engines import Engine, Job
from vibe_llms.providers.llamacpp.package import Halt, LlamaModel

SECONDS = 30.0


class Loaded:
    """Something that was loaded, and is freed."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.freed = 0

    def close(self) -> None:
        assert self.thread == threading.get_ident()
        self.freed += 1


def produce_engine() -> tuple[Engine, list[Loaded]]:
    """An engine, and what it has loaded."""
    loaded: list[Loaded] = []

    def load() -> LlamaModel:
        loaded.append(Loaded())
        return cast("LlamaModel", loaded[-1])

    return Engine("test", load), loaded


async def test_work_is_done_on_one_thread_in_turn() -> None:
    engine, loaded = produce_engine()
    threads: list[int] = []
    at_work = 0

    def work(_: Any) -> int:
        nonlocal at_work
        at_work += 1
        assert at_work == 1
        time.sleep(0.002)
        at_work -= 1
        threads.append(threading.get_ident())
        return len(threads)

    answers = await asyncio.gather(*(engine.ask(work) for _ in range(20)))
    assert answers == list(range(1, 21))
    assert set(threads) == {loaded[0].thread}
    assert threading.get_ident() not in threads
    await engine.close()
    await engine.close()
    assert [one.freed for one in loaded] == [1]


async def test_the_loop_goes_on_while_a_model_works() -> None:
    engine, _ = produce_engine()
    go = threading.Event()
    asked = asyncio.ensure_future(engine.ask(lambda _: go.wait(SECONDS)))
    while not engine.busy:
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert not asked.done()
    go.set()
    assert await asked
    assert not engine.busy
    await engine.close()


async def count_wakes(number: int) -> tuple[int, int]:
    """What arrives of so many things sent in one go, and how often the loop was woken for it."""
    engine, _ = produce_engine()
    loop = asyncio.get_running_loop()
    wakes = 0
    original = loop.call_soon_threadsafe

    def count(*arguments: Any, **more: Any) -> Any:
        nonlocal wakes
        wakes += 1
        return original(*arguments, **more)

    arrived = 0
    reported = threading.Event()

    def work(job: Job[int], _: object) -> None:
        for each in range(number):
            job.send(each)
        reported.set()

    setattr(loop, "call_soon_threadsafe", count)  # noqa: B010  (its type is of no matter here)
    async with aclosing(engine.do(work)) as batches:
        waiting = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0)
        # The loop is held up, as by a slow handler, while the thread sends all.
        assert reported.wait(SECONDS)
        arrived += len(await waiting)
        async for batch in batches:
            arrived += len(batch)
    delattr(loop, "call_soon_threadsafe")
    await engine.close()
    return arrived, wakes


async def test_a_flood_wakes_the_loop_once() -> None:
    arrived, wakes = await count_wakes(10_000)
    assert arrived == 10_000
    assert wakes <= 3


async def test_a_flood_that_wakes_for_each_would_be_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def send(self: Job[int], *items: int) -> None:
        self._batch += items
        self._wake()

    monkeypatch.setattr(Job, "send", send)
    with pytest.raises(AssertionError):
        await test_a_flood_wakes_the_loop_once()


async def test_leaving_halts_the_work_and_the_next_has_its_turn() -> None:
    engine, _ = produce_engine()
    halted = threading.Event()

    def work(job: Job[str], _: object) -> None:
        job.send("begun")
        while not job.halt.is_set():
            time.sleep(0.001)
        halted.set()

    async with aclosing(engine.do(work)) as batches:
        assert await anext(batches) == ["begun"]
    assert await engine.ask(lambda _: "next") == "next"
    assert halted.is_set()
    await engine.close()


async def test_work_that_is_left_before_its_turn_is_not_done() -> None:
    engine, _ = produce_engine()
    go, done = threading.Event(), []
    first = asyncio.ensure_future(engine.ask(lambda _: go.wait(SECONDS)))
    second = asyncio.ensure_future(engine.ask(lambda _: done.append(2)))
    await asyncio.sleep(0.01)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    go.set()
    await first
    assert await engine.ask(lambda _: 3) == 3
    assert done == []
    await engine.close()


async def test_what_goes_wrong_is_raised_where_it_is_awaited() -> None:
    engine, loaded = produce_engine()

    def work(_: object) -> None:
        raise KeyError("odd")

    with pytest.raises(KeyError, match="odd"):
        await engine.ask(work)
    assert await engine.ask(lambda _: 1) == 1
    assert len(loaded) == 1
    await engine.close()


async def test_a_model_that_could_not_be_loaded_is_tried_again() -> None:
    attempts: list[int] = []

    def load() -> LlamaModel:
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("no memory")
        return cast("LlamaModel", Loaded())

    engine = Engine("test", load)
    with pytest.raises(ValueError, match="no memory"):
        await engine.ask(lambda _: 1)
    assert await engine.ask(lambda _: 2) == 2
    await engine.close()


async def test_closing_halts_what_works_and_refuses_what_waits() -> None:
    engine, loaded = produce_engine()
    begun = threading.Event()

    def work(job: Job[int], _: object) -> None:
        begun.set()
        while not job.halt.is_set():
            time.sleep(0.001)
        raise SessionClosed(engines.CLOSED)

    async def speak() -> None:
        async with aclosing(engine.do(work)) as batches:
            async for _ in batches:
                pass

    first = asyncio.ensure_future(speak())
    await asyncio.to_thread(begun.wait, SECONDS)
    second = asyncio.ensure_future(engine.ask(lambda _: 1))
    await asyncio.sleep(0)
    async with asyncio.timeout(SECONDS):
        await engine.close()
    for one in (first, second):
        with pytest.raises(SessionClosed):
            await one
    with pytest.raises(SessionClosed):
        await engine.ask(lambda _: 1)
    assert loaded[0].freed == 1
    unused, _ = produce_engine()
    await unused.close()


async def test_closing_does_not_wait_for_ever_for_what_is_being_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines, "JOIN_SECONDS", 0.05)
    begun, go, freed = threading.Event(), threading.Event(), threading.Event()

    class Slow(Loaded):
        def close(self) -> None:
            super().close()
            freed.set()

    def load() -> LlamaModel:
        begun.set()
        go.wait(SECONDS)
        return cast("LlamaModel", Slow())

    engine = Engine("test", load)
    asked = asyncio.ensure_future(engine.ask(lambda _: 1))
    await asyncio.to_thread(begun.wait, SECONDS)
    async with asyncio.timeout(SECONDS):
        await engine.close()
    assert not freed.is_set()
    go.set()
    assert await asyncio.to_thread(freed.wait, SECONDS)
    assert await asked == 1


async def test_a_thread_whose_loop_is_gone_ends_quietly() -> None:
    engine, _ = produce_engine()
    jobs: list[Job[int]] = []

    async def begin() -> None:
        jobs.append(Job(lambda job, _: job.send(1)))

    thread = threading.Thread(target=lambda: asyncio.run(begin()))
    thread.start()
    thread.join()
    jobs[0].run(lambda: cast("LlamaModel", Loaded()))
    assert jobs[0]._done
    await engine.close()


def test_a_halt_can_be_seen_without_python() -> None:
    import ctypes

    halt = Halt()
    strlen = ctypes.CDLL(None).strlen
    assert (halt.is_set(), strlen(ctypes.c_void_p(halt.address))) == (False, 0)
    halt.set()
    assert (halt.is_set(), strlen(ctypes.c_void_p(halt.address))) == (True, 1)
