"""Limits whose clock stands still while a person is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from vibe_llms.invocation.execution import Execution, execute
from vibe_llms.invocation.invokers import InvocationContext, Invoker
from vibe_llms.invocation.limits import Limit, Patience
from vibe_llms.messages.canisters import InvocationCanister, ResultCanister


async def test_a_limit_ends_what_takes_longer() -> None:
    limit = Limit(0.01)
    with pytest.raises(TimeoutError):
        async with limit:
            await asyncio.sleep(60)
    assert limit.expired


async def test_a_pause_does_not_count_and_pauses_may_overlap() -> None:
    async with Limit(0.3) as limit:
        with limit.pause():
            with limit.pause():
                await asyncio.sleep(0.4)
            await asyncio.sleep(0.1)
    assert not limit.expired


async def test_what_was_left_before_a_pause_is_left_after_it() -> None:
    async def wait_after_a_pause() -> None:
        async with Limit(0.2) as limit:
            with limit.pause():
                await asyncio.sleep(0.3)
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await wait_after_a_pause()


async def test_a_pause_outside_of_the_block_changes_nothing() -> None:
    limit = Limit(60)
    with limit.pause():
        pass
    async with limit:
        pass
    with limit.pause():
        pass
    assert not limit.expired


async def test_patience_stops_all_clocks_that_are_kept() -> None:
    patience = Patience()
    async with Limit(0.2) as one, Limit(0.25) as other:
        with patience.keep(one.pause), patience.keep(other.pause), patience.ask():
            await asyncio.sleep(0.4)
    assert not one.expired
    assert not other.expired
    with patience.ask():
        pass


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
