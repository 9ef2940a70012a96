"""The calls of a turn as stages: one line each at a terminal, all their news elsewhere."""

from __future__ import annotations

import re

import pytest

from vibe_llms.cli.stages import Stages
from vibe_llms.messages.canisters import InvocationCanister, ResultCanister
from vibe_llms.messages.contents import ImageContent, TextualContent


class Desk:
    """What was told and what was waited for; times are left out."""

    def __init__(self, **options: bool) -> None:
        self.lines: list[str] = []
        self.waits: list[str] = []
        self.stages = Stages(self._tell, self.waits.append, **options)

    def _tell(self, text: str) -> None:
        self.lines.append(re.sub(r"\(\d+\.\ds\)", "(T)", text))


def call(name: str = "weather", arguments: str = '{"city":\n"Rome"}') -> InvocationCanister:
    return InvocationCanister(name=name, arguments=arguments)


def result(
    invocation: InvocationCanister, text: str = "warm", *, failed: bool = False
) -> ResultCanister:
    return ResultCanister((TextualContent(text),), invocation=invocation.identity, failed=failed)


def test_in_a_pipe_each_news_of_a_call_is_a_line() -> None:
    desk, one = Desk(), call()
    desk.stages.begin(one)
    desk.stages.report(one, "half\nway", 1, 2)
    desk.stages.report(one, "", 2, None)
    desk.stages.end(one, result(one, "sunny\nand warm"))
    assert desk.lines == [
        '→ weather {"city": "Rome"}',
        "· weather: 1/2 half way",
        "· weather: 2",
        "← weather: sunny and warm (T)",
    ]


def test_at_a_terminal_a_call_is_folded_into_one_line() -> None:
    desk, one = Desk(folded=True), call()
    desk.stages.begin(one)
    desk.stages.report(one, "half way", None, None)
    desk.stages.end(one, result(one, "x" * 500, failed=True))
    assert desk.lines == [f'✗ weather {{"city": "Rome"}} → {"x" * 199}… (T)']
    assert desk.waits == [
        'running weather {"city": "Rome"}',
        'running weather {"city": "Rome"} · half way',
        "waiting for the answer",
    ]


def test_several_calls_are_waited_for_together_and_end_one_by_one() -> None:
    desk, one, two = Desk(folded=True), call("one", "{}"), call("two", "{}")
    desk.stages.begin(one)
    desk.stages.begin(two)
    desk.stages.end(one, result(one))
    assert desk.waits == ["running one {}", "running 2 tools: one, two", "running two {}"]
    desk.stages.end(two, result(two))
    assert desk.lines == ["✓ one {} → warm (T)", "✓ two {} → warm (T)"]


@pytest.mark.parametrize("folded", [False, True])
def test_unfolded_all_of_a_call_is_shown(folded: bool) -> None:
    desk, one = Desk(folded=folded, whole=True), call(arguments=f'{{"a": "{"x" * 300}"}}')
    desk.stages.begin(one)
    desk.stages.report(one, "y" * 300, None, None)
    desk.stages.end(one, result(one, f"one\n{'z' * 300}"))
    assert desk.lines == [
        f'→ weather {{\n  "a": "{"x" * 300}"\n}}',
        f"· weather: {'y' * 300}",
        f"← weather: one\n{'z' * 300} (T)",
    ]
    broken = call(arguments="{")
    desk.stages.begin(broken)
    assert desk.lines[-1] == "→ weather {"


def test_what_was_never_begun_ends_without_a_time_and_reports_nothing() -> None:
    desk, one = Desk(folded=True), call()
    desk.stages.report(one, "late", None, None)
    picture = ResultCanister((ImageContent(b"x", "image/png"),), invocation=one.identity)
    desk.stages.end(one, picture)
    assert desk.lines == ['✓ weather {"city": "Rome"} → (1 contents)']
