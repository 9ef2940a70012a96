"""Deltas in, events and canisters out; whatever ends a reply early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from vibe_llms.base.exceptions import ReplyCut, ReplyMalformed, TurnInterrupted
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    Provenance,
    ReplyCanister,
    StopReason,
    Usage,
)
from vibe_llms.messages.contents import Citation, ImageContent, ReasoningContent, TextualContent
from vibe_llms.messages.events import (
    Event,
    InvocationChunk,
    MessageCompletedEvent,
    MessageFailedEvent,
    MessageProgressEvent,
    MessageStartedEvent,
    MessageUpdatedEvent,
)
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.deltas import (
    ArgumentsDelta,
    CitationDelta,
    ContentClosed,
    ContentOpened,
    ContentReceived,
    Delta,
    InvocationClosed,
    InvocationOpened,
    ReasoningDelta,
    ReplyClosed,
    ReplyOpened,
    TextDelta,
    UsageDelta,
)
from vibe_llms.testing import check_events

PROVENANCE = Provenance("module", "row", "model")
FINISHED = ReplyClosed(StopReason.FINISHED, "end_turn")


def play(
    deltas: Sequence[Delta], error: BaseException | None = None
) -> tuple[Sequence[ReplyCanister], list[Event]]:
    events: list[Event] = []
    accumulator = Accumulator(PROVENANCE, events.append, "conversation")
    with suppress(type(error)) if error is not None else nullcontext(), accumulator:
        for delta in deltas:
            accumulator.accept(delta)
        if error is not None:
            raise error
    check_events(events, turn=False)
    return accumulator.canisters, events


def call(name: str = "tool", arguments: str = "{}") -> list[Delta]:
    return [InvocationOpened(name, "call"), ArgumentsDelta(arguments), InvocationClosed()]


def test_text_call_text_stays_text_call_text() -> None:
    usage = Usage(output_tokens=3)
    deltas: list[Delta] = [
        ReplyOpened("response"),
        ReasoningDelta("hm"),
        TextDelta("a"),
        *call(),
        TextDelta("b"),
        UsageDelta(usage),
        FINISHED,
    ]
    (before, middle, after), events = play(deltas)
    assert isinstance(before, AssistantCanister)
    assert isinstance(middle, InvocationCanister)
    assert isinstance(after, AssistantCanister)
    assert before.contents == (ReasoningContent("hm"), TextualContent("a"))
    assert (middle.name, middle.call, middle.arguments) == ("tool", "call", "{}")
    assert after.text == "b"
    assert {canister.reply for canister in (before, middle, after)} == {before.reply}
    assert [canister.ending for canister in (before, middle)] == [None, None]
    assert after.ending is not None
    assert (after.ending.usage, after.ending.native_reason) == (usage, "end_turn")
    assert before.provenance == Provenance("module", "row", "model", "response")
    assert {event.conversation for event in events} == {"conversation"}


def test_contents_of_one_kind_stay_apart_where_their_blocks_were() -> None:
    deltas: list[Delta] = [
        ContentOpened("text"),
        TextDelta("a"),
        ContentClosed(Raw(b'{"n":1}')),
        ContentOpened("text"),
        CitationDelta(Citation("quote")),
        TextDelta("b"),
        ContentClosed(),
        ContentReceived(ImageContent(b"x", "image/png"), Raw(b'{"n":2}')),
        ContentReceived(ImageContent(b"y", "image/png")),
        FINISHED,
    ]
    (reply,), events = play(deltas)
    assert isinstance(reply, AssistantCanister)
    first, second, picture, other = reply.contents
    assert isinstance(first, TextualContent)
    assert first.native is not None
    assert first.native.issuer.model == "model"
    assert isinstance(second, TextualContent)
    assert second.citations == (Citation("quote"),)
    assert picture.native is not None
    assert other.native is None
    assert any(isinstance(event, MessageUpdatedEvent) for event in events)


def test_a_reply_with_nothing_in_it_is_an_empty_message() -> None:
    (reply,), events = play([FINISHED])
    assert isinstance(reply, AssistantCanister)
    assert reply.contents == ()
    assert [type(event) for event in events] == [MessageStartedEvent, MessageCompletedEvent]


@pytest.mark.parametrize(
    ("word", "stops", "good"),
    [("stop_sequence", False, True), ("stop", True, True), ("stop", False, False)],
)
def test_a_reply_may_begin_with_a_stop_sequence(word: str, stops: bool, good: bool) -> None:
    accumulator = Accumulator(PROVENANCE, lambda event: None)
    accumulator.refuses_empty, accumulator.may_stop_at_once = True, stops
    with nullcontext() if good else pytest.raises(ReplyCut):
        accumulator.accept(ReplyClosed(StopReason.FINISHED, word))


def test_a_block_without_a_word_before_a_call_is_no_message() -> None:
    canisters, _ = play([ContentOpened("text"), ContentClosed(), *call(), FINISHED])
    assert [type(canister) for canister in canisters] == [InvocationCanister]


def test_a_secret_block_alone_is_a_message() -> None:
    (reply,), events = (
        play([ContentReceived(ReasoningContent(), Raw(b"{}")), *call(), FINISHED])[0][:1],
        None,
    )
    assert isinstance(reply, AssistantCanister)
    assert events is None


@pytest.mark.parametrize("reason", [StopReason.LENGTH, StopReason.REFUSED])
def test_a_call_that_comes_last_when_the_reply_was_stopped_is_severed(reason: str) -> None:
    canisters, _ = play([*call("first"), *call("last"), ReplyClosed(reason)])
    assert [type(canister) for canister in canisters] == [InvocationCanister, AssistantCanister]
    assert canisters[-1].ending is not None
    assert canisters[-1].ending.severed == ("last",)


def test_arguments_are_reported_as_they_come() -> None:
    _, events = play(
        [
            InvocationOpened("t"),
            ArgumentsDelta('{"a"'),
            ArgumentsDelta(""),
            ArgumentsDelta(":1}"),
            InvocationClosed(),
            FINISHED,
        ]
    )
    chunks = [event.chunk for event in events if isinstance(event, MessageProgressEvent)]
    assert chunks == [InvocationChunk('{"a"'), InvocationChunk(":1}")]


def test_text_without_an_open_call_is_not_taken_for_arguments() -> None:
    canisters, _ = play([ArgumentsDelta("lost"), InvocationClosed(), TextDelta("a"), FINISHED])
    (reply,) = canisters
    assert getattr(reply, "text", "") == "a"


def test_a_call_that_something_else_interrupts_is_malformed() -> None:
    accumulator = Accumulator(PROVENANCE, lambda event: None)
    accumulator.accept(InvocationOpened("tool"))
    with pytest.raises(ReplyMalformed, match="'tool'"):
        accumulator.accept(TextDelta("a"))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ReplyCut("cut", provider="row"), StopReason.FAILED),
        (asyncio.CancelledError(), StopReason.INTERRUPTED),
        (KeyboardInterrupt(), StopReason.INTERRUPTED),
    ],
)
def test_what_had_arrived_is_kept_with_its_mark(error: BaseException, reason: str) -> None:
    (kept, partial), events = play([*call(), TextDelta("so f")], error)
    assert isinstance(kept, InvocationCanister)
    assert isinstance(partial, AssistantCanister)
    assert partial.text == "so f"
    assert partial.ending is not None
    assert (partial.ending.reason, partial.ending.interrupted) == (reason, True)
    failed = events[-1]
    assert isinstance(failed, MessageFailedEvent)
    assert failed.error is error or isinstance(failed.error, TurnInterrupted)


def test_a_call_that_had_begun_is_a_mark() -> None:
    (partial,), events = play(
        [InvocationOpened("tool"), ArgumentsDelta('{"a":')], ReplyCut("cut", provider="row")
    )
    assert isinstance(partial, AssistantCanister)
    assert partial.ending is not None
    assert partial.ending.severed == ("tool",)
    assert isinstance(events[0], MessageStartedEvent)
    assert events[0].role == "invocation"


@pytest.mark.parametrize(("arguments", "whole"), [('{"a":1}', True), ('{"a":', False)])
def test_a_call_whose_block_had_ended_is_kept_if_it_can_be_read(
    arguments: str, whole: bool
) -> None:
    (partial,), _ = play(call("tool", arguments), ReplyCut("cut", provider="row"))
    assert isinstance(partial, InvocationCanister) == whole
    assert partial.ending is not None
    assert partial.ending.severed == (() if whole else ("tool",))


def test_a_failure_after_the_end_changes_nothing() -> None:
    canisters, events = play([TextDelta("a"), FINISHED], ReplyCut("late", provider="row"))
    assert len(canisters) == 1
    assert isinstance(events[-1], MessageCompletedEvent)


def test_an_attempt_can_be_forgotten_only_while_nothing_was_seen() -> None:
    accumulator = Accumulator(PROVENANCE, lambda event: None)
    accumulator.accept(ReplyOpened("first"))
    accumulator.accept(UsageDelta(Usage(output_tokens=5)))
    accumulator.accept(InvocationOpened("tool"))
    assert accumulator.reset()
    accumulator.accept(ReplyOpened("second"))
    accumulator.accept(TextDelta("a"))
    assert not accumulator.reset()
    accumulator.accept(FINISHED)
    assert accumulator.ended
    (reply,) = accumulator.canisters
    assert reply.provenance is not None
    assert (reply.provenance.response, getattr(reply, "text", "")) == ("second", "a")
    assert reply.ending is not None
    assert reply.ending.usage is None


DELTAS: st.SearchStrategy[Delta] = st.one_of(
    st.builds(ContentOpened, st.sampled_from(["text", "reasoning"])),
    st.builds(TextDelta, st.sampled_from(["", "a", "b c"])),
    st.builds(ReasoningDelta, st.sampled_from(["", "hm"])),
    st.just(CitationDelta(Citation("q"))),
    st.sampled_from([ContentClosed(), ContentClosed(Raw(b"{}"))]),
    st.just(ContentReceived(ReasoningContent(), Raw(b"{}"))),
    st.builds(InvocationOpened, st.sampled_from(["t", "u"])),
    st.builds(ArgumentsDelta, st.sampled_from(["", "{}", '{"a":'])),
    st.just(InvocationClosed()),
    st.just(UsageDelta(Usage(output_tokens=1))),
    st.just(ReplyOpened("r")),
)
ENDINGS = st.sampled_from([FINISHED, ReplyClosed(StopReason.LENGTH), None])


def check_handler_that_raises(deltas: Sequence[Delta], at: int) -> None:
    """A handler that raises stops the reply, and what had arrived is kept."""
    received: list[ReplyCanister] = []
    reported: list[Event] = []

    def handle(event: Event) -> None:
        reported.append(event)
        if isinstance(event, MessageCompletedEvent):
            received.append(event.canister)
        elif isinstance(event, MessageFailedEvent):
            received.append(event.partial)
        if len(reported) == at + 1:
            raise ZeroDivisionError

    accumulator = Accumulator(PROVENANCE, handle)
    with suppress(ZeroDivisionError), accumulator:
        for delta in deltas:
            accumulator.accept(delta)
    assert list(accumulator.canisters) == received
    assert received[-1].ending is not None
    shown = "".join(
        event.chunk.text
        for event in reported
        if isinstance(event, MessageProgressEvent) and not isinstance(event.chunk, InvocationChunk)
    )
    kept = "".join(
        getattr(content, "data", "")
        for canister in received
        for content in getattr(canister, "contents", ())
    )
    # What came with the first event of a message may not have been reported yet.
    assert kept.startswith(shown), (kept, shown)
    if not isinstance(reported[at], MessageStartedEvent):
        assert kept == shown
        check_events(reported, turn=False)


def test_a_handler_that_raises_at_any_event_loses_nothing() -> None:
    deltas: list[Delta] = [
        ReasoningDelta("hm"),
        TextDelta("a"),
        TextDelta("b"),
        *call(),
        *call("other"),
        TextDelta("c"),
        UsageDelta(Usage()),
        FINISHED,
    ]
    _, events = play(deltas)
    for at in range(len(events)):
        check_handler_that_raises(deltas, at)


def test_forgetting_what_came_when_a_handler_raises_would_be_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finish: Callable[..., ReplyCanister] = Accumulator._finish

    def forget(self: Accumulator, draft: object, ending: object) -> ReplyCanister:
        draft.pieces = []  # type: ignore[attr-defined]
        return finish(self, draft, ending)

    monkeypatch.setattr(Accumulator, "_finish", forget)
    with pytest.raises(AssertionError):
        check_handler_that_raises([TextDelta("a"), FINISHED], 1)


@settings(deadline=None)
@given(st.lists(DELTAS, max_size=12), ENDINGS)
def test_any_deltas_give_events_of_the_grammar(
    deltas: list[Delta], ending: ReplyClosed | None
) -> None:
    events: list[Event] = []
    accumulator = Accumulator(PROVENANCE, events.append)
    # A call that something else interrupts is a fault of the deltas.
    with suppress(ReplyMalformed, ReplyCut), accumulator:
        for delta in deltas:
            accumulator.accept(delta)
        if not isinstance(ending, ReplyClosed):
            raise ReplyCut("cut", provider="row")
        accumulator.accept(ending)
    check_events(events, turn=False)
    canisters = accumulator.canisters
    assert canisters[-1].ending is not None
    assert all(canister.ending is None for canister in canisters[:-1])


def test_what_another_accumulator_made_is_taken_with_its_usage_and_origin() -> None:
    accumulator = Accumulator(PROVENANCE, lambda _: None)
    origin, usage = Provenance("other", "row", "model", "resp_1"), Usage(3, output_tokens=4)
    with accumulator:
        accumulator.accept(ReplyOpened())
        accumulator.accept(TextDelta("shown"))
        accumulator.take_over([TextualContent("kept")], origin, usage)
        accumulator.accept(FINISHED)
    (reply,) = accumulator.canisters
    assert isinstance(reply, AssistantCanister)
    assert (reply.text, reply.provenance, accumulator.usage) == ("kept", origin, usage)
