"""T6: recorded streams, read by the official packages and by us, whatever chunks they come in."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from tests.fakes.interfaces import (
    ANTHROPIC,
    GEMINI,
    OLLAMA,
    RESPONSES,
    VENDORS,
    RecordedInterface,
    every,
    every_recording,
    every_vendor,
)
from tests.fakes.recordings import find_notices, places, strip
from vibe_llms.base.exceptions import ProviderError, ReplyCut, ReplyMalformed
from vibe_llms.messages.codecs import decode_canister, encode_canister
from vibe_llms.testing import check_events

#: Unstreamed, a call is encoded by another hand: white space and escapes differ.
WRITTEN_OTHERWISE = {
    "anthropic": ("tools", "escaped"),
    "bedrock": ("tools", "between", "escaped"),
    "ollama": OLLAMA.recordings.names,
}
#: Text on both sides of a call, which a whole reply of Ollama's has in one piece.
REORDERED = ("ollama", "between")


def check_splits(interface: RecordedInterface, name: str, cuts: Iterable[int]) -> None:
    """A stream cut in two anywhere gives what the official package reads."""
    recordings = interface.recordings
    raw, (_, whole) = recordings.load(name), recordings.whole(name)
    expected = recordings.read_officially(name)
    for cut in cuts:
        canisters, events = recordings.assimilate([raw[:cut], raw[cut:]])
        assert strip(canisters) == whole, cut
        assert find_notices(events) == recordings.notices(name), cut
        assert recordings.read_canisters(canisters) == expected, cut
        check_events(events, turn=False)


@pytest.mark.storm
@every_recording
def test_a_stream_split_at_any_byte_gives_what_the_official_package_reads(
    interface: RecordedInterface, name: str, rounds: Callable[[int, int], int]
) -> None:
    check_splits(interface, name, places(interface.recordings.load(name), rounds(61, 1)))


@every_recording
def test_a_stream_in_small_chunks_gives_the_same_canisters(
    interface: RecordedInterface, name: str
) -> None:
    raw = interface.recordings.load(name)
    for size in (1, 2, 3, 64):
        chunks = [raw[start : start + size] for start in range(0, len(raw), size)]
        canisters, events = interface.recordings.assimilate(chunks)
        assert strip(canisters) == interface.recordings.whole(name)[1], size
        check_events(events, turn=False)


@every_vendor
def test_a_splitter_that_decodes_chunk_by_chunk_would_be_detected(
    interface: RecordedInterface, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = type(interface.recordings.produce_assimilator())

    class Careless(kind.splitter):  # type: ignore[misc]
        def feed(self, chunk: bytes) -> Sequence[bytes]:
            fed: Sequence[bytes] = super().feed(chunk.decode("utf-8", "replace").encode())
            return fed

    monkeypatch.setattr(kind, "splitter", Careless)
    raw = interface.recordings.load("unicode")
    with pytest.raises((AssertionError, ReplyMalformed)):
        check_splits(interface, "unicode", places(raw, 17))


@every_recording
def test_an_unstreamed_reply_gives_the_canisters_of_the_streamed_one(
    interface: RecordedInterface, name: str
) -> None:
    recordings = interface.recordings
    body = json.dumps(recordings.body(name), ensure_ascii=name == "escaped").encode()
    whole, events = recordings.assimilate([body], whole=True)
    check_events(events, turn=False)
    if (interface.row, name) != REORDERED:
        parsed = name in WRITTEN_OTHERWISE.get(interface.row, ())
        streamed, _ = recordings.whole(name)
        assert strip(whole, parsed=parsed) == strip(streamed, parsed=parsed)
        assert recordings.read_canisters(whole) == recordings.read_officially(name)


#: What the filters of Azure say, by row and recording.
FLAGGED = {
    ("azure-chat", "text"): "prompt: jailbreak (detected)",
    ("azure-chat", "filter"): "reply: violence (medium)",
    ("azure-chat", "late"): "reply: protected material text (detected)",
    ("azure-chat", "older"): "reply: not checked",
    ("azure", "text"): "prompt: jailbreak (detected)",
    ("azure", "unicode"): "reply: protected material text (detected)",
    ("azure", "filter"): "reply: violence (medium)",
}


@every_recording
def test_what_filters_flag_is_told_once_streamed_and_whole(
    interface: RecordedInterface, name: str
) -> None:
    recordings = interface.recordings
    body = json.dumps(recordings.body(name)).encode()
    flags = FLAGGED.get((interface.row, name), "")
    expected = [f"{interface.row}: content filter, {flags}"] if flags else []
    for _, events in (
        recordings.assimilate([recordings.load(name)]),
        recordings.assimilate([body], whole=True),
    ):
        assert [one for one in find_notices(events) if "filter" in one] == expected


@every_recording
def test_what_was_read_can_be_stored_and_restored(interface: RecordedInterface, name: str) -> None:
    for canister in interface.recordings.whole(name)[0]:
        line = encode_canister(canister)
        assert decode_canister(line) == canister
        json.loads(line.decode())


@every(lambda one: one in VENDORS.values() and one is not GEMINI)
def test_nothing_after_the_end_of_a_reply_is_read(interface: RecordedInterface) -> None:
    recordings = interface.recordings
    raw = recordings.load("text")
    more = recordings.load("tools")
    later = [more] if interface in (ANTHROPIC, RESPONSES) else []
    canisters, events = recordings.assimilate([raw + more + b"no JSON\n\n", *later])
    assert strip(canisters) == recordings.whole("text")[1]
    check_events(events, turn=False)


@every_vendor
def test_a_stream_without_its_end_is_cut(interface: RecordedInterface) -> None:
    assimilator = interface.recordings.produce_assimilator()
    with pytest.raises(ReplyCut):
        list(assimilator.conclude())


def check_hostile(interface: RecordedInterface, raw: bytes) -> None:
    """Whatever a server sends ends as a reply that can be stored, or as an error of ours."""
    try:
        completed, events = interface.recordings.assimilate([raw])
    except ProviderError:
        return
    except Exception as error:
        raise AssertionError(f"{error!r} came out of {raw!r}") from error
    check_events(events, turn=False)
    for canister in completed:
        assert decode_canister(encode_canister(canister)) == canister


_SHARDS = (
    *(b'"\\ud83d"', b"null", b"NaN", b"1e999", b"[[", b"{}", b"\x00", b"\n\n", b"\r", b"9" * 30),
)


def damage(interface: RecordedInterface, noise: random.Random) -> bytes:
    """A recorded stream with bytes changed, taken out, or put in."""
    recordings = interface.recordings
    raw = bytearray(recordings.load(noise.choice(recordings.names)))
    for _ in range(noise.randint(1, 4)):
        place = noise.randrange(len(raw))
        match noise.randrange(4):
            case 0:
                raw[place] = noise.randrange(256)
            case 1:
                del raw[place : place + noise.randint(1, 40)]
            case 2:
                other = recordings.load(noise.choice(recordings.names))
                start = noise.randrange(len(other))
                raw[place:place] = other[start : start + noise.randint(1, 200)]
            case _:
                raw[place:place] = noise.choice(_SHARDS)
    return bytes(raw)


@pytest.mark.storm
@every_vendor
def test_damaged_streams_end_as_replies_or_as_errors_of_ours(
    interface: RecordedInterface, rounds: Callable[[int, int], int]
) -> None:
    noise = random.Random(11)
    for _ in range(rounds(1_000, 50_000)):
        check_hostile(interface, damage(interface, noise))


@every_vendor
def test_a_decoder_that_lets_its_own_errors_out_would_be_detected(
    interface: RecordedInterface, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(interface.recordings.produce_assimilator())
    monkeypatch.setattr(kind, "feed", lambda self, chunk: 1 / 0)
    with pytest.raises(AssertionError):
        check_hostile(interface, b"data: {\n\n")
