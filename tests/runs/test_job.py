"""What a run keeps of its turn, and what a process does that no longer has it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.runs import changing
from tests.runs.rig import Rig, follow, wait_for
from vibe_llms import Decision, Session, Turn, open_session
from vibe_llms.base.exceptions import StorageUnavailable
from vibe_llms.conversations.hooks import HookRequest
from vibe_llms.memory.hook import MemoryHook
from vibe_llms.messages.canisters import (
    ResultCanister,
    StopReason,
    SupervisorCanister,
    role_of,
)
from vibe_llms.providers.scripted.client import ScriptedModel
from vibe_llms.runs import (
    ApprovalRequested,
    CallEnded,
    CallStarted,
    MessageCompleted,
    MessageDelta,
    MessageFailed,
    MessageStarted,
    Run,
    RunContinued,
    RunEnded,
    RunStatus,
)
from vibe_llms.runs.events import encode_event
from vibe_llms.runs.interfaces import Lease

FETCH = """
[[replies]]
parts = [
    { invocation = "changing/fetch", arguments = {} },
    { invocation = "changing/gate", arguments = {} },
]
[[replies]]
parts = [{ invocation = "changing/send", arguments = { text = "secret" } }]
[[replies]]
parts = [{ text = "Done." }]
"""


@pytest.mark.parametrize(
    ("before", "after", "asks"),
    [
        ({"outside": True}, {"outside": True}, True),
        ({"outside": True}, None, True),
        ({"outside": True}, {}, True),
        # A result is trusted as its tool was when it ran, also where the tool is gone.
        ({}, None, False),
        ({}, {}, False),
    ],
)
async def test_untrusted_text_is_not_forgotten_where_another_process_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: Mapping[str, Any],
    after: Mapping[str, Any] | None,
    *,
    asks: bool,
) -> None:
    monkeypatch.setattr(changing, "SENT", [])
    (tmp_path / "fetch.toml").write_text(FETCH)
    settings = {
        "storage": {"durability": "fast"},
        "providers": {"scripted": {"scripts": {"fetch": str(tmp_path / "fetch.toml")}}},
        "ensembles": {"changing": {"module": "tests.runs.changing"}},
    }
    monkeypatch.setattr(changing, "FETCH", before)
    async with open_session(home=tmp_path, configuration=settings) as session:
        conversation = await session.begin("scripted/fetch", ensembles=["changing"])
        run = await session.start(conversation, "Go on.")
        _, asked = await wait_for(run, ApprovalRequested)
        assert asked.name == "changing/gate"
    monkeypatch.setattr(changing, "FETCH", after)
    async with open_session(home=tmp_path, configuration=settings) as session:
        found = await session.access_run(run.identity)
        await found.decide(asked.invocation, Decision.ALLOW)
        waits = False
        async for _, event in found.events():
            waits = isinstance(event, ApprovalRequested) and event.name == "changing/send"
            if waits:
                break
        assert waits is asks
        assert ([] if asks else ["secret"]) == changing.SENT


async def usurp(session: Session, run: Run) -> None:
    """Take a run over, as a process does that finds its lease ended."""
    store, record = session.access_runs().store, run.record
    await store.renew([Lease(record.user, run.identity, 1)], 0)
    claimed = None
    while claimed is None:
        claimed = await store.claim(record.user, 600, known=["transfer", "look"])
    assert (claimed.identity, claimed.epoch) == (run.identity, 2)


async def test_a_process_whose_epoch_is_over_appends_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[str] = []
    monkeypatch.setattr(MemoryHook, "after_turn", lambda _, __, turn: ends.append(turn.stop_reason))
    started: asyncio.Future[tuple[Session, Run]] = asyncio.get_running_loop().create_future()

    async def transfer(sum: int) -> str:  # noqa: A002
        await usurp(*await started)
        return f"sent {sum}"

    rig.bank.transfer = transfer  # type: ignore[method-assign]
    session = await rig.open()
    conversation = await session.begin(
        "scripted/call", invokers=session.registered_invokers.values(), memory=True
    )
    started.set_result((session, await session.start(conversation, "Go on.")))
    worker = session.access_runs().worker
    while worker.busy:
        await asyncio.sleep(0.01)
    stored = (await session.archive.restore(conversation.identity)).canisters
    assert [role_of(one) for one in stored] == ["user", "invocation"]
    # The process that has the run now concludes the turn.
    assert ends == []


@pytest.mark.parametrize("failing", range(1, 4))
async def test_what_is_away_for_a_moment_is_announced_as_a_takeover_is(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    session = await rig.open()
    attempts = itertools.count(1)

    def at_times(add: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def attempt(*arguments: Any, **settings: Any) -> Any:
            if next(attempts) == failing:
                raise StorageUnavailable("the database cannot be used now")
            return await add(*arguments, **settings)

        return attempt

    for name in ("create", "append"):
        monkeypatch.setattr(session.archive, name, at_times(getattr(session.archive, name)))
    events = [event for _, event in await follow(await rig.start(session, "call"))]
    started = {one.message for one in events if isinstance(one, MessageStarted)}
    completed = {one.message for one in events if isinstance(one, MessageCompleted)}
    again = {one.message for one in events if isinstance(one, RunContinued)}
    assert next(attempts) > failing
    assert not [one for one in events if isinstance(one, MessageFailed)]
    assert started - completed == again - {""}
    assert events[-1] == RunEnded(RunStatus.COMPLETED)


async def test_hooks_conclude_a_turn_once_and_where_it_ends(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[str] = []

    def after_turn(_: MemoryHook, __: HookRequest, turn: Turn) -> None:
        ends.append(turn.stop_reason)

    monkeypatch.setattr(MemoryHook, "after_turn", after_turn)
    session = await rig.open()
    conversation = await session.begin("scripted/slow", memory=True)
    run = await session.start(conversation, "I like tea.")
    await wait_for(run, MessageDelta)
    await session.close()
    assert ends == []
    (rig.home / "slow.toml").write_text('[[replies]]\nparts = [{ text = "Nice." }]\n')
    other = await rig.open()
    found = await other.access_run(run.identity)
    other.access_runs().resume()
    assert (await found.result()).text == "Nice."
    assert ends == [StopReason.FINISHED]


async def test_a_run_that_ends_at_a_limit_says_so_to_every_process(tmp_path: Path) -> None:
    (tmp_path / "loop.toml").write_text(
        '[[replies]]\nparts = [{ invocation = "look", arguments = {} }]\n' * 3
    )
    settings = {
        "storage": {"durability": "fast"},
        "tools": {"max-rounds": 1},
        "providers": {"scripted": {"scripts": {"loop": str(tmp_path / "loop.toml")}}},
    }

    def look() -> str:
        return "nothing"

    async with open_session(home=tmp_path, configuration=settings, invokers=[look]) as session:
        conversation = await session.begin("scripted/loop", invokers=[look])
        run = await session.start(conversation, "Go on.")
        turn = await run.result()
        events = [event for _, event in await follow(run)]
    assert turn.stop_reason == StopReason.LIMIT
    results = [one for one in turn.canisters if isinstance(one, ResultCanister)]
    # The call that was refused begins and ends for those who follow, as others do.
    begun = [one.invocation for one in events if isinstance(one, CallStarted)]
    ended = [one for one in events if isinstance(one, CallEnded)]
    assert begun == [one.invocation for one in ended]
    assert [(one.result, one.failed) for one in ended] == [
        (one.identity, one.failed) for one in results
    ]
    assert [one.failed for one in ended] == [False, True]
    async with open_session(home=tmp_path, configuration=settings, invokers=[look]) as session:
        found = await session.access_run(run.identity)
        assert (await found.result()).stop_reason == StopReason.LIMIT


LOST = "The state that the tools of program had in memory"


@pytest.mark.parametrize("used", [True, False])
async def test_the_model_is_told_what_programs_may_have_lost_while_a_run_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, used: bool
) -> None:
    called = '{ invocation = "program/compute", arguments = {} },' if used else ""
    gate = '{ invocation = "changing/gate", arguments = {} }'
    (tmp_path / "wait.toml").write_text(
        f"[[replies]]\nparts = [{called} {gate}]\n"
        f"[[replies]]\nparts = [{gate.replace('gate', 'fetch')}]\n"
        '[[replies]]\nparts = [{ text = "Done." }]\n'
    )
    settings = {
        "storage": {"durability": "fast"},
        "providers": {"scripted": {"scripts": {"wait": str(tmp_path / "wait.toml")}}},
        "ensembles": {
            "changing": {"module": "tests.runs.changing"},
            "program": {"module": "tests.runs.changing", "pin-tools": False},
        },
    }
    told: list[bool] = []
    converse = ScriptedModel.converse

    async def watch(self: ScriptedModel, canisters: Sequence[Any], *rest: Any) -> Any:
        said = [one.text for one in canisters if isinstance(one, SupervisorCanister)]
        told.append(any(LOST in text for text in said))
        return await converse(self, canisters, *rest)

    monkeypatch.setattr(ScriptedModel, "converse", watch)
    async with open_session(home=tmp_path, configuration=settings) as session:
        conversation = await session.begin("scripted/wait", ensembles=["changing", "program"])
        run = await session.start(conversation, "Go on.")
        _, asked = await wait_for(run, ApprovalRequested)
    async with open_session(home=tmp_path, configuration=settings) as session:
        found = await session.access_run(run.identity)
        await found.decide(asked.invocation, Decision.ALLOW)
        assert (await found.result()).text == "Done."
        stored = (await session.archive.restore(run.record.conversation)).canisters
    assert told == [False, used, used]
    assert not any(isinstance(one, SupervisorCanister) for one in stored)


async def test_a_run_that_a_fault_ends_says_so_to_followers(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    session = await rig.open()
    monkeypatch.setattr(ScriptedModel, "converse", fail)
    run = await rig.start(session, "talk")
    events = await follow(run)
    assert events[-1][1] == RunEnded("failed", "RuntimeError: a bug")
    assert await follow(run, events[-1][0]) == []
    assert (await session.access_runs().store.read_events("local", run.identity))[-1] == (
        events[-1][0],
        encode_event(events[-1][1]),
    )
