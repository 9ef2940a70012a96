"""One at a time, in the order in which they came, whatever event loops they run in."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from vibe_llms.base import cross_loop_lock
from vibe_llms.base.cross_loop_lock import CrossLoopLock


async def test_they_go_through_one_at_a_time_in_the_order_in_which_they_came() -> None:
    turnstile = CrossLoopLock()
    within, order = 0, []

    async def work(number: int) -> None:
        nonlocal within
        async with turnstile:
            within += 1
            assert within == 1
            order.append(number)
            await asyncio.sleep(0)
            within -= 1

    await asyncio.gather(*map(work, range(20)))
    assert order == [*range(20)]


async def test_an_error_within_lets_the_next_one_through() -> None:
    turnstile = CrossLoopLock()
    with pytest.raises(ValueError, match="within"):
        async with turnstile:
            raise ValueError("within")
    async with asyncio.timeout(30), turnstile:
        pass


def run_in_loops(lock: Any, rounds: int) -> list[str]:
    """What went wrong where tasks of three event loops, each in a thread, share a lock."""
    wrong: list[str] = []
    within = 0

    async def work() -> None:
        nonlocal within
        for _ in range(rounds):
            async with lock:
                within += 1
                if within != 1:
                    wrong.append("two at once")
                await asyncio.sleep(0)
                within -= 1

    async def work_together() -> None:
        try:
            async with asyncio.timeout(5 if isinstance(lock, asyncio.Lock) else 60):
                await asyncio.gather(*(work() for _ in range(4)))
        except (RuntimeError, TimeoutError) as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=lambda: asyncio.run(work_together())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def test_tasks_of_several_event_loops_share_it() -> None:
    assert run_in_loops(CrossLoopLock(), 100) == []


def test_a_lock_of_one_event_loop_is_detected() -> None:
    assert run_in_loops(asyncio.Lock(), 100) != []


async def cancel_at_random(turnstile: CrossLoopLock, seed: int) -> bool:
    """Whether the turnstile is free after many tasks were cancelled, each at some moment."""
    chance = random.Random(seed)
    within = 0

    async def work() -> None:
        nonlocal within
        async with turnstile:
            assert within == 0
            within += 1
            try:
                await asyncio.sleep(0)
            finally:
                within -= 1

    tasks = [asyncio.create_task(work()) for _ in range(40)]
    while left := [task for task in tasks if not task.done()]:
        for task in chance.sample(left, min(len(left), chance.randint(0, 3))):
            task.cancel()
        await asyncio.sleep(0)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(one is None or isinstance(one, asyncio.CancelledError) for one in results)
    with suppress(TimeoutError):
        async with asyncio.timeout(1), turnstile:
            return True
    return False


async def test_a_cancelled_caller_blocks_no_other() -> None:
    for seed in range(100):
        assert await cancel_at_random(CrossLoopLock(), seed)


async def test_a_turn_that_is_lost_with_its_task_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def leave(self: CrossLoopLock, one: cross_loop_lock._Waiting) -> None:
        if not one.through:
            self._queue.remove(one)

    monkeypatch.setattr(CrossLoopLock, "_leave", leave)
    for seed in range(100):
        if not await cancel_at_random(CrossLoopLock(), seed):
            return
    pytest.fail("no turn was lost")


def test_a_loop_that_was_closed_with_a_task_waiting_blocks_no_other() -> None:
    turnstile = CrossLoopLock()

    async def wait() -> None:
        async with turnstile:
            pytest.fail("it was its turn after its event loop was closed")

    async def work() -> None:
        loop = asyncio.new_event_loop()

        async with turnstile:
            waiting = loop.create_task(wait())

            def step() -> None:
                loop.run_until_complete(asyncio.sleep(0))
                loop.close()

            await asyncio.to_thread(step)
        async with asyncio.timeout(30), turnstile:
            pass
        # It is never ended, and nothing waits for it.
        setattr(waiting, "_log_destroy_pending", False)  # noqa: B010

    asyncio.run(work())
    gc.collect()


@pytest.mark.parametrize("make", [CrossLoopLock, asyncio.Lock])
async def test_it_behaves_as_a_lock_of_asyncio_does(make: Callable[[], Any]) -> None:
    lock = make()
    async with lock:
        waiting = asyncio.create_task(lock.__aenter__())
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
    async with asyncio.timeout(30), lock:
        pass
