"""What a model says, made text, reasoning and calls, however it is cut into tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests.fakes.llamacpp import call_text
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    Provenance,
    ReplyCanister,
)
from vibe_llms.messages.contents import ReasoningContent, TextualContent
from vibe_llms.messages.events import ignore_events
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.deltas import Delta, InvocationOpened, TextDelta
from vibe_llms.providers.llamacpp.streams import (
    Decoder,
    LlamacppAssimilator,
    StopFinder,
    merge_deltas,
)

CALL = call_text("get_weather", '{"city": "Paris"}')


def read(
    pieces: Sequence[str], reason: str = "stop", **options: bool
) -> tuple[list[Any], ReplyCanister]:
    """What comes of a reply in these pieces, plainly, and its last canister."""
    accumulator = Accumulator(Provenance("m", "r", "x"), ignore_events)
    marks: dict[str, Any] = {"calls": True, "thinks": True, **options}
    assimilator = LlamacppAssimilator(str.upper, **marks)
    deltas: list[Delta] = []
    for piece in pieces:
        deltas += assimilator.feed(piece)
    deltas += assimilator.conclude(reason, 10, 4)
    for delta in merge_deltas(deltas):
        accumulator.accept(delta)
    plain: list[Any] = []
    for canister in accumulator.canisters:
        match canister:
            case InvocationCanister(name=name, arguments=arguments):
                plain.append((name, arguments))
            case AssistantCanister(contents=contents):
                for content in contents:
                    assert isinstance(content, TextualContent | ReasoningContent)
                    kind = "thought" if isinstance(content, ReasoningContent) else "text"
                    plain.append((kind, content.text))
    return plain, accumulator.canisters[-1]


REPLIES: list[tuple[str, list[Any]]] = [
    ("Hello.", [("text", "Hello.")]),
    ("  Two spaces, and one behind. ", [("text", "  Two spaces, and one behind. ")]),
    ("<think>\nHm.\n</think>\n\nYes.", [("thought", "Hm."), ("text", "Yes.")]),
    ("\n<think>Hm.</think>Yes.", [("thought", "Hm."), ("text", "Yes.")]),
    ("<think>\n\n</think>\n\nYes.", [("text", "Yes.")]),
    ("A <think> is a mark.", [("text", "A <think> is a mark.")]),
    ("a < b, <tool_ and <tool_cal", [("text", "a < b, <tool_ and <tool_cal")]),
    (CALL, [("GET_WEATHER", '{"city": "Paris"}')]),
    (
        f"I look.\n{CALL}\n{CALL}\n",
        [("text", "I look."), *[("GET_WEATHER", '{"city": "Paris"}')] * 2],
    ),
    (f"{CALL}\nDone.", [("GET_WEATHER", '{"city": "Paris"}'), ("text", "Done.")]),
    (
        f"<think>a\n{CALL}</think>{CALL}",
        [("thought", f"a\n{CALL}"), ("GET_WEATHER", '{"city": "Paris"}')],
    ),
    # Members in another order, white space, text of arguments, no arguments.
    (
        '<tool_call>\n{"arguments": {"a": 1}, "name": "f"}\n</tool_call>',
        [("F", '{"a": 1}')],
    ),
    ('<tool_call>{"name": "f"}</tool_call>', [("F", "{}")]),
    ('<tool_call>{"name": "f", "arguments": null}</tool_call>', [("F", "{}")]),
    (call_text("f", '"{\\"a\\": 1}"'), [("F", '{"a": 1}')]),
    (
        call_text("f", '{"a": "say </tool_call> \\" now"}'),
        [("F", '{"a": "say </tool_call> \\" now"}')],
    ),
    (call_text("f", '{"a": "\\ud83d"}'), [("F", '{"a":"\ufffd"}')]),
    (call_text("f\\u00e4", "{}"), [("FÄ", "{}")]),
    # What is no call stays what it is, or becomes a call that the tool refuses.
    (
        "<tool_call>no JSON</tool_call> and more",
        [("text", "<tool_call>no JSON</tool_call>and more")],
    ),
    ('<tool_call>{"name": 5}</tool_call>', [("text", '<tool_call>{"name": 5}</tool_call>')]),
    ('<tool_call>{"name": ""}</tool_call>', [("text", '<tool_call>{"name": ""}</tool_call>')]),
    (call_text("f", "{a: 1}"), [("F", "{a: 1}")]),
    (call_text("\\x", "{}"), [("text", call_text("\\x", "{}"))]),
    # An end that lacks its mark.
    (CALL.removesuffix("</tool_call>"), [("GET_WEATHER", '{"city": "Paris"}')]),
    ('<tool_call>{"name": "f", "arguments": {"a"', [("F", '{"a"')]),
    ("<tool_call>{", [("text", "<tool_call>{")]),
    ("<think>Hm. ", [("thought", "Hm. ")]),
    ("", []),
]


@pytest.mark.parametrize(("text", "expected"), REPLIES)
def test_marks_make_reasoning_and_calls_in_any_split(text: str, expected: list[Any]) -> None:
    chance = random.Random(text)
    assert read([text])[0] == expected
    assert read(list(text))[0] == expected
    for _ in range(20):
        cuts = sorted(chance.sample(range(len(text) + 1), min(5, len(text) + 1)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert read(pieces)[0] == expected


def test_a_split_that_is_not_held_back_would_be_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vibe_llms.providers.llamacpp.streams._overlap", lambda text, word: 0)
    with pytest.raises(AssertionError):
        test_marks_make_reasoning_and_calls_in_any_split(*REPLIES[2])


def test_marks_are_words_where_they_mean_nothing() -> None:
    text = f"<think>{CALL}</think>"
    assert read([text], calls=False, thinks=False)[0] == [("text", text)]


def test_a_prompt_that_begins_a_thought_is_gone_on_with() -> None:
    expected = [("thought", "Hm."), ("text", "Yes.")]
    assert read(["\nHm.\n</th", "ink>\n\nYes."], thinking=True)[0] == expected
    assert read(["Hm."], thinking=True)[0] == [("thought", "Hm.")]


@pytest.mark.parametrize(
    ("text", "reason", "native", "severed"),
    [
        ("Hello", "stop", "finished", ()),
        ("Hello", "length", "length", ()),
        (CALL, "stop", "invocations", ()),
        (CALL[:30], "stop", "finished", ()),
        (CALL[:-25], "length", "length", ("GET_WEATHER",)),
        (CALL[:40], "length", "length", ("GET_WEATHER",)),
        (CALL[:14], "length", "length", ()),
    ],
)
def test_an_end_says_why(text: str, reason: str, native: str, severed: Sequence[str]) -> None:
    ending = read([text], reason)[1].ending
    assert ending is not None
    assert (ending.reason, ending.native_reason) == (native, reason)
    assert ending.severed == severed


def test_a_call_is_reported_as_soon_as_its_name_is_known() -> None:
    assimilator = LlamacppAssimilator(str.upper, calls=True)
    deltas = list(assimilator.feed('<tool_call>{"name": "f", "arguments": {"a": '))
    assert deltas == [InvocationOpened("F")]


def test_tokens_are_counted_by_what_they_are_of() -> None:
    (_, last) = read(["<think>", "a", "b", "</think>", "c", "d"])
    assert last.ending is not None
    usage = last.ending.usage
    assert usage is not None
    assert (usage.uncached_input_tokens, usage.cache_read_tokens) == (6, 4)
    assert (usage.output_tokens, usage.reasoning_tokens) == (3, 3)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_stop_words_are_found_in_any_split_and_never_shown(size: int) -> None:
    text = "one two STOP three"
    finder = StopFinder(["STOP", "nothing", "", "OPS"])
    reported = "".join(finder.feed(text[at : at + size]) for at in range(0, len(text), size))
    # What comes after the word is not fed; here it is, to see where it ends.
    assert reported.startswith("one two ")
    assert "STOP" not in reported
    assert finder.found == "STOP"


def test_what_only_begins_like_a_stop_word_is_reported_at_the_end() -> None:
    finder = StopFinder(["STOP"])
    assert (finder.feed("a ST"), finder.conclude(), finder.found) == ("a ", "ST", "")
    assert finder.conclude() == ""


def test_characters_that_are_spread_over_tokens_come_whole() -> None:
    text = "Voilà 🙂 e\u0301 漢"
    decoder = Decoder()
    reported = [decoder.feed(bytes([byte])) for byte in text.encode()]
    assert "".join(reported) == text
    assert "\ufffd" not in "".join(reported)
    assert decoder.conclude() == ""
    assert Decoder().feed("🙂".encode()[:3]) == ""


def test_a_character_that_is_never_whole_is_replaced_once() -> None:
    decoder = Decoder()
    assert decoder.feed(b"a\xf0\x9f") == "a"
    assert decoder.conclude() == "\ufffd"


def test_neighbouring_pieces_become_one() -> None:
    deltas: list[Delta] = [TextDelta("a"), TextDelta("b"), InvocationOpened("f"), TextDelta("c")]
    assert merge_deltas(deltas) == [TextDelta("ab"), InvocationOpened("f"), TextDelta("c")]
