"""T1: a stream that is cut is a failure, never an answer; and what had arrived of it is kept.

The mark of the end is `response.completed` or its kin for Responses. For Chat Completions it is a
finish reason with `[DONE]` after it; a body that ends as HTTP wants it after a finish reason alone
is whole, a connection that breaks there has cut it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import pytest

from tests.fakes.cuts import Outcome, check_cut, check_words, hear, replay, ways
from tests.fakes.openai import FakeOpenAI, stream_bytes
from tests.fakes.openai_clients import (
    MODELS,
    NAMES,
    assimilate,
    load,
    produce_assimilator,
    produce_openai_client,
    provenance,
    read_events,
    strip,
)
from tests.fakes.recordings import ReplayTransport, is_cut
from tests.fakes.server import End
from vibe_llms import open_session
from vibe_llms.events import (
    Event,
    InvocationStartedEvent,
)
from vibe_llms.exceptions import ReplyCut
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    ReplyCanister,
)
from vibe_llms.providers.openai.chat_completions.streams import ChatCompletionsAssimilator
from vibe_llms.providers.openai.responses.streams import ResponsesAssimilator
from vibe_llms.testing import check_events


async def replay_cut(name: str, cut: int, end: End, size: int) -> Outcome:
    interface = name.partition("/")[0]
    transport = ReplayTransport(load(name), size, cut=cut, end=end)
    return await replay(transport, provenance(interface), lambda: produce_assimilator(interface))


@cache
def read_whole(name: str) -> tuple[Sequence[ReplyCanister], Sequence[Any]]:
    whole, _ = assimilate(name.partition("/")[0], [load(name)])
    return whole, strip(whole)


@cache
def find_ends(name: str) -> tuple[int, int]:
    """After how many bytes a reply is whole: where the body ends there cleanly, and in any case."""
    raw = load(name)
    # The CR of the last CRLF ends the line already.
    end = len(raw) - raw.endswith(b"\r\n")
    if name.startswith("responses/"):
        return end, end
    break_ = b"\r\n\r" if b"\r\n" in raw else b"\n\n"
    reason = raw.index(b'"finish_reason":"')
    return raw.index(break_, reason) + len(break_), end


def check_outcome(name: str, cut: int, end: End, outcome: Outcome) -> None:
    """What T1 promises of a stream that was cut after so many bytes.

    A reset may take from the reader what was sent before it, so the end may be missing even when
    all was sent.
    """
    place = f"{name} cut at {cut} by {end}"
    whole, stripped = read_whole(name)
    canisters, failed = outcome.canisters, outcome.failed
    check_events(outcome.events, turn=False)
    clean, any_ = find_ends(name)
    if cut >= (clean if end == "clean" else any_) and not (end == "reset" and failed):
        assert not failed, place
        if cut >= any_:
            assert strip(canisters) == stripped, place
        # Between the two only the usage may be missing.
        said = [canister.text for canister in canisters if isinstance(canister, AssistantCanister)]
        assert said == [one.text for one in whole if isinstance(one, AssistantCanister)], place
        return
    completed, partial = check_cut(outcome, stripped, strip, place)
    if isinstance(partial, InvocationCanister) or completed == len(whole):
        return
    expected = whole[completed]
    if isinstance(expected, AssistantCanister):
        check_words(partial, expected, place)
    else:
        assert partial.contents == (), place


async def check_cuts(name: str, cuts: Iterable[int], *, every: bool = False) -> None:
    """Cut a stream at these places; in `every` way, or each in one, its neighbours in others."""
    for cut in cuts:
        for end, size in ways(cut, every=every):
            check_outcome(name, cut, end, await replay_cut(name, cut, end, size))


@pytest.mark.storm
@pytest.mark.parametrize("name", NAMES)
async def test_a_stream_cut_at_any_byte_fails_and_keeps_what_came(
    name: str, rounds: Callable[[int, int], int]
) -> None:
    step = rounds(7, 1)
    last = len(load(name))
    ends = (*range(8), *range(last - 60, last + 1))
    await check_cuts(name, [*ends, *range(8, last - 60, step)], every=step == 1)


@pytest.mark.parametrize("name", ["chat/text", "chat/tools", "responses/text", "responses/tools"])
async def test_taking_the_end_of_the_body_for_success_would_be_found_out(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def conclude_chat(self: ChatCompletionsAssimilator) -> Iterable[Any]:
        return () if self._closed else self._end()

    def conclude_response(self: ResponsesAssimilator) -> Iterable[Any]:
        from vibe_llms.providers.deltas import ReplyClosed

        return () if self._closed else [ReplyClosed("finished")]

    monkeypatch.setattr(ChatCompletionsAssimilator, "conclude", conclude_chat)
    monkeypatch.setattr(ResponsesAssimilator, "conclude", conclude_response)
    with pytest.raises(AssertionError):
        await check_cuts(name, range(0, len(load(name)), 50))


async def test_taking_a_broken_connection_for_the_end_would_be_found_out() -> None:
    clean, any_ = find_ends("chat/text")
    outcome = await replay_cut("chat/text", clean, "clean", 512)
    assert not outcome.failed
    with pytest.raises(AssertionError):
        check_outcome("chat/text", clean, "close", outcome)
    assert clean < any_


@pytest.mark.storm
@pytest.mark.parametrize("name", NAMES)
async def test_a_connection_closed_or_reset_at_any_byte_is_a_failure(
    name: str, rounds: Callable[[int, int], int], fake_openai: FakeOpenAI
) -> None:
    interface = name.partition("/")[0]
    raw = load(name)
    client = produce_openai_client(interface, fake_openai.url)
    ends: tuple[End, ...] = ("clean", "close", "reset")
    for cut in range(0, len(raw) + 1, rounds(len(raw) // 3, 1)):
        for end in ends:
            chunks = [raw[start : start + 512] for start in range(0, len(raw), 512)]
            fake_openai.replies = [stream_bytes(chunks, cut=cut, end=end)]
            outcome = await hear(client, MODELS[interface], end)
            check_outcome(name, cut, end, outcome)
    await client.close()
    await fake_openai.settled()
    assert not fake_openai.refusals


@pytest.mark.parametrize("interface", ["chat", "responses"])
async def test_a_cut_reply_runs_no_tool_and_the_next_turn_is_accepted(
    interface: str, fake_openai: FakeOpenAI
) -> None:
    runs: list[str] = []

    def weather(city: str) -> str:
        runs.append(city)
        return "fine"

    row = {"chat": "openai-chat", "responses": "openai"}[interface]
    configuration = {"providers": {row: {"base-url": fake_openai.url, "retries": 0}}}
    raw = load(f"{interface}/tools")
    if interface == "responses":
        fake_openai.remember(
            read_events("responses/tools")[-1]["response"]["output"], MODELS[interface]
        )
    marks = (b"call_A", b"call_B", raw[-40:])
    async with open_session(configuration=configuration, keys={row: fake_openai.key}) as session:
        for mark in marks:
            fake_openai.replies = [stream_bytes([raw], cut=raw.index(mark))]
            events: list[Event] = []
            conversation = await session.begin(
                f"{row}/{MODELS[interface]}", invokers=[weather], event_handler=events.append
            )
            with pytest.raises(ReplyCut):
                await conversation.converse("Weather?")
            last = conversation.canisters[-1]
            assert isinstance(last, AssistantCanister | InvocationCanister)
            assert is_cut(last)
            assert (await conversation.converse("And now?")).text == "Hello."
            check_events(events)
            assert not any(isinstance(event, InvocationStartedEvent) for event in events)
    assert runs == []
    assert fake_openai.refusals == []
