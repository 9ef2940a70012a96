"""The grammar of events as code: good sequences pass, and each broken rule is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from vibe_llms.base.exceptions import ReplyCut
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Ending,
    InvocationCanister,
    ResultCanister,
    StopReason,
    Turn,
    Usage,
    UserCanister,
)
from vibe_llms.messages.contents import ReasoningContent, TextualContent
from vibe_llms.messages.events import (
    Event,
    InvocationChunk,
    InvocationCompletedEvent,
    InvocationFailedEvent,
    InvocationProgressEvent,
    InvocationStartedEvent,
    MessageCompletedEvent,
    MessageFailedEvent,
    MessageProgressEvent,
    MessageStartedEvent,
    MessageUpdatedEvent,
    Notice,
    NoticeEvent,
    ReasoningChunk,
    SteeringDeliveredEvent,
    SteeringQueuedEvent,
    SteeringWithdrawnEvent,
    TextChunk,
    TurnEndedEvent,
)
from vibe_llms.testing import Part, Script, ScriptedReply, check_events, scripted_model

AT = {"conversation": "talk"}
CUT = ReplyCut("cut", provider="p")


def of(message: str, reply: str) -> dict[str, str]:
    return {"message": message, "reply": reply, **AT}


def text_message(
    message: str, reply: str, ending: Ending | None = None, *, cut: bool = False
) -> list[Event]:
    here = of(message, reply)
    canister = AssistantCanister(
        (ReasoningContent("hm"), TextualContent("ab")),
        identity=message,
        reply=reply,
        ending=Ending(StopReason.FAILED, interrupted=True) if cut else ending,
    )
    return [
        MessageStartedEvent("assistant", **here),
        MessageProgressEvent(ReasoningChunk("hm"), **here),
        MessageProgressEvent(TextChunk("a"), **here),
        MessageUpdatedEvent("citations", None, None, **here),
        MessageProgressEvent(TextChunk("b"), **here),
        MessageFailedEvent(CUT, canister, **here)
        if cut
        else MessageCompletedEvent(canister, **here),
    ]


def call_of(message: str, reply: str, ending: Ending | None = None) -> InvocationCanister:
    return InvocationCanister(
        name="add", arguments='{"a":1}', identity=message, reply=reply, ending=ending
    )


def call_message(message: str, reply: str, ending: Ending | None = None) -> list[Event]:
    here = of(message, reply)
    return [
        MessageStartedEvent("invocation", "add", **here),
        MessageProgressEvent(InvocationChunk('{"a":'), **here),
        MessageProgressEvent(InvocationChunk("1}"), **here),
        MessageCompletedEvent(call_of(message, reply, ending), **here),
    ]


def run_of(call: str, *, failed: bool = False) -> list[Event]:
    invocation = call_of(call, "r1")
    kind = InvocationFailedEvent if failed else InvocationCompletedEvent
    return [
        InvocationStartedEvent(invocation=invocation, **AT),
        InvocationProgressEvent("half", 1, 2, invocation=invocation, **AT),
        kind(result=ResultCanister(invocation=call, failed=failed), invocation=invocation, **AT),
    ]


def end_of(reason: str = StopReason.FINISHED) -> TurnEndedEvent:
    return TurnEndedEvent(turn=Turn((), "", None, Usage(), reason), reason=reason, **AT)


CALLING = Ending(StopReason.INVOCATIONS)
FINISHED = Ending(StopReason.FINISHED)
FIRST = [*text_message("m1", "r1"), *call_message("m2", "r1"), *call_message("m3", "r1", CALLING)]
RUNS = [
    event for pair in zip(run_of("m2"), run_of("m3", failed=True), strict=True) for event in pair
]
SECOND = text_message("m4", "r2", FINISHED)
INTERRUPTED = Ending(StopReason.FAILED, interrupted=True)
TURN: list[Event] = [*FIRST, *RUNS, *SECOND, end_of()]
NOTICE = NoticeEvent(notice=Notice("conversion", "left out"), **AT)
FORK = NoticeEvent(notice=Notice("fork", "go on elsewhere"), **AT)


def elsewhere(events: Sequence[Event]) -> list[Event]:
    return [msgspec.structs.replace(event, conversation="elsewhere") for event in events]


ADDED = UserCanister.from_text("And?")
QUEUED = SteeringQueuedEvent(canister=ADDED, **AT)
DELIVERED = SteeringDeliveredEvent(canister=ADDED, **AT)
WITHDRAWN = SteeringWithdrawnEvent(canister=ADDED, **AT)

GOOD: dict[str, list[Event]] = {
    "a message that is added": [*TURN[:3], QUEUED, *FIRST[3:], *RUNS, DELIVERED, *SECOND, end_of()],
    "a message that is taken back after the turn": [*TURN[:3], QUEUED, *TURN[3:], WITHDRAWN],
    "a turn with tools": TURN,
    "two turns": [*TURN, *text_message("m5", "r3", FINISHED), end_of()],
    "notices anywhere": [event for one in TURN for event in (NOTICE, one)],
    "a cut reply": [*FIRST[:10], *text_message("m9", "r1", cut=True), end_of(StopReason.FAILED)],
    "nothing but the end": [end_of(StopReason.INTERRUPTED)],
    "a turn that goes on elsewhere": [*FIRST, *RUNS, FORK, *elsewhere([*SECOND, end_of()])],
    "a reply that ended within a call": [
        *text_message("m1", "r1"),
        *call_message("m2", "r1")[:2],
        MessageCompletedEvent(
            AssistantCanister(
                identity="m2", reply="r1", ending=Ending(StopReason.LENGTH, severed=("add",))
            ),
            **of("m2", "r1"),
        ),
        end_of(StopReason.LENGTH),
    ],
    "a reply that was cut after a call": [
        *call_message("m2", "r1")[:3],
        MessageFailedEvent(CUT, call_of("m2", "r1", INTERRUPTED), **of("m2", "r1")),
        end_of(StopReason.FAILED),
    ],
    "calls that do not run": [*FIRST, end_of(StopReason.LIMIT)],
    "a call that was cut": [
        *text_message("m1", "r1"),
        *call_message("m2", "r1")[:2],
        MessageFailedEvent(
            CUT,
            AssistantCanister(
                identity="m2",
                reply="r1",
                ending=Ending(StopReason.FAILED, interrupted=True, severed=("add",)),
            ),
            **of("m2", "r1"),
        ),
        end_of(StopReason.FAILED),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_good_sequences_pass(name: str) -> None:
    check_events(GOOD[name])


def test_round_trips_pass_without_the_end_of_a_turn() -> None:
    check_events([*FIRST, *SECOND], turn=False)
    check_events([], turn=False)


def changed(place: int, **changes: Any) -> list[Event]:
    events = list(TURN)
    events[place] = msgspec.structs.replace(events[place], **changes)
    return events


def with_canister(place: int, **changes: Any) -> list[Event]:
    event: Any = TURN[place]
    return changed(place, canister=msgspec.structs.replace(event.canister, **changes))


def with_result(place: int, **changes: Any) -> list[Event]:
    event: Any = TURN[place]
    return changed(place, result=msgspec.structs.replace(event.result, **changes))


BAD: dict[str, tuple[list[Event], str]] = {
    "queued twice": ([QUEUED, QUEUED, *TURN], "queued before"),
    "delivered and withdrawn": ([QUEUED, DELIVERED, *TURN, WITHDRAWN], "delivered or withdrawn"),
    "delivered within a reply": ([QUEUED, *TURN[:3], DELIVERED, *TURN[3:]], "message m1 is open"),
    "not ended": (TURN[:-1], "the turn has not ended"),
    "something after the end": ([*TURN, TURN[0]], "there was a message 'm1' before"),
    "a new message after the end": ([*TURN, *text_message("m5", "r3", FINISHED)], "not ended"),
    "a message that is not settled": (TURN[:5], "the turn has not ended"),
    "an end within a message": ([*TURN[:5], end_of()], "message m1 is open"),
    "an end within a reply": ([*TURN[:6], end_of()], "reply r1 is open"),
    "an end while a tool runs": ([*FIRST, *RUNS[:4], end_of()], "are running"),
    "progress before the start": (TURN[1:], "open is None"),
    "progress after the end of a message": ([*TURN[:6], TURN[4], *TURN[6:]], "open is None"),
    "an update after the end of a message": ([*TURN[:6], TURN[3], *TURN[6:]], "open is None"),
    "completed twice": ([*TURN[:6], TURN[5], *TURN[6:]], "open is None"),
    "started twice": ([TURN[0], *TURN], "message m1 is open"),
    "started within another": ([*TURN[:3], TURN[6]], "message m1 is open"),
    "begun again": ([*TURN[:6], *TURN[:6]], "there was a message 'm1' before"),
    "a message without a name": (changed(0, message=""), "there was a message ''"),
    "a reply without a name": (changed(0, reply=""), "there was a reply ''"),
    "a strange role": (changed(0, role="user"), "no role 'user'"),
    "progress of another": (changed(1, message="m7"), "about m7"),
    "progress of another reply": (changed(2, reply="r7"), "of r7"),
    "completion of another": (changed(5, message="m7"), "about m7"),
    "an empty chunk": (changed(2, chunk=TextChunk("")), "empty chunk"),
    "arguments in a text": (changed(2, chunk=InvocationChunk("a")), "no InvocationChunk"),
    "text in arguments": (changed(7, chunk=TextChunk("a")), "no TextChunk"),
    "unreported text": (changed(2, chunk=TextChunk("b")), "not the text"),
    "unreported reasoning": (changed(1, chunk=ReasoningChunk("?")), "not the text"),
    "unreported arguments": (changed(7, chunk=InvocationChunk("{")), "not the arguments"),
    "another canister": (with_canister(5, identity="m7"), "its canister is m7"),
    "a canister of another reply": (with_canister(5, reply="r7"), "of the reply r7"),
    "another kind of canister": (changed(5, canister=UserCanister()), "cannot say a UserCanister"),
    "a call that became text": (
        changed(9, canister=AssistantCanister(identity="m2", reply="r1")), "its end is not severed"
    ),
    "text that became a call": (changed(5, canister=call_of("m1", "r1")), "began"),
    "a call of another tool": (with_canister(9, name="sub"), "call of 'sub'"),
    "completed but interrupted": (
        with_canister(5, ending=Ending(StopReason.FAILED, interrupted=True)), "disagree"
    ),
    "failed but not interrupted": (
        [*TURN[:5], MessageFailedEvent(CUT, TURN[5].canister, **of("m1", "r1"))],  # type: ignore[union-attr, arg-type]
        "disagree",
    ),
    "more of an ended reply": (
        [*FIRST, *text_message("m5", "r1", FINISHED)], "there was a reply 'r1'"
    ),
    "more of a cut reply": (
        [*text_message("m1", "r1", cut=True), *call_message("m2", "r1")], "there was a reply 'r1'"
    ),
    "two replies at once": ([*TURN[:6], *SECOND], "reply r1 is open"),
    "a reply while a tool runs": ([*FIRST, *RUNS[:3], *SECOND], "are running"),
    "a tool within a reply": ([*TURN[:10], *run_of("m2")], "reply r1 is open"),
    "a tool within a message": ([*TURN[:12], *run_of("m2")], "message m3 is open"),
    "a call that was not made": ([*SECOND, *run_of("m2")], "not complete"),
    "a call that runs twice": ([*FIRST, *run_of("m2"), *run_of("m2")], "already run"),
    "a call of a cut reply": (
        [*FIRST[:10], *text_message("m9", "r1", cut=True), *run_of("m2")], "not complete"
    ),
    "a call of another turn": ([*FIRST, end_of(), *run_of("m2")], "not complete"),
    "progress of a tool before it runs": ([*FIRST, RUNS[2]], "not running"),
    "progress of a tool that returned": ([*FIRST, *run_of("m2"), RUNS[2]], "not running"),
    "a tool that returns twice": ([*FIRST, *run_of("m2"), RUNS[4]], "not running"),
    "a result of another call": (with_result(18, invocation="m3"), "another call"),
    "a failure that is none": (with_result(18, failed=True), "disagree on whether the call failed"),
    "a success that is none": (with_result(19, failed=False), "disagree on whether"),
    "another reason": (changed(-1, reason=StopReason.LIMIT), "ended finished, not limit"),
    "another conversation": (elsewhere(TURN[:3]) + TURN[3:], "'talk', not 'elsewhere'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_broken_rule_is_reported(name: str) -> None:
    events, problem = BAD[name]
    with pytest.raises(AssertionError, match=problem):
        check_events(events)


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        (TURN, "not a turn"),
        (TURN[:5], "message m1 is open"),
        (TURN[:6], "reply r1 is open"),
        ([*FIRST, *RUNS[:1]], "are running"),
    ],
)
def test_a_round_trip_ends_with_its_reply(events: list[Event], problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_events(events, turn=False)


def test_every_kind_of_event_occurs_in_the_sequences() -> None:
    from vibe_llms.messages import events as home

    kinds = {type(event) for events in GOOD.values() for event in events}
    assert kinds == set(home.Event.__args__)


@pytest.mark.parametrize(
    "script",
    [
        ["Hel", "lo"],
        ScriptedReply.from_chunks("Hel", "lo"),
        Script((ScriptedReply(parts=(Part(text="Hel"), Part(text="lo"))),)),
        lambda canisters, invokers: ScriptedReply.from_chunks("Hello"),
    ],
)
def test_a_model_is_made_of_chunks_of_a_reply_of_a_script_or_of_a_function(script: Any) -> None:
    events: list[Event] = []
    model = scripted_model(script, event_handler=events.append)
    (reply,) = asyncio.run(model.converse([UserCanister.from_text("Hi")]))
    assert isinstance(reply, AssistantCanister)
    assert reply.text == "Hello"
    check_events(events, turn=False)
    assert model.requests[0]["messages"] == [
        {"role": "user", "contents": [{"kind": "text", "text": "Hi"}]}
    ]
