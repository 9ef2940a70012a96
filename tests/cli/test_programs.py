"""The user's editor and clipboard: which program is used, and the errors without one."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.cli.command import streams
from vibe_llms.base.exceptions import RequestError
from vibe_llms.cli.programs import copy, find_editor, run_editor


def test_visual_comes_before_editor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", "ed")
    monkeypatch.setenv("VISUAL", "")
    assert find_editor("") == "ed"
    monkeypatch.setenv("VISUAL", "emacs -nw")
    assert find_editor("") == "emacs -nw"


def test_at_a_terminal_one_of_the_usual_editors_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with streams(terminals="stdin stdout"):
        with pytest.raises(RequestError, match="no editor found; set EDITOR, or go home"):
            find_editor("go home")
        (tmp_path / "nano").touch(0o700)
        assert find_editor("") == "nano"
    for terminals in ("stdin", "stdout", ""):
        with (
            streams(terminals=terminals),
            pytest.raises(RequestError, match="not a terminal; set EDITOR, or go home"),
        ):
            find_editor("go home")


def test_an_editor_is_given_the_file_and_what_it_was_called_with(tmp_path: Path) -> None:
    file = tmp_path / "a file"
    run_editor("sh -c 'echo \"$0\" > \"$1\"' 'two words'", file)
    assert file.read_text() == "two words\n"
    with pytest.raises(RequestError, match="status 7"):
        run_editor("sh -c 'exit 7'", file)


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
    with streams(), pytest.raises(RequestError, match="no clipboard found"):
        copy("x")
