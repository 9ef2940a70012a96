"""The line that a person types."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from tests.cli.command import streams
from tests.cli.desk import opened
from vibe_llms.base.redaction import remember
from vibe_llms.cli.prompts import (
    TerminalPrompts,
    is_worth_keeping,
    produce_completer,
    produce_history,
)
from vibe_llms.cli.terminal import note

_QUOTES = '"""'


@pytest.fixture
def keyboard() -> Iterator[PipeInput]:
    with create_pipe_input() as keyboard, create_app_session(keyboard, DummyOutput()):
        yield keyboard


def read(keyboard: PipeInput, typed: str, file: Path | None = None) -> tuple[str, str]:
    """What is read of what was typed, and what was noted."""
    with streams() as (_, errors):
        prompts = TerminalPrompts(file)
        keyboard.send_text(typed)

        async def work() -> str:
            # In one task: Ctrl-C in a task of its own would leave the loop twice, and not closed.
            async with asyncio.timeout(30):
                return await prompts.read()

        return asyncio.run(work()), errors.text


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("hello\r", "hello"),
        ("one\ntwo\r", "one\ntwo"),
        ("one\x1b\rtwo\r", "one\ntwo"),
        ("\x1b[200~pasted\nlines\n\x1b[201~\r", "pasted\nlines\n"),
        (f"{_QUOTES}\rone\r\rtwo\r{_QUOTES}\r", "one\n\ntwo"),
        (f"{_QUOTES}one\rtwo{_QUOTES}\r", "one\ntwo"),
        (f"{_QUOTES}one{_QUOTES}\r", "one"),
        (f"  {_QUOTES}\r  one\r{_QUOTES}  \r", "  one"),
        (f"{_QUOTES}\r/usr/bin\r{_QUOTES}\r", "/usr/bin"),
        ("/multi\rone\r\rtwo\r/end\r", "one\n\ntwo"),
        ("!multi\r!end it\r/end no\r!end\r", "!end it\n/end no"),
        ("/multi XX\r/end\r/end XX\r", "/end"),
        ("wrong\x03right\r", "right"),
        ("/he\t\r", "/he"),
    ],
)
def test_lines_are_read_as_they_are_meant(keyboard: PipeInput, typed: str, text: str) -> None:
    assert read(keyboard, typed)[0] == text


def test_ctrl_c_cancels_and_ctrl_d_declines(keyboard: PipeInput) -> None:
    with pytest.raises(KeyboardInterrupt):
        read(keyboard, "\x03")
    with pytest.raises(EOFError):
        read(keyboard, "\x04")


@pytest.mark.parametrize(
    ("ahead", "then", "lines"),
    [
        ("hello\r", "", ["hello"]),
        ("one\rtwo\r", "", ["one", "two"]),
        ("\r", "three\r", ["", "three"]),
        ("be", "gun\r", ["begun"]),
    ],
)
async def test_enter_sends_what_was_typed_before_the_prompt(
    ahead: str, then: str, lines: list[str]
) -> None:
    async with opened() as desk:
        prompts = TerminalPrompts(None)
        desk.type(ahead)
        read: list[str] = []
        for _ in lines:
            reading = asyncio.ensure_future(prompts.read())
            await asyncio.sleep(0.1)
            if len(read) == len(lines) - 1:
                desk.type(then)
            read.append(await asyncio.wait_for(reading, 30))
        assert read == lines


@pytest.mark.parametrize("key", ["\x03", "\x04"])
def test_a_block_can_be_dropped(keyboard: PipeInput, key: str) -> None:
    assert read(keyboard, f"{_QUOTES}\rone\r{key}") == ("", "(block discarded)\n")


def test_the_editor_takes_the_line(keyboard: PipeInput, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "sed -i s/one/two/")
    with streams():
        prompts = TerminalPrompts(None)

        async def work() -> str:
            reading = asyncio.ensure_future(prompts.read())
            keyboard.send_text("one\x0f")
            buffer = prompts._session.default_buffer
            for _ in range(1000):
                if buffer.text.strip() == "two":
                    break
                await asyncio.sleep(0.01)
            keyboard.send_text("\r")
            return await asyncio.wait_for(reading, 30)

        assert asyncio.run(work()).strip() == "two"


def remembered(file: Path) -> list[str]:
    """The lines that a later session finds, the latest first."""
    return list(produce_history(file).load_history_strings())


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_what_is_typed_is_remembered_privately(
    keyboard: PipeInput, tmp_path: Path, umask: int
) -> None:
    before = os.umask(umask)
    file = tmp_path / "state" / "deep" / "history"
    try:
        for line in ("one", "two\nlines", " not this", "sk-ant-canary-0123456789abcdef", "naïve"):
            read(keyboard, f"{line}\r", file)
    finally:
        os.umask(before)
    assert remembered(file) == ["naïve", "two\nlines", "one"]
    assert b"canary" not in file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for folder in (file.parent, file.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "secret",
    [
        "my key is sk-proj-0123456789abcdef0123",
        "ghp_0123456789abcdefABCDEF0123456789",
        "AKIAIOSFODNN7EXAMPLE1",
        "the remembered-key-42 here",
    ],
)
def test_a_line_with_a_key_in_it_is_not_remembered(secret: str) -> None:
    remember("remembered-key-42")
    assert not is_worth_keeping(secret)
    assert is_worth_keeping("what is a risk-averse desk-bound task-force?")


def test_halves_of_characters_are_remembered_as_what_can_be_written(tmp_path: Path) -> None:
    file = tmp_path / "history"
    produce_history(file).store_string("a\udcffb")
    assert remembered(file) == ["a\ufffdb"]


def test_a_history_that_cannot_be_kept_is_noted_and_no_more(tmp_path: Path) -> None:
    file = tmp_path / "history"
    (tmp_path / "real").touch()
    file.symlink_to(tmp_path / "real")
    with streams() as (_, errors):
        history = produce_history(file)
        assert errors.text.startswith("note: the input history is not saved: ")
        history.append_string("x")
    assert (tmp_path / "real").read_bytes() == b""
    with streams() as (_, errors):
        history = produce_history(tmp_path / "gone" / "history")
        (tmp_path / "gone" / "history").unlink()
        (tmp_path / "gone").rmdir()
        history.store_string("x")
        assert "No such file" in errors.text


def test_nothing_is_remembered_without_a_file() -> None:
    history = produce_history(None)
    history.append_string("x")
    assert list(history.get_strings()) == ["x"]


async def complete(text: str) -> list[tuple[str, str]]:
    async def offer(command: str, words: str) -> list[tuple[str, str]]:
        if command == "/model":
            return [("scripted/demo", ""), ("fast", "an alias")]
        return [("allow", "run"), ("ask", "")] if not words else [(f"{words}ed", "")]

    commands = {"/help": "show this", "/model": "the model", "/file": "", "/approve": ""}
    completer = produce_completer(commands, offer)
    found = completer.get_completions_async(Document(text), CompleteEvent())
    return [(one.text, one.display_meta_text) async for one in found]


@pytest.mark.parametrize(
    ("text", "offers"),
    [
        ("/", [("/help", "show this"), ("/model", "the model"), ("/file", ""), ("/approve", "")]),
        ("/m", [("/model", "the model")]),
        ("/model ", [("scripted/demo", ""), ("fast", "an alias")]),
        ("/model s", [("scripted/demo", "")]),
        ("/approve al", [("allow", "run")]),
        ("/approve allow ", [("allowed", "")]),
        ("/model ali", [("fast", "an alias")]),
        ("/model an", []),
        ("/nonesuch ", []),
        ("hello", []),
        ("hello /", []),
        ("", []),
    ],
)
async def test_commands_and_their_arguments_are_completed(
    text: str, offers: list[tuple[str, str]]
) -> None:
    assert await complete(text) == offers


async def test_paths_are_completed(tmp_path: Path) -> None:
    (tmp_path / "picture.png").touch()
    completer = produce_completer({})
    for command in ("/file", "/export"):
        found = completer.get_completions(Document(f"{command} {tmp_path}/pic"), CompleteEvent())
        assert [one.text for one in found] == ["ture.png"]


def test_a_draft_is_there_to_be_changed(keyboard: PipeInput) -> None:
    with streams():
        prompts = TerminalPrompts(None)
        keyboard.send_text(" more\r")
        assert asyncio.run(prompts.read("some")) == "some more"


def test_the_editor_can_be_opened_at_once(
    keyboard: PipeInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISUAL", "sed -i s/one/two/")
    with streams():
        prompts = TerminalPrompts(None)

        async def work() -> str:
            return await asyncio.wait_for(prompts.read("one", edit=True), 30)

        assert asyncio.run(work()).strip() == "two"


async def test_notes_during_typing_are_printed_above_the_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    async with opened() as desk:
        reading = asyncio.ensure_future(TerminalPrompts(None).read())
        await desk.until(lambda: desk.emulator.rows[0] == ">")
        desk.type("half a li")
        await desk.until(lambda: desk.emulator.rows[0] == "> half a li")
        note("note: one")
        await asyncio.to_thread(note, "note: two")
        print("printed")
        above = ["note: one", "note: two", "printed", "> half a line"]
        desk.type("ne")
        await desk.until(lambda: desk.emulator.rows[:4] == above)
        desk.type("\r")
        assert await reading == "half a line"
