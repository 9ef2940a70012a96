"""T1: a stream that is cut is a failure, never an answer; and what had arrived of it is kept.

Every recorded stream is cut at every byte: cleanly, as if it were whole, and by a connection that
breaks, in chunks of three sizes. Most of it without sockets, since each takes milliseconds; a
sample, and with `--nightly` all of it, over sockets, where the server closes or resets the
connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import pytest

from tests.fakes.anthropic import FakeAnthropic, stream_bytes
from tests.fakes.clients import STREAM, produce_client, produce_model
from tests.fakes.recordings import (
    NAMES,
    PROVENANCE,
    ReplayTransport,
    assimilate,
    find_end,
    is_cut,
    load,
    strip,
)
from tests.fakes.server import End
from vibe_llms import open_session
from vibe_llms.events import (
    Event,
    InvocationStartedEvent,
    MessageCompletedEvent,
    MessageFailedEvent,
    MessageStartedEvent,
    ignore_events,
)
from vibe_llms.exceptions import ProviderUnreachable, ReplyCut
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    ReplyCanister,
    UserCanister,
)
from vibe_llms.messages.contents import ReasoningContent
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.anthropic.streams import AnthropicAssimilator
from vibe_llms.providers.exchanges import Exchange, hold
from vibe_llms.providers.interfaces import ignore_notices
from vibe_llms.providers.transport import Outgoing, Transport
from vibe_llms.testing import check_events

SIZES = (1, 31, 512)
ENDS: tuple[End, ...] = ("clean", "close")


async def replay(transport: Transport) -> tuple[Sequence[ReplyCanister], list[Event], bool]:
    """What a reply over a transport gives: canisters and events, and whether it failed as cut."""
    events: list[Event] = []
    accumulator = Accumulator(PROVENANCE, events.append)
    exchange = Exchange(
        provider="anthropic",
        transport=transport,
        settings=STREAM,
        produce_assimilator=lambda: AnthropicAssimilator("anthropic", str),
        read_error=lambda status, headers, body: ReplyCut("refused", provider="anthropic"),
        notify=ignore_notices,
    )
    try:
        await hold(exchange, Outgoing("POST", "/"), accumulator)
    except ReplyCut:
        return accumulator.canisters, events, True
    return accumulator.canisters, events, False


def check_outcome(
    name: str,
    cut: int,
    canisters: Sequence[ReplyCanister],
    events: Sequence[Event],
    failed: bool,
    *,
    end: End = "clean",
) -> None:
    """What T1 promises of a stream that was cut after so many bytes.

    A reset may take from the reader what was sent before it, so the end may be missing even when
    all was sent.
    """
    place = f"{name} cut at {cut}"
    whole, stripped = _read_whole(name)
    check_events(events, turn=False)
    if cut >= find_end(name) and not (end == "reset" and failed):
        assert not failed, place
        assert strip(canisters) == stripped, place
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
    if len(completed) == len(whole):
        # All was there but the mark of the end.
        assert partial == AssistantCanister(
            reply=partial.reply,
            provenance=partial.provenance,
            ending=partial.ending,
            identity=partial.identity,
            created=partial.created,
        )
        return
    _check_partial(partial, whole[len(completed)], begun, place)


@cache
def _read_whole(name: str) -> tuple[Sequence[ReplyCanister], Sequence[Any]]:
    whole, _ = assimilate([load(name)])
    return whole, strip(whole)


def _check_partial(
    partial: ReplyCanister, whole: ReplyCanister, begun: MessageStartedEvent, place: str
) -> None:
    assert partial.ending is not None
    if isinstance(partial, InvocationCanister):
        # The block of the call had ended; only what comes after it was cut.
        assert isinstance(whole, InvocationCanister), place
        assert (partial.name, partial.arguments) == (whole.name, whole.arguments), place
        assert partial.ending.severed == (), place
    elif isinstance(whole, InvocationCanister) or begun.role == "invocation":
        assert partial.contents == (), place
        names = {name for name in (getattr(whole, "name", ""), *_severed(whole)) if name}
        assert set(partial.ending.severed) <= names, place
        assert bool(partial.ending.severed) == (begun.role == "invocation"), place
    else:
        assert whole.text.startswith(partial.text), place
        assert _thoughts(whole).startswith(_thoughts(partial)), place
        assert partial.ending.severed == (), place


def _severed(canister: ReplyCanister) -> tuple[str, ...]:
    return canister.ending.severed if canister.ending is not None else ()


def _thoughts(canister: AssistantCanister) -> str:
    return "".join(c.text for c in canister.contents if isinstance(c, ReasoningContent))


async def check_cuts(name: str, cuts: Iterable[int], *, every: bool = False) -> None:
    """Cut a stream at these places; in `every` way, or each in one, its neighbours in others."""
    for cut in cuts:
        sizes = SIZES if every else (SIZES[(cut % 50 > 0) + (cut % 5 > 0)],)
        for end in ENDS if every else (ENDS[cut % 2],):
            for size in sizes:
                transport = ReplayTransport(load(name), size, cut=cut, end=end)
                check_outcome(name, cut, *await replay(transport))


@pytest.mark.storm
@pytest.mark.parametrize("name", NAMES)
async def test_a_stream_cut_at_any_byte_fails_and_keeps_what_came(
    name: str, rounds: Callable[[int, int], int]
) -> None:
    await check_cuts(name, range(len(load(name)) + 1), every=rounds(0, 1) == 1)


@pytest.mark.parametrize("name", ["text", "tools", "thinking"])
async def test_taking_the_end_of_the_body_for_success_would_be_found_out(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def conclude(self: AnthropicAssimilator) -> Iterable[Any]:
        return () if self._closed else [self._produce_ending()]

    monkeypatch.setattr(AnthropicAssimilator, "conclude", conclude)
    with pytest.raises(AssertionError):
        await check_cuts(name, range(0, len(load(name)), 50))


async def check_cut_over_socket(
    server: FakeAnthropic, name: str, cuts: Iterable[int], ends: Sequence[End], size: int
) -> None:
    raw = load(name)
    client = produce_client(server.url)
    for cut in cuts:
        for end in ends:
            chunks = [raw[start : start + size] for start in range(0, len(raw), size)]
            server.replies = [stream_bytes(chunks, cut=cut, end=end)]
            events: list[Event] = []
            client.event_handler = events.append
            model = await client.access_model("claude-opus-5")
            try:
                canisters = await model.converse([UserCanister.from_text("Hi")])
                failed = False
            except (ReplyCut, ProviderUnreachable) as error:
                # A reset may take the headers too, before they were read.
                if not isinstance(error, ReplyCut) and end != "reset":
                    raise
                canisters = tuple(
                    event.partial if isinstance(event, MessageFailedEvent) else event.canister
                    for event in events
                    if isinstance(event, MessageCompletedEvent | MessageFailedEvent)
                )
                failed = True
            check_outcome(name, cut, canisters, events, failed, end=end)
    await client.close()
    await server.settled()


@pytest.mark.storm
@pytest.mark.parametrize("name", NAMES)
async def test_a_connection_closed_or_reset_at_any_byte_is_a_failure(
    name: str, rounds: Callable[[int, int], int], fake_anthropic: FakeAnthropic
) -> None:
    last = len(load(name))
    cuts = range(0, last + 1, rounds(last // 3, 1))
    for size in SIZES[-1:] if len(cuts) < 10 else SIZES:
        await check_cut_over_socket(fake_anthropic, name, cuts, ("clean", "close", "reset"), size)
    assert not fake_anthropic.refusals


async def test_a_cut_reply_runs_no_tool_and_is_stored_with_its_mark(
    fake_anthropic: FakeAnthropic,
) -> None:
    runs: list[str] = []
    told: list[Event] = []

    def weather(city: str, days: int = 1) -> str:
        runs.append(city)
        return "fine"

    configuration = {
        "providers": {"anthropic": {"base-url": fake_anthropic.url, "retries": 0}},
    }
    raw = load("tools")
    async with open_session(
        configuration=configuration, keys={"anthropic": fake_anthropic.key}
    ) as s:
        for cut in (raw.index(b"toolu_B"), raw.index(b"message_delta"), len(raw) - 1):
            fake_anthropic.replies = [stream_bytes([raw], cut=cut)]
            events: list[Event] = []
            conversation = await s.begin(
                "anthropic/claude-opus-5", invokers=[weather], event_handler=events.append
            )
            with pytest.raises(ReplyCut):
                await conversation.converse("Weather?")
            last = conversation.canisters[-1]
            assert isinstance(last, AssistantCanister | InvocationCanister)
            assert is_cut(last)
            # The strict server takes the next turn.
            assert (await conversation.converse("And now?")).text == "Hello."
            again = await s.resume(conversation.identity)
            assert is_cut(again.canisters[len(conversation.canisters) - 3])  # type: ignore[arg-type]
            check_events(events)
            told += events
    assert runs == []
    assert not any(isinstance(event, InvocationStartedEvent) for event in told)
    assert fake_anthropic.refusals == []


async def test_a_connection_that_stays_open_after_the_end_of_a_reply_does_no_harm(
    fake_anthropic: FakeAnthropic,
) -> None:
    raw = load("text")
    fake_anthropic.replies = [
        stream_bytes([raw], stall=len(raw)),
        stream_bytes([raw, b": more\n\n" * 10]),
    ]
    model = await produce_model(fake_anthropic.url)
    async with asyncio.timeout(10):
        for _ in range(2):
            canisters = await model.converse([UserCanister.from_text("Hi")])
            assert strip(canisters) == strip(assimilate([raw])[0])
    await model.client.close()
    await fake_anthropic.settled()
    assert fake_anthropic.closed_by_client == 1


async def test_a_whole_reply_leaves_its_connection_to_the_next(
    fake_anthropic: FakeAnthropic,
) -> None:
    model = await produce_model(fake_anthropic.url, event_handler=ignore_events)
    for _ in range(5):
        await model.converse([UserCanister.from_text("Hi")])
    assert fake_anthropic.connections == 1
    await model.client.close()
