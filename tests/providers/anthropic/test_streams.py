"""Recorded streams, read by the official package and by us, however they are cut into chunks."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import anthropic
import pytest

from tests.fakes.anthropic import (
    KEY,
    FakeAnthropic,
    answer_json,
    block,
    encode_event,
    reply,
    stream_bytes,
    text_block,
    thinking_block,
    tool_block,
)
from tests.fakes.clients import produce_model
from tests.fakes.recordings import (
    NAMES,
    assimilate,
    load,
    read_canisters,
    read_events,
    read_message,
    read_officially,
    strip,
)
from vibe_llms.events import MessageCompletedEvent, MessageUpdatedEvent
from vibe_llms.exceptions import ProviderError, ProviderOverloaded, ReplyCut, ReplyMalformed
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    StopReason,
    UserCanister,
)
from vibe_llms.messages.codecs import decode_canister, encode_canister
from vibe_llms.messages.contents import NativeContent, ReasoningContent
from vibe_llms.providers.anthropic import streams
from vibe_llms.providers.anthropic.streams import AnthropicAssimilator, read_citation
from vibe_llms.providers.wire import EventSplitter, EventTooLarge
from vibe_llms.testing import check_events

#: Calls whose white space and escapes the unstreamed form does not keep.
WRITTEN_OTHERWISE = ("tools", "escaped")


def check_splits(name: str, cuts: Sequence[int]) -> None:
    """However a stream is cut in two, what is read is what the official package reads."""
    raw = load(name)
    expected = read_officially(read_message(name))
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
    chunks = [raw[start : start + size] for start in range(0, len(raw), size)]
    canisters, events = assimilate(chunks)
    assert read_canisters(canisters) == read_officially(read_message(name))
    check_events(events, turn=False)


def test_a_splitter_that_decodes_chunk_by_chunk_would_be_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Careless(EventSplitter):
        def feed(self, chunk: bytes) -> Sequence[bytes]:
            return super().feed(chunk.decode("utf-8", "replace").encode())

    monkeypatch.setattr(streams, "EventSplitter", Careless)
    with pytest.raises(AssertionError):
        check_splits("unicode", range(len(load("unicode"))))


@pytest.mark.parametrize("name", NAMES)
def test_an_unstreamed_reply_gives_the_canisters_of_the_streamed_one(name: str) -> None:
    message = read_message(name)
    body = json.dumps(message, ensure_ascii=name == "escaped").encode()
    whole, events = assimilate([body], whole=True)
    streamed, _ = assimilate([load(name)])
    parsed = name in WRITTEN_OTHERWISE
    assert strip(whole, parsed=parsed) == strip(streamed, parsed=parsed)
    assert read_canisters(whole) == read_officially(message)
    check_events(events, turn=False)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("crlf", "returns")])
async def test_the_official_client_reads_the_same_from_a_server(
    name: str, fake_anthropic: FakeAnthropic
) -> None:
    fake_anthropic.replies = [stream_bytes([load(name)]), stream_bytes([load(name)])]
    model = await produce_model(fake_anthropic.url)
    ours = await model.converse([UserCanister.from_text("Hi")])
    async with (
        anthropic.AsyncAnthropic(api_key=KEY, base_url=fake_anthropic.url) as client,
        client.messages.stream(
            model="claude-opus-5", max_tokens=9, messages=[{"role": "user", "content": "Hi"}]
        ) as stream,
    ):
        message = await stream.get_final_message()
    official = message.model_dump(exclude_unset=True, warnings=False)
    assert read_canisters(ours) == read_officially(official)
    await model.client.close()


@pytest.mark.parametrize("name", NAMES)
def test_what_was_read_can_be_stored_and_restored(name: str) -> None:
    canisters, _ = assimilate([load(name)])
    for canister in canisters:
        line = encode_canister(canister)
        assert decode_canister(line) == canister
        json.loads(line.decode())


def test_a_call_that_the_limit_cut_is_a_mark_and_no_call() -> None:
    canisters, events = assimilate([load("length")])
    assert [type(canister) for canister in canisters] == [AssistantCanister, AssistantCanister]
    ending = canisters[-1].ending
    assert ending is not None
    assert (ending.severed, ending.reason, ending.interrupted) == (
        ("write",),
        StopReason.LENGTH,
        False,
    )
    check_events(events, turn=False)


def test_a_call_whose_json_looks_whole_is_cut_all_the_same() -> None:
    events = reply(tool_block(0, "write", '{"text":"all"}'), stop_reason="max_tokens")
    (canister,), _ = assimilate([b"".join(map(encode_event, events))])
    assert isinstance(canister, AssistantCanister)
    assert canister.ending is not None
    assert canister.ending.severed == ("write",)


def test_a_refusal_says_why() -> None:
    canisters, _ = assimilate([load("refusal")])
    ending = canisters[-1].ending
    assert ending is not None
    assert ending.reason == StopReason.REFUSED
    assert ending.detail == "bio: This could do harm."


def test_an_unknown_stop_reason_is_kept_as_a_word() -> None:
    events = reply(text_block(0, "a"), stop_reason="brand_new_reason")
    (canister,), _ = assimilate([b"".join(map(encode_event, events))])
    assert canister.ending is not None
    assert canister.ending.reason == "brand_new_reason"


def test_an_unknown_block_is_kept_as_it_came() -> None:
    canisters, _ = assimilate([load("unknown")])
    (canister,) = canisters
    assert isinstance(canister, AssistantCanister)
    native = canister.contents[1]
    assert isinstance(native, NativeContent)
    assert native.label == "brand_new_block"
    assert native.native is not None
    # Numbers and all else as they were written.
    assert bytes(native.native.data) == (
        b'{"type":"brand_new_block","text":"kept","parts":[{"a":1.5}],"id":7}'
    )


def test_citations_and_usage_are_told_as_updates() -> None:
    _, events = assimilate([load("citations")])
    subjects = [event.subject for event in events if isinstance(event, MessageUpdatedEvent)]
    assert subjects.count("citations") == 5
    assert subjects[-1] == "usage"


def test_a_citation_is_read_in_the_units_of_its_source() -> None:
    citations = [
        (citation.unit, citation.start, citation.end, citation.title, citation.source)
        for canister in assimilate([load("citations")])[0]
        for content in getattr(canister, "contents", ())
        for citation in content.citations
    ]
    assert citations == [
        ("character", 0, 20, "Colours", ""),
        ("page", 5, 6, "", ""),
        ("block", 0, 1, "Weather", ""),
        ("", None, None, "Shannon", "https://example.org/shannon"),
        ("block", 2, 3, "", "kb://1"),
    ]
    assert read_citation(b"{}").quote == ""


def test_thinking_with_a_lone_surrogate_is_kept_without_its_signature() -> None:
    events = reply(thinking_block(0, "a\ud83d", "\ude00b\ud83d", "c"), text_block(1, "x"))
    raw = b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)
    (canister,), _ = assimilate([raw])
    assert isinstance(canister, AssistantCanister)
    thought = canister.contents[0]
    assert isinstance(thought, ReasoningContent)
    assert (thought.text, thought.native) == ("a😀b\ufffdc", None)


def test_a_pair_split_over_two_deltas_of_thinking_keeps_its_signature() -> None:
    events = reply(thinking_block(0, "a\ud83d", "\ude00b\ufffd"), text_block(1, "x"))
    raw = b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)
    (canister,), _ = assimilate([raw])
    assert isinstance(canister, AssistantCanister)
    assert canister.contents[0].native is not None


@pytest.mark.parametrize(
    ("chunks", "text"),
    [(['{"a":"\ud83d', '\ude00"}'], '{"a":"😀"}'), (['{"a":"', '\ud83d"}'], '{"a":"\ufffd"}')],
)
def test_surrogates_in_arguments_are_joined_or_replaced(chunks: list[str], text: str) -> None:
    events = reply(tool_block(0, "t", *chunks), stop_reason="tool_use")
    raw = b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)
    (canister,), told = assimilate([raw])
    assert isinstance(canister, InvocationCanister)
    assert canister.arguments == text
    check_events(told, turn=False)


def test_a_half_of_a_pair_at_the_end_of_arguments_is_replaced() -> None:
    events = reply(tool_block(0, "t", '{"a":1}\ud83d'), stop_reason="tool_use")
    raw = b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)
    (canister,), _ = assimilate([raw])
    assert isinstance(canister, InvocationCanister)
    assert (canister.arguments, canister.parsed) == ('{"a":1}\ufffd', None)


def test_lone_surrogates_in_what_is_kept_word_for_word_are_replaced() -> None:
    events = reply(
        block(0, {"type": "redacted_thinking", "data": "x\ud83d"}),
        block(1, {"type": "brand_new", "\ud83dkey": ["\ude00", 1, None]}),
        block(
            2,
            {"type": "text", "text": "t"},
            {"type": "citations_delta", "citation": {"type": "c", "cited_text": "\ud83d"}},
        ),
        block(3, {"type": "tool_use", "id": "\ud83d", "name": "n\ud83d", "input": {"a": "\ud83d"}}),
        stop_reason="tool_use",
    )
    raw = b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)
    canisters, _ = assimilate([raw])
    for canister in canisters:
        assert decode_canister(encode_canister(canister)) == canister
    call = canisters[-1]
    assert isinstance(call, InvocationCanister)
    assert (call.name, call.call, call.arguments) == ("n\ufffd", "\ufffd", '{"a":"\ufffd"}')


def test_nothing_after_the_end_of_a_reply_is_read() -> None:
    raw = load("text")
    canisters, events = assimilate([raw + load("tools"), load("tools")])
    assert strip(canisters) == strip(assimilate([raw])[0])
    check_events(events, turn=False)


def test_a_server_tool_whose_input_was_cut_keeps_the_block_as_it_began() -> None:
    start = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": '{"query": "wea'}
    events = reply(block(0, start, delta), stop_reason="max_tokens")
    (canister,), _ = assimilate([b"".join(map(encode_event, events))])
    assert isinstance(canister, AssistantCanister)
    payload = canister.contents[0].native
    assert payload is not None
    assert json.loads(bytes(payload.data)) == start
    assert decode_canister(encode_canister(canister)) == canister


@pytest.mark.parametrize(
    "events",
    [
        block(0, {"type": "text", "text": ""})[:1] + block(1, {"type": "text", "text": ""})[:1],
        block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "a"})[1:],
        [block(0, {"type": "text", "text": ""})[0], block(1, {"type": "text", "text": ""})[-1]],
        [*block(0, {"type": "text", "text": ""})[:1], {"type": "message_stop"}],
        [{"type": "content_block_start", "index": 0, "content_block": {"text": "a"}}],
        [{"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": 1}}],
        [{"type": "content_block_start", "index": "0"}],
        block(
            0,
            {"type": "text", "text": ""},
            {"type": "citations_delta", "citation": {"cited_text": 5}},
        ),
        [{"type": "message_delta", "delta": {"stop_reason": 5}}],
    ],
    ids=range(9),
)
def test_what_the_interface_does_not_promise_is_malformed(events: list[dict[str, Any]]) -> None:
    with pytest.raises(ReplyMalformed, match="the server sent what the interface does not promise"):
        assimilate([b"".join(map(encode_event, events))])


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b"nonsense",
        b'{"type":"content_block_start","index":0,"content_block":{"type":"x","y":NaN}}',
        b'{"type":"content_block_start","index":0,"content_block":{"type":"x","y":"\xff"}}',
        b'{"type":"message_start","message":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"type":"content_block_start","index":' + b"9" * 5000 + b"}",
        b'{"type":"content_block_start","index":0,"content_block":{"type":"x","s":"\\ud83d","y":'
        + (b"[" * 700 + b"]" * 700 + b"}}"),
        b'{"type":"content_block_start","index":0,"content_block":{"type":"\\ud83d","y":1e999}}',
    ],
    ids=range(9),
)
def test_data_that_is_no_json_of_an_event_is_malformed(data: bytes) -> None:
    with pytest.raises(ReplyMalformed):
        assimilate([b"data: " + data + b"\n\n"])


def test_an_event_without_end_is_malformed() -> None:
    with pytest.raises(ReplyMalformed, match="one event has more than") as caught:
        assimilate([b"x" * 2**20] * 66)
    assert isinstance(caught.value.__cause__, EventTooLarge)


def test_unknown_events_and_deltas_of_odd_types_are_passed_over() -> None:
    odd = [{"type": ["a"]}, {"type": "brand_new"}, {"no": "type"}]
    events = [*odd, *reply(block(0, {"type": "text", "text": "a"}, {"type": {"odd": 1}}))]
    (canister,), _ = assimilate([b"".join(f"data: {json.dumps(e)}\n\n".encode() for e in events)])
    assert isinstance(canister, AssistantCanister)
    assert canister.text == "a"


def test_deltas_that_do_not_belong_to_their_block_are_passed_over() -> None:
    start = {"type": "thinking", "thinking": "", "signature": ""}
    deltas: list[dict[str, Any]] = [
        {"type": "citations_delta", "citation": {}},
        {"type": "text_delta", "text": "b"},
        {"type": "thinking_delta", "thinking": "a"},
    ]
    (canister,), _ = assimilate([b"".join(map(encode_event, reply(block(0, start, *deltas))))])
    assert isinstance(canister, AssistantCanister)
    (content,) = canister.contents
    assert isinstance(content, ReasoningContent)
    assert content.text == "a"


def test_an_error_in_the_middle_of_a_stream_is_raised_by_its_type() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "over\ud83dloaded"}}
    raw = load("text")[:700]
    raw = raw[: raw.rindex(b"\n\n") + 2] + f"data: {json.dumps(error)}\n\n".encode()
    with pytest.raises(ProviderOverloaded, match="over\ufffdloaded"):
        assimilate([raw])


def test_a_body_of_json_that_is_an_error_is_raised_by_its_type() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "m"}}
    with pytest.raises(ProviderOverloaded):
        assimilate([json.dumps(error).encode()], whole=True)
    with pytest.raises(ProviderOverloaded):
        assimilate([b'{"type":"error"}'], whole=True)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"<html>", b"{}", b'{"stop_reason":"end_turn","content":5}', b'{"content":[5]}'],
)
def test_a_body_that_is_no_reply_is_malformed(body: bytes) -> None:
    with pytest.raises(ReplyMalformed):
        assimilate([body], whole=True)


def test_a_whole_body_with_lone_surrogates_is_read() -> None:
    message = {**read_message("text"), "content": [{"type": "text", "text": "a\ud83d"}]}
    (canister,), _ = assimilate([json.dumps(message).encode()], whole=True)
    assert isinstance(canister, AssistantCanister)
    assert canister.text == "a\ufffd"


def test_a_stream_without_its_end_is_cut() -> None:
    assimilator = AnthropicAssimilator("anthropic", str)
    with pytest.raises(ReplyCut):
        assimilator.conclude()


def check_hostile(raw: bytes) -> None:
    """Whatever a server sends ends as a reply that can be stored, or as an error of ours."""
    try:
        completed, events = assimilate([raw])
    except ProviderError:
        return
    except Exception as error:
        raise AssertionError(f"{error!r} came out of {raw!r}") from error
    check_events(events, turn=False)
    for canister in completed:
        assert decode_canister(encode_canister(canister)) == canister


@pytest.mark.storm
def test_damaged_streams_end_as_replies_or_as_errors_of_ours(
    rounds: Callable[[int, int], int],
) -> None:
    noise = random.Random(11)
    for _ in range(rounds(4_000, 200_000)):
        raw = bytearray(load(noise.choice(NAMES)))
        for _ in range(noise.randint(1, 4)):
            place = noise.randrange(len(raw))
            match noise.randrange(4):
                case 0:
                    raw[place] = noise.randrange(256)
                case 1:
                    del raw[place : place + noise.randint(1, 40)]
                case 2:
                    other = load(noise.choice(NAMES))
                    start = noise.randrange(len(other))
                    raw[place:place] = other[start : start + noise.randint(1, 200)]
                case _:
                    raw[place:place] = noise.choice(_SHARDS)
        check_hostile(bytes(raw))


_SHARDS = (
    b'"\\ud83d"',
    b"null",
    b"NaN",
    b"1e999",
    b"[[",
    b"{}",
    b"\x00",
    b"\n\n",
    b"\r",
    b"9" * 30,
)


def test_a_decoder_that_lets_its_own_errors_out_would_be_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(AnthropicAssimilator, "_decode_leniently", lambda self, data, error: 1 / 0)
    with pytest.raises(AssertionError):
        check_hostile(b"data: {\n\n")


async def test_a_reply_with_a_handler_that_raises_is_kept_as_far_as_it_came(
    fake_anthropic: FakeAnthropic,
) -> None:
    fake_anthropic.replies = [answer_json(read_message("text"))]
    seen: list[object] = []

    def handle(event: object) -> None:
        seen.append(event)
        if isinstance(event, MessageCompletedEvent):
            raise ZeroDivisionError

    model = await produce_model(fake_anthropic.url, event_handler=handle)
    with pytest.raises(ZeroDivisionError):
        await model.converse([UserCanister.from_text("Hi")])
    assert isinstance(seen[-1], MessageCompletedEvent)
    await model.client.close()


def test_events_of_recordings_are_read_as_they_are_written() -> None:
    assert read_events("crlf") == read_events("returns") == read_events("thinking")
