"""The clipboard: programs, and the sequence that asks the terminal."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.cli.command import streams
from vibe_llms.cli.clipboard import copy
from vibe_llms.exceptions import RequestError


@pytest.fixture(autouse=True)
def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WAYLAND_DISPLAY", "DISPLAY", "TMUX"):
        monkeypatch.delenv(name, raising=False)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, line: str) -> Path:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder / "clipboard"


@pytest.mark.parametrize(
    ("variable", "program"),
    [("WAYLAND_DISPLAY", "wl-copy"), ("DISPLAY", "xclip"), ("DISPLAY", "xsel"), ("TMUX", "tmux")],
)
def test_a_program_takes_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, program: str
) -> None:
    board = install(tmp_path, monkeypatch, program, f'cat > "{tmp_path}/clipboard"')
    monkeypatch.setenv(variable, "x")
    with streams(terminals="stderr") as (_, errors):
        assert copy("Grüße\n") == program
        assert errors.text == ""
    assert board.read_text() == "Grüße\n"


def test_the_terminal_takes_it_where_no_program_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "wl-copy", "exit 1")
    monkeypatch.setenv("WAYLAND_DISPLAY", "x")
    with streams(terminals="stderr") as (_, errors):
        assert copy("Grüße \x1b[2J") == "the terminal"
        coded = base64.b64encode("Grüße \x1b[2J".encode()).decode()
        assert errors.text == f"\x1b]52;c;{coded}\a"


def test_without_either_it_is_an_error() -> None:
    with streams(), pytest.raises(RequestError, match="there is no clipboard here"):
        copy("x")
