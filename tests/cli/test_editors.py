"""Which editor is taken, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import streams
from vibe_llms.cli.editors import find_editor, run_editor
from vibe_llms.exceptions import RequestError


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
        with pytest.raises(RequestError, match="no editor was found; set EDITOR, or go home"):
            find_editor("go home")
        (tmp_path / "nano").touch(0o700)
        assert find_editor("") == "nano"
    for terminals in ("stdin", "stdout", ""):
        with (
            streams(terminals=terminals),
            pytest.raises(RequestError, match="no terminal for an editor; set EDITOR, or go home"),
        ):
            find_editor("go home")


def test_an_editor_is_given_the_file_and_what_it_was_called_with(tmp_path: Path) -> None:
    file = tmp_path / "a file"
    run_editor("sh -c 'echo \"$0\" > \"$1\"' 'two words'", file)
    assert file.read_text() == "two words\n"
    with pytest.raises(RequestError, match="status 7"):
        run_editor("sh -c 'exit 7'", file)
