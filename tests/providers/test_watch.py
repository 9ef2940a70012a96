"""Time limits of a reply: which one ends a wait, and whose time counts."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from typing import Any

import pytest

from vibe_llms.base.exceptions import ReplyTimeout
from vibe_llms.providers.watch import Watch


async def wait(seconds: float, *limits: tuple[str, float], every: float = 10) -> None:
    """Expect something again and again, and never get it."""
    async with Watch("row", seconds) as watch:
        while True:
            for limit, allowed in limits:
                watch.expect(limit, allowed)
            await asyncio.sleep(every)


async def test_a_limit_ends_the_wait_that_it_is_for() -> None:
    with pytest.raises(ReplyTimeout) as caught:
        await wait(100, ("first-byte-seconds", 50), ("idle-seconds", 0.01))
    assert (caught.value.limit, caught.value.seconds) == ("idle-seconds", 0.01)
    assert "no answer within 0.01 s (idle-seconds)" in str(caught.value)


async def test_the_limit_of_the_whole_ends_everything() -> None:
    with pytest.raises(ReplyTimeout) as caught:
        await wait(0.05, ("idle-seconds", 10), every=0.01)
    assert caught.value.limit == "reply-seconds"
    assert "not complete within 0.05 s" in str(caught.value)


async def test_what_arrives_in_time_sets_the_limit_anew() -> None:
    async with Watch("row", 100) as watch:
        for _ in range(5):
            watch.expect("idle-seconds", 0.2)
            await asyncio.sleep(0.06)
        watch.rest()
        await asyncio.sleep(0.3)


async def test_a_limit_that_was_set_anew_ends_the_wait_in_its_turn() -> None:
    with pytest.raises(ReplyTimeout) as caught:
        await wait(5, ("idle-seconds", 0.05), ("first-byte-seconds", 0.1))
    assert caught.value.limit == "first-byte-seconds"


async def be_flooded(seconds: float) -> None:
    """Work all the time: what comes at once never lets a timer run."""
    async with Watch("row", seconds) as watch:
        while True:
            watch.work()
            watch.expect("idle-seconds", 10)


async def test_what_leaves_no_time_for_a_timer_ends_too() -> None:
    with pytest.raises(ReplyTimeout) as caught:
        await be_flooded(0.05)
    assert caught.value.limit == "reply-seconds"


@pytest.mark.parametrize(("steps", "given_back"), [(1, True), (5, True), (10, False)])
async def test_what_a_handler_takes_is_given_back(steps: int, given_back: bool) -> None:
    async with Watch("row", 0.3) as watch:
        watch.expect("idle-seconds", 0.1)
        watch.work()
        time.sleep(0.4)
        with nullcontext() if given_back else pytest.raises(ReplyTimeout):
            watch.expect("idle-seconds", 0.1, steps)


async def tidy_up_slowly() -> None:
    """Wait for something more while the first wait is being ended."""
    async with Watch("row", 60) as watch:
        watch.expect("idle-seconds", 0.01)
        try:
            await asyncio.sleep(10)
        finally:
            watch.expect("idle-seconds", 0.01)
            await asyncio.sleep(0.1)


async def test_a_watch_that_has_ended_a_wait_does_so_once() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    with pytest.raises(ReplyTimeout):
        await tidy_up_slowly()
    assert not reported


async def test_own_work_counts_for_no_limit() -> None:
    async with Watch("row", 0.2) as watch:
        watch.expect("idle-seconds", 0.1)
        watch.rest()
        await asyncio.sleep(0.3)
        watch.rest()
        watch.expect("idle-seconds", 0.1)
        watch.rest()
        time.sleep(0.15)
        watch.expect("idle-seconds", 0.15)
        await asyncio.sleep(0.05)


async def rest_and_wait(limit: str, seconds: float) -> None:
    async with Watch("row", 0.1) as watch:
        watch.rest()
        await asyncio.sleep(0.15)
        watch.expect(limit, seconds)
        await asyncio.sleep(10)


@pytest.mark.parametrize(("limit", "seconds"), [("idle-seconds", 0.02), ("reply-seconds", 10)])
async def test_after_own_work_the_limits_run_again(limit: str, seconds: float) -> None:
    with pytest.raises(ReplyTimeout) as caught:
        await rest_and_wait(limit, seconds)
    assert caught.value.limit == limit


async def test_after_a_loop_was_held_up_the_limits_run_again() -> None:
    asyncio.get_running_loop().call_later(0.01, time.sleep, 0.3)
    with pytest.raises(ReplyTimeout):
        await wait(60, ("idle-seconds", 0.1))


async def test_a_watch_lets_other_errors_and_cancels_through() -> None:
    with pytest.raises(ZeroDivisionError):
        async with Watch("row", 10):
            raise ZeroDivisionError

    task = asyncio.create_task(wait(10))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
