"""Messages that are added to a run: through the store, by any process, exactly once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.pictures import make_png
from tests.runs.rig import Rig, follow, wait_for
from tests.runs.worker import SCRIPT, produce_tools, settings_of
from vibe_llms import open_session
from vibe_llms.base.exceptions import (
    RequestError,
    RunNotFound,
    SteeringRefused,
    StorageUnavailable,
)
from vibe_llms.invocation.approval import Decision
from vibe_llms.messages.canisters import Canister, UserCanister, role_of
from vibe_llms.messages.contents import ImageContent
from vibe_llms.runs import (
    ApprovalRequested,
    CallStarted,
    MessageAdded,
    RunEnded,
    RunNotice,
    RunStatus,
)
from vibe_llms.runs.interfaces import RunRecord
from vibe_llms.runs.replay import Replay
from vibe_llms.runs.steering import RunSteering

MORE = '[[replies]]\n[[replies.parts]]\ntext = "And more."\n'


def stop_after_taking(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None = None
) -> asyncio.Event:
    """Let workers stop, or fail with an error, between taking messages and storing them."""
    stopped = asyncio.Event()
    take = RunSteering.take

    async def take_and_stop(self: RunSteering) -> Sequence[UserCanister]:
        if taken := await take(self):
            stopped.set()
            if error is not None:
                raise error
            await asyncio.Event().wait()
        return taken

    monkeypatch.setattr(RunSteering, "take", take_and_stop)
    return stopped


def shape(canisters: Sequence[Canister]) -> list[tuple[str, str]]:
    steered = {True: "steered user"}
    return [
        (steered.get(getattr(one, "steered", False), role_of(one)), getattr(one, "text", ""))
        for one in canisters
    ]


async def test_a_message_of_another_process_comes_after_the_results(rig: Rig) -> None:
    other = await rig.open()
    other.access_runs().worker.pause()
    may = asyncio.Event()

    async def transfer(sum: int) -> str:  # noqa: A002
        rig.bank.began.set()
        await may.wait()
        return f"sent {sum}"

    rig.bank.transfer = transfer  # type: ignore[method-assign]
    one = await rig.open()
    run = await rig.start(one, "call")
    await rig.bank.began.wait()
    found = await other.access_run(run.identity)
    first = await found.steer("In euros.")
    mistake = await found.steer("In pounds.")
    last = await found.steer("Thank you.")
    assert [message.identity for message in await run.survey_queued()] == [first, mistake, last]
    assert (await found.take_back(mistake)).text == "In pounds."
    may.set()
    turn = await run.result()
    assert shape(turn.canisters) == [
        ("user", "Go on."), ("invocation", ""), ("result", "sent 3"),
        ("steered user", "In euros."), ("steered user", "Thank you."),
        ("assistant", "It is done."),
    ]  # fmt: skip
    assert shape((await found.read()).canisters) == shape(turn.canisters)
    events = [event for _, event in await follow(found)]
    assert [one.message for one in events if isinstance(one, MessageAdded)] == [first, last]
    assert not await run.survey_queued()
    for work in (run.steer("Late."), found.take_back(last)):
        with pytest.raises(SteeringRefused, match=r"ended|sent"):
            await work


async def test_a_message_during_the_last_reply_continues_the_run(rig: Rig) -> None:
    (rig.home / "slow.toml").write_text(
        '[[replies]]\n[[replies.parts]]\ntext = "first"\n[[replies.parts]]\ndelay-seconds = 0.3\n'
        + MORE
    )
    session = await rig.open()
    run = await rig.start(session, "slow")
    while (await run.access()).status is not RunStatus.RUNNING or not await run.survey_events():
        await asyncio.sleep(0.01)
    await run.steer("More.")
    turn = await run.result()
    assert shape(turn.canisters) == [
        ("user", "Go on."), ("assistant", "first"),
        ("steered user", "More."), ("assistant", "And more."),
    ]  # fmt: skip
    assert (await run.access()).reason == "finished"


async def test_a_message_to_a_run_that_waits_is_sent_when_it_continues(rig: Rig) -> None:
    session = await rig.open(approval="ask")
    run = await rig.start(session, "call")
    _, asked = await wait_for(run, ApprovalRequested)
    while (await run.access()).status is not RunStatus.WAITING:
        await asyncio.sleep(0.01)
    await run.steer("In euros.")
    assert (await run.access()).status is RunStatus.WAITING
    await run.decide(asked.invocation, Decision.ALLOW)
    turn = await run.result()
    assert shape(turn.canisters)[2:] == [
        ("result", "sent 3"), ("steered user", "In euros."), ("assistant", "It is done.")
    ]  # fmt: skip


async def test_what_the_model_cannot_read_is_reported_and_the_run_goes_on(rig: Rig) -> None:
    session = await rig.open(approval="ask")
    run = await rig.start(session, "call")
    _, asked = await wait_for(run, ApprovalRequested)
    await run.steer(ImageContent(make_png()[:40], "image/png"))
    await run.decide(asked.invocation, Decision.ALLOW)
    turn = await run.result()
    assert turn.text == "It is done."
    assert "steered user" not in [role for role, _ in shape(turn.canisters)]
    notices = [one for _, one in await follow(run) if isinstance(one, RunNotice)]
    assert any("not sent" in one.text and "image" in one.text for one in notices)


async def test_messages_that_a_cancelled_run_did_not_send_are_reported(rig: Rig) -> None:
    session = await rig.open()
    rig.bank.hangs = True
    run = await rig.start(session, "call")
    await rig.bank.began.wait()
    identity = await run.steer("In euros.")
    await run.cancel()
    events = [event for _, event in await follow(run)]
    assert any(isinstance(one, RunNotice) and "not sent" in one.text for one in events)
    assert [one.identity for one in await run.survey_queued()] == [identity]
    with pytest.raises(SteeringRefused, match="cancelled"):
        await run.steer("Late.")


async def test_messages_to_a_run_that_is_cancelled_while_it_waits_are_reported(rig: Rig) -> None:
    session = await rig.open(approval="ask")
    run = await rig.start(session, "call")
    await wait_for(run, ApprovalRequested)
    while (await run.access()).status is not RunStatus.WAITING:
        await asyncio.sleep(0.01)
    identity = await run.steer("In euros.")
    assert await run.cancel() is RunStatus.CANCELLED
    *_, notice, ended = [event for _, event in await follow(run)]
    assert isinstance(notice, RunNotice)
    assert (notice.subject, notice.message) == ("steering", identity)
    assert isinstance(ended, RunEnded)
    assert (await run.take_back(identity)).text == "In euros."


@pytest.mark.parametrize("error", [None, RequestError("too bad"), ZeroDivisionError("a bug")])
async def test_a_message_that_was_taken_and_not_stored_is_reported_and_queued(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    taken = stop_after_taking(monkeypatch, error)
    session = await rig.open(approval="ask")
    run = await rig.start(session, "call")
    _, asked = await wait_for(run, ApprovalRequested)
    identity = await run.steer("In euros.")
    await run.decide(asked.invocation, Decision.ALLOW)
    await taken.wait()
    if error is None:
        with pytest.raises(SteeringRefused, match="sent"):
            await run.take_back(identity)
        await run.cancel()
    notices = [one for _, one in await follow(run) if isinstance(one, RunNotice)]
    assert [(one.subject, one.message) for one in notices] == [("steering", identity)]
    assert [one.identity for one in await run.survey_queued()] == [identity]
    assert (await run.take_back(identity)).text == "In euros."


async def test_a_message_that_was_stored_is_not_reported_as_unsent(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancel_and_fail(*_: object) -> None:
        await run.cancel()
        raise StorageUnavailable("the disk is slow")

    session = await rig.open(approval="ask")
    run = await rig.start(session, "call")
    _, asked = await wait_for(run, ApprovalRequested)
    await run.steer("In euros.")
    monkeypatch.setattr(RunSteering, "settle", cancel_and_fail)
    await run.decide(asked.invocation, Decision.ALLOW)
    assert not [one for _, one in await follow(run) if isinstance(one, RunNotice)]
    assert (await run.access()).status is RunStatus.CANCELLED
    assert shape((await run.read()).canisters)[-1] == ("steered user", "In euros.")
    assert not await run.survey_queued()


async def test_a_worker_that_dies_after_the_last_reply_loses_no_message(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    (rig.home / "slow.toml").write_text(
        '[[replies]]\n[[replies.parts]]\ntext = "first"\n[[replies.parts]]\ndelay-seconds = 0.3\n'
        + MORE
    )
    with monkeypatch.context() as patch:
        taken = stop_after_taking(patch)
        session = await rig.open()
        run = await rig.start(session, "slow")
        while not await run.survey_events():
            await asyncio.sleep(0.01)
        await run.steer("More.")
        await taken.wait()
        await session.access_runs().give_back()
    other = await rig.open()
    found = await other.access_run(run.identity)
    other.access_runs().resume()
    turn = await found.result()
    assert shape(turn.canisters) == [
        ("user", "Go on."), ("assistant", "first"),
        ("steered user", "More."), ("assistant", "And more."),
    ]  # fmt: skip


async def test_a_run_of_another_user_is_not_found(rig: Rig) -> None:
    session = await rig.open()
    run = await rig.start(session, "talk")
    store = session.access_runs().store
    message = UserCanister.from_text("x")
    with pytest.raises(RunNotFound):
        await store.steer("bob", run.identity, message)


async def test_the_same_message_is_not_added_twice(rig: Rig) -> None:
    session = await rig.open(approval="ask")
    run = await rig.start(session, "call")
    await wait_for(run, ApprovalRequested)
    message = UserCanister.from_text("In euros.")
    await run.steer(message)
    with pytest.raises(SteeringRefused, match="already added"):
        await run.steer(message)
    assert [one.identity for one in await run.survey_queued()] == [message.identity]


async def test_queued_messages_move_to_the_run_that_continues_the_turn(rig: Rig) -> None:
    session = await rig.open()
    may = asyncio.Event()

    async def transfer(sum: int) -> str:  # noqa: A002
        rig.bank.began.set()
        await may.wait()
        return f"sent {sum}"

    rig.bank.transfer = transfer  # type: ignore[method-assign]
    await session.close()
    session = await rig.open()
    conversation = await session.begin(
        "scripted/call", invokers=session.registered_invokers.values()
    )
    task = asyncio.create_task(conversation.converse("Go on."))
    await rig.bank.began.wait()
    await conversation.steer("In euros.")
    detaching = asyncio.create_task(session.detach(conversation))
    await asyncio.sleep(0)
    may.set()
    run = await detaching
    assert (await task).stop_reason == "suspended"
    assert conversation.queued == ()
    turn = await run.result()
    assert shape(turn.canisters)[2:] == [
        ("result", "sent 3"), ("steered user", "In euros."), ("assistant", "It is done.")
    ]  # fmt: skip


@pytest.mark.parametrize("ends", ["well", "cancelled", "failed"])
async def test_a_message_is_never_in_the_queues_of_a_turn_and_its_run(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    session = await rig.open()
    rig.bank.hangs = True
    conversation = await session.begin(
        "scripted/slow", invokers=session.registered_invokers.values()
    )
    begun, may = asyncio.Event(), asyncio.Event()
    store = session.access_runs().store
    create = store.create

    async def create_later(record: RunRecord, *rest: float, most: int | None = None) -> None:
        begun.set()
        await may.wait()
        if ends == "failed":
            raise StorageUnavailable("the disk is full")
        await create(record, *rest, most=most)

    monkeypatch.setattr(store, "create", create_later)
    session.access_runs().worker.pause()
    turn = asyncio.create_task(conversation.converse("Go on."))
    while not conversation.busy:
        await asyncio.sleep(0)
    identity = await conversation.steer("In euros.")
    detaching = asyncio.create_task(session.detach(conversation))
    await begun.wait()
    with pytest.raises(SteeringRefused, match="not queued"):
        await conversation.take_back(identity)
    if ends == "cancelled":
        detaching.cancel()
    may.set()
    if ends == "well":
        run = await detaching
        assert [one.identity for one in await run.survey_queued()] == [identity]
        assert conversation.queued == ()
    elif ends == "cancelled":
        with pytest.raises(asyncio.CancelledError):
            await detaching
        (record,) = await session.access_runs().survey()
        queued = await store.survey_steering(record.user, record.identity)
        assert [one.identity for one in queued] == [identity]
        assert conversation.queued == ()
    else:
        with pytest.raises(StorageUnavailable):
            await detaching
        assert [one.identity for one in conversation.queued] == [identity]
    await asyncio.wait([turn])


async def test_a_conversation_does_not_take_messages_for_its_run(rig: Rig) -> None:
    session = await rig.open()
    rig.bank.hangs = True
    conversation = await session.begin(
        "scripted/call", invokers=session.registered_invokers.values()
    )
    run = await session.start(conversation, "Go on.")
    await rig.bank.began.wait()
    with pytest.raises(SteeringRefused, match="run"):
        await conversation.steer("x")
    await run.cancel()


async def test_an_added_message_is_read_back_as_its_event(rig: Rig) -> None:
    session = await rig.open()
    run = await rig.start(session, "talk")
    identity = await run.steer("More.")
    await run.result()
    replay = Replay(run)
    read = [await replay.read(event) for _, event in await follow(run)]
    added = [one for one in read if type(one).__name__ == "SteeringDeliveredEvent"]
    assert [one.canister.identity for one in added] == [identity]  # type: ignore[union-attr]


async def crash_after(home: Path, appends: int) -> None:
    """Kill the worker of a run when it has stored messages so often, and let another continue."""
    home.mkdir()
    (home / "bank.toml").write_text(SCRIPT + MORE * 2)
    tools = produce_tools(home)
    async with open_session(home=home, configuration=settings_of(home), invokers=tools) as session:
        session.access_runs().worker.pause()
        conversation = await session.begin("scripted/bank", invokers=tools)
        run = await session.start(conversation, "Transfer the sums.")
        await run.steer("Early.")
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.runs.worker", str(home), str(appends)),
            cwd=Path(__file__).parents[2],
        )
        waits = asyncio.create_task(wait_for(run, CallStarted))
        dies = asyncio.create_task(worker.wait())
        await asyncio.wait([waits, dies], return_when=asyncio.FIRST_COMPLETED)
        sent = ["Early."]
        if waits.done():
            await run.steer("Late.")
            sent.append("Late.")
        await dies
        waits.cancel()
        session.access_runs().worker.resume()
        turn = await run.result()
        stored = await session.archive.restore(conversation.identity)
        assert shape(stored.canisters) == shape(turn.canisters)
        texts = [text for role, text in shape(turn.canisters) if role == "steered user"]
        assert texts == sent
        added = [one for _, one in await follow(run) if isinstance(one, MessageAdded)]
        assert len({one.message for one in added}) == len(added) == len(sent)
        assert not await run.survey_queued()


@pytest.mark.parametrize("appends", range(1, 7))
async def test_a_message_is_sent_once_wherever_the_worker_is_killed(
    tmp_path: Path, appends: int
) -> None:
    await crash_after(tmp_path / "home", appends)
