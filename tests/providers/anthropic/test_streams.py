"""Recorded streams, read by the official package and by us, however they are cut into chunks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import anthropic
import pytest

from tests.fakes.anthropic import KEY, FakeAnthropic, stream_bytes
from tests.fakes.clients import produce_model
from tests.fakes.recordings import ANTHROPIC
from vibe_llms.base.exceptions import ProviderOverloaded, ReplyCut, ReplyMalformed
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    ReplyCanister,
    StopReason,
    UserCanister,
)
from vibe_llms.messages.codecs import decode_canister, encode_canister
from vibe_llms.messages.contents import NativeContent, ReasoningContent
from vibe_llms.messages.events import Event, MessageUpdatedEvent
from vibe_llms.providers.anthropic.streams import read_citation
from vibe_llms.providers.wire import EventTooLarge
from vibe_llms.testing import check_events
from vibe_llms.testing.wires.anthropic_replies import (
    block,
    reply,
    text_block,
    thinking_block,
    tool_block,
)


def hear(events: Iterable[Mapping[str, Any]]) -> tuple[tuple[ReplyCanister, ...], list[Event]]:
    """What a server says that escapes all that is not ASCII."""
    lines = (f"data: {json.dumps(event)}\n\n".encode() for event in events)
    return ANTHROPIC.assimilate([b"".join(lines)])


@pytest.mark.parametrize(
    "name", [name for name in ANTHROPIC.names if name not in ("crlf", "returns", "empty")]
)
async def test_the_official_client_reads_the_same_from_a_server(
    name: str, fake_anthropic: FakeAnthropic
) -> None:
    fake_anthropic.replies = [
        stream_bytes([ANTHROPIC.load(name)]),
        stream_bytes([ANTHROPIC.load(name)]),
    ]
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
    assert ANTHROPIC.read_canisters(ours) == ANTHROPIC.read_message(official)
    await model.client.close()


def test_a_call_that_the_limit_cut_is_a_mark_and_no_call() -> None:
    canisters, events = ANTHROPIC.assimilate([ANTHROPIC.load("length")])
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
    (canister,), _ = hear(events)
    assert isinstance(canister, AssistantCanister)
    assert canister.ending is not None
    assert canister.ending.severed == ("write",)


def test_a_refusal_says_why() -> None:
    canisters, _ = ANTHROPIC.assimilate([ANTHROPIC.load("refusal")])
    ending = canisters[-1].ending
    assert ending is not None
    assert ending.reason == StopReason.REFUSED
    assert ending.detail == "bio: This could do harm."


def test_an_unknown_stop_reason_is_kept_as_a_word() -> None:
    events = reply(text_block(0, "a"), stop_reason="brand_new_reason")
    (canister,), _ = hear(events)
    assert canister.ending is not None
    assert canister.ending.reason == "brand_new_reason"


def test_an_unknown_block_is_kept_as_it_came() -> None:
    canisters, _ = ANTHROPIC.assimilate([ANTHROPIC.load("unknown")])
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


def test_citations_and_usage_are_reported_as_updates() -> None:
    _, events = ANTHROPIC.assimilate([ANTHROPIC.load("citations")])
    subjects = [event.subject for event in events if isinstance(event, MessageUpdatedEvent)]
    assert subjects.count("citations") == 5
    assert subjects[-1] == "usage"


def test_a_citation_is_read_in_the_units_of_its_source() -> None:
    citations = [
        (citation.unit, citation.start, citation.end, citation.title, citation.source)
        for canister in ANTHROPIC.assimilate([ANTHROPIC.load("citations")])[0]
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
    (canister,), _ = hear(events)
    assert isinstance(canister, AssistantCanister)
    thought = canister.contents[0]
    assert isinstance(thought, ReasoningContent)
    assert (thought.text, thought.native) == ("a😀b\ufffdc", None)


def test_a_pair_split_over_two_deltas_of_thinking_keeps_its_signature() -> None:
    events = reply(thinking_block(0, "a\ud83d", "\ude00b\ufffd"), text_block(1, "x"))
    (canister,), _ = hear(events)
    assert isinstance(canister, AssistantCanister)
    assert canister.contents[0].native is not None


@pytest.mark.parametrize(
    ("chunks", "text"),
    [(['{"a":"\ud83d', '\ude00"}'], '{"a":"😀"}'), (['{"a":"', '\ud83d"}'], '{"a":"\ufffd"}')],
)
def test_surrogates_in_arguments_are_joined_or_replaced(chunks: list[str], text: str) -> None:
    events = reply(tool_block(0, "t", *chunks), stop_reason="tool_use")
    (canister,), reported = hear(events)
    assert isinstance(canister, InvocationCanister)
    assert canister.arguments == text
    check_events(reported, turn=False)


def test_a_half_of_a_pair_at_the_end_of_arguments_is_replaced() -> None:
    events = reply(tool_block(0, "t", '{"a":1}\ud83d'), stop_reason="tool_use")
    (canister,), _ = hear(events)
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
    canisters, _ = hear(events)
    for canister in canisters:
        assert decode_canister(encode_canister(canister)) == canister
    call = canisters[-1]
    assert isinstance(call, InvocationCanister)
    assert (call.name, call.call, call.arguments) == ("n\ufffd", "\ufffd", '{"a":"\ufffd"}')


def test_a_server_tool_whose_input_was_cut_keeps_the_block_as_it_began() -> None:
    start = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": '{"query": "wea'}
    events = reply(block(0, start, delta), stop_reason="max_tokens")
    (canister,), _ = hear(events)
    assert isinstance(canister, AssistantCanister)
    payload = canister.contents[0].native
    assert payload is not None
    assert json.loads(bytes(payload.data)) == start
    assert decode_canister(encode_canister(canister)) == canister


@pytest.mark.parametrize(
    "events",
    [
        [{"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": 1}}],
        [{"type": "content_block_start", "index": "0"}],
        block(
            0,
            {"type": "text", "text": ""},
            {"type": "citations_delta", "citation": {"cited_text": 5}},
        ),
        [{"type": "content_block_start", "index": 0, "content_block": {"brand": "new"}}],
        [{"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use"}}],
        [{"type": "content_block_delta", "index": 0, "delta": {"partial_json": "{}"}}],
        [{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 5}}],
    ],
    ids=range(7),
)
def test_what_the_interface_does_not_promise_is_malformed(events: list[dict[str, Any]]) -> None:
    with pytest.raises(ReplyMalformed, match="unexpected data from the server"):
        hear(events)


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b"7",
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
        ANTHROPIC.assimilate([b"data: " + data + b"\n\n"])


def test_an_event_without_end_is_malformed() -> None:
    with pytest.raises(ReplyMalformed, match="one event has more than") as caught:
        ANTHROPIC.assimilate([b"x" * 2**20] * 66)
    assert isinstance(caught.value.__cause__, EventTooLarge)


def test_unknown_events_and_deltas_of_odd_types_are_passed_over() -> None:
    odd: list[dict[str, Any]] = [{"type": ["a"]}, {"type": "brand_new"}, {"no": "type"}]
    odd.append({"type": "container_update", "message": "ready"})
    events = [*odd, *reply(block(0, {"type": "text", "text": "a"}, {"type": {"odd": 1}}))]
    (canister,), _ = hear(events)
    assert isinstance(canister, AssistantCanister)
    assert canister.text == "a"


def test_deltas_that_do_not_belong_to_their_block_are_blocks_of_their_own() -> None:
    start = {"type": "thinking", "thinking": "", "signature": ""}
    deltas: list[dict[str, Any]] = [
        {"type": "thinking_delta", "thinking": "a"},
        {"type": "citations_delta", "citation": {}},
        {"type": "text_delta", "text": "b"},
        {"type": "input_json_delta", "partial_json": None},
    ]
    (canister,), _ = hear(reply(block(0, start, *deltas)))
    assert texts_of(canister) == ["a", "b"]


def test_an_error_in_the_middle_of_a_stream_is_raised_by_its_type() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "over\ud83dloaded"}}
    raw = ANTHROPIC.load("text")[:700]
    raw = raw[: raw.rindex(b"\n\n") + 2] + f"data: {json.dumps(error)}\n\n".encode()
    with pytest.raises(ProviderOverloaded, match="over\ufffdloaded"):
        ANTHROPIC.assimilate([raw])


def test_a_body_of_json_that_is_an_error_is_raised_by_its_type() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "m"}}
    with pytest.raises(ProviderOverloaded):
        ANTHROPIC.assimilate([json.dumps(error).encode()], whole=True)
    with pytest.raises(ProviderOverloaded):
        ANTHROPIC.assimilate([b'{"type":"error"}'], whole=True)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"<html>", b"{}", b'{"stop_reason":"end_turn","content":5}', b'{"content":[5]}'],
)
def test_a_body_that_is_no_reply_is_malformed(body: bytes) -> None:
    with pytest.raises(ReplyMalformed):
        ANTHROPIC.assimilate([body], whole=True)


def test_a_whole_body_with_lone_surrogates_is_read() -> None:
    message = {**ANTHROPIC.body("text"), "content": [{"type": "text", "text": "a\ud83d"}]}
    (canister,), _ = ANTHROPIC.assimilate([json.dumps(message).encode()], whole=True)
    assert isinstance(canister, AssistantCanister)
    assert canister.text == "a\ufffd"


def test_events_of_recordings_are_read_as_they_are_written() -> None:
    assert ANTHROPIC.events("crlf") == ANTHROPIC.events("returns") == ANTHROPIC.events("thinking")


def texts_of(*canisters: ReplyCanister) -> list[Any]:
    """The contents of a reply in a few words, in their order."""
    said: list[Any] = []
    for one in canisters:
        if isinstance(one, InvocationCanister):
            said.append((one.name, one.parsed))
        else:
            texts = [getattr(content, "text", None) for content in one.contents]
            said += [text for text in texts if text is not None]
    return said


THINKING, TEXT, TOOL = (
    thinking_block(0, "A sum."),
    text_block(1, "Let me ", "add."),
    tool_block(2, "add", '{"a":1,', '"b":2}'),
)
SAID = ["A sum.", "Let me add.", ("add", {"a": 1, "b": 2})]


def left_out(events: Iterable[Mapping[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [dict(event) for event in events if event["type"] not in kinds]


@pytest.mark.parametrize("stop_reason", ["tool_use", "end_turn", None])
def test_blocks_without_ends_or_indices_give_the_same_reply(stop_reason: Any) -> None:
    events = reply(THINKING, TEXT, TOOL, stop_reason=stop_reason)
    no_index = [{k: v for k, v in event.items() if k != "index"} for event in events]
    null_index = [event | {"index": None} if "index" in event else event for event in events]
    all_first = [event | {"index": 0} if "index" in event else event for event in events]
    for changed in (
        left_out(events, "content_block_stop"),
        left_out(events, "message_start"),
        left_out(events, "ping", "message_start", "content_block_stop"),
        no_index,
        null_index,
        all_first,
        left_out(no_index, "content_block_stop"),
        left_out(all_first, "content_block_stop"),
    ):
        canisters, reported = hear(changed)
        assert texts_of(*canisters) == SAID
        ending = canisters[-1].ending
        assert ending is not None
        assert ending.reason == StopReason.INVOCATIONS
        check_events(reported, turn=False)


def test_only_the_last_call_of_a_reply_that_was_cut_is_half() -> None:
    events = left_out(reply(TOOL, TEXT, stop_reason="max_tokens"), "content_block_stop")
    canisters, _ = hear(events)
    assert texts_of(*canisters) == [SAID[2], SAID[1]]


def test_blocks_that_are_open_at_once_are_passed_on_in_their_order() -> None:
    blocks = [list(one) for one in (THINKING, TEXT, TOOL)]
    mixed: list[dict[str, Any]] = [one.pop(0) for one in blocks]
    while any(blocks):
        mixed += [one.pop(0) for one in reversed(blocks) if one]
    canisters, reported = hear(reply(mixed, stop_reason="tool_use"))
    assert texts_of(*canisters) == SAID
    check_events(reported, turn=False)


def test_deltas_without_a_block_around_them_are_a_block() -> None:
    events = reply(thinking_block(0, "A sum."), text_block(1, "Two", "."))
    for changed in (
        left_out(events, "content_block_start"),
        left_out(events, "content_block_start", "content_block_stop"),
        [
            {k: v for k, v in event.items() if k != "index"}
            for event in left_out(events, "content_block_start", "content_block_stop")
        ],
    ):
        (canister,), _ = hear(changed)
        assert texts_of(canister) == ["A sum.", "Two."]


def test_a_stop_reason_and_a_clean_end_are_the_end_of_a_reply() -> None:
    events = reply(text_block(0, "Hi"))
    (canister,), _ = hear(left_out(events, "message_stop"))
    assert texts_of(canister) == ["Hi"]
    with pytest.raises(ReplyCut):
        hear(left_out(events, "message_stop", "message_delta"))


def test_what_is_cached_for_an_hour_is_counted_as_a_part() -> None:
    written = {"ephemeral_5m_input_tokens": 40, "ephemeral_1h_input_tokens": 60}
    for creation, counted in ((written, 60), (None, 0), ({}, 0)):
        usage = {"cache_creation_input_tokens": 100, "cache_creation": creation}
        (canister,), _ = hear(reply(text_block(0, "Hi"), usage=usage))
        assert canister.ending is not None
        assert canister.ending.usage is not None
        assert canister.ending.usage.cache_write_tokens == 100
        assert canister.ending.usage.hour_write_tokens == counted
        assert canister.ending.usage.input_tokens == 1020


def test_what_a_message_ends_with_may_be_spread_or_missing() -> None:
    begun, *events, _, stop = reply(text_block(0, "Hi"))
    usage = {"input_tokens": 0, "output_tokens": 7}
    message = {**begun["message"], "usage": {"input_tokens": 5, "output_tokens": 0}}
    ends: list[list[dict[str, Any]]] = [
        [{"type": "message_delta", "usage": usage}],
        [{"type": "message_delta", "stop_reason": "end_turn", "usage": usage}],
        [{"type": "message_delta", "delta": None, "usage": usage}],
        [
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
            {"type": "message_delta", "delta": {"stop_reason": None}, "usage": usage},
        ],
    ]
    for end in ends:
        (canister,), _ = hear([{**begun, "message": message}, *events, *end, stop])
        assert canister.ending is not None
        assert canister.ending.reason == StopReason.FINISHED
        assert canister.ending.usage is not None
        assert canister.ending.usage.uncached_input_tokens == 5
        assert canister.ending.usage.output_tokens == 7
    odds: list[Any] = [None, [], {"input_tokens": "many"}]
    for odd in odds:
        (canister,), _ = hear([*events, {"type": "message_delta", "usage": odd}, stop])
        assert texts_of(canister) == ["Hi"]


@pytest.mark.parametrize("null", ["text", "thinking", "signature"])
def test_a_member_that_is_null_says_nothing(null: str) -> None:
    thinking = {"type": "thinking", "thinking": "", "signature": "", null: None}
    text = {"type": "text", "text": "", null: None}
    events = reply(
        block(0, thinking, {"type": "thinking_delta", "thinking": None}),
        block(1, text, {"type": "text_delta", "text": None}, {"type": "text_delta", "text": "Hi"}),
    )
    (canister,), _ = hear(events)
    assert [text for text in texts_of(canister) if text] == ["Hi"]
    whole = {"type": "message", "content": [thinking, text | {"text": "Hi"}], "stop_reason": None}
    (canister,), _ = ANTHROPIC.assimilate([json.dumps(whole).encode()], whole=True)
    assert [text for text in texts_of(canister) if text] == ["Hi"]


@pytest.mark.parametrize("given", [{"a": 1}, '{"a": 1}'])
def test_input_that_comes_whole_with_its_block_is_the_arguments(given: Any) -> None:
    start = {"type": "tool_use", "id": "t", "name": "add", "input": given}
    for steps in ([], [{"type": "input_json_delta", "partial_json": None}]):
        events = reply(block(0, start, *steps), stop_reason="tool_use")
        for changed in (events, left_out(events, "content_block_stop")):
            assert texts_of(*hear(changed)[0]) == [("add", {"a": 1})]
    step = {"type": "input_json_delta", "partial_json": {"a": 1}}
    assert texts_of(*hear(reply(block(0, start | {"input": {}}, step)))[0]) == [("add", {"a": 1})]


@pytest.mark.parametrize(
    ("given", "steps", "stopped"),
    [(None, [], True), ({}, [], False), ({}, ['{"a"'], False), (None, [None], False)],
)
def test_a_call_whose_arguments_did_not_arrive_never_runs(
    given: Any, steps: list[Any], stopped: bool
) -> None:
    start = {"type": "tool_use", "id": "t", "name": "add", "input": given}
    grown = [{"type": "input_json_delta", "partial_json": step} for step in steps]
    events = reply(block(0, start, *grown), stop_reason="tool_use")
    with pytest.raises(ReplyCut, match="did not arrive"):
        hear(events if stopped else left_out(events, "content_block_stop"))


def test_a_message_that_begins_whole_is_the_reply() -> None:
    begun, *_, end, stop = reply(text_block(0, "x"))
    message = {**begun["message"], "content": [{"type": "text", "text": "Hi"}]}
    (canister,), _ = hear([{**begun, "message": message}, end, stop])
    assert texts_of(canister) == ["Hi"]


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"type": "overloaded_error", "message": "Overloaded"}},
        {"type": "brand_new", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded", "x": 1}},
        {"type": "error", "error": "Overloaded"},
        {"type": "error", "message": "Overloaded"},
    ],
)
def test_an_error_is_raised_in_whatever_form_it_comes(error: dict[str, Any]) -> None:
    with pytest.raises(ProviderOverloaded, match="Overloaded"):
        hear([*reply(text_block(0, "Hi"))[:3], error])
