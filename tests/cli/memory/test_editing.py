"""`memory edit`: whatever becomes of the editor, nothing that was written is lost."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.cli.command import Outcome, invoke, run
from tests.cli.terminal import Terminal
from vibe_llms.cli.memory import editing
from vibe_llms.memory import files

pytestmark = pytest.mark.usefixtures("warm")

Editor: TypeAlias = Callable[[str], None]


@pytest.fixture
def identity(home: Path) -> str:
    """The identity of an entry."""
    found: str = invoke("memory", "add", "--json", "Ada keeps bees.").json["id"]
    return found


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Editor:
    """Makes a script of a shell the editor; the file is $1."""
    program = tmp_path / "editor"
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", str(program))

    def write(script: str) -> None:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o700)

    return write


def content() -> str:
    (entry,) = invoke("memory", "list", "--json").json
    return str(entry["content"])


def left(home: Path) -> list[str]:
    return [path.read_text("utf-8", "replace") for path in home.glob("edits/*/entry.md")]


def check_kept(home: Path, outcome: Outcome, words: str, status: int, text: str) -> None:
    """Nothing was changed, what was written is kept, and the error says both."""
    assert outcome.status == status
    assert outcome.error.startswith(f"nothing was changed: {words}")
    assert "; your text is kept in " in outcome.error
    assert content() == "Ada keeps bees."
    assert [one.strip() for one in left(home)] == [text]


def test_what_the_editor_makes_of_it_is_stored(home: Path, identity: str, editor: Editor) -> None:
    editor('sed -i s/bees/goats/ "$1"')
    assert invoke("memory", "edit", identity).errors == f"changed {identity[-12:]}\n"
    assert invoke("memory", "edit", "--json", identity).json["content"] == "Ada keeps goats."
    assert invoke("memory", "edit", identity).errors == "nothing to change\n"
    assert not left(home)


def test_a_text_is_taken_as_it_is(home: Path, identity: str) -> None:
    assert run("memory", "edit", identity, "-", data=b"Ada keeps\na cat.\n").status == 0
    assert content() == "Ada keeps\na cat."
    assert invoke("memory", "edit", identity, "Ada", "sings").status == 0
    assert content() == "Ada sings"


def test_an_empty_text_is_no_reason_for_an_editor(
    home: Path, identity: str, editor: Editor
) -> None:
    editor('sed -i s/bees/goats/ "$1"')
    outcome = invoke("memory", "edit", identity, "")
    assert (outcome.status, outcome.error) == (2, "an empty text cannot be remembered")
    assert content() == "Ada keeps bees."


def test_without_a_terminal_an_editor_must_be_named(
    home: Path, identity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "")
    outcome = invoke("memory", "edit", identity)
    assert outcome.status == 2
    assert outcome.error.startswith("not a terminal; set EDITOR, or give the")
    assert f"vibe-llms memory edit {identity[-12:]} TEXT" in outcome.error
    assert invoke("memory", "edit", identity, "Ada keeps goats.").status == 0


@pytest.mark.parametrize(
    ("script", "words", "status", "text"),
    [
        ('echo Ada sings. > "$1"; exit 3', "the editor ", 2, "Ada sings."),
        ('printf "Ada \\377" > "$1"', "the edited file is not UTF-8 text", 2, "Ada \ufffd"),
        ('printf "Ada \\000" > "$1"', "the edited file is not UTF-8 text", 2, "Ada \0"),
        (
            'head -c 5000000 /dev/zero | tr "\\0" a > "$1"',
            "cannot read the edited file: it is larger than 4 MiB",
            2,
            "a" * 5_000_000,
        ),
    ],
)
def test_what_cannot_be_stored_is_kept_and_taken_up_again(
    home: Path, identity: str, editor: Editor, script: str, words: str, status: int, text: str
) -> None:
    editor(script)
    check_kept(home, invoke("memory", "edit", identity), words, status, text)
    editor('wc -c "$1" >&2; echo Ada dances. > "$1"')
    outcome = invoke("memory", "edit", identity)
    assert "note: continuing an earlier edit that was not saved: " in outcome.errors
    assert "has changed since" not in outcome.errors
    assert outcome.status == 0
    assert content() == "Ada dances."
    assert not left(home)
    assert "earlier edit" not in invoke("memory", "edit", identity).errors


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 1", "exited with status 1"),
        ('rm "$1"', "the editor left no file"),
        (': > "$1"', "to delete the entry: vibe-llms memory rm "),
        ('rm "$1"; mkdir "$1"', "cannot read the edited file: Is a directory"),
    ],
)
def test_where_nothing_was_written_nothing_is_kept(
    home: Path, identity: str, editor: Editor, script: str, words: str
) -> None:
    editor(script)
    outcome = invoke("memory", "edit", identity)
    assert outcome.status == 2
    assert words in outcome.error
    assert "kept" not in outcome.error
    assert content() == "Ada keeps bees."
    assert not left(home)


def test_a_disk_that_fails_costs_nothing_of_what_was_written(
    home: Path, identity: str, editor: Editor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    editor('echo Ada sings. > "$1"')
    with monkeypatch.context() as patch:
        patch.setattr(files, "replace_file", fill)
        outcome = invoke("memory", "edit", identity)
    check_kept(home, outcome, str(home), 1, "Ada sings.")
    editor("true")
    assert invoke("memory", "edit", identity).status == 0
    assert content() == "Ada sings."


def test_where_there_is_no_room_to_edit_nothing_is_begun(
    home: Path, identity: str, editor: Editor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    editor("echo never")
    for name in ("make_folder", "replace_file"):
        with monkeypatch.context() as patch:
            patch.setattr(editing, name, fill)
            outcome = invoke("memory", "edit", identity)
        assert outcome.status == 1
        assert outcome.error.startswith("nothing was changed: ")
        assert "the disk is full" in outcome.error
        assert not left(home)


def test_a_concurrent_change_is_not_overwritten(home: Path, identity: str, editor: Editor) -> None:
    file = next((home / "memory").rglob("facts/*.md"))
    editor(f'echo Ada sings. > "$1"; sed -i s/bees/wasps/ "{file}"')
    outcome = invoke("memory", "edit", identity)
    assert outcome.status == 2
    assert "the entry has changed since, so it was not overwritten" in outcome.error
    assert content() == "Ada keeps wasps."
    editor("true")
    outcome = invoke("memory", "edit", identity)
    assert "note: the entry has changed since; to see it: vibe-llms" in outcome.errors
    assert outcome.status == 0
    assert content() == "Ada sings."


def test_what_another_process_wrote_is_kept(home: Path, identity: str, editor: Editor) -> None:
    file = next((home / "memory").rglob("facts/*.md"))
    editor(f'sed -i s/bees/wasps/ "$1" "{file}"')
    assert invoke("memory", "edit", identity).status == 0
    assert content() == "Ada keeps wasps."
    assert not left(home)


def test_two_do_not_edit_one_entry_at_once(home: Path, identity: str, editor: Editor) -> None:
    editor('echo open; read line; echo Ada sings. > "$1"')
    with Terminal("memory", "edit", identity) as terminal:
        terminal.expect("open")
        refused = invoke("memory", "edit", identity)
        assert refused.status == 2
        assert "this entry is already being edited in " in refused.error
        terminal.press("enter")
        assert terminal.wait() == 0
    assert content() == "Ada sings."


def test_an_edit_that_is_killed_is_taken_up_again(
    home: Path, identity: str, editor: Editor
) -> None:
    editor('echo Ada sings. > "$1"; echo open; read line')
    with Terminal("memory", "edit", identity) as terminal:
        terminal.expect("open")
        terminal.process.kill()
        terminal.process.wait()
    editor("true")
    assert "note: continuing an earlier edit" in invoke("memory", "edit", identity).errors
    assert content() == "Ada sings."


def test_what_is_forgotten_is_in_no_draft(home: Path, identity: str, editor: Editor) -> None:
    editor('echo Ada keeps a secret. > "$1"; exit 1')
    invoke("memory", "edit", identity)
    assert "what was left of an edit" not in invoke("memory", "forget", "-y", "bears").errors
    assert left(home)
    reported = invoke("memory", "forget", "--yes", "SECRET").errors
    assert "note: the draft of an edit contained it too, and was deleted" in reported
    assert not left(home)


def test_no_draft_stays_of_a_scope_that_is_forgotten(
    home: Path, identity: str, editor: Editor
) -> None:
    editor('echo Ada keeps a secret. > "$1"; exit 1')
    invoke("memory", "edit", identity)
    invoke("memory", "forget", "--yes", "--all", "--scope", "user-m")
    assert left(home)
    invoke("memory", "forget", "--yes", "--all", "--scope", "user-me")
    assert not left(home)


def test_ctrl_c_belongs_to_the_editor(home: Path, identity: str, editor: Editor) -> None:
    editor("trap 'echo not yet' INT\necho open\nread line\nsed -i s/bees/goats/ \"$1\"")
    with Terminal("memory", "edit", identity) as terminal:
        terminal.expect("open")
        terminal.press("c-c")
        terminal.expect("not yet")
        terminal.press("enter")
        terminal.expect("changed")
        assert terminal.wait() == 0
    assert "goats" in invoke("memory", "list").output
