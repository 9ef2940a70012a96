"""The command `memory`: facts at the terminal and for scripts."""

from __future__ import annotations

import signal
from pathlib import Path

import click
import pytest

from tests.cli.command import invoke
from tests.cli.terminal import Terminal
from vibe_llms.cli.memory import history


def remember(text: str, *options: str) -> str:
    """Remember a fact; its identity."""
    identity: str = invoke("memory", "add", "--json", *options, text).json["identity"]
    return identity


def test_a_fact_is_remembered_found_changed_given_up_and_forgotten(home: Path) -> None:
    identity = remember("Ada keeps bees.", "--topic", "hobby", "--importance", "0.9")
    assert remember("Ada keeps bees!") == identity
    short = identity[-12:]
    assert invoke("memory", "add", "Ben keeps goats.").errors.startswith("remembered as ")
    found = invoke("memory", "search", "--explain", "Who keeps a bee?")
    assert found.output.startswith(f"{short}  ")
    assert "words 0." in found.errors
    (first, *_) = invoke("memory", "search", "--json", "--limit", "1", "who keeps bees").json
    assert (first["identity"], first["scope"], first["topics"]) == (identity, "user-me", ["hobby"])
    assert [*first["reasons"]] == ["words"]
    assert invoke("memory", "edit", short, "Ada keeps wild bees.").errors == f"changed {short}\n"
    assert (
        invoke("memory", "edit", short, "Ada keeps wild bees.").errors == "it says that already\n"
    )
    shown = invoke("memory", "show", short)
    assert shown.output == "Ada keeps wild bees.\n"
    assert "importance: 0.9" in shown.errors
    assert invoke("memory", "show", "--json", short).json["content"] == "Ada keeps wild bees."
    assert invoke("memory", "rm", short).errors == f"gave up {short}: Ada keeps wild bees.\n"
    assert "1 remembered, 1 given up" in invoke("memory", "status").output
    assert invoke("memory", "forget", "--yes", "WILD bees").errors == "forgot 1 entry\n"
    (status,) = invoke("memory", "status", "--json").json["scopes"]
    assert (status["entries"], status["deleted"], status["damaged"]) == (1, 0, [])
    assert invoke("memory", "reindex").errors == "indexed 1 entry\n"
    assert b"wild" not in b"".join(p.read_bytes() for p in home.rglob("*") if p.is_file())


def test_scopes_are_apart(home: Path) -> None:
    remember("The office is in Turin.", "--scope", "global")
    remember("Ben is vegetarian.", "--scope", "user-ben")
    assert "Turin" in invoke("memory", "search", "office").output
    assert invoke("memory", "search", "vegetarian").errors == "nothing that is remembered fits\n"
    listed = invoke("memory", "list", "--scope", "user-ben", "--json").json
    assert [one["content"] for one in listed] == ["Ben is vegetarian."]
    (home / "config.toml").write_text('[memory]\nuser = "ben"\n')
    assert "vegetarian" in invoke("memory", "search", "vegetarian").output


def test_an_empty_memory_says_so_and_leaves_no_folder(home: Path) -> None:
    assert "vibe-llms memory add TEXT" in invoke("memory", "list").errors
    assert invoke("memory", "search", "anything").errors == "nothing that is remembered fits\n"
    assert not (home / "memory" / "entries").exists()


def test_a_file_that_is_no_entry_is_named_and_left(home: Path) -> None:
    remember("Ada keeps bees.")
    foreign = home / "memory" / "entries" / "user-me" / "facts" / "note.md"
    foreign.write_text("just a note")
    status = invoke("memory", "status")
    assert "note.md: it does not begin with front matter" in status.errors
    assert "bees" in invoke("memory", "search", "bees").output
    assert foreign.read_text() == "just a note"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("add", " "), "nothing to remember"),
        (("add", "--scope", "../..", "x"), "is no scope"),
        (("list", "--scope", "user-A/../b"), "cannot be the name of a user"),
        (("show", "abc"), "too short"),
        (("rm", "nonesuch"), "nothing is remembered as"),
        (("forget", "bees"), "nobody to be asked"),
        (("add", "--importance", "2", "x"), "--importance"),
        ((), "Missing command. See: vibe-llms memory --help"),
    ],
)
def test_what_cannot_be_done_is_told(home: Path, arguments: tuple[str, ...], words: str) -> None:
    outcome = invoke("memory", *arguments)
    assert outcome.status == (66 if arguments[:1] in (("show",), ("rm",)) else 2)
    assert words in outcome.errors


def test_a_wrong_setting_is_named(home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text("[memory]\nlimit = 0\n")
    outcome = invoke("memory", "search", "x")
    assert outcome.status == 78
    assert "[memory], key 'limit'" in outcome.errors
    checked = invoke("config", "check")
    assert checked.status == 78
    assert "[memory], key 'limit'" in checked.errors


def test_a_name_that_no_user_may_have_is_a_wrong_setting(home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text('[memory]\nuser = "Ada B"\n')
    outcome = invoke("memory", "list")
    assert outcome.status == 78
    assert "[memory], key 'user': 'Ada B' cannot be the name of a user" in outcome.error
    assert "key 'user'" in invoke("doctor").output


def test_what_is_empty_is_not_shown(home: Path) -> None:
    shown = invoke("memory", "show", remember("Ada keeps bees.", "--topic", "a", "--topic", "b"))
    assert "topics: a, b\n" in shown.errors
    assert "merged_from" not in shown.errors


def test_an_empty_text_is_no_reason_for_an_editor(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = remember("Ada keeps bees.")
    monkeypatch.setenv("EDITOR", "sed -i s/bees/goats/")
    outcome = invoke("memory", "edit", identity, "")
    assert (outcome.status, outcome.error) == (2, "there is nothing to remember in an empty text")
    assert "bees" in invoke("memory", "list").output


def test_ctrl_c_belongs_to_the_editor(home: Path, tmp_path: Path) -> None:
    identity = remember("Ada keeps bees.")
    editor = tmp_path / "editor"
    editor.write_text(
        "#!/bin/sh\ntrap 'echo not yet' INT\necho open\nread line\nsed -i s/bees/goats/ \"$1\"\n"
    )
    editor.chmod(0o700)
    with Terminal("memory", "edit", identity, environment={"EDITOR": str(editor)}) as terminal:
        terminal.expect("open")
        terminal.press("c-c")
        terminal.expect("not yet")
        terminal.press("enter")
        terminal.expect("changed")
        assert terminal.wait() == 0
    assert "goats" in invoke("memory", "list").output


def test_ctrl_c_ends_a_question_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remember("Ada keeps bees.")
    handlers: list[object] = []

    def press(*_: object, **__: object) -> None:
        # What input() waits for is not known to the event loop, whose handler would only cancel.
        handlers.append(signal.getsignal(signal.SIGINT))
        raise click.Abort

    monkeypatch.setattr(history, "is_terminal", lambda _: True)
    monkeypatch.setattr(click, "confirm", press)
    assert invoke("memory", "forget", "bees").status == 130
    assert handlers == [signal.default_int_handler]
    assert "bees" in invoke("memory", "list").output


BROKEN_CLOSE = """
from vibe_llms.memory.embedders.core import register

class Broken:
    def __init__(self, name, configuration):
        self.model = "broken/one"

    async def embed(self, texts, *, question=False):
        return [[1.0, float(len(text))] for text in texts]

    async def close(self):
        raise RuntimeError("the pipe is gone")

register("broken", Broken)
"""


def test_an_embedder_that_cannot_be_closed_spoils_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    (tmp_path / "broken_close.py").write_text(BROKEN_CLOSE)
    monkeypatch.syspath_prepend(str(tmp_path))
    (home / "config.toml").write_text(
        '[memory]\nembedder = "broken"\n[embedders.broken]\nmodule = "broken_close"\n'
    )
    warning = "note: the embedder broken/one could not be closed: "
    for arguments, printed in (
        (("add", "Ada keeps bees."), "remembered as "),
        (("reindex",), "indexed 1 entry"),
    ):
        result = invoke("memory", *arguments)
        assert result.status == 0
        done, told = result.errors.splitlines()
        assert done.startswith(printed)
        assert told.startswith(warning)
        assert "[embedders.broken]" in told
        assert "the pipe is gone" in told
    found = invoke("memory", "search", "Ada")
    assert (found.status, found.errors.count(warning)) == (0, 1)
    assert "Ada keeps bees." in found.output


HANGING = """
import asyncio
from vibe_llms.memory.embedders.core import register

class Hanging:
    def __init__(self, name, configuration):
        self.model = "hanging/one"

    async def embed(self, texts, *, question=False):
        await asyncio.Event().wait()

    async def close(self):
        pass

register("hanging", Hanging)
"""


def test_an_embedder_that_hangs_holds_nothing_up(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    (tmp_path / "hanging_embedder.py").write_text(HANGING)
    monkeypatch.syspath_prepend(str(tmp_path))
    (home / "config.toml").write_text(
        '[memory]\nembedder = "hanging"\n'
        '[embedders.hanging]\nmodule = "hanging_embedder"\ntimeout-seconds = 0.2\n'
    )
    note = "the embedder hanging/one took longer than 0.2 seconds for 1 text; "
    remedy = "raise [embedders.hanging] timeout-seconds"
    # Whoever adds waits for no vectors.
    assert note not in invoke("memory", "add", "Ada keeps bees.").errors
    found = invoke("memory", "search", "bees")
    assert (found.status, found.errors.count(note), found.errors.count(remedy)) == (0, 1, 1)
    assert "Ada keeps bees." in found.output
    anew = invoke("memory", "reindex")
    assert (anew.status, anew.errors.count(note)) == (0, 1)
    assert "indexed 1 entry" in anew.errors
