"""A turn as a loop over its events."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from tests.fakes.models import endless, last_of, model_of, progressed, says
from vibe_llms.base.exceptions import (
    ConversationBusy,
    ProviderOverloaded,
)
from vibe_llms.conversations import streams
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.conversations.streams import EventStream
from vibe_llms.conversations.turns import TurnRun
from vibe_llms.messages.canisters import (
    StopReason,
    UserCanister,
)
from vibe_llms.messages.events import (
    Event,
    MessageProgressEvent,
    TurnEndedEvent,
)
from vibe_llms.session.core import Session
from vibe_llms.testing import (
    Part,
    ScriptedReply,
    check_events,
    scripted_model,
)


async def test_a_turn_can_be_looped_over(session: Session) -> None:
    conversation = await session.begin(model_of(says("It ", "is ", "blue.")))
    stream = conversation.stream("Why?")
    events = [event async for event in stream]
    check_events(events)
    assert stream.turn is not None
    assert stream.turn.text == "It is blue."
    assert isinstance(events[-1], TurnEndedEvent)
    assert [event async for event in stream] == []


async def test_a_conversation_at_rest_keeps_its_last_turn_and_not_what_ran_it(
    session: Session,
) -> None:
    conversation = await session.begin(model_of(says("It is blue.")))
    gc.collect()
    gc.disable()
    try:
        others = {id(one) for one in gc.get_objects() if type(one) is TurnRun}
        await conversation.converse("Why?")
        left = [one for one in gc.get_objects() if type(one) is TurnRun and id(one) not in others]
    finally:
        gc.enable()
    assert not left


async def test_what_has_arrived_is_taken_together(session: Session) -> None:
    conversation = await session.begin(model_of(says("It ", "is ", "blue.")))
    taken = []
    async with conversation.stream("Why?") as stream:
        async for first in stream:
            taken.append([first])
            break
        while events := await stream.take():
            taken.append([*events])
    events = [event for some in taken for event in some]
    check_events(events)
    assert len(taken) < len(events)
    assert stream.turn is not None
    assert stream.turn.text == "It is blue."
    assert await stream.take() == ()


async def test_a_stream_as_a_context_is_read_to_its_end(session: Session) -> None:
    conversation = await session.begin(model_of(says("It ", "is.")))
    async with conversation.stream("Why?", streaming=False) as stream:
        texts = [e.chunk.text async for e in stream if isinstance(e, MessageProgressEvent)]
    assert texts == ["It is."]


async def test_an_error_of_the_turn_is_raised_in_the_loop(session: Session) -> None:
    failing = ScriptedReply(parts=(Part(text="It "), Part(error="overloaded")))
    conversation = await session.begin(model_of(failing, says("Works.")))
    events: list[Event] = []

    async def collect() -> None:
        async for event in conversation.stream("Why?"):
            events.append(event)

    with pytest.raises(ProviderOverloaded):
        await collect()
    check_events(events)
    async with conversation.stream("Why?") as stream:
        await anext(stream)
    assert not conversation.busy


async def test_leaving_the_context_early_ends_the_turn(session: Session) -> None:
    conversation = await session.begin(endless())
    async with conversation.stream("wait") as stream:
        async for event in stream:
            if progressed("It ")(event):
                break
    assert not conversation.busy
    assert last_of(conversation).text.startswith("It ")
    assert (await conversation.converse("b")).text == "Works."


async def test_leaving_the_loop_without_a_context_ends_the_turn_as_well(session: Session) -> None:
    conversation = await session.begin(endless())
    async for event in conversation.stream("wait"):
        seen = progressed("It ")(event)
        del event
        if seen:
            break
    gc.collect()
    async with asyncio.timeout(30):
        while conversation.busy:
            await asyncio.sleep(0)
    assert last_of(conversation).text.startswith("It ")


def said(conversation: Conversation) -> list[str]:
    """What the user has said in a conversation."""
    return [one.text for one in conversation.canisters if isinstance(one, UserCanister)]


async def leave(stream: AsyncIterator[object]) -> None:
    """Take the first item of a loop, and leave it."""
    async for _ in stream:
        break


@pytest.mark.parametrize("kind", ["events", "text"])
@pytest.mark.parametrize("then", ["converse", "stream", "text", "undo", "switch", "add", "fork"])
async def test_what_follows_a_loop_that_was_left_waits_for_the_end_of_its_turn(
    session: Session, kind: str, then: str
) -> None:
    conversation = await session.begin(endless())
    await leave(
        conversation.stream("wait") if kind == "events" else conversation.stream("wait").text()
    )
    assert conversation.busy
    match then:
        case "converse":
            assert (await conversation.converse("b")).text == "Works."
        case "stream":
            stream = conversation.stream("b")
            events = [event async for event in stream]
            check_events(events)
            assert stream.turn is not None
            assert stream.turn.text == "Works."
        case "text":
            assert "".join([text async for text in conversation.stream("b").text()]) == "Works."
        case "undo":
            assert (await conversation.undo()).canisters == ()
        case "switch":
            await conversation.switch(model_of(says("Other."), says("Other.")))
            assert (await conversation.converse("b")).text == "Other."
        case "add":
            await conversation.add("b")
            assert said(conversation)[-1] == "b"
        case _:
            assert len((await conversation.fork()).canisters) == len(conversation.canisters)
    assert not conversation.busy
    assert said(conversation)[0] == "wait"


async def test_a_stream_that_is_still_held_keeps_its_turn(session: Session) -> None:
    conversation = await session.begin(endless())
    stream = conversation.stream("wait")
    async for _ in stream:
        break
    with pytest.raises(ConversationBusy):
        await conversation.converse("b")
    with pytest.raises(ConversationBusy):
        conversation.stream("b")
    await conversation.cancel()


async def test_a_loop_over_text_that_is_cancelled_has_ended_its_turn(session: Session) -> None:
    conversation = await session.begin(endless())
    texts = conversation.stream("wait").text()
    await anext(texts)

    async def exhaust() -> None:
        async for _ in texts:
            pass

    task = asyncio.create_task(exhaust())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not conversation.busy
    await texts.aclose()


async def test_what_happens_in_the_block_is_raised_after_the_turn_has_ended(
    session: Session,
) -> None:
    conversation = await session.begin(endless())

    async def fail() -> None:
        async with conversation.stream("wait") as stream:
            await anext(stream)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert not conversation.busy


async def test_a_slow_loop_holds_the_stream_back(session: Session) -> None:
    model = scripted_model(ScriptedReply.from_chunks(*["x"] * 5000))
    conversation = await session.begin(model, save=False)
    async with conversation.stream("a") as stream:
        await anext(stream)
        for _ in range(2000):
            await asyncio.sleep(0)
        assert len(stream.channel.events) <= streams._QUEUED_EVENTS
        assert conversation.busy
        count = 0
        async for event in stream:
            count += isinstance(event, MessageProgressEvent)
    assert count == 5000


async def test_a_stream_that_follows_nothing_is_empty() -> None:
    async with EventStream() as stream:
        assert [event async for event in stream] == []


async def test_a_stream_that_was_cancelled_elsewhere_ends(session: Session) -> None:
    conversation = await session.begin(endless())
    async with conversation.stream("wait") as stream:
        await anext(stream)
        await conversation.cancel()
        events = [event async for event in stream]
    assert isinstance(events[-1], TurnEndedEvent)
    assert stream.turn is not None
    assert stream.turn.stop_reason == StopReason.INTERRUPTED


async def test_the_text_of_a_turn_can_be_looped_over(session: Session) -> None:
    conversation = await session.begin(model_of(says("It ", "is ", "blue.")))
    assert [text async for text in conversation.stream("Why?").text()] == ["It ", "is ", "blue."]
    assert not conversation.busy


async def test_leaving_the_loop_over_text_early_ends_the_turn(session: Session) -> None:
    conversation = await session.begin(endless())
    async for text in conversation.stream("wait").text():
        if text == "It ":
            break
    async with asyncio.timeout(30):
        while conversation.busy:
            await asyncio.sleep(0)
    assert last_of(conversation).text.startswith("It ")


async def test_an_error_of_the_turn_is_raised_in_the_loop_over_text(session: Session) -> None:
    failing = ScriptedReply(parts=(Part(text="It "), Part(error="overloaded")))
    conversation = await session.begin(model_of(failing))
    texts = conversation.stream("Why?").text()
    assert await anext(texts) == "It "
    with pytest.raises(ProviderOverloaded):
        await anext(texts)
