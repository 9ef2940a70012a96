"""Replies of Bedrock in forms that the recordings lack: odd orders, halves, and wrong types."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from tests.fakes.bedrock import encode_event, encode_message
from tests.fakes.bedrock_clients import produce_model
from tests.fakes.bedrock_replies import (
    accumulate,
    delta,
    redacted_block,
    reply,
    stop,
    text_block,
    tool_block,
)
from tests.fakes.recordings import BEDROCK, decode, strip
from vibe_llms.base.exceptions import ProviderError, ReplyCut, ReplyMalformed
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    StopReason,
    Usage,
)
from vibe_llms.messages.contents import ImageContent, ReasoningContent
from vibe_llms.providers.bedrock.events import TokenUsage
from vibe_llms.providers.bedrock.readings import describe_findings, read_usage
from vibe_llms.providers.interfaces import refuse_loading
from vibe_llms.providers.requests import Request
from vibe_llms.testing import check_events


def read(events: Sequence[Mapping[str, Any]], *, whole: bool = False) -> Sequence[Any]:
    """The canisters of a reply, streamed or whole."""
    chunks = [*map(encode_event, events)]
    if whole:
        chunks = [json.dumps(accumulate(events)).encode()]
    canisters, reported = BEDROCK.assimilate(chunks, whole=whole)
    check_events(reported, turn=False)
    return canisters


def test_blocks_that_are_mixed_are_put_in_order_by_their_index() -> None:
    start, one, end = tool_block(1, "look", '{"a":1}')
    mixed = reply(
        [delta(0, text="a"), start, delta(0, text="b"), one, stop(0), end], reason="tool_use"
    )
    said, call = read(mixed)
    assert (said.text, call.name, call.parsed) == ("ab", "look", {"a": 1})


def test_text_with_a_beginning_or_without_an_end_is_text() -> None:
    for start in ({}, {"text": ""}, None):
        begun = {"contentBlockStart": {"contentBlockIndex": 0, "start": start}}
        (said,) = read(reply([begun, delta(0, text="a"), delta(0, text="b")]))
        assert said.text == "ab"
    (said,) = read(reply([delta(0, text="a"), delta(0, reasoningContent={"text": "Hm"})]))
    assert [type(one).__name__ for one in said.contents] == ["TextualContent", "ReasoningContent"]


def test_a_block_after_the_end_of_its_index_is_another() -> None:
    (said,) = read(reply(text_block(0, "a"), text_block(0, "b")))
    assert [one.text for one in said.contents] == ["a", "b"]


def test_steps_without_an_index_belong_to_the_last_block() -> None:
    step = {"contentBlockDelta": {"delta": {"text": "b"}}}
    (said,) = read(reply([delta(0, text="a"), step]))
    assert said.text == "ab"


def test_a_tool_without_arguments_is_called_with_none() -> None:
    for pieces in ((), ("",), ("{}",)):
        _, call = (None, *read(reply(tool_block(0, "clock", *pieces), reason="tool_use")))
        assert isinstance(call, InvocationCanister)
        assert (call.arguments, call.parsed) == ("{}", {})
    (call,) = read(reply(tool_block(0, "clock"), reason="tool_use"), whole=True)
    assert call.arguments == "{}"


def test_a_call_without_its_end_is_whole_if_its_arguments_are() -> None:
    (call,) = read(reply([*tool_block(0, "look", '{"a":1}')][:-1], reason="tool_use"))
    assert call.parsed == {"a": 1}
    with pytest.raises(ReplyCut, match="arguments of the call of 'look'"):
        read(reply([*tool_block(0, "look", '{"a":')][:-1], reason="tool_use"))


def test_a_call_that_a_limit_cuts_off_is_not_run() -> None:
    (said,) = read(reply([*tool_block(0, "look", '{"a":1}')][:-1], reason="max_tokens"))
    assert isinstance(said, AssistantCanister)
    assert said.ending is not None
    assert said.ending.severed == ("look",)


def test_encrypted_reasoning_in_pieces_is_joined_as_bytes() -> None:
    pieces = (b"\x00", b"\x01\x02", b"\xff" * 4)
    for whole in (False, True):
        (said,) = read(reply(redacted_block(0, *pieces), text_block(1, "a")), whole=whole)
        hidden = said.contents[0]
        assert isinstance(hidden, ReasoningContent)
        assert decode(hidden.native) == {"redactedContent": "AAEC/////w=="}


def test_reasoning_and_encrypted_reasoning_in_one_block_are_both_kept() -> None:
    block = [
        delta(0, reasoningContent={"text": "Hm."}),
        delta(0, reasoningContent={"redactedContent": "AAE="}),
        delta(0, reasoningContent={"signature": "S"}),
        stop(0),
    ]
    (said,) = read(reply(block, text_block(1, "a")))
    assert [decode(one.native) for one in said.contents] == [
        {"signature": "S"}, {"redactedContent": "AAE="}, {},
    ]  # fmt: skip


def test_pictures_are_contents() -> None:
    start = {"contentBlockIndex": 0, "start": {"image": {"format": "jpeg"}}}
    block = [
        {"contentBlockStart": start},
        delta(0, image={"source": {"bytes": "AAE="}}),
        delta(0, image={"source": {"bytes": "Ag=="}}),
        stop(0),
    ]
    (said,) = read(reply(block))
    assert said.contents == (ImageContent(b"\x00\x01\x02", "image/jpeg"),)


def test_the_end_of_the_message_is_enough_if_the_stream_ends_cleanly() -> None:
    (said,) = read(reply(text_block(0, "a"))[:-1])
    assert (said.text, said.ending.usage) == ("a", None)
    with pytest.raises(ReplyCut):
        read(reply(text_block(0, "a"))[:-2])


def test_usage_without_figures_does_not_end_a_reply() -> None:
    *before, last = reply(text_block(0, "a"))
    figures = {"metadata": {"metrics": {"latencyMs": 3}}}
    (said,) = read([*before, figures, last, figures])
    assert said.ending.usage.output_tokens == 9
    # Usage before the end of the message counts too.
    *before, end, last = reply(text_block(0, "a"))
    (said,) = read([*before, last, end])
    assert said.ending.usage.output_tokens == 9


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"inputTokens": 5, "outputTokens": 2, "totalTokens": 7}, Usage(5, 0, 0, 2)),
        (
            {
                "inputTokens": 5, "outputTokens": 2, "totalTokens": 37,
                "cacheReadInputTokens": 20, "cacheWriteInputTokens": 10,
            },
            Usage(5, 20, 10, 2),
        ),
        (
            # The total says that the input includes the cache.
            {
                "inputTokens": 35, "outputTokens": 2, "totalTokens": 37,
                "cacheReadInputTokens": 20, "cacheWriteInputTokens": 10,
            },
            Usage(5, 20, 10, 2),
        ),
        (
            {
                "inputTokens": 5, "outputTokens": 2, "cacheWriteInputTokens": 10,
                "cacheDetails": [{"ttl": "1h", "inputTokens": 8}, {"ttl": "5m", "inputTokens": 2}],
            },
            Usage(5, 0, 10, 2, hour_write_tokens=8),
        ),
        ({}, Usage(0)),
    ],
)  # fmt: skip
def test_usage_is_read_in_classes_that_do_not_overlap(
    usage: dict[str, Any], expected: Usage
) -> None:
    from msgspec import convert

    assert read_usage(convert(usage, TokenUsage)) == expected


async def test_streams_of_openais_models_count_cached_tokens_twice() -> None:
    usage = TokenUsage(35, 2, 67, 20, 10)
    assert read_usage(usage) == Usage(35, 20, 10, 2)
    assert read_usage(usage, inclusive=True) == Usage(5, 20, 10, 2)
    # A whole reply says the remainder alone.
    assert read_usage(TokenUsage(5, 2, 37, 20, 10), inclusive=True) == Usage(5, 20, 10, 2)
    for name, inclusive in (("us.openai.gpt-5.6-terra", True), ("amazon.nova-lite-v1:0", False)):
        model = await produce_model(name=name)
        assert model.produce_assimilator({}, Request((), {}, refuse_loading)).inclusive == inclusive


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("end_turn", StopReason.FINISHED),
        ("stop_sequence", StopReason.FINISHED),
        ("max_tokens", StopReason.LENGTH),
        ("model_context_window_exceeded", StopReason.LENGTH),
        ("guardrail_intervened", StopReason.REFUSED),
        ("content_filtered", StopReason.REFUSED),
        ("novel_reason", "novel_reason"),
    ],
)
def test_reasons_for_the_end_are_those_of_all(word: str, reason: str) -> None:
    for whole in (False, True):
        (said,) = read(reply(text_block(0, "a"), reason=word), whole=whole)
        assert (said.ending.reason, said.ending.native_reason) == (reason, word)


@pytest.mark.parametrize("word", ["malformed_tool_use", "malformed_model_output"])
def test_a_reply_that_the_model_wrote_wrongly_is_incomplete(word: str) -> None:
    for whole in (False, True):
        with pytest.raises(ReplyCut, match=word):
            read(reply(text_block(0, "a"), reason=word), whole=whole)


def test_what_a_guardrail_blocked_is_named_without_the_words_that_it_found() -> None:
    for canisters in (BEDROCK.whole("guardrail")[0], read(BEDROCK.events("guardrail"), whole=True)):
        ending = canisters[-1].ending
        assert ending is not None
        assert ending.reason == StopReason.REFUSED
        assert ending.detail == "blocked: Investment, a word"
    assert "zugzwang" not in repr(canisters)
    assert describe_findings(b"[") == describe_findings(b"{}") == ""


def test_the_stop_sequence_is_a_detail_if_the_model_says_it() -> None:
    events = reply(text_block(0, "a"), reason="stop_sequence")
    told = {"additionalModelResponseFields": {"stop_sequence": "x"}}
    *before, end, last = events
    (said,) = read([*before, {"messageStop": {**end["messageStop"], **told}}, last])
    assert said.ending.detail == "x"


HALVES = (b'"a\\ud83d"', b'"\\ude00b"')


def test_halves_of_a_character_are_joined_across_steps() -> None:
    frames = [
        encode_message(
            {":event-type": "contentBlockDelta", ":message-type": "event"},
            b'{"contentBlockIndex":0,"delta":{"text":' + half + b"}}",
        )
        for half in HALVES
    ]
    ends = [*map(encode_event, reply()[1:])]
    canisters, _ = BEDROCK.assimilate([*frames, *ends])
    assert getattr(canisters[0], "text", "") == "a😀b"
    canisters, _ = BEDROCK.assimilate([frames[0], *ends])
    assert getattr(canisters[0], "text", "") == "a\ufffd"


BROKEN: Sequence[Mapping[str, Any]] = (
    {"contentBlockStart": {"contentBlockIndex": 0, "start": {"toolUse": {"toolUseId": "t"}}}},
    delta(0, toolUse={"input": '{"a":1}'}),
    delta(0, reasoningContent={"redactedContent": "not base64!"}),
    delta(0, citation=[1]),
    {"contentBlockStart": {"contentBlockIndex": 0, "start": {"image": {"source": {"bytes": "?"}}}}},
)


@pytest.mark.parametrize("event", BROKEN)
def test_what_cannot_be_understood_is_an_error_that_says_so(event: Mapping[str, Any]) -> None:
    with pytest.raises(ReplyMalformed, match="unexpected data from the server"):
        read(reply([event, stop(0)]))


@pytest.mark.parametrize(
    "event",
    [
        {"contentBlockDelta": {"contentBlockIndex": "0", "delta": {"text": 7}}},
        {"contentBlockDelta": None},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": None}},
        {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"hologram": {}}}},
        {"contentBlockStop": {"contentBlockIndex": 9}},
        {"novelty": [1, "\ud800"]},
        {"messageStart": 7},
    ],
)
def test_odd_events_are_passed_over(event: Mapping[str, Any]) -> None:
    framed = encode_message(
        {":event-type": next(iter(event)), ":message-type": "event"},
        json.dumps(next(iter(event.values()))).encode(),
    )
    ends = [*map(encode_event, reply(text_block(0, "a"))[1:])]
    canisters, _ = BEDROCK.assimilate([framed, *ends])
    assert "a" in getattr(canisters[0], "text", "")


def damage(value: Any, chance: random.Random) -> Any:
    """JSON of which some part is something else."""
    if chance.random() < 0.1:
        return chance.choice([None, 7, "x", [], {}, {"text": 1}, True, "\ud83d"])
    match value:
        case dict():
            return {name: damage(one, chance) for name, one in value.items()}
        case list():
            return [damage(one, chance) for one in value]
        case _:
            return value


@pytest.mark.storm
def test_events_of_any_form_end_as_replies_or_as_errors_of_ours(
    rounds: Callable[[int, int], int],
) -> None:
    chance = random.Random(3)
    for round_ in range(rounds(300, 20_000)):
        events = BEDROCK.events(chance.choice(BEDROCK.names))
        frames = []
        for event in events:
            ((kind, body),) = event.items()
            head = {":event-type": kind, ":message-type": "event"}
            frames.append(encode_message(head, json.dumps(damage(body, chance)).encode()))
        whole = json.dumps(damage(accumulate(events), chance)).encode()
        for chunks, streamed in ((frames, True), ([whole], False)):
            try:
                _, reported = BEDROCK.assimilate(chunks, whole=not streamed)
            except ProviderError:
                continue
            except Exception as error:
                raise AssertionError(f"{error!r} came out of {round_} {chunks!r}") from error
            check_events(reported, turn=False)


def test_a_whole_reply_of_every_kind_is_the_streamed_one() -> None:
    for name in ("thinking", "redacted", "citations", "server", "guardrail"):
        assert strip(read(BEDROCK.events(name), whole=True)) == BEDROCK.whole(name)[1]
