"""Chunks in the forms of other servers, and the usage that they report."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.fakes.recordings import CHAT, RESPONSES
from tests.fakes.strict import encode_event
from vibe_llms.base.exceptions import ProviderError, ReplyMalformed
from vibe_llms.messages.canisters import AssistantCanister, InvocationCanister, StopReason, Usage
from vibe_llms.messages.contents import TextualContent
from vibe_llms.providers import calls
from vibe_llms.providers.deltas import Delta, InvocationClosed, InvocationOpened, TextDelta
from vibe_llms.providers.openai.chat_completions import streams
from vibe_llms.providers.openai.chat_completions.chunks import ChatUsage, read_usage
from vibe_llms.providers.reasoning_tags import TagSplitter
from vibe_llms.providers.repairs import is_object
from vibe_llms.testing.wires.chat_completions_replies import chunk, text_chunks


def hear(*events: dict[str, Any], finish: str = "stop") -> list[Any]:
    """Thoughts, text, calls, reason and tokens of these chunks and an end."""
    chunks = [encode_event(one) for one in (*events, chunk({}, finish))]
    canisters, _ = CHAT.assimilate([*chunks, b"data: [DONE]\n\n"])
    return CHAT.read_canisters(canisters)


def test_parts_of_text_and_of_thinking_are_distinguished() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    text = {"type": "text", "text": "Yes."}
    assert hear(chunk({"content": [thinking, "Oh. "]}), chunk({"content": [text]}))[:2] == [
        "Hm.",
        "Oh. Yes.",
    ]


def test_a_call_that_is_none_is_malformed() -> None:
    with pytest.raises(ReplyMalformed, match="expected form"):
        hear(chunk({"tool_calls": ["odd"]}))
    nameless = {"index": 0, "id": "x", "function": {"arguments": "{}"}}
    with pytest.raises(ReplyMalformed, match="without a tool name"):
        hear(chunk({"tool_calls": [nameless]}))
    call = {"index": 0, "id": "x", "function": {"name": "f", "arguments": '{"a":1}'}}
    more = {"index": 0, "function": {"arguments": '{"b":2}'}}
    with pytest.raises(ReplyMalformed, match="more arguments came"):
        hear(chunk({"tool_calls": [call]}), *text_chunks("So."), chunk({"tool_calls": [more]}))


def test_a_call_and_text_after_it_keep_their_order() -> None:
    call = {"index": 0, "id": "x", "function": {"name": "f", "arguments": '{"a":1}'}}
    events = [chunk({"tool_calls": [call]}), *text_chunks("So."), chunk({}, "tool_calls")]
    canisters, _ = CHAT.assimilate([*map(encode_event, events), b"data: [DONE]\n\n"])
    assert [type(one) for one in canisters] == [InvocationCanister, AssistantCanister]


def test_a_call_that_a_limit_cut_is_a_mark_and_earlier_ones_are_whole() -> None:
    calls = [
        {"index": 0, "id": "x", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"index": 1, "id": "y", "function": {"name": "g", "arguments": '{"b":'}},
    ]
    events = [chunk({"tool_calls": [call]}) for call in calls]
    canisters, _ = CHAT.assimilate([*map(encode_event, [*events, chunk({}, "length")])])
    assert [getattr(one, "name", "") for one in canisters] == ["f", ""]
    ending = canisters[-1].ending
    assert ending is not None
    assert (ending.reason, ending.severed) == (StopReason.LENGTH, ("g",))


def test_only_the_first_of_several_replies_is_heard() -> None:
    other = chunk({"content": "other"})
    other["choices"][0]["index"] = 1
    assert hear(*text_chunks("One"), other, *text_chunks(" and only."))[1] == "One and only."


def test_sources_are_kept_with_their_text() -> None:
    source = {"url": "https://example.org", "title": "E", "start_index": 0, "end_index": 2}
    said = chunk({"annotations": [{"type": "url_citation", "url_citation": source}, {}]})
    events = [said, *text_chunks("Hi"), said, chunk({}, "stop")]
    (reply,), _ = CHAT.assimilate([*map(encode_event, events)])
    assert isinstance(reply, AssistantCanister)
    (text,) = reply.contents
    assert isinstance(text, TextualContent)
    assert [(one.source, one.end, one.unit) for one in text.citations] == [
        ("https://example.org", 2, "character")
    ]


def test_a_body_that_is_no_stream_is_read_as_a_whole() -> None:
    message = {"role": "assistant", "content": "Whole."}
    body = {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    (reply,), _ = CHAT.assimilate([json.dumps(body).encode()])
    assert getattr(reply, "text", "") == "Whole."
    for odd, words in (
        ({"id": "c", "usage": {}}, "without choices"),
        ({**body, "choices": []}, "finish"),
    ):
        with pytest.raises(ReplyMalformed, match=words):
            CHAT.assimilate([json.dumps(odd).encode()], whole=True)


def test_an_event_without_end_is_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    from vibe_llms.providers import wire

    monkeypatch.setattr(wire, "LIMIT_BYTES", 1_000)
    for recordings in (CHAT, RESPONSES):
        with pytest.raises(ReplyMalformed, match="more than 1000 bytes"):
            recordings.assimilate([b"data: " + b"x" * 600] * 4)


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 4}, Usage(9, 0, 0, 4, 0)),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 5}, Usage(4, 5, 0, 0, 0)),
        # Kimi's and Mistral's, and OpenAI's, which bills what is written too.
        ({"prompt_tokens": 9, "cached_tokens": 5}, Usage(4, 5, 0, 0, 0)),
        ({"prompt_tokens": 9, "num_cached_tokens": 5}, Usage(4, 5, 0, 0, 0)),
        (
            {
                "prompt_tokens": 9,
                "cached_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 3},
            },
            Usage(1, 5, 3, 0, 0),
        ),
        # xAI's, whose completion does not hold the reasoning.
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 4,
                "total_tokens": 20,
                "completion_tokens_details": {"reasoning_tokens": 7},
            },
            Usage(9, 0, 0, 4, 7),
        ),
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5}}, Usage(0, 5, 0, 0, 0)),
    ],
)
def test_usage_is_reported_in_classes_that_do_not_overlap(
    reported: dict[str, Any], usage: Usage
) -> None:
    assert read_usage(msgspec.convert(reported, ChatUsage)) == usage


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"refusal": "", "tool_calls": [], "annotations": [], "reasoning_content": ""},
        {"refusal": None, "tool_calls": None, "reasoning": None},
        {"role": "assistant", "unknown": [1]},
        {"annotations": [{"type": "other"}]},
        {"content": [{"type": "text", "text": "a"}]},
    ],
)
@pytest.mark.parametrize("usage", [None, {"prompt_tokens": 3, "completion_tokens": 4}])
def test_what_comes_with_a_text_does_not_change_it(
    extra: dict[str, Any], usage: dict[str, int] | None
) -> None:
    # More of them than are tried as plain chunks.
    events = [{**chunk({"content": "a", **extra}), "usage": usage} for _ in range(40)]
    _, text, *_ = hear(*events)
    assert text == "a" * 40


def test_what_comes_after_plain_chunks_is_read_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    call = {"index": 0, "id": "x", "function": {"name": "f", "arguments": '{"a":1}'}}
    plain = [chunk({"content": "a"}) for _ in range(30)]
    for other in (
        chunk({"content": "b", "tool_calls": [call]}),
        chunk({"content": "b", "reasoning": "Hm."}),
        chunk({"content": "b", "reasoning_content": "Hm."}),
        chunk({"content": "b", "refusal": "No."}),
        chunk({"content": "b"}, "length"),
        {**chunk({"content": "b"}), "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
        {**chunk({"content": "b"}), "error": {"message": "broken"}},
        {**chunk({"content": "b"}), "choices": [*chunk({"content": "b"})["choices"]] * 2},
        {**chunk({"content": "b"}), "choices": [{"index": 1, "delta": {"content": "b"}}]},
    ):
        heard = hear_outcome(*plain, other)
        with monkeypatch.context() as patch:
            patch.setattr(streams, "_MISSES", 0)
            assert heard == hear_outcome(*plain, other), other


def test_a_reason_that_comes_with_the_last_text_is_seen() -> None:
    events = [*text_chunks("a", "a"), chunk({"content": "b"}, "length")]
    canisters, _ = CHAT.assimilate([*map(encode_event, events), b"data: [DONE]\n\n"])
    ending = canisters[-1].ending
    assert ending is not None
    assert ending.reason == StopReason.LENGTH


def hear_outcome(*events: dict[str, Any]) -> object:
    try:
        return hear(*events)
    except ProviderError as error:
        return str(error)


def test_what_goes_back_with_a_call_that_a_limit_cut_does_not_end_it() -> None:
    call = {"index": 0, "id": "x", "function": {"name": "write", "arguments": '{"a":'}}
    detail = {"index": 0, "type": "reasoning.text", "text": "Hm."}
    for more in ({"reasoning_details": [detail]}, {"extra_content": {"google": {"s": "1"}}}):
        events = [chunk({"tool_calls": [call], **more}), chunk({}, "length")]
        canisters, _ = CHAT.assimilate([*map(encode_event, events)])
        ending = canisters[-1].ending
        assert ending is not None
        assert (ending.reason, ending.severed) == (StopReason.LENGTH, ("write",))


@pytest.mark.parametrize("held", ["\n", "<"])
def test_what_may_begin_a_tag_comes_before_a_call(held: str) -> None:
    made = CHAT.produce_assimilator()
    assert isinstance(made, streams.ChatCompletionsAssimilator)
    made.tags = TagSplitter()
    call = {"index": 0, "id": "x", "function": {"name": "f", "arguments": '{"a":1'}}
    deltas: list[Delta] = []
    for event in (chunk({"content": held}), chunk({"tool_calls": [call]}), chunk({}, "length")):
        deltas += made.feed(encode_event(event))
    deltas += made.conclude()
    texts = [at for at, one in enumerate(deltas) if isinstance(one, TextDelta)]
    opened = [at for at, one in enumerate(deltas) if isinstance(one, InvocationOpened)]
    assert texts
    assert texts < opened
    assert not any(isinstance(one, InvocationClosed) for one in deltas)


def test_a_call_that_is_named_in_each_piece_is_one_call() -> None:
    pieces = [
        {"index": 0, "id": "x", "function": {"name": "f", "arguments": text}}
        for text in ('{"a":', "1}", "")
    ]
    events = [chunk({"tool_calls": [piece]}) for piece in pieces]
    assert hear(*events, finish="tool_calls")[2] == [("x", "f", '{"a":1}')]


@pytest.mark.parametrize("place", [{"index": 0}, {}])
def test_equal_calls_in_one_delta_are_two_calls(place: dict[str, Any]) -> None:
    call = {**place, "id": "", "function": {"name": "roll", "arguments": "{}"}}
    assert hear(chunk({"tool_calls": [call, call]}))[2] == [("", "roll", "{}")] * 2
    head = {**call, "id": "x", "function": {"name": "f", "arguments": '{"a":'}}
    for name in ({}, {"name": "f"}):
        tail = {**place, "function": {**name, "arguments": "1}"}}
        assert hear(chunk({"tool_calls": [head, tail]}))[2] == [("x", "f", '{"a":1}')]


def test_arguments_that_are_a_list_are_kept() -> None:
    call = {"index": 0, "id": "x", "function": {"name": "f", "arguments": [1, 2]}}
    events = [chunk({"tool_calls": [call]}), chunk({}, "tool_calls")]
    canisters, _ = CHAT.assimilate([*map(encode_event, events)])
    assert [getattr(one, "arguments", "") for one in canisters] == ["[1,2]"]


def test_a_chunk_that_only_tells_of_its_progress_is_passed_over() -> None:
    for news in ({"message": "processing"}, {"detail": "queue 3"}):
        assert hear({"choices": [], **news}, *text_chunks("Hi"))[1] == "Hi"


def test_arguments_in_many_named_pieces_are_not_read_again_with_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []

    def note(text: str) -> bool:
        read.append(text)
        return is_object(text)

    monkeypatch.setattr(calls, "is_object", note)
    texts = ['{"a":"', *"b" * 500, '"}']
    pieces = [{"index": 0, "id": "x", "function": {"name": "f", "arguments": t}} for t in texts]
    heard = hear(*(chunk({"tool_calls": [piece]}) for piece in pieces), finish="tool_calls")
    assert heard[2] == [("x", "f", "".join(texts))]
    assert len(read) < 5
