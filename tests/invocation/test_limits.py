"""Limits whose clock is paused while a person is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.faults.virtual import run_virtually
from vibe_llms.invocation.execution import Execution, execute
from vibe_llms.invocation.invokers import InvocationContext, Invoker
from vibe_llms.invocation.limits import Limit, SharedLimits
from vibe_llms.messages.canisters import InvocationCanister, ResultCanister


@pytest.mark.parametrize("pauses", [[], [5.0], [5.0, 3.0]])
def test_what_is_left_before_a_pause_is_left_after_it_and_no_more(pauses: list[float]) -> None:
    async def hold(limit: Limit) -> None:
        async with limit:
            for seconds in pauses:
                await asyncio.sleep(0.25)
                with limit.pause(), limit.pause():
                    await asyncio.sleep(seconds)
            await asyncio.sleep(60)

    async def work() -> float:
        loop = asyncio.get_running_loop()
        begin, limit = loop.time(), Limit(1.0)
        with pytest.raises(TimeoutError):
            await hold(limit)
        assert limit.expired
        return loop.time() - begin

    assert run_virtually(work()) == pytest.approx(1.0 + sum(pauses))


async def test_a_pause_outside_of_the_block_changes_nothing() -> None:
    limit = Limit(60)
    with limit.pause():
        pass
    async with limit:
        pass
    with limit.pause():
        pass
    assert not limit.expired


def test_patience_stops_all_clocks_that_are_kept() -> None:
    async def work() -> None:
        limits = SharedLimits()
        async with Limit(0.2) as one, Limit(0.25) as other:
            with limits.register(one.pause), limits.register(other.pause), limits.paused():
                await asyncio.sleep(0.4)
        assert not one.expired
        assert not other.expired

    run_virtually(work())


async def test_a_tool_that_asks_a_person_may_take_its_time() -> None:
    async def ask(context: InvocationContext) -> str:
        with context.pause_limit():
            await asyncio.sleep(0.4)
        return "answered"

    landed: list[ResultCanister] = []

    async def keep(results: Sequence[ResultCanister]) -> None:
        landed.extend(results)

    execution = Execution(
        invokers={"ask": Invoker.from_function(ask)},
        event_handler=lambda _: None,
        keep=keep,
        timeout_seconds=0.2,
    )
    await execute([InvocationCanister(name="ask")], execution)
    assert [one.text for one in landed] == ["answered"]
