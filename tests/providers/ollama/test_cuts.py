"""T1: a stream that is cut is a failure, never an answer; and what had arrived of it is kept.

Every recorded stream is cut at every byte: cleanly, as if it were whole, and by a connection that
breaks, in chunks of three sizes. Most of it without sockets, since each takes milliseconds; a
sample, and with `--nightly` all of it, over sockets, where the server closes or resets the
connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import pytest

from tests.fakes.cuts import SIZES, Outcome, check_cut, check_words, hear, replay, ways
from tests.fakes.ollama import FakeOllama, stream_bytes
from tests.fakes.ollama_clients import produce_client, produce_model
from tests.fakes.ollama_recordings import NAMES, PROVENANCE, assimilate, find_end, load
from tests.fakes.recordings import ReplayTransport, is_cut, strip
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
    UserCanister,
)
from vibe_llms.providers.ollama.streams import OllamaAssimilator, _Line
from vibe_llms.testing import check_events


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
    if not outcome.failed:
        # The last line may lack its end, unless the connection broke.
        assert cut >= find_end(name), f"{place}: a cut reply was taken for whole"
        assert strip(outcome.canisters) == stripped, place
        return
    # Where the connection broke, a line whose end has come only half is not whole either.
    raw = load(name)
    last = find_end(name) if end == "clean" else len(raw) - raw.endswith(b"\n")
    assert cut <= last or end == "reset", place
    completed, partial = check_cut(outcome, stripped, strip, place)
    expected = whole[completed] if completed < len(whole) else None
    if isinstance(partial, InvocationCanister):
        # A call comes whole or not at all; only what follows it was cut.
        assert isinstance(expected, InvocationCanister), place
        assert (partial.name, partial.arguments) == (expected.name, expected.arguments), place
    elif isinstance(expected, AssistantCanister):
        check_words(partial, expected, place)
    else:
        assert partial.contents == (), place
    assert partial.ending is not None
    assert partial.ending.severed == (), place


@cache
def _read_whole(name: str) -> tuple[Sequence[ReplyCanister], Sequence[Any]]:
    whole, _ = assimilate([load(name)])
    return whole, strip(whole)


async def check_cuts(name: str, cuts: Iterable[int], *, every: bool = False) -> None:
    """Cut a stream at these places; in `every` way, or each in one, its neighbours in others."""
    for cut in cuts:
        for end, size in ways(cut, every=every):
            transport = ReplayTransport(
                load(name), size, cut=cut, end=end, kind="application/x-ndjson"
            )
            outcome = await replay(transport, PROVENANCE, lambda: OllamaAssimilator("ollama", str))
            check_outcome(name, cut, outcome, end=end)


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
    def conclude(self: OllamaAssimilator) -> Iterable[Any]:
        return () if self._closed else list(self._close(_Line(done=True)))

    monkeypatch.setattr(OllamaAssimilator, "conclude", conclude)
    with pytest.raises(AssertionError):
        await check_cuts(name, range(0, len(load(name)), 50))


async def check_cut_over_socket(
    server: FakeOllama, name: str, cuts: Iterable[int], ends: Sequence[End], size: int
) -> None:
    raw = load(name)
    client = produce_client(server.url)
    for cut in cuts:
        for end in ends:
            chunks = [raw[start : start + size] for start in range(0, len(raw), size)]
            server.replies = [stream_bytes(chunks, cut=cut, end=end)]
            outcome = await hear(client, "qwen3:8b", end)
            check_outcome(name, cut, outcome, end=end)
    await client.close()
    await server.settled()


@pytest.mark.storm
@pytest.mark.parametrize("name", NAMES)
async def test_a_connection_closed_or_reset_at_any_byte_is_a_failure(
    name: str, rounds: Callable[[int, int], int], fake_ollama: FakeOllama
) -> None:
    last = len(load(name))
    cuts = range(0, last + 1, rounds(last // 3, 1))
    for size in SIZES[-1:] if len(cuts) < 10 else SIZES:
        await check_cut_over_socket(fake_ollama, name, cuts, ("clean", "close", "reset"), size)
    assert not fake_ollama.refusals


async def test_a_cut_reply_runs_no_tool_and_is_stored_with_its_mark(
    fake_ollama: FakeOllama,
) -> None:
    runs: list[str] = []
    told: list[Event] = []

    def weather(city: str, days: int = 1, note: str = "") -> str:
        runs.append(city)
        return "fine"

    configuration = {"providers": {"ollama": {"base-url": fake_ollama.url, "retries": 0}}}
    raw = load("tools")
    async with open_session(configuration=configuration) as s:
        for cut in (raw.index(b"call_a1"), raw.index(b"call_e5"), find_end("tools") - 1):
            fake_ollama.replies = [stream_bytes([raw], cut=cut)]
            events: list[Event] = []
            conversation = await s.begin(
                "ollama/qwen3:8b", invokers=[weather], event_handler=events.append
            )
            with pytest.raises(ReplyCut):
                await conversation.converse("Weather?")
            last = conversation.canisters[-1]
            assert isinstance(last, AssistantCanister | InvocationCanister)
            assert is_cut(last)
            # The strict server takes the next turn.
            assert (await conversation.converse("And now?")).text == "Hello."
            check_events(events)
            told += events
    assert runs == []
    assert not any(isinstance(event, InvocationStartedEvent) for event in told)
    assert fake_ollama.refusals == []


async def test_a_whole_reply_leaves_its_connection_to_the_next(fake_ollama: FakeOllama) -> None:
    model = await produce_model(fake_ollama.url)
    for _ in range(5):
        await model.converse([UserCanister.from_text("Hi")])
    assert fake_ollama.connections == 1
    await model.client.close()
