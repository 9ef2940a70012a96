"""The line that says what is being waited for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest

from tests.cli.command import streams
from tests.cli.desk import opened
from tests.cli.terminal import Screen
from vibe_llms.cli.terminal import note
from vibe_llms.cli.waiting import Waiting


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


async def test_it_is_silent_where_nobody_wants_it() -> None:
    with streams(terminals="stderr"):
        waiting = Waiting(enabled=False)
        waiting.show("waiting")
        assert waiting._timer is None


async def test_what_it_says_may_change_while_it_turns() -> None:
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
