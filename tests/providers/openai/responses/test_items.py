"""Items in the forms of different servers: places that are used twice, messages sent twice."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.fakes.recordings import RESPONSES, strip
from tests.fakes.strict import encode_event
from vibe_llms.base.exceptions import ReplyCut, ReplyMalformed
from vibe_llms.messages.canisters import AssistantCanister, InvocationCanister, ReplyCanister
from vibe_llms.messages.contents import ImageContent, TextualContent
from vibe_llms.providers.deltas import ContentOpened, Delta, ReasoningDelta, TextDelta
from vibe_llms.testing.wires.responses_replies import (
    function_call,
    item_events,
    message,
    reasoning,
    refusal,
    response,
)

CALL = function_call("add", '{"a":2}')


def hear(
    events: Sequence[Mapping[str, Any]], *output: Mapping[str, Any], status: str = "completed"
) -> list[ReplyCanister]:
    """The canisters of these events with the begin and the end of a response around them."""
    begun = {"type": "response.created", "response": response(status="in_progress")}
    whole = {"type": f"response.{status}", "response": response(*output, status=status)}
    reported, _ = RESPONSES.assimilate([encode_event(one) for one in (begun, *events, whole)])
    return list(reported)


def deltas_of(*events: Mapping[str, Any]) -> list[Delta]:
    """What is passed on of the events of a stream, before it ends."""
    assimilator = RESPONSES.produce_assimilator()
    return [delta for event in events for delta in assimilator.feed(encode_event(event))]


def said(canisters: Sequence[ReplyCanister]) -> list[Any]:
    """The texts and the names of calls, in their order."""
    return [
        one.name if isinstance(one, InvocationCanister) else one.text
        for one in canisters
        if isinstance(one, InvocationCanister) or one.contents
    ]


def split_events(index: int, text: str, whole: str) -> list[dict[str, Any]]:
    """A message whose end repeats what it has said before, as transformers sends it."""
    events = item_events(index, message(text))
    return [*events[:-1], {**events[-1], "item": message(whole)}]


def test_text_before_and_after_a_call_is_reported_once_though_its_message_ends_twice() -> None:
    before, whole = "I will add them.", "I will add them. And then?"
    events = [
        *item_events(0, message(before)),
        *item_events(1, CALL),
        *split_events(1, " And then?", whole),
    ]
    assert said(hear(events, message(whole), CALL)) == [before, "add", " And then?"]


def test_a_message_that_is_repeated_at_its_end_is_reported_once() -> None:
    text = "I will add them."
    again = [event for event in item_events(1, message(text)) if "delta" not in event]
    events = [*item_events(0, message(text)), *item_events(1, CALL), *again]
    assert said(hear(events, message(text), CALL)) == [text, "add"]


@pytest.mark.parametrize("first", [True, False])
def test_an_empty_message_next_to_calls_is_skipped(first: bool) -> None:
    empty = message("")
    output = (empty, CALL) if first else (CALL, empty)
    events = [event for index, item in enumerate(output) for event in item_events(index, item)]
    (call,) = hear(events, *output)
    assert isinstance(call, InvocationCanister)
    assert call.ending is not None
    # Alone it is the reply.
    (reply,) = hear(item_events(0, empty), empty)
    assert isinstance(reply, AssistantCanister)
    assert [content.text for content in reply.contents if isinstance(content, TextualContent)] == [
        ""
    ]


def test_items_that_come_mixed_are_reported_in_their_order() -> None:
    one = item_events(0, message("First."))
    other = item_events(1, function_call("f", '{"b":1}'))
    mixed = [event for pair in zip(one, other, strict=False) for event in pair]
    rest = one[len(other) :]
    assert said(hear([*mixed, *rest])) == ["First.", "f"]


SOURCES = [{"type": "url_citation", "url": f"https://example.org/{n}"} for n in range(2)]
OUTPUT = (
    reasoning("One.", "Two."),
    message("It is blue, ", "they say.", annotations=SOURCES),
    function_call("f", '{"a":12345}'),
    {"id": "ig_1", "type": "image_generation_call", "status": "completed", "result": "aGk="},
    {**reasoning(encrypted=None), "id": "rs_2", "content": [{"type": "t", "text": "Hm."}]},
    {"id": "ws_1", "type": "web_search_call", "status": "completed"},
    function_call("g", "{}", "call_2"),
)
REFUSED = (*OUTPUT[:2], {**refusal("I will not."), "id": "msg_2"})


def mix(chance: random.Random, output: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The events of items, which begin in order: of some only a beginning, or none, and an end."""
    streams = []
    for index, item in enumerate(output):
        *events, end = item_events(index, item)
        kept = chance.choice([0, len(events), chance.randint(0, len(events))])
        streams.append([*events[:kept], end])
    mixed, begun = [], 1
    while streams:
        index = chance.randrange(min(begun, len(streams)))
        mixed.append(streams[index].pop(0))
        begun = max(begun, index + 2)
        if not streams[index]:
            del streams[index]
            begun -= 1
    return mixed


@pytest.mark.parametrize(("output", "canisters"), [(OUTPUT, 4), (REFUSED, 1)])
def test_however_events_are_mixed_and_whatever_is_not_streamed_the_reply_is_the_same(
    output: Sequence[Mapping[str, Any]], canisters: int
) -> None:
    in_order = [event for index, item in enumerate(output) for event in item_events(index, item)]
    expected = strip(hear(in_order, *output))
    assert len(expected) == canisters
    for name, call, _, native, *_ in (one for one in expected if isinstance(one[0], str)):
        assert native == {"id": f"fc_{call}", "status": "completed"}, name
    # The bytes of a picture are kept once.
    assert "aGk=" not in str(expected)
    for seed in range(100):
        chance = random.Random(seed)
        streamed = chance.choice([len(output), chance.randint(0, len(output))])
        assert strip(hear(mix(chance, output[:streamed]), *output)) == expected, seed


def test_arguments_that_end_otherwise_than_they_were_streamed_stay_as_they_were_streamed() -> None:
    *events, end = item_events(0, CALL)
    for final, kept in (('{"b":3}', '{"a":2}'), ("", '{"a":2}'), ('{"a":2} ', '{"a":2} ')):
        whole = {**CALL, "arguments": final}
        (call,) = hear([*events, {**end, "item": whole}], whole)
        assert isinstance(call, InvocationCanister)
        assert call.arguments == kept


def test_events_of_an_item_that_is_whole_are_passed_over() -> None:
    late = {"type": "response.output_text.delta", "output_index": 0, "delta": "late"}
    events = [*item_events(0, message("Once.")), {**late, "content_index": 0}]
    assert said(hear(events, message("Once."))) == ["Once."]


def test_deltas_without_a_beginning_are_an_item_all_the_same() -> None:
    delta = {"type": "response.output_text.delta", "output_index": 0, "delta": "Hi"}
    thought = {"type": "response.reasoning_text.delta", "output_index": 0, "delta": "Hm"}
    summary = {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "Hm"}
    assert said(hear([delta], message("Hi"))) == ["Hi"]
    for event in (thought, summary):
        reasoned = {"id": "rs_1", "type": "reasoning", "summary": [], "content": []}
        (reply,) = hear([event], reasoned)
        assert RESPONSES.read_canisters([reply])[0] == "Hm"


@pytest.mark.parametrize(
    ("kind", "deltas"),
    [
        ("output_text", [ContentOpened("text"), TextDelta("\U0001f600")]),
        ("reasoning_text", [ContentOpened("reasoning"), ReasoningDelta("\U0001f600")]),
    ],
)
def test_half_a_character_waits_for_its_other_half(kind: str, deltas: list[Delta]) -> None:
    event = {"type": f"response.{kind}.delta", "output_index": 0}
    assert deltas_of(*({**event, "delta": half} for half in ("\ud83d", "\ude00"))) == deltas


def test_sources_that_belong_to_nothing_are_passed_over() -> None:
    source = {"type": "url_citation", "url": "https://example.org", "title": "t"}
    cited = {"type": "response.output_text.annotation.added", "output_index": 0}
    part = {"type": "response.content_part.done", "output_index": 0, "part": {}}
    events = [{**cited, "annotation": source}, part, *item_events(0, message("Hi"))]
    assert said(hear(events, message("Hi"))) == ["Hi"]


@pytest.mark.parametrize("limited", ["message", "reasoning", "function_call"])
def test_an_item_that_a_limit_cut_keeps_what_came(limited: str) -> None:
    whole = {
        "message": message("A long story"),
        "reasoning": {
            "id": "rs_1",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "Let me see"}],
        },
        "function_call": CALL,
    }[limited]
    events = [event for event in item_events(0, whole) if not event["type"].endswith("done")]
    (reply,) = hear(events, status="incomplete")
    assert isinstance(reply, AssistantCanister)
    assert reply.ending is not None
    assert reply.ending.severed == (("add",) if limited == "function_call" else ())
    assert RESPONSES.read_canisters([reply])[:2] == {
        "message": ["", "A long story"],
        "reasoning": ["Let me see", ""],
        "function_call": ["", ""],
    }[limited]  # fmt: skip


def test_only_the_last_call_of_a_reply_that_was_cut_is_half() -> None:
    first = [event for event in item_events(0, CALL) if not event["type"].endswith("done")]
    canisters = hear([*first, *item_events(1, message("Hi"))], status="incomplete")
    assert said(canisters) == ["add", "Hi"]


def without(events: Sequence[Mapping[str, Any]], *names: str) -> list[dict[str, Any]]:
    """The events without some of their members."""
    return [{k: v for k, v in one.items() if k not in names} for one in events]


def named(prefix: str, **members: Any) -> dict[str, Any]:
    """An event by the end of its name."""
    return {"type": f"response.{prefix}", **members}


THOUGHT = {**reasoning(), "content": [{"type": "reasoning_text", "text": "Add them."}]}
TEXT = message("Hello", " there")


@pytest.mark.parametrize("left_out", [(), ("output_index",), ("output_index", "content_index")])
@pytest.mark.parametrize("rotating", [False, True])
@pytest.mark.parametrize("stated", [False, True])
def test_a_reply_is_the_same_without_places_and_with_identities_that_change(
    left_out: tuple[str, ...], rotating: bool, stated: bool
) -> None:
    output = [THOUGHT, message("Hello"), CALL]
    events = [event for index, item in enumerate(output) for event in item_events(index, item)]
    events = without(events, *left_out)
    if rotating:
        for number, event in enumerate(events):
            if "item_id" in event:
                event["item_id"] = f"x{number}"
            if "item" in event:
                event["item"] = {**event["item"], "id": f"y{number}"}
        output = [{**item, "id": f"z{number}"} for number, item in enumerate(output)]
    canisters = hear(events, *(output if stated else ()))
    assert said(canisters) == ["Hello", "add"]
    assert RESPONSES.read_canisters(canisters)[0] == "Add them."


@pytest.mark.parametrize("left_out", [(), ("output_index", "content_index")])
@pytest.mark.parametrize("stated", [False, True])
def test_items_that_no_event_begins_or_ends_are_read_from_their_deltas(
    left_out: tuple[str, ...], stated: bool
) -> None:
    output = [THOUGHT, TEXT]
    events = [event for index, item in enumerate(output) for event in item_events(index, item)]
    events = without([one for one in events if one["type"].endswith(".delta")], *left_out)
    events.insert(0, named("reasoning_text.delta", output_index=0, delta="Add them."))
    canisters = hear(events, *(output if stated else ()))
    assert said(canisters) == ["Hello there"]
    assert RESPONSES.read_canisters(canisters)[0] == "Add them."


def test_reasoning_without_item_events_does_not_hold_back_the_text_after_it() -> None:
    thought = named("reasoning_text.delta", item_id="a", delta="Hm")
    text = named("output_text.delta", item_id="b", delta="Hi")
    assert deltas_of(thought, text)[-1] == TextDelta("Hi")


@pytest.mark.parametrize("place", ["arguments", "item", "response", "added"])
def test_arguments_are_taken_from_where_they_are(place: str) -> None:
    empty = {**CALL, "arguments": ""}
    added = named("output_item.added", output_index=0, item=CALL if place == "added" else empty)
    done = named("output_item.done", output_index=0, item=CALL if place == "item" else empty)
    stated = named("function_call_arguments.done", output_index=0, arguments='{"a":2}')
    events = {
        "arguments": [added, stated, done],
        "item": [added, done],
        "response": [added, done, *item_events(1, message("Hi"))],
        "added": [added],
    }[place]
    output = {"response": [CALL, message("Hi")]}.get(place, [])
    (call, *_) = (one for one in hear(events, *output) if isinstance(one, InvocationCanister))
    assert call.parsed == {"a": 2}


def test_deltas_and_the_name_of_a_call_may_come_apart() -> None:
    delta = named("function_call_arguments.delta", item_id="fc_call_1", delta='{"a":2}')
    nameless = {"type": "function_call", "id": "fc_call_1", "call_id": "call_1"}
    added = named("output_item.added", item={**nameless, "name": "", "arguments": ""})
    whole = {**CALL, "arguments": None}
    for events in ([delta], [added, delta], [delta, named("output_item.done", item=whole)]):
        (call,) = hear(events, whole)
        assert isinstance(call, InvocationCanister)
        assert (call.name, call.call, call.parsed) == ("add", "call_1", {"a": 2})


@pytest.mark.parametrize("arguments", [None, '{"a"'])
def test_a_call_whose_arguments_did_not_arrive_never_runs(arguments: str | None) -> None:
    added = named("output_item.added", output_index=0, item={**CALL, "arguments": ""})
    delta = named("function_call_arguments.delta", output_index=0, delta=arguments)
    with pytest.raises(ReplyCut, match="did not arrive"):
        hear([added, delta])


def test_a_call_that_is_stated_without_arguments_has_none() -> None:
    (call,) = hear([], {**CALL, "arguments": ""})
    assert isinstance(call, InvocationCanister)
    assert call.parsed == {}


def test_a_place_for_each_token_makes_no_part_for_each_token() -> None:
    tokens = ("is", " a", " long")
    thoughts = [
        named("reasoning_text.delta", output_index=0, content_index=number, delta=token)
        for number, token in enumerate(tokens)
    ]
    texts = [
        named("output_text.delta", output_index=1, content_index=number, delta=token)
        for number, token in enumerate(tokens)
    ]
    thought = {**THOUGHT, "content": [{"type": "t", "text": "is a long"}]}
    ends = [
        named("output_item.done", output_index=number, item=item)
        for number, item in enumerate((thought, message("is a long")))
    ]
    (reply,) = hear([*thoughts, ends[0], *texts, ends[1]], thought, message("is a long"))
    assert RESPONSES.read_canisters([reply])[:2] == ["is a long", "is a long"]


@pytest.mark.parametrize(
    "kinds", [("output_text.done",), ("content_part.done",), ("output_text.done", "_part.done")]
)
def test_text_that_comes_only_at_the_end_of_its_part_is_passed_on_once(
    kinds: tuple[str, ...],
) -> None:
    events = item_events(0, TEXT)
    ends = [event for event in events if event["type"].endswith(kinds)]
    begin = next(event for event in events if event["type"].endswith("part.added"))
    assert said(hear(ends)) == ["Hello there"]
    assert said(hear([*ends, events[-1]])) == ["Hello there"]
    assert said(hear([begin, *ends[: len(kinds)]])) == ["Hello"]


def test_the_end_of_a_part_fills_what_its_deltas_left_out() -> None:
    events = item_events(0, message("Hello there"), pieces=["Hel", "lo there"])
    first, second = (number for number, one in enumerate(events) if "delta" in one)
    del events[second]
    assert said(hear(events)) == ["Hello there"]
    assert said(hear(events[: first + 1], message("Hello there"))) == ["Hello there"]


def test_text_that_only_the_whole_response_has_is_not_lost() -> None:
    empty = {**message(), "content": []}
    events = [
        named("output_item.added", output_index=0, item=empty),
        named("output_item.done", output_index=0, item=empty),
    ]
    assert said(hear(events, message("Hello"))) == ["Hello"]


def test_items_that_all_have_the_first_place_are_told_apart() -> None:
    output = [message("One."), {**CALL}, {**message("Two."), "id": "msg_2"}]
    for kept in (lambda _: True, lambda event: event["type"].endswith("item.done")):
        events = [event for item in output for event in item_events(0, item) if kept(event)]
        assert said(hear(events, *output)) == ["One.", "add", "Two."]


def test_a_reply_whose_items_do_not_end_is_whole_all_the_same() -> None:
    events = [event for event in item_events(0, message("Hi")) if "done" not in event["type"]]
    assert said(hear([*events, *item_events(1, CALL)])) == ["Hi", "add"]


def test_members_of_odd_types_are_read_as_what_they_evidently_are() -> None:
    item = {"type": "message", "id": 7, "role": None, "content": "Hello", "status": 1}
    call = {**CALL, "arguments": {"a": 2}, "id": None, "status": None}
    events = [
        named("output_item.added", output_index="0", item=item | {"content": None}),
        named("output_text.delta", output_index="0", content_index=None, delta=None, logprobs=3),
        named("output_text.delta", output_index="0", content_index={}, delta="Hello"),
        named("output_item.done", output_index="0", item=item),
        named("output_item.done", output_index=1, item=call),
    ]
    first, second = hear(events, item, call)
    assert said([first, second]) == ["Hello", "add"]
    assert isinstance(second, InvocationCanister)
    assert second.parsed == {"a": 2}


def test_a_picture_is_kept_once_and_must_be_one() -> None:
    made = {"id": "ig_1", "type": "image_generation_call", "status": "completed"}
    (reply,) = hear([], {**made, "result": "aGk=", "output_format": "webp"})
    assert isinstance(reply, AssistantCanister)
    (picture,) = reply.contents
    assert isinstance(picture, ImageContent)
    assert (picture.data, picture.mimetype) == (b"hi", "image/webp")
    with pytest.raises(ReplyMalformed, match="not valid base64"):
        hear([], {**made, "result": "no base64"})
