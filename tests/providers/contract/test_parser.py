"""What a reply comes to, in whatever form and in whatever pieces it arrives."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.contract import BROKEN, CALL, CALLING, FINAL, PROSE, SAID, SAYING, splits
from vibe_llms.providers.contract import parser as reading_module
from vibe_llms.providers.contract.markers import PROSE as PROSE_AT_ONCE
from vibe_llms.providers.contract.markers import Beginning, IsKnown, read_beginning
from vibe_llms.providers.contract.objects import WrittenCall
from vibe_llms.providers.contract.parser import ReplyOutcome, ReplyReading

LOOK = WrittenCall("look", '{"where":"up"}')


def is_known(name: str) -> bool:
    return name == "look"


def read(pieces: Sequence[str]) -> tuple[str, ReplyOutcome]:
    """What is shown in all of a reply, and what it comes to."""
    reading = ReplyReading(is_known)
    shown = "".join(map(reading.feed, pieces))
    outcome = reading.conclude()
    assert reading.raw == "".join(pieces)
    return shown + ("" if outcome.problem else outcome.text), outcome


def sort_of(outcome: ReplyOutcome) -> tuple[object, ...]:
    """What does not depend on the pieces: all but how much was shown before the end."""
    return outcome.calls, outcome.problem, outcome.prose, outcome.notice


@pytest.mark.parametrize("text", CALLING.values(), ids=CALLING)
def test_a_call_is_read_in_the_forms_that_models_write(text: str) -> None:
    shown, outcome = read([text])
    assert shown == ""
    assert list(outcome.calls) == [LOOK]
    assert not outcome.problem


@pytest.mark.parametrize(("text", "said", "calls"), SAYING.values(), ids=SAYING)
def test_an_answer_is_read_in_the_forms_that_models_write(text: str, said: str, calls: int) -> None:
    shown, outcome = read([text])
    assert shown == said
    assert list(outcome.calls) == [LOOK] * calls
    assert not outcome.problem


@pytest.mark.parametrize("text", PROSE.values(), ids=PROSE)
def test_plain_text_stays_as_it_is(text: str) -> None:
    shown, outcome = read([text])
    assert shown == text
    assert (outcome.prose, outcome.calls, outcome.problem) == (True, (), "")


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_what_is_not_quite_in_the_form_makes_no_call(text: str) -> None:
    shown, outcome = read([text])
    assert (shown, outcome.calls) == ("", ())
    assert outcome.problem
    assert outcome.text == text


EVERY = {
    **CALLING,
    **{name: text for name, (text, _, _) in SAYING.items()},
    **PROSE,
    **{name: text for name, text in BROKEN.items() if len(text) < 1000},
}


@pytest.mark.parametrize("text", EVERY.values(), ids=EVERY)
def test_the_pieces_in_which_a_reply_comes_do_not_matter(text: str) -> None:
    check_splits(text)


def check_splits(text: str) -> None:
    """Nothing but the moment at which words are shown depends on the pieces."""
    shown, outcome = read([text])
    for pieces in splits(text):
        once, other = read(pieces)
        assert (once, sort_of(other)) == (shown, sort_of(outcome)), pieces


_PARTS = [CALL, FINAL, *'{}[]"\\,:`~<> \n', "```json\n", "<tool_call>", "</tool_call>", '"type"',
          '"final"', '"tool_call"', '"content"', '"name"', '"look"', '"arguments"', "words",
          "\\u00e9", "\\ud83d", "\\n", "é", "<|im_end|>", "[TOOL_CALLS]"]  # fmt: skip


@given(st.lists(st.sampled_from(_PARTS), max_size=12).map("".join))
def test_the_pieces_do_not_matter_whatever_comes(text: str) -> None:
    check_splits(text)


@given(st.lists(st.sampled_from(_PARTS), max_size=12).map("".join), st.data())
def test_what_is_shown_is_never_taken_back(text: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(text)))
    shown, _ = read([text])
    reading = ReplyReading(is_known)
    assert shown.startswith(reading.feed(text[:place])) or reading.conclude().problem


@given(st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from([True, False]))
def test_an_answer_says_what_its_json_says(text: str, escaped: bool) -> None:
    reply = json.dumps({"type": "final", "content": text}, ensure_ascii=escaped)
    for pieces in ([reply], list(reply)):
        shown, outcome = read(pieces)
        assert (shown, outcome.calls) == (text, ())


@pytest.mark.parametrize("text", [*CALLING.values(), FINAL, f"{FINAL}\n{CALL}"])
def test_nothing_of_the_json_is_ever_shown(text: str) -> None:
    for pieces in splits(text):
        reading = ReplyReading(is_known)
        shown = "".join(map(reading.feed, pieces))
        assert SAID.startswith(shown)
        assert reading.conclude().text in ("", SAID)


@pytest.mark.parametrize("text", [*CALLING.values(), f"{FINAL}\n{CALL}"])
def test_a_part_of_a_call_is_none(text: str) -> None:
    if CALL in text:
        for place in range(text.rindex(CALL) + len(CALL)):
            assert read([text[:place]])[1].calls == ()


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        (CALL[:-1], "look"),
        (CALL[:25], ""),
        (f"{FINAL}\n{CALL[:-1]}", "look"),
        ('{"name":"look","argu', "look"),
        ("{", None),
        ("Words.", None),
        (FINAL, None),
        (FINAL[:-5], None),
    ],
)
def test_the_tool_of_a_call_that_breaks_off_is_known_where_it_can_be(
    text: str, tool: str | None
) -> None:
    reading = ReplyReading(is_known)
    reading.feed(text)
    assert reading.severed == tool


VALID = [
    '{"where":"up"}', "{}", '{"a":1.5e3,"b":[1,{"c":null}]}', '{"é":"\\u00e9\\n"}',
    '{"a":{"b":{"c":{"d":"\\"}]"}}}}', '{"a":-0.0,"b":true}', '{"\\"":"\\\\"}', '{"a":"😀"}',
]  # fmt: skip


def is_json(text: str) -> bool:
    try:
        # What no UTF-8 can hold is no JSON here, and neither are the constants of Python.
        json.dumps(json.loads(text, parse_constant=refuse), ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def refuse(constant: str) -> None:
    raise ValueError(constant)


def check_arguments(number: int) -> None:
    """No call of arguments that are no JSON, whatever was done to them."""
    chance = random.Random(number)
    fuzzed = [text[:place] for text in VALID for place in range(len(text) + 1)]
    letters = '{}[]":,\\ 019.eE+-truefalsnN\ud800\x00\n'
    for _ in range(number):
        text = list(chance.choice(VALID))
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(text) + 1)
            text[place : place + chance.randrange(2)] = chance.choices(
                letters, k=chance.randrange(3)
            )
        fuzzed.append("".join(text))
    for arguments in fuzzed:
        reply = f'{{"type":"tool_call","name":"look","arguments":{arguments}}}'
        _, outcome = read([reply])
        for call in outcome.calls:
            assert is_json(reply.replace("\ud800", "\ufffd")), reply
            # Arguments that are a text are judged when they are bound, as those of any model.
            assert is_json(call.arguments) or isinstance(json.loads(reply)["arguments"], str)


@pytest.mark.storm
def test_only_whole_and_valid_arguments_are_called_with(rounds: Callable[[int, int], int]) -> None:
    check_arguments(rounds(1_000, 10_000))


def test_a_lenient_reader_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_leniently(text: str, is_known: object) -> Sequence[WrittenCall]:
        from pydantic_core import from_json

        value = from_json(text.encode("utf-8", "replace"), allow_partial=True)
        return [WrittenCall("look", json.dumps(value.get("arguments")))]

    monkeypatch.setattr(reading_module, "read_items", read_leniently)
    with pytest.raises((AssertionError, ValueError)):
        check_arguments(100)


def test_a_decision_that_depends_on_the_pieces_would_be_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def decide_early(text: str, known: IsKnown) -> Beginning:
        return PROSE_AT_ONCE if text == "{" else read_beginning(text, known)

    monkeypatch.setattr(reading_module, "read_beginning", decide_early)
    with pytest.raises(AssertionError):
        check_splits(CALL)


def test_a_notice_reports_a_call_among_words_and_what_is_left_out() -> None:
    assert "is not run" in read([PROSE["words before a call"]])[1].notice
    assert "Hope it helps" in read([f"{FINAL} Hope it helps!"])[1].notice
    assert SAID.splitlines()[1] in read([f"{CALL}\n{FINAL}"])[1].notice
    assert len(read([f"{FINAL} {'x' * 500}"])[1].notice) < 150
    assert read([FINAL])[1].notice == ""


def test_an_ambiguous_beginning_waits_for_its_end() -> None:
    text = "{" + " " * 5000 + '"type":"final","content":"Hi"}'
    reading = ReplyReading(is_known)
    assert "".join(map(reading.feed, text)) == ""
    assert reading.conclude().text == "Hi"
