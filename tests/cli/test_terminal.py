"""What is sent to a terminal, and what never is (C2)."""

from __future__ import annotations

import ast
import errno
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.command import streams
from tests.cli.hostile import check_harmless
from vibe_llms.cli import terminal
from vibe_llms.cli.terminal import (
    VisibleText,
    aside,
    columns,
    has_colours,
    note,
    open_closed_streams,
    shown,
    styled,
    write,
)
from vibe_llms.messages.hidden import one_line, visible


def check_visible(function: Callable[[str], str], text: str) -> None:
    """Nothing of the text drives a terminal, and its letters keep their order."""
    result = function(text)
    check_harmless(result)
    letters = iter(result)
    assert all(
        character in letters for character in text if character.isascii() and character.isalnum()
    )


@given(st.text(st.characters(exclude_categories=()), max_size=200))
def test_no_text_drives_the_terminal(text: str) -> None:
    check_visible(visible, text)


@pytest.mark.parametrize("leak", ["\x9b2J", "\u202e", "a\x1b[2J", "\ud800", "\u200b"])
def test_a_character_that_is_let_through_would_be_seen(leak: str) -> None:
    def let_through(text: str) -> str:
        return "".join(c if c == leak[-1] or c in leak else visible(c) for c in text)

    with pytest.raises(AssertionError):
        check_visible(let_through, leak)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("plain\ttext\nof two lines", "plain\ttext\nof two lines"),
        ("\x1b]52;c;aGk=\x07", "␛]52;c;aGk=␇"),
        ("\x1bP1$r\x1b\\", "␛P1$r␛\\"),
        ("over\rwritten", "over␍written"),
        ("two\r\nlines\r\n", "two\nlines\n"),
        ("a\x08b\x7f", "a␈b␡"),
        ("\x9b31m", "\\u009b31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("pass\u200bword", "pass\\u200bword"),
        ("tag \U000e0041", "tag \\U000e0041"),
        ("half \ud83d", "half \\ud83d"),
        ("a\u200db", "a\\u200db"),
        ("a\u200cb", "a\\u200cb"),
        ("👩\u200d\u200d👩", "👩\\u200d\\u200d👩"),
    ],
)
def test_what_could_drive_or_deceive_is_shown_instead(text: str, result: str) -> None:
    assert visible(text) == result


@pytest.mark.parametrize(
    "text",
    [
        "👨\u200d👩\u200d👧",
        "🏃🏽\u200d♀️",
        "❤️\u200d🔥",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "क्\u200dष",
        "naïve 東京 ﬁ",
    ],
)
def test_writing_and_emoji_stay_as_they_are(text: str) -> None:
    assert visible(text) == text


@given(st.lists(st.text(st.sampled_from("ab\r\n\x1b\u200d\u200c👩👧ह\u202e"), max_size=5)))
def test_text_in_pieces_is_shown_as_the_whole_is(pieces: list[str]) -> None:
    stream = VisibleText()
    assert "".join(map(stream.feed, pieces)) + stream.close() == visible("".join(pieces))


def test_only_a_terminal_gets_the_visible_form() -> None:
    with streams(terminals="stdout stderr") as (_, errors):
        assert shown("\x1b") == "␛"
        note("\x1b", dim=True)
        assert errors.text == "\x1b[2m␛\x1b[0m\n"
    with streams() as (_, errors):
        assert shown("\x1b") == "\x1b"
        note("\x1b", dim=True)
        assert errors.text == "\x1b\n"


@pytest.mark.parametrize(
    ("name", "value", "colours"),
    [
        ("TERM", "xterm", True),
        ("TERM", "dumb", False),
        ("NO_COLOR", "1", False),
        ("NO_COLOR", "", True),
    ],
)
def test_styles_are_sent_unless_the_environment_forbids_it(
    name: str, value: str, colours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with streams(terminals="stdout"):
        monkeypatch.setenv(name, value)
        assert has_colours(sys.stdout) is colours
        assert styled("x", "\x1b[1m") == ("\x1b[1mx\x1b[0m" if colours else "x")
    with streams():
        assert not has_colours(sys.stdout)


def test_what_a_locale_cannot_show_is_replaced() -> None:
    with streams() as (output, _):
        output.reconfigure(encoding="ascii")
        write(sys.stdout, "naïve\n")
        assert output.text == "na?ve\n"


class Full(io.StringIO):
    """A stream on a disk that is full."""

    name = "<stdout>"

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_error_of_writing_names_the_stream() -> None:
    with pytest.raises(OSError, match="No space left on device: '<stdout>'"):
        write(Full(), "x")


def test_a_note_on_a_closed_stream_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Full()
    monkeypatch.setattr(sys, "stderr", full)
    note("x")
    aside("y")
    # Both were tried, the second although the first had failed.
    assert full.getvalue() == "x\ny"


def test_json_is_printed_in_one_way() -> None:
    folder = Path(terminal.__file__).parent
    calls = [
        ast.unparse(node)
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    printing = [
        call for call in calls if "json." in call and call.startswith(("write(", "_print("))
    ]
    assert printing == []
    assert len([call for call in calls if call.startswith("write_json(")]) > 15


def test_a_text_becomes_one_line() -> None:
    assert one_line(" a\n\tb \r\n c") == "a b c"


def test_the_width_of_what_is_no_terminal_is_80() -> None:
    with streams(terminals="stdout"):
        assert columns(sys.stdout) == 80


def test_streams_that_were_closed_before_the_start_lead_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    open_closed_streams()
    with sys.stdin, sys.stdout, sys.stderr:
        assert sys.stdin.read() == ""
        print("nowhere")
        note("nowhere")
