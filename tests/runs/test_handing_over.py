"""What is recorded before a call runs, and what a decision or a delay still counts for."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.runs.rig import Rig, follow, wait_for
from vibe_llms import Decision, Session
from vibe_llms.base.exceptions import StorageUnavailable
from vibe_llms.providers.scripted.client import ScriptedModel
from vibe_llms.runs import ApprovalRequested, RunEnded, RunStatus


async def test_an_approval_does_not_cover_a_tool_that_has_changed_since(rig: Rig) -> None:
    one = await rig.open(approval="ask", description="Send money to Ada.")
    other = await rig.open(approval="ask", description="Send money to Eve.")
    run = await rig.start(one, "call")
    cursor, asked = await wait_for(run, ApprovalRequested)
    one.access_runs().worker.pause()
    await run.decide(asked.invocation, Decision.ALLOW)
    other.access_runs().worker.poke()
    found = await other.access_run(run.identity)
    async for _, event in found.events(after=cursor):
        if isinstance(event, ApprovalRequested):
            break
    else:
        pytest.fail("it was not asked again")
    assert event.invocation == asked.invocation
    assert rig.bank.transfers == 0
    await found.decide(asked.invocation, Decision.ALLOW)
    assert (await found.result()).text == "It is done."
    assert rig.bank.transfers == 1


async def test_a_fork_is_recorded_before_a_call_has_an_effect(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, other = await rig.open(), await rig.open()
    store, order = session.access_runs().store, []
    append, begin_call = store.append_events, store.begin_call

    async def append_slowly(*arguments: Any, conversation: str = "") -> None:
        if conversation:
            # A call that does not wait for this would be faster.
            for _ in range(100):
                await asyncio.sleep(0)
        await append(*arguments, conversation=conversation)
        if conversation:
            order.append("moved")

    async def begin(*arguments: Any) -> Any:
        order.append("called")
        return await begin_call(*arguments)

    monkeypatch.setattr(store, "append_events", append_slowly)
    monkeypatch.setattr(store, "begin_call", begin)
    conversation = await session.begin(
        "scripted/call", invokers=session.registered_invokers.values()
    )
    await conversation.add("Earlier words.")
    found = await other.resume(conversation.identity)
    converse = ScriptedModel.converse

    async def interfere(self: ScriptedModel, *arguments: Any) -> Any:
        reply = await converse(self, *arguments)
        if not rig.bank.transfers:
            await found.refresh()
            await found.add("In between.")
        return reply

    monkeypatch.setattr(ScriptedModel, "converse", interfere)
    run = await session.start(conversation, "Go on.")
    assert (await run.result()).text == "It is done."
    assert order == ["moved", "called"]


async def test_a_worker_that_keeps_something_ends_a_row_of_vain_ones(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await rig.open()
    delays = watch_delays(session, monkeypatch)
    attempts = itertools.count(1)

    def at_times(add: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def attempt(*arguments: Any, **settings: Any) -> Any:
            # The prompt is kept at the fourth attempt.
            if next(attempts) in (1, 2, 3, 5):
                raise StorageUnavailable("the database cannot be used now")
            return await add(*arguments, **settings)

        return attempt

    for name in ("create", "append"):
        monkeypatch.setattr(session.archive, name, at_times(getattr(session.archive, name)))
    events = await follow(await rig.start(session, "call"))
    assert events[-1][1] == RunEnded(RunStatus.COMPLETED)
    assert delays == [1, 1, 2, 1]


def watch_delays(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For how long runs are put off; they are continued at once."""
    store, delays = session.access_runs().store, []
    release = store.release

    async def release_now(lease: Any, seconds: float = 0.0) -> None:
        if seconds:
            delays.append(seconds)
        await release(lease)

    monkeypatch.setattr(store, "release", release_now)
    return delays
