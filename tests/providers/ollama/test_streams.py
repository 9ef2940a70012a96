"""Recorded streams, read by the official package and by us, however they are cut into chunks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import ollama
import pytest

from tests.fakes.ollama import (
    MODEL,
    FakeOllama,
    call,
    encode_line,
    end,
    line,
    stream_bytes,
    text_reply,
)
from tests.fakes.ollama_clients import produce_model
from tests.fakes.ollama_recordings import (
    NAMES,
    assimilate,
    load,
    read_canisters,
    read_lines,
    read_officially,
    read_whole,
)
from tests.fakes.recordings import strip
from vibe_llms.exceptions import (
    ContextOverflow,
    ModelUnavailable,
    ProviderError,
    ProviderOverloaded,
    ReplyCut,
    ReplyMalformed,
)
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    StopReason,
    UserCanister,
)
from vibe_llms.messages.codecs import decode_canister, encode_canister
from vibe_llms.providers.ollama import streams
from vibe_llms.providers.ollama.streams import OllamaAssimilator
from vibe_llms.providers.wire import EventTooLarge, LineSplitter
from vibe_llms.testing import check_events

#: Where text stands on both sides of a call; a whole reply has it in one piece.
REORDERED = ("between",)


def check_splits(name: str, cuts: Sequence[int]) -> None:
    """However a stream is cut in two, what is read is what the official package reads."""
    raw = load(name)
    expected = read_officially(read_lines(name))
    whole = strip(assimilate([raw])[0])
    for cut in cuts:
        canisters, events = assimilate([raw[:cut], raw[cut:]])
        assert strip(canisters) == whole, cut
        assert read_canisters(canisters) == expected, cut
        check_events(events, turn=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_split_at_any_byte_gives_what_the_official_package_reads(name: str) -> None:
    check_splits(name, range(len(load(name)) + 1))


@pytest.mark.parametrize("size", [1, 2, 3, 64])
@pytest.mark.parametrize("name", NAMES)
def test_a_stream_in_small_chunks_gives_the_same_canisters(name: str, size: int) -> None:
    raw = load(name)
    canisters, events = assimilate(raw[at : at + size] for at in range(0, len(raw), size))
    assert read_canisters(canisters) == read_officially(read_lines(name))
    check_events(events, turn=False)


def test_a_splitter_that_decodes_chunk_by_chunk_would_be_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Careless(LineSplitter):
        def feed(self, chunk: bytes) -> Sequence[bytes]:
            return super().feed(chunk.decode("utf-8", "replace").encode())

    monkeypatch.setattr(streams, "LineSplitter", Careless)
    with pytest.raises(AssertionError):
        check_splits("unicode", range(len(load("unicode"))))


@pytest.mark.parametrize("name", NAMES)
def test_an_unstreamed_reply_gives_the_canisters_of_the_streamed_one(name: str) -> None:
    message = read_whole(name)
    body = json.dumps(message, ensure_ascii=name == "escaped", separators=(",", ":")).encode()
    whole, events = assimilate([body], whole=True)
    assert read_canisters(whole) == read_officially([message])
    check_events(events, turn=False)
    if name not in REORDERED:
        # What the server escapes without need, another encoder does not.
        streamed, _ = assimilate([load(name)])
        assert strip(whole, parsed=True) == strip(streamed, parsed=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_that_comes_as_one_body_is_read_as_well(name: str) -> None:
    whole, _ = assimilate([load(name)], whole=True)
    assert strip(whole) == strip(assimilate([load(name)])[0])


# The official client takes an empty line for no JSON, and U+0085 for the end of a line.
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("bare", "unicode")])
async def test_the_official_client_reads_the_same_from_a_server(
    name: str, fake_ollama: FakeOllama
) -> None:
    fake_ollama.replies = [stream_bytes([load(name)]), stream_bytes([load(name)])]
    model = await produce_model(fake_ollama.url)
    ours = await model.converse([UserCanister.from_text("Hi")])
    client = ollama.AsyncClient(host=fake_ollama.url)
    lines = await client.chat(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}], stream=True
    )
    official = [part.model_dump(exclude_unset=True) async for part in lines]
    assert read_canisters(ours) == read_officially(official)
    await client.close()  # type: ignore[no-untyped-call]
    await model.client.close()


@pytest.mark.parametrize("name", NAMES)
def test_what_was_read_can_be_stored_and_restored(name: str) -> None:
    for canister in assimilate([load(name)])[0]:
        assert decode_canister(encode_canister(canister)) == canister


@pytest.mark.parametrize(
    ("name", "reason", "native"),
    [
        ("text", StopReason.FINISHED, "stop"),
        ("tools", StopReason.INVOCATIONS, "stop"),
        ("older", StopReason.INVOCATIONS, ""),
        ("length", StopReason.LENGTH, "length"),
        ("load", StopReason.FINISHED, "load"),
        ("unknown", "brand_new_reason", "brand_new_reason"),
    ],
)
def test_why_a_reply_ended_is_told_in_our_words(name: str, reason: str, native: str) -> None:
    ending = assimilate([load(name)])[0][-1].ending
    assert ending is not None
    assert (ending.reason, ending.native_reason) == (reason, native)


def test_a_reply_with_no_content_is_a_message_with_no_content() -> None:
    (canister,), _ = assimilate([load("empty")])
    assert isinstance(canister, AssistantCanister)
    assert canister.contents == ()


def test_calls_without_identities_are_told_apart_by_ours() -> None:
    canisters, _ = assimilate([load("older")])
    calls = [canister for canister in canisters if isinstance(canister, InvocationCanister)]
    assert [(one.call, one.parsed) for one in calls] == [
        ("", {"city": "Paris"}),
        ("", {"city": "Rome"}),
    ]
    assert len({one.identity for one in calls}) == 2


def test_cached_tokens_are_counted_apart() -> None:
    ending = assimilate([load("thinking")])[0][-1].ending
    assert ending is not None
    assert ending.usage is not None
    assert (ending.usage.uncached_input_tokens, ending.usage.cache_read_tokens) == (10, 16)


def test_what_a_call_has_besides_is_kept_for_its_model() -> None:
    canisters, _ = assimilate([load("unknown")])
    (call_,) = [canister for canister in canisters if isinstance(canister, InvocationCanister)]
    assert call_.native is not None
    assert json.loads(bytes(call_.native.data)) == {"signature": "SIG=="}


def read(*lines: Any) -> Any:
    """The canisters of lines that any encoder might have written."""
    raw = b"".join(json.dumps(one).encode() + b"\n" for one in lines)
    canisters, events = assimilate([raw])
    check_events(events, turn=False)
    return canisters


def test_lone_surrogates_are_replaced_and_pairs_in_two_lines_joined() -> None:
    (canister,) = read(line("a\ud83d"), line("\ude00b"), line("\ud83d"), line("c"), end())
    assert canister.text == "a😀b\ufffdc"
    (canister,) = read(line("", thinking="x\ud83d"), line("y\ud83d"), end())
    assert [content.text for content in canister.contents] == ["x\ufffd", "y\ufffd"]


def test_lone_surrogates_in_a_call_are_replaced() -> None:
    (canister,) = read(line(tool_calls=[call("t\ud83d", {"a\ude00": ["\ud83d"]}, "\ude00")]), end())
    assert isinstance(canister, InvocationCanister)
    assert (canister.name, canister.call) == ("t\ufffd", "\ufffd")
    assert canister.parsed == {"a\ufffd": ["\ufffd"]}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(None, "{}"), ('{"a": 1}', '{"a": 1}'), ({"a": 1}, '{"a":1}'), ([1], "[1]"), ("{", "{")],
)
def test_arguments_in_other_forms_are_taken_as_they_are(arguments: Any, text: str) -> None:
    (canister,) = read(line(tool_calls=[call("t", arguments)]), end())
    assert canister.arguments == text


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("an error was encountered while running the model", ProviderOverloaded),
        ("model 'x' not found", ModelUnavailable),
        ("the request exceeds the available context size, try increasing it", ContextOverflow),
        ({"message": "odd"}, ProviderOverloaded),
    ],
)
def test_an_error_within_a_stream_is_raised(words: Any, kind: type[ProviderError]) -> None:
    raw = encode_line(line("par")) + encode_line({"error": words})
    with pytest.raises(kind):
        assimilate([raw])
    with pytest.raises(kind):
        assimilate([encode_line({"error": words})], whole=True)


@pytest.mark.parametrize(
    "raw",
    [
        b"{\n",
        b"[]\n",
        b'"x"\n',
        b'{"message":7}\n',
        b'{"message":{"content":7}}\n',
        b'{"message":{"tool_calls":{}}}\n',
        b'{"message":{"tool_calls":[7]}}\n',
        b'{"message":{"tool_calls":[{}]}}\n',
        b'{"message":{"tool_calls":[{"function":7}]}}\n',
        b'{"message":{"tool_calls":[{"id":7,"function":{"name":"a"}}]}}\n',
        b'{"done":NaN}\n',
        b'{"message":' + b"[" * 100_000 + b"\n",
        b"\xff\n",
    ],
)
def test_what_the_interface_does_not_promise_is_malformed(raw: bytes) -> None:
    with pytest.raises(ReplyMalformed):
        assimilate([raw])
    with pytest.raises(ReplyMalformed):
        assimilate([raw], whole=True)


def test_a_whole_reply_that_is_not_done_is_malformed() -> None:
    with pytest.raises(ReplyMalformed):
        assimilate([encode_line(line("Hi"))], whole=True)


def test_a_line_without_end_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    def feed(self: LineSplitter, chunk: bytes) -> Sequence[bytes]:
        raise EventTooLarge("one line has more than 64 bytes")

    monkeypatch.setattr(LineSplitter, "feed", feed)
    with pytest.raises(ReplyMalformed, match="64 bytes"):
        assimilate([b"x"])


def test_what_follows_the_end_is_not_read() -> None:
    raw = b"".join(map(encode_line, [*text_reply("Hi"), line("more")])) + b"no JSON\n"
    assert strip(assimilate([raw])[0]) == strip(
        assimilate([b"".join(map(encode_line, text_reply("Hi")))])[0]
    )


def test_an_end_that_is_not_told_is_a_cut() -> None:
    assimilator = OllamaAssimilator("ollama", str)
    assert len(list(assimilator.feed(encode_line(line("Hi"))))) == 1
    with pytest.raises(ReplyCut):
        assimilator.conclude()
