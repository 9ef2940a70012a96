"""T1: a stream that is cut is a failure, never an answer; and what had arrived of it is kept.

Every recorded stream is cut at every byte: cleanly, as if it were whole, and by a connection that
breaks, in chunks of three sizes. Most of it without sockets, since each takes milliseconds; a
sample, and with `--nightly` all of it, over sockets, where the server closes or resets the
connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import cache
from typing import Any

import pytest

from tests.fakes.anthropic import FakeAnthropic, stream_bytes
from tests.fakes.clients import produce_client, produce_model
from tests.fakes.cuts import SIZES, Outcome, check_cut, check_words, hear, replay, ways
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
    MessageStartedEvent,
    ignore_events,
)
from vibe_llms.exceptions import ReplyCut
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    ReplyCanister,
    UserCanister,
)
from vibe_llms.providers.anthropic.streams import AnthropicAssimilator
from vibe_llms.providers.transport import Transport
from vibe_llms.testing import check_events


def replay_stream(transport: Transport) -> Coroutine[Any, Any, Outcome]:
    return replay(transport, PROVENANCE, lambda: AnthropicAssimilator("anthropic", str))


def check_outcome(
    name: str,
    cut: int,
    outcome: Outcome,
    *,
    end: End = "clean",
) -> None:
    """What T1 promises of a stream that was cut after so many bytes.

    A reset may take from the reader what was sent before it, so the end may be missing even when
    all was sent.
    """
    place = f"{name} cut at {cut}"
    whole, stripped = _read_whole(name)
    check_events(outcome.events, turn=False)
    if cut >= find_end(name) and not (end == "reset" and outcome.failed):
        assert not outcome.failed, place
        assert strip(outcome.canisters) == stripped, place
        return
    completed, partial = check_cut(outcome, stripped, strip, place)
    begun = [event for event in outcome.events if isinstance(event, MessageStartedEvent)][-1]
    if completed == len(whole):
        # All was there but the mark of the end.
        assert partial == AssistantCanister(
            reply=partial.reply,
            provenance=partial.provenance,
            ending=partial.ending,
            identity=partial.identity,
            created=partial.created,
        )
        return
    _check_partial(partial, whole[completed], begun, place)


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
        check_words(partial, whole, place)
        assert partial.ending.severed == (), place


def _severed(canister: ReplyCanister) -> tuple[str, ...]:
    return canister.ending.severed if canister.ending is not None else ()


async def check_cuts(name: str, cuts: Iterable[int], *, every: bool = False) -> None:
    """Cut a stream at these places; in `every` way, or each in one, its neighbours in others."""
    for cut in cuts:
        for end, size in ways(cut, every=every):
            transport = ReplayTransport(load(name), size, cut=cut, end=end)
            check_outcome(name, cut, await replay_stream(transport))


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
            outcome = await hear(client, "claude-opus-5", end)
            check_outcome(name, cut, outcome, end=end)
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
