"""The line that says what is being waited for, and the tool calls of a turn."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest

from tests.cli.command import streams
from tests.cli.desk import opened
from tests.cli.terminal import Screen
from vibe_llms.cli.progress import IndexProgress, Stages, Waiting
from vibe_llms.cli.terminal import note
from vibe_llms.messages.canisters import InvocationCanister, ResultCanister
from vibe_llms.messages.contents import ImageContent, TextualContent


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come")


async def test_it_turns_and_goes_without_a_trace() -> None:
    with streams(terminals="stderr") as (output, errors):
        waiting = Waiting()
        waiting.show("waiting for a/b")
        await until(lambda: errors.text.count("\r") > 2)
        assert re.search(r"waiting for a/b \d s$", Screen().feed(errors.text).text)
        waiting.show("running tool")
        await until(lambda: "running tool" in errors.text)
        waiting.clear()
        assert Screen().feed(errors.text).text == ""
        size = len(errors.text)
        waiting.clear()
        await asyncio.sleep(0.15)
        assert len(errors.text) == size
        assert output.text == ""


async def test_it_does_not_flicker_where_the_answer_comes_at_once() -> None:
    with streams(terminals="stderr") as (_, errors):
        waiting = Waiting()
        waiting.show("waiting for a/b")
        await asyncio.sleep(0)
        waiting.clear()
        assert errors.text == ""


async def test_it_fits_into_one_line_and_drives_nothing() -> None:
    with streams(terminals="stderr") as (_, errors):
        waiting = Waiting()
        waiting.show(f"waiting for \x1b[2J{'x' * 100}")
        await until(lambda: "waiting" in errors.text)
        waiting.clear()
        assert Screen().feed(errors.text).text == ""


@pytest.mark.parametrize("words", ["日本語" * 30, "🎉" * 60, "x" * 300])
async def test_it_stays_in_one_line_in_any_script(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    async with opened(10, 40) as desk:
        waiting = Waiting()
        waiting.show(words)
        await desk.until(lambda: desk.raw.count("\r\x1b[K") > 3)
        assert [row for row in desk.emulator.rows if row] == [desk.emulator.rows[0]]
        assert re.search(r"… \d+ s$", desk.emulator.rows[0])
        waiting.clear()
        await desk.until(lambda: not any(desk.emulator.rows))


async def test_a_plain_locale_gets_a_plain_mark() -> None:
    with streams(terminals="stderr") as (_, errors):
        errors.reconfigure(encoding="ascii")
        waiting = Waiting()
        waiting.show("waiting")
        await until(lambda: "waiting" in errors.text)
        waiting.clear()
        assert errors.text.split("waiting")[0][-2] in "|/-\\"


async def test_without_colours_it_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with streams(terminals="stderr") as (_, errors):
        monkeypatch.setenv("NO_COLOR", "1")
        waiting = Waiting()
        waiting.show("waiting")
        await until(lambda: "waiting" in errors.text)
        waiting.clear()
        assert "\x1b[2m" not in errors.text


@pytest.mark.parametrize("terminals", ["", "stdout"])
async def test_it_is_silent_where_stderr_is_no_terminal(terminals: str) -> None:
    with streams(terminals=terminals) as (output, errors):
        waiting = Waiting()
        waiting.show("waiting")
        waiting.clear()
        assert output.text == errors.text == ""
        assert waiting._timer is None


async def test_a_terminal_that_cannot_move_its_cursor_is_spared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with streams(terminals="stderr"):
        monkeypatch.setenv("TERM", "dumb")
        waiting = Waiting()
        waiting.show("waiting")
        assert waiting._timer is None


async def test_it_is_silent_where_it_is_off() -> None:
    with streams(terminals="stderr"):
        waiting = Waiting(enabled=False)
        waiting.show("waiting")
        assert waiting._timer is None


async def test_the_text_may_change_while_it_turns() -> None:
    with streams(terminals="stderr") as (_, errors):
        waiting = Waiting()
        waiting.show("searching")
        await until(lambda: "searching" in errors.text)
        waiting.change("searching: 64")
        await until(lambda: "searching: 64" in errors.text)
        note("note: a line")
        size = len(errors.text)
        await until(lambda: len(errors.text) > size)
        waiting.clear()
        assert Screen().feed(errors.text).text == "note: a line"


class Desk:
    """What was printed and what was waited for; times are left out."""

    def __init__(self, **options: bool) -> None:
        self.lines: list[str] = []
        self.waits: list[str] = []
        self.stages = Stages(self._print, self.waits.append, **options)

    def _print(self, text: str) -> None:
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


@pytest.mark.parametrize("terminals", ["stderr", ""])
async def test_an_index_that_takes_long_is_reported_on_a_terminal_only(terminals: str) -> None:
    with streams(terminals=terminals) as (output, errors):
        progress = IndexProgress()
        await asyncio.to_thread(progress.report, 0, 1_000)
        await asyncio.to_thread(progress.report, 100, 1_000)
        if terminals:
            await until(lambda: "indexing conversations: 100 of 1,000" in errors.text)
        await asyncio.to_thread(progress.report, 1_000, 1_000)
        await until(lambda: not progress.begun)
        assert Screen().feed(errors.text).text == output.text == ""
        assert bool(errors.text) == bool(terminals)
        progress.clear()
