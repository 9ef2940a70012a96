"""Controls in one vocabulary: read from words, laid over defaults, held against a range."""

from __future__ import annotations

from typing import Any

import pytest

from vibe_llms.base.exceptions import ControlInvalid
from vibe_llms.messages.controls import ControlRange, Controls, leave_choice, read_controls


def test_controls_that_are_not_set_are_left_out() -> None:
    assert Controls().given() == {}
    assert Controls(top_p=0.5, stop=(), extras={"row": {"a": 1}}).given() == {
        "top-p": 0.5,
        "stop": (),
    }


def test_the_choice_of_a_tool_is_taken_out_and_nothing_else() -> None:
    controls = Controls(seed=1, tool_choice="look", extras={"row": {"a": 1}})
    assert leave_choice(controls) == Controls(seed=1, extras={"row": {"a": 1}})
    assert controls.tool_choice == "look"


def test_controls_lie_over_defaults_one_by_one() -> None:
    defaults = Controls(
        temperature=0.1, seed=1, stop=("x",), extras={"a": {"k": 1, "l": 1}, "b": {"m": 1}}
    )
    over = Controls(temperature=0.0, stop=(), extras={"a": {"k": 2}, "c": {"n": 2}}).over(defaults)
    assert over == Controls(
        temperature=0.0,
        seed=1,
        stop=(),
        extras={"a": {"k": 2, "l": 1}, "b": {"m": 1}, "c": {"n": 2}},
    )
    assert defaults.extras["a"] == {"k": 1, "l": 1}


@pytest.mark.parametrize(
    ("values", "controls"),
    [
        ({}, Controls()),
        ({"temperature": "0.5", "top_k": "40"}, Controls(temperature=0.5, top_k=40)),
        ({"top-k": 40, "seed": -1}, Controls(top_k=40, seed=-1)),
        ({"stop": "END"}, Controls(stop=("END",))),
        ({"stop": ["a", "b"]}, Controls(stop=("a", "b"))),
        ({"parallel-invocations": "false"}, Controls(parallel_invocations=False)),
        ({"effort": "high", "tool-choice": "any"}, Controls(effort="high", tool_choice="any")),
        ({"extras": {"row": {"x": [1]}}}, Controls(extras={"row": {"x": [1]}})),
        ({"extras": '{"row": {"x": [1]}}'}, Controls(extras={"row": {"x": [1]}})),
        ({"response-schema": '{"a": 1}'}, Controls(response_schema={"a": 1})),
        ({"top_p": 0.1, "top-p": 0.2}, Controls(top_p=0.2)),
    ],
)
def test_controls_are_read_from_names_and_words(values: dict[str, Any], controls: Controls) -> None:
    assert read_controls(values) == controls


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("warmth", 1, "unknown control 'warmth'; known controls: effort, extras"),
        ("temperature", "hot", "the control 'temperature' cannot be 'hot'"),
        ("temperature", [1], "cannot be"),
        ("temperature", "nan", "finite"),
        ("temperature", float("inf"), "finite"),
        ("top-k", 0.5, "cannot be 0.5"),
        ("stop", [1], "cannot be"),
        ("extras", {"row": 1}, "cannot be"),
    ],
)
def test_a_control_that_cannot_be_is_named(name: str, value: object, message: str) -> None:
    with pytest.raises(ControlInvalid, match=message) as caught:
        read_controls({"seed": 1, name: value})
    assert caught.value.control == name


@pytest.mark.parametrize(
    ("range_", "value", "refusal"),
    [
        (ControlRange(), "anything", None),
        (ControlRange(minimum=0, maximum=1), 0, None),
        (ControlRange(minimum=0, maximum=1), 1.0, None),
        (ControlRange(minimum=0, maximum=1), -0.1, "it must be at least 0"),
        (ControlRange(minimum=0, maximum=1), 1.5, "it must be at most 1"),
        (ControlRange(minimum=2), True, None),
        (ControlRange(minimum=0), float("nan"), "it must be a finite number"),
        (ControlRange(choices=("low", "high")), "high", None),
        (ControlRange(choices=("low", "high")), "middling", "it must be one of low, high"),
    ],
)
def test_a_range_says_why_it_does_not_take_a_value(
    range_: ControlRange, value: object, refusal: str | None
) -> None:
    assert range_.refusal(value) == refusal
