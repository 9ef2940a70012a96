"""A turn that is running goes on as a run, in any process, and nothing is done twice."""

from __future__ import annotations

import asyncio

import pytest

from tests.runs.rig import SCRIPTS, TEXT, Rig, follow, text_of
from vibe_llms import MessageProgressEvent, Session
from vibe_llms.base.exceptions import RequestError
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.settings import TurnState
from vibe_llms.messages.canisters import AssistantCanister, ResultCanister, StopReason
from vibe_llms.messages.events import Event, TextChunk, TurnEndedEvent
from vibe_llms.runs import CallEnded, RunContinued, RunStatus


class Hearing:
    """The events of a turn, and when its text begins."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.begun = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, MessageProgressEvent) and isinstance(event.chunk, TextChunk):
            self.begun.set()


async def begin(session: Session, script: str, *, save: bool = True) -> Conversation:
    return await session.begin(
        f"scripted/{script}", invokers=session.registered_invokers.values(), save=save
    )


async def test_a_reply_that_is_being_written_is_asked_for_again_elsewhere(rig: Rig) -> None:
    one, other = await rig.open(), await rig.open()
    one.access_runs().worker.pause()
    conversation, hearing = await begin(one, "slow"), Hearing()
    turn = asyncio.create_task(conversation.converse("Go on.", event_handler=hearing))
    await hearing.begun.wait()
    (rig.home / "slow.toml").write_text(SCRIPTS["talk"])
    run = await one.detach(conversation)
    assert (await turn).stop_reason == StopReason.SUSPENDED
    # It has not ended, and what had arrived of the reply is not kept.
    assert not any(isinstance(event, TurnEndedEvent) for event in hearing.events)
    assert not any(isinstance(said, AssistantCanister) for said in conversation.canisters)
    other.access_runs().resume()
    found = await other.access_run(run.identity)
    assert (await found.result()).text == TEXT
    events = await follow(run)
    assert isinstance(events[0][1], RunContinued)
    assert text_of(events) == TEXT
    await conversation.refresh()
    assert [one.text for one in conversation.canisters] == ["Go on.", TEXT]  # type: ignore[union-attr]


async def test_a_call_that_is_running_is_waited_for_and_runs_once(rig: Rig) -> None:
    session = await rig.open()
    may = asyncio.Event()

    async def transfer(sum: int) -> str:  # noqa: A002
        rig.bank.transfers += 1
        rig.bank.began.set()
        await may.wait()
        return f"sent {sum}"

    rig.bank.transfer = transfer  # type: ignore[method-assign]
    await session.close()
    session = await rig.open()
    conversation = await begin(session, "call")
    turn = asyncio.create_task(conversation.converse("Go on."))
    await rig.bank.began.wait()
    detaching = asyncio.create_task(session.detach(conversation))
    await asyncio.sleep(0)
    assert not turn.done()
    may.set()
    run = await detaching
    assert (await turn).stop_reason == StopReason.SUSPENDED
    whole = await run.result()
    assert (whole.text, rig.bank.transfers) == ("It is done.", 1)
    (result,) = [one for one in whole.canisters if isinstance(one, ResultCanister)]
    assert (result.text, result.failed) == ("sent 3", False)
    # The result is in the events of the run too.
    events = [event for _, event in await follow(run)]
    assert [one.result for one in events if isinstance(one, CallEnded)] == [result.identity]
    assert (await run.access()).status is RunStatus.COMPLETED


async def test_a_turn_that_no_other_process_could_continue_goes_on_here(rig: Rig) -> None:
    session = await rig.open()
    conversation, hearing = await begin(session, "slow", save=False), Hearing()
    turn = asyncio.create_task(conversation.converse("Go on.", event_handler=hearing))
    await hearing.begun.wait()
    with pytest.raises(RequestError, match="begin it with save"):
        await session.detach(conversation)
    assert not turn.done()
    await conversation.cancel()
    assert (await turn).stop_reason == StopReason.INTERRUPTED
    with pytest.raises(RequestError, match="no turn of this conversation is running"):
        await session.detach(conversation)


async def test_a_turn_with_tools_of_its_own_goes_on_here(rig: Rig) -> None:
    session = await rig.open()
    conversation = await begin(session, "slow")
    turn = asyncio.create_task(conversation.converse("Go on.", invokers=[]))
    await asyncio.sleep(0)
    with pytest.raises(RequestError, match="its own tools"):
        await session.detach(conversation)
    turn.cancel()
    await asyncio.wait([turn])


async def test_a_turn_that_has_hardly_begun_goes_on_with_its_prompt_once(rig: Rig) -> None:
    session = await rig.open()
    conversation = await begin(session, "talk")
    turn = asyncio.create_task(conversation.converse("Go on."))
    await asyncio.sleep(0)
    run = await session.detach(conversation)
    assert (await turn).stop_reason == StopReason.SUSPENDED
    assert (await run.result()).text == TEXT
    assert [one.text for one in conversation.canisters] == ["Go on.", TEXT]  # type: ignore[union-attr]


async def test_a_turn_that_has_read_untrusted_text_stays_tainted_as_a_run(rig: Rig) -> None:
    (rig.home / "call.toml").write_text(
        SCRIPTS["call"].partition("[[replies]]\n[[replies.parts]]\ntext")[0] + SCRIPTS["slow"]
    )
    session = await rig.open(outside=True)
    session.access_runs().worker.pause()
    conversation, hearing = await begin(session, "call"), Hearing()
    turn = asyncio.create_task(conversation.converse("Go on.", event_handler=hearing))
    await hearing.begun.wait()
    run = await session.detach(conversation)
    await turn
    assert run.record.state == TurnState(tainted=True)
    other = await rig.open()
    assert (await (await other.access_run(run.identity)).access()).state == TurnState(tainted=True)
    await run.cancel()
