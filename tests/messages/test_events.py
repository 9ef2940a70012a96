"""Promise T2: events follow one grammar, and a handler that raises corrupts nothing."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes.scripts import add, fail, produce_reply, produce_script
from vibe_llms.base.configuration import StorageSettings, StreamSettings
from vibe_llms.base.exceptions import ProviderError, ScriptInvalid
from vibe_llms.conversations import dispatcher, turns
from vibe_llms.conversations.conversation import Conversation
from vibe_llms.invocation.invokers import InvocationContext
from vibe_llms.messages.canisters import (
    Canister,
    InvocationCanister,
    ReplyCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.events import (
    Event,
    InvocationCompletedEvent,
    InvocationFailedEvent,
    InvocationProgressEvent,
    MessageCompletedEvent,
    MessageFailedEvent,
    NoticeEvent,
    SteeringEvent,
    TurnEndedEvent,
    ignore_events,
)
from vibe_llms.opening import open_session
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.interfaces import TurnContext
from vibe_llms.session.core import Session
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.testing import Part, Script, ScriptedReply, check_events, scripted_model

HELLO = (UserCanister.from_text("Hello"),)
#: No retry is waited for here; `retries` are tested elsewhere.
QUICK = StreamSettings(retries=0)


async def play(
    reply: ScriptedReply, *, streaming: bool
) -> tuple[list[Event], Sequence[ReplyCanister], str]:
    """The events of one reply, what was received, and the name of the error, if it failed."""
    events: list[Event] = []
    model = scripted_model(reply, event_handler=events.append, stream=QUICK)
    error = ""
    try:
        returned = await model.converse(HELLO, context=TurnContext(streaming=streaming))
    except ProviderError as raised:
        error = type(raised).__name__
        returned = ()
    received: list[Any] = [
        event.canister if isinstance(event, MessageCompletedEvent) else event.partial
        for event in events
        if isinstance(event, MessageCompletedEvent | MessageFailedEvent)
    ]
    assert error or list(returned) == received
    return events, received, error


def alike(canisters: Sequence[Canister]) -> list[Canister]:
    """Canisters without what is different in every reply."""
    return [
        msgspec.structs.replace(
            canister,
            identity="",
            created=None,
            **({"reply": ""} if hasattr(canister, "reply") else {}),
        )
        for canister in canisters
    ]


async def check_replies(chance: random.Random, number: int) -> None:
    """Random replies keep to the grammar, and give the same canisters streamed and not."""
    for _ in range(number):
        reply = produce_reply(chance)
        streamed, received, error = await play(reply, streaming=True)
        check_events(streamed, turn=False)
        whole, received_whole, error_whole = await play(reply, streaming=False)
        check_events(whole, turn=False)
        assert (alike(received), error) == (alike(received_whole), error_whole)


@pytest.mark.storm
async def test_random_replies_keep_to_the_grammar(rounds: Callable[[int, int], int]) -> None:
    await check_replies(random.Random(7), rounds(1000, 5000))


async def check_turns(chance: random.Random, number: int) -> None:
    """Whole turns with tools and faults keep to the grammar, and the next turn works."""
    async with open_session(configuration={"stream": {"retries": 0}}) as session:
        for _ in range(number):
            events: list[Event] = []
            model = scripted_model(produce_script(chance), stream=QUICK)
            conversation = await session.begin(
                model, invokers=[add, fail], event_handler=events.append, save=False
            )
            streaming = chance.random() < 0.5
            try:
                turn = await conversation.converse("Hello", streaming=streaming)
            except (ProviderError, ScriptInvalid):
                assert isinstance(events[-1], TurnEndedEvent)
                assert events[-1].reason == "failed"
            else:
                assert events[-1] == TurnEndedEvent(
                    turn=turn, reason=turn.stop_reason, conversation=conversation.identity
                )
            check_events(events)
            assert_answered_once(conversation.canisters)
            events.clear()
            await go_on(conversation)
            check_events(events)


async def go_on(conversation: Conversation) -> None:
    """Until the script has come to its sound replies, of which there are more than faults."""
    for _ in range(10):
        try:
            if (await conversation.converse("Go on")).text == "Done.":
                return
        except ProviderError:
            continue
    raise AssertionError("the conversation does not go on")


def assert_answered_once(canisters: Sequence[Canister]) -> None:
    answered = [one.invocation for one in canisters if isinstance(one, ResultCanister)]
    calls = [one.identity for one in canisters if isinstance(one, InvocationCanister)]
    assert len(set(answered)) == len(answered)
    assert set(answered) <= set(calls)


@pytest.mark.storm
async def test_random_turns_keep_to_the_grammar(rounds: Callable[[int, int], int]) -> None:
    await check_turns(random.Random(8), rounds(200, 5000))


async def test_those_checks_see_a_reply_that_is_cut_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Accumulator, "_fail", lambda self, error: None)
    with pytest.raises(AssertionError):
        await check_replies(random.Random(7), 100)
    with pytest.raises(AssertionError):
        await check_turns(random.Random(8), 100)


async def test_those_checks_see_events_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Accumulator._complete

    def complete_twice(self: Any, ending: Any = None) -> None:
        draft = self._draft
        whole(self, ending)
        if ending is not None:
            self._draft = draft
            whole(self, ending)

    monkeypatch.setattr(Accumulator, "_complete", complete_twice)
    with pytest.raises(AssertionError):
        await check_replies(random.Random(7), 100)


# A handler that raises.


class HandlerError(Exception):
    pass


async def report(context: InvocationContext, a: int = 0) -> int:
    """Report something."""
    context.report_progress("half", 1, 2)
    return a


CALLS = ScriptedReply(
    parts=(
        Part(reasoning="Let me see."),
        Part(text=("I ", "call. ")),
        Part(invocation="report", arguments={"a": 1}),
        Part(invocation="fail", arguments={}),
        Part(invocation="nothing", arguments={}),
        Part(text="Wait."),
    )
)
SCRIPT = Script((CALLS, ScriptedReply.from_chunks("All ", "done."), *([CALLS] * 3)))


def steady_script() -> Script:
    """A script whose second turn works, wherever the first one ended."""
    finish = tuple(ScriptedReply.from_chunks("Works.") for _ in range(8))
    last = ScriptedReply(parts=(Part(text="Works."),), when="again")
    return Script((last, CALLS, ScriptedReply.from_chunks("All ", "done."), *finish))


async def hold_with(
    session: Session, handler: Callable[[Event], object]
) -> tuple[Conversation, BaseException | None]:
    model = scripted_model(steady_script(), stream=QUICK)
    conversation = await session.begin(model, invokers=[report, fail], event_handler=handler)
    try:
        await conversation.converse("Hello")
    except HandlerError as error:
        return conversation, error
    return conversation, None


async def check_handler(session: Session, number: int) -> bool:
    """The handler raises on event `number`; whether there was such an event.

    What had been received by then is stored, the error reaches the caller, the handler is not
    called again, every call is answered once, and the next turn works.
    """
    reported: list[Event] = []

    def handler(event: Event) -> None:
        reported.append(event)
        if len(reported) == number + 1:
            raise HandlerError(number)

    conversation, error = await hold_with(session, handler)
    if len(reported) <= number:
        assert error is None
        return False
    assert isinstance(error, HandlerError)
    assert len(reported) == number + 1
    received = [
        event.canister.identity for event in reported if isinstance(event, MessageCompletedEvent)
    ]
    received += [
        event.result.identity
        for event in reported
        if isinstance(event, InvocationCompletedEvent | InvocationFailedEvent)
    ]
    restored = (await session.archive.restore(conversation.identity)).canisters
    assert restored == conversation.canisters
    kept = {canister.identity for canister in restored}
    assert kept.issuperset(received)
    assert_answered_once(restored)
    reported.clear()
    number = 10**9
    turn = await conversation.converse("again", event_handler=ignore_events)
    assert turn.text == "Works."
    return True


@pytest.fixture
def quick_archive(home: Path) -> DirectoryArchive:
    """An archive that does not wait for the disk."""
    return DirectoryArchive(home, StorageSettings(durability="fast"))


async def check_all_handlers(archive: DirectoryArchive) -> int:
    """For every event of the turn a handler that raises on it; the number of events."""
    async with open_session(archive=archive) as session:
        number = 0
        while await check_handler(session, number):
            number += 1
    return number


async def test_a_handler_that_raises_on_any_event_corrupts_nothing(
    quick_archive: DirectoryArchive,
) -> None:
    assert await check_all_handlers(quick_archive) > 30


async def test_the_events_of_that_turn_are_of_every_kind() -> None:
    reported: list[Event] = []
    async with open_session() as session:
        await hold_with(session, reported.append)
    check_events(reported)
    kinds = {type(event) for event in reported} | {MessageFailedEvent}
    assert kinds >= set(Event.__args__) - {NoticeEvent} - {_updated()} - set(SteeringEvent.__args__)
    assert any(isinstance(event, InvocationProgressEvent) for event in reported)


def _updated() -> type:
    from vibe_llms.messages.events import MessageUpdatedEvent

    return MessageUpdatedEvent


async def test_that_check_sees_a_turn_that_is_lost_with_its_handler(
    quick_archive: DirectoryArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_is_worth_keeping", lambda canister: False)
    with pytest.raises(AssertionError):
        await check_all_handlers(quick_archive)


async def test_that_check_sees_a_handler_that_is_called_again(
    quick_archive: DirectoryArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = dispatcher.Dispatcher.__call__

    def call_again(self: Any, event: Event) -> None:
        handler = self._handler
        try:
            whole(self, event)
        finally:
            self._handler = handler

    monkeypatch.setattr(dispatcher.Dispatcher, "__call__", call_again)
    with pytest.raises(AssertionError):
        await check_all_handlers(quick_archive)


async def count_errors_left(kept: type[MessageFailedEvent]) -> int:
    """How many errors remain of turns that failed, when their events are not held any more."""

    async def fail_once() -> None:
        events: list[Any] = []

        def handler(event: Event) -> None:
            if isinstance(event, MessageFailedEvent):
                event = kept(error=event.error, partial=event.partial)
            events.append(event)

        model = scripted_model(
            ScriptedReply(parts=(Part(text="Half"), Part(cut=True))),
            event_handler=handler,
            stream=QUICK,
        )
        with pytest.raises(ProviderError) as raised:
            await model.converse(HELLO)
        errors.append(weakref.ref(raised.value))

    errors: list[weakref.ref[BaseException]] = []
    for _ in range(5):
        await fail_once()
    gc.collect()
    return sum(error() is not None for error in errors)


async def test_a_failure_that_is_collected_lets_its_request_go() -> None:
    assert await count_errors_left(MessageFailedEvent) == 0


async def test_an_event_that_the_collector_does_not_see_would_be_detected() -> None:
    class Untracked(MessageFailedEvent, frozen=True, gc=False):
        pass

    assert await count_errors_left(Untracked) == 5


def test_ignoring_events_does_nothing() -> None:
    assert ignore_events(TurnEndedEvent(turn=None, reason="")) is None  # type: ignore[arg-type,func-returns-value]
