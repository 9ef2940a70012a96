"""T1: a stream that is cut is a failure, never an answer; and what had arrived of it is kept.

Every recorded stream is cut at many bytes, and at every one with `--nightly`: cleanly, as if it
were whole, and by a connection that breaks, in chunks of three sizes. Most of it runs without
sockets, since each takes milliseconds; a sample over sockets, where the server closes or resets the
connection.

The mark of the end is `message_stop` for Anthropic, `response.completed` or its kin for Responses,
`done` for Ollama. For Chat Completions it is a finish reason with `[DONE]` after it, for Gemini one
with the usage; a body that ends as HTTP wants it after a finish reason alone is whole, a connection
that breaks there has cut it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from tests.fakes import recordings
from tests.fakes.backends import Interface
from tests.fakes.interfaces import (
    ANTHROPIC,
    BEDROCK,
    CHAT,
    GEMINI,
    OLLAMA,
    RecordedInterface,
    every_interface,
    every_recording,
    every_vendor,
)
from tests.fakes.recordings import ReplayTransport, find_notices, is_cut, places, strip
from tests.fakes.server import End
from vibe_llms.base.configuration import StreamSettings
from vibe_llms.base.exceptions import ProviderUnreachable, ReplyCut, ReplyMalformed
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ReplyCanister,
    StopReason,
    UserCanister,
)
from vibe_llms.messages.contents import ReasoningContent
from vibe_llms.messages.events import (
    Event,
    InvocationStartedEvent,
    MessageCompletedEvent,
    MessageFailedEvent,
    MessageStartedEvent,
)
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.deltas import ReplyClosed
from vibe_llms.providers.interfaces import TurnContext, ignore_notices
from vibe_llms.providers.ollama.streams import _Line
from vibe_llms.providers.round_trip import RoundTrip, run_round_trip
from vibe_llms.providers.transport import Outgoing
from vibe_llms.testing import check_events

SIZES = (1, 31, 512)
ENDS: tuple[End, ...] = ("clean", "close")
HI = [UserCanister.from_text("Hi")]


class Outcome(NamedTuple):
    """What a reply gave: canisters and events, and whether it failed as cut."""

    canisters: Sequence[ReplyCanister]
    events: Sequence[Event]
    failed: bool


def ways(cut: int, *, every: bool) -> Iterator[tuple[End, int]]:
    """How a stream is cut at a place, and in what chunks: in all ways, or in one of its own."""
    sizes = SIZES if every else (SIZES[(cut % 50 > 0) + (cut % 5 > 0)],)
    for end in ENDS if every else (ENDS[cut % 2],):
        for size in sizes:
            yield end, size


async def replay(interface: RecordedInterface, name: str, cut: int, end: End, size: int) -> Outcome:
    """What a recorded stream gives without a socket."""
    return await play(interface, interface.recordings.load(name)[:cut], end, size)


async def play(interface: RecordedInterface, raw: bytes, end: End, size: int) -> Outcome:
    """What the bytes of a stream give without a socket."""
    recorded = interface.recordings
    events: list[Event] = []
    accumulator = Accumulator(recorded.provenance, events.append)
    trip = RoundTrip(
        provider=recorded.row,
        transport=ReplayTransport(raw, size, end=end, kind=recorded.kind),
        settings=StreamSettings(retries=0),
        produce_assimilator=recorded.produce_assimilator,
        read_error=lambda status, headers, body: ReplyCut("refused", provider=recorded.row),
        notify=ignore_notices,
    )
    try:
        await run_round_trip(trip, Outgoing("POST", "/"), accumulator)
    except (ReplyCut, ReplyMalformed):
        return Outcome(accumulator.canisters, events, failed=True)
    return Outcome(accumulator.canisters, events, failed=False)


async def hear(model: Any, end: End) -> Outcome:
    """What a reply over sockets gives, whose connection ends so."""
    events: list[Event] = []
    try:
        canisters = await model.converse(HI, context=TurnContext(event_handler=events.append))
    except (ReplyCut, ProviderUnreachable) as error:
        # A reset may take the headers too, before they were read.
        if not isinstance(error, ReplyCut) and end != "reset":
            raise
        received = tuple(
            event.partial if isinstance(event, MessageFailedEvent) else event.canister
            for event in events
            if isinstance(event, MessageCompletedEvent | MessageFailedEvent)
        )
        return Outcome(received, events, failed=True)
    return Outcome(canisters, events, failed=False)


def check_outcome(
    interface: RecordedInterface, name: str, cut: int, end: End, outcome: Outcome
) -> None:
    """What T1 promises of a stream that was cut after so many bytes.

    A reset may take from the reader what was sent before it, so the end may be missing even when
    all was sent.
    """
    place = f"{name} cut at {cut} by {end}"
    whole, stripped = interface.recordings.whole(name)
    canisters, events, failed = outcome
    check_events(events, turn=False)
    clean, surely = interface.recordings.ends(name)
    notices, told = interface.recordings.notices(name), find_notices(events)
    assert told == notices[: len(told)], place
    if is_empty(whole):
        assert failed, f"{place}: an empty reply was taken for an answer"
        return
    if cut >= (clean if end == "clean" else surely) and not (end == "reset" and failed):
        assert not failed, place
        if cut >= surely:
            assert strip(canisters) == stripped, place
            assert told == notices, place
        # Between the two only the usage may be missing.
        said = [one.text for one in canisters if isinstance(one, AssistantCanister)]
        assert said == [one.text for one in whole if isinstance(one, AssistantCanister)], place
        return
    assert failed, f"{place}: a cut reply was taken for whole"
    failures = [event for event in events if isinstance(event, MessageFailedEvent)]
    assert len(failures) == 1, place
    assert events[-1] is failures[0], place
    completed = [event.canister for event in events if isinstance(event, MessageCompletedEvent)]
    # Messages before it are whole, as they would have been without the cut.
    assert strip(completed) == stripped[: len(completed)], place
    partial = failures[0].partial
    assert is_cut(partial), place
    assert [*completed, partial] == [*canisters], place
    begun = [event for event in events if isinstance(event, MessageStartedEvent)][-1]
    expected = whole[len(completed)] if len(completed) < len(whole) else None
    check_partial(partial, expected, begun, place)


def is_empty(whole: Sequence[ReplyCanister]) -> bool:
    """Return True if a reply says nothing, and its server gives no reason for it."""
    ending = whole[-1].ending
    assert ending is not None
    reasons = (StopReason.LENGTH, StopReason.REFUSED, StopReason.PAUSED)
    return ending.reason not in reasons and not any(
        isinstance(one, InvocationCanister) or one.contents for one in whole
    )


def check_partial(
    partial: ReplyCanister, expected: ReplyCanister | None, begun: MessageStartedEvent, place: str
) -> None:
    """What came of the message that was cut is how it begins."""
    assert partial.ending is not None
    severed = partial.ending.severed
    if isinstance(partial, InvocationCanister):
        # All of the call had come; only what follows it was cut.
        assert isinstance(expected, InvocationCanister), place
        assert (partial.name, partial.arguments) == (expected.name, expected.arguments), place
        assert severed == (), place
    elif begun.role == "invocation" or not isinstance(expected, AssistantCanister):
        assert partial.contents == (), place
        marked = expected.ending.severed if expected is not None and expected.ending else ()
        assert set(severed) <= {getattr(expected, "name", ""), *marked} - {""}, place
        assert bool(severed) == (begun.role == "invocation"), place
    else:
        assert expected.text.startswith(partial.text), place
        assert _thoughts(expected).startswith(_thoughts(partial)), place
        assert severed == (), place


def _thoughts(canister: AssistantCanister) -> str:
    return "".join(c.text for c in canister.contents if isinstance(c, ReasoningContent))


async def check_cuts(
    interface: RecordedInterface, name: str, cuts: Iterable[int], *, every: bool = False
) -> None:
    """Cut a stream at these places; in `every` way, or each in one, its neighbours in others."""
    for cut in cuts:
        for end, size in ways(cut, every=every):
            outcome = await replay(interface, name, cut, end, size)
            check_outcome(interface, name, cut, end, outcome)


@pytest.mark.storm
@every_recording
async def test_a_stream_cut_at_any_byte_fails_and_keeps_what_came(
    interface: RecordedInterface, name: str, rounds: Callable[[int, int], int]
) -> None:
    step = rounds(61, 1)
    cuts = places(interface.recordings.load(name), step)
    await check_cuts(interface, name, cuts, every=step == 1)


@pytest.mark.storm
@pytest.mark.parametrize("name", BEDROCK.recordings.names)
async def test_a_message_with_a_changed_byte_fails_and_keeps_what_came_before(
    name: str, rounds: Callable[[int, int], int]
) -> None:
    raw, starts = BEDROCK.recordings.load(name), recordings.BEDROCK.starts(name)
    for place in places(raw, rounds(31, 1))[:-1]:
        changed = raw[:place] + bytes([raw[place] ^ 0x20]) + raw[place + 1 :]
        outcome = await play(BEDROCK, changed, "clean", SIZES[place % 3])
        # A wrong checksum ends the reply where the message begins, as a broken connection does.
        start = max(one for one in starts if one <= place)
        check_outcome(BEDROCK, name, start, "close", outcome)


@pytest.mark.parametrize("name", ["text", "tools"])
@every_vendor
async def test_taking_the_end_of_the_body_for_success_would_be_detected(
    interface: RecordedInterface, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def conclude(self: Any) -> Iterable[Any]:
        if self.closed:
            return ()
        if interface is ANTHROPIC:
            return [self._produce_ending()]
        if interface is OLLAMA:
            return list(self._close(_Line(done=True)))
        return self._end() if interface in (CHAT, GEMINI) else [ReplyClosed("finished")]

    # It is kept, for other tests too, and read without the bug.
    interface.recordings.whole(name)
    kind = type(interface.recordings.produce_assimilator())
    monkeypatch.setattr(kind, "conclude", conclude)
    with pytest.raises(AssertionError):
        await check_cuts(interface, name, range(0, len(interface.recordings.load(name)), 50))


async def test_taking_a_broken_connection_for_the_end_would_be_detected() -> None:
    clean, surely = CHAT.recordings.ends("text")
    outcome = await replay(CHAT, "text", clean, "clean", 512)
    assert not outcome.failed
    with pytest.raises(AssertionError):
        check_outcome(CHAT, "text", clean, "close", outcome)
    assert clean < surely


@pytest.mark.storm
@every_recording
async def test_a_connection_closed_or_reset_at_any_byte_is_a_failure(
    interface: RecordedInterface, name: str, rounds: Callable[[int, int], int]
) -> None:
    raw = interface.recordings.load(name)
    cuts = range(0, len(raw) + 1, rounds(len(raw) // 3, 1))
    with interface.serve() as server:
        model = await interface.produce_model(server)
        for size in SIZES[-1:] if len(cuts) < 10 else SIZES:
            chunks = [raw[start : start + size] for start in range(0, len(raw), size)]
            for cut in cuts:
                for end in (*ENDS, "reset"):
                    server.replies = [interface.stream_bytes(chunks, cut=cut, end=end)]
                    check_outcome(interface, name, cut, end, await hear(model, end))
        await model.client.close()
        await server.settled()
        assert not server.refusals


@every_interface
async def test_a_cut_reply_runs_no_tool_and_is_stored_with_its_mark(interface: Interface) -> None:
    runs: list[str] = []
    kept: list[Canister] = []

    def weather(city: str) -> str:
        runs.append(city)
        return "fine"

    reply = interface.tools(*(("weather", f'{{"city":"{city}"}}') for city in ("Oslo", "Rome")))
    with interface.serve() as backend:
        interface.remember(backend, reply)
        async with interface.open_session(backend) as session:
            # Before its calls, within them, between them, and after them.
            for part in (0, 0.2, 0.4, 0.5, 0.6, 0.8, 0.9):
                backend.replies = [interface.cut(reply, part)]
                events: list[Event] = []
                conversation = await session.begin(
                    interface.address, invokers=[weather], event_handler=events.append
                )
                with pytest.raises(ReplyCut):
                    await conversation.converse("Weather?")
                kept += conversation.canisters[1:]
                # The strict backend takes the next turn.
                assert (await conversation.converse("And now?")).text == "Hello."
                again = await session.resume(conversation.identity)
                assert again.canisters == conversation.canisters
                check_events(events)
                assert not any(isinstance(event, InvocationStartedEvent) for event in events)
        assert not backend.refusals
    assert runs == []
    ends = [one for one in kept if isinstance(one, AssistantCanister | InvocationCanister)]
    assert ends
    assert all(is_cut(one) for one in ends if one.ending is not None)
    assert sum(one.ending is not None for one in ends) == len({one.reply for one in ends})


@every_vendor
async def test_a_connection_that_stays_open_after_the_end_of_a_reply_does_no_harm(
    interface: RecordedInterface,
) -> None:
    raw = interface.recordings.load("text")
    more = [b"\n" if interface.lines else b": more\n\n"] * 10
    with interface.serve() as server:
        server.replies = [
            interface.stream_bytes([raw], stall=len(raw)),
            interface.stream_bytes([raw, *more]),
        ]
        model = await interface.produce_model(server)
        async with asyncio.timeout(10):
            for _ in range(2):
                canisters = await model.converse(HI)
                assert strip(canisters) == interface.recordings.whole("text")[1]
        await model.client.close()
        await server.settled()
        assert server.closed_by_client == 1


@every_vendor
async def test_a_whole_reply_leaves_its_connection_to_the_next(
    interface: RecordedInterface,
) -> None:
    raw = interface.recordings.load("text")
    more = b"\n" if interface.lines else b": more\n\n"
    with interface.serve() as server:
        # What follows a complete reply is read and left.
        server.replies = [interface.stream_bytes([raw, more, more])]
        model = await interface.produce_model(server)
        for _ in range(3):
            await model.converse(HI)
        assert server.connections == 1
        await model.client.close()
