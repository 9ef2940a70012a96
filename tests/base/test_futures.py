"""Work that a cancellation does not stop."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable

import pytest

from vibe_llms.base.futures import ShieldedFuture, ShieldedWork, finish, shield


class Held:
    """Work that waits until it may end, and may fail then."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.ended = False
        self._error = error

    async def work(self) -> int:
        self.begun.set()
        await self.may_end.wait()
        self.ended = True
        if self._error is not None:
            raise self._error
        return 42


async def test_a_task_that_waits_is_cancelled_once_the_future_is_done() -> None:
    future: ShieldedFuture[int] = ShieldedFuture()
    task = asyncio.ensure_future(future.wait())
    await asyncio.sleep(0)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    assert not future.cancelled()
    future.set_result(42)
    cancelled = await task
    assert isinstance(cancelled, asyncio.CancelledError)
    assert future.result() == 42
    assert await future.wait() is None


async def test_finished_work_gives_its_result() -> None:
    held = Held()
    held.may_end.set()
    assert await finish(held.work()) == 42


async def test_work_is_finished_although_the_task_is_cancelled() -> None:
    held = Held()
    task = asyncio.ensure_future(finish(held.work()))
    await held.begun.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    held.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert held.ended


async def test_work_that_fails_while_it_is_cancelled_raises_its_own_error() -> None:
    held = Held(ZeroDivisionError())
    task = asyncio.ensure_future(finish(held.work()))
    await held.begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    held.may_end.set()
    with pytest.raises(ZeroDivisionError):
        await task


async def test_a_time_limit_within_shielded_work_ends_it() -> None:
    async def wait() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await finish(wait())


async def test_a_time_limit_around_shielded_work_counts_once_it_is_done() -> None:
    held = Held()

    async def wait() -> None:
        async with asyncio.timeout(0):
            await finish(held.work())

    task = asyncio.ensure_future(wait())
    await held.begun.wait()
    # The limit is over by the second round.
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    held.may_end.set()
    with pytest.raises(TimeoutError):
        await task
    assert held.ended


@pytest.mark.parametrize("steps", [0, 1])
def test_work_that_ends_with_its_loop_is_cancelled_and_closed(steps: int) -> None:
    """`asyncio.run` cancels all tasks in the end, also those that have not begun."""
    held = Held()
    futures: list[ShieldedFuture[int]] = []

    async def leave() -> None:
        futures.append(shield(held.work()))
        for _ in range(steps):
            await asyncio.sleep(0)

    asyncio.run(leave())
    assert futures[0].cancelled()
    assert not held.ended


class Begun:
    """Shielded work, and the futures of those that were begun."""

    def __init__(self) -> None:
        self.futures: list[ShieldedFuture[int]] = []

    def begin(self) -> ShieldedFuture[int]:
        self.futures.append(ShieldedFuture())
        return self.futures[-1]

    def work(self) -> ShieldedWork[int]:
        return ShieldedWork(self.begin)


async def test_work_that_is_shielded_already_gets_no_task() -> None:
    begun, before = Begun(), asyncio.all_tasks()
    future = shield(begun.work())
    assert begun.futures == [future]
    assert asyncio.all_tasks() == before
    future.set_result(42)
    assert await finish(future) == 42


async def test_shielded_work_can_be_awaited_as_any_coroutine() -> None:
    begun = Begun()
    loop = asyncio.get_running_loop()
    works = [begun.work() for _ in range(4)]
    assert begun.futures == []
    tasks = [
        asyncio.create_task(works[0]),
        asyncio.ensure_future(works[1]),
        asyncio.ensure_future(asyncio.wait_for(works[2], 60)),
        asyncio.ensure_future(finish(works[3])),
    ]
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(begun.futures) == 4
    for number, future in enumerate(begun.futures):
        loop.call_soon(future.set_result, number)
    assert sorted(await asyncio.gather(*tasks)) == [0, 1, 2, 3]


def test_shielded_work_can_be_run_and_dropped() -> None:
    def begin() -> ShieldedFuture[int]:
        future: ShieldedFuture[int] = ShieldedFuture()
        asyncio.get_running_loop().call_soon(future.set_result, 42)
        return future

    assert asyncio.run(ShieldedWork(begin)) == 42
    dropped = ShieldedWork(begin)
    dropped.close()
    thrown = ShieldedWork(begin)
    with pytest.raises(ZeroDivisionError):
        thrown.throw(ZeroDivisionError())
    thrown.close()


async def test_a_future_keeps_its_work_alive() -> None:
    """A loop forgets a task that nobody refers to."""
    held = Held()
    future = shield(held.work())
    await held.begun.wait()
    gc.collect()
    held.may_end.set()
    assert await future == 42


async def test_an_error_is_not_kept_alive_by_its_own_traceback() -> None:
    class Failure(Exception):
        pass

    async def fail() -> None:
        raise Failure

    async def watch() -> Callable[[], object]:
        try:
            await finish(fail())
        except Failure as error:
            return weakref.ref(error)
        raise AssertionError("it did not fail")

    gc.disable()
    try:
        reference = await watch()
        await asyncio.sleep(0)
        assert reference() is None
    finally:
        gc.enable()
