"""Blocking tools in threads: bounded, abandoned in peace, and counted."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time

import pytest

from vibe_llms.invocation.threads import Threads, ThreadsExhausted, run_in_thread


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (LookupError("no"), LookupError),
        (SystemExit(3), SystemExit),
        (StopIteration("done"), RuntimeError),
        (KeyboardInterrupt(), RuntimeError),
        (GeneratorExit(), RuntimeError),
        (asyncio.CancelledError(), asyncio.CancelledError),
    ],
)
async def test_what_a_thread_raises_reaches_who_waits(
    error: BaseException, raised: type[BaseException]
) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(raised):
        await run_in_thread(fail)


def test_an_abandoned_thread_outlives_its_loop_in_peace() -> None:
    begun, go = threading.Event(), threading.Event()

    def linger() -> None:
        begun.set()
        go.wait(30)

    async def abandon() -> None:
        waiting = asyncio.ensure_future(run_in_thread(linger))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    before = set(threading.enumerate())
    asyncio.run(abandon())
    (thread,) = set(threading.enumerate()) - before
    go.set()
    thread.join(30)
    assert not thread.is_alive()


async def test_a_thread_that_returns_after_its_timeout_changes_nothing() -> None:
    go = threading.Event()
    waiting = asyncio.ensure_future(run_in_thread(lambda: go.wait(10)))
    await asyncio.sleep(0)
    waiting.cancel()
    before = set(threading.enumerate())
    go.set()
    for thread in before:
        if thread.name == "vibe-llms tool":
            thread.join(10)
    await asyncio.sleep(0)
    assert waiting.cancelled()


async def test_no_more_threads_run_than_are_allowed_and_all_work_is_done() -> None:
    threads = Threads(3, 10)
    lock, running, most = threading.Lock(), 0, 0

    def work(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return number

    results = await asyncio.gather(
        *(threads.run(functools.partial(work, number)) for number in range(20))
    )
    assert results == list(range(20))
    assert 1 < most <= 3


async def test_an_abandoned_thread_gives_its_place_to_the_next() -> None:
    threads = Threads(1, 10)
    go = threading.Event()
    stuck = asyncio.ensure_future(threads.run(lambda: go.wait(30)))
    behind = asyncio.ensure_future(threads.run(lambda: "done"))
    await asyncio.sleep(0.05)
    assert not behind.done()
    stuck.cancel()
    assert await asyncio.wait_for(behind, 30) == "done"
    go.set()


async def test_work_that_has_not_begun_can_be_cancelled() -> None:
    threads = Threads(1, 1)
    go = threading.Event()
    first = asyncio.ensure_future(threads.run(lambda: go.wait(30)))
    second = asyncio.ensure_future(threads.run(lambda: pytest.fail("it ran")))
    await asyncio.sleep(0.01)
    second.cancel()
    await asyncio.wait([second])
    go.set()
    assert await first
    assert await threads.run(lambda: "and again") == "and again"


async def test_too_many_that_never_return_are_refused_until_one_does() -> None:
    threads = Threads(8, 2)
    go = threading.Event()
    begun = threading.Barrier(3)

    def linger() -> None:
        begun.wait(30)
        go.wait(30)

    stuck = [asyncio.ensure_future(threads.run(linger)) for _ in range(2)]
    await asyncio.to_thread(begun.wait, 30)
    for one in stuck:
        one.cancel()
    await asyncio.wait(stuck)
    with pytest.raises(ThreadsExhausted, match="2 cancelled tool calls have not returned"):
        await threads.run(lambda: None)
    go.set()
    for _ in range(1000):
        with contextlib.suppress(ThreadsExhausted):
            assert await threads.run(lambda: "works") == "works"
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("the threads are not given back")
