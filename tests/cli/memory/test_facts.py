"""The command `memory`: facts at the terminal and for scripts."""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cli.command import invoke, remember, run
from tests.cli.hostile import check_harmless
from tests.cli.terminal import Terminal
from vibe_llms.cli.memory import facts
from vibe_llms.memory import files
from vibe_llms.memory.entries import LARGEST_BYTES

pytestmark = pytest.mark.usefixtures("warm")


def test_a_fact_is_added_found_changed_deleted_and_forgotten(home: Path) -> None:
    identity = remember("Ada keeps bees.", "--topic", "hobby", "--importance", "0.9")
    assert remember("Ada keeps bees!") == identity
    short = identity[-12:]
    assert invoke("memory", "add", "Ben keeps goats.").errors.startswith("remembered as ")
    found = invoke("memory", "search", "--explain", "Who keeps a bee?")
    assert found.output.startswith(f"{short}  ")
    assert "words 0." in found.errors
    (first, *_) = invoke("memory", "search", "--json", "--limit", "1", "who keeps bees").json
    assert (first["id"], first["scope"], first["topics"]) == (identity, "user-me", ["hobby"])
    assert [*first["reasons"]] == ["words"]
    assert invoke("memory", "edit", short, "Ada keeps wild bees.").errors == f"changed {short}\n"
    assert invoke("memory", "edit", short, "Ada keeps wild bees.").errors == "nothing to change\n"
    shown = invoke("memory", "show", short)
    assert shown.output == "Ada keeps wild bees.\n"
    assert "importance: 0.9" in shown.errors
    assert invoke("memory", "show", "--json", short).json["content"] == "Ada keeps wild bees."
    assert invoke("memory", "rm", short).errors == f"deleted {short}: Ada keeps wild bees.\n"
    assert "1 remembered, 1 deleted" in invoke("memory", "status").output
    assert invoke("memory", "forget", "--yes", "WILD bees").errors == "forgot 1 entry\n"
    (status,) = invoke("memory", "status", "--json").json["scopes"]
    assert (status["entries"], status["deleted"], status["damaged"]) == (1, 0, [])
    assert invoke("memory", "reindex").errors == "indexed 1 entry\n"
    assert b"wild" not in b"".join(p.read_bytes() for p in home.rglob("*") if p.is_file())


def test_scopes_are_apart(home: Path) -> None:
    remember("The office is in Turin.", "--scope", "global")
    remember("Ben is vegetarian.", "--scope", "user-ben")
    assert "Turin" in invoke("memory", "search", "office").output
    assert invoke("memory", "search", "vegetarian").errors == "no matching entries\n"
    listed = invoke("memory", "list", "--scope", "user-ben", "--json").json
    assert [one["content"] for one in listed] == ["Ben is vegetarian."]
    (home / "config.toml").write_text('[memory]\nuser = "ben"\n')
    assert "vegetarian" in invoke("memory", "search", "vegetarian").output


def test_an_empty_memory_says_so_and_leaves_no_folder(home: Path) -> None:
    assert "vibe-llms memory add TEXT" in invoke("memory", "list").errors
    assert invoke("memory", "search", "anything").errors == "no matching entries\n"
    assert not (home / "memory" / "entries").exists()


def test_a_file_that_is_no_entry_is_named_and_left(home: Path) -> None:
    remember("Ada keeps bees.")
    foreign = home / "memory" / "entries" / "user-me" / "facts" / "note.md"
    foreign.write_text("just a note")
    status = invoke("memory", "status")
    assert "note.md: no front matter between two lines `---`" in status.errors
    assert "bees" in invoke("memory", "search", "bees").output
    assert foreign.read_text() == "just a note"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("add", " "), "empty text"),
        (("add", "--scope", "../..", "x"), "is not a scope"),
        (("list", "--scope", "user-A/../b"), "is not a valid name of a user"),
        (("show", "abc"), "too short"),
        (("rm", "nonesuch"), "no entry matches"),
        (("forget", "bees"), "not a terminal; use --yes"),
        (("add", "--importance", "2", "x"), "--importance"),
        ((), "Missing command. See: vibe-llms memory --help"),
    ],
)
def test_commands_that_cannot_be_carried_out_are_an_error(
    home: Path, arguments: tuple[str, ...], words: str
) -> None:
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
    assert "[memory] limit: " in checked.errors


def test_a_name_that_no_user_may_have_is_a_wrong_setting(home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text('[memory]\nuser = "Ada B"\n')
    outcome = invoke("memory", "list")
    assert outcome.status == 78
    assert "[memory], key 'user': 'Ada B' is not a valid name of a user" in outcome.error
    assert "[memory] user: " in invoke("doctor").output


def test_empty_members_are_not_shown(home: Path) -> None:
    shown = invoke("memory", "show", remember("Ada keeps bees.", "--topic", "a", "--topic", "b"))
    assert "topics: a, b\n" in shown.errors
    assert "merged_from" not in shown.errors


def test_entries_of_other_users_look_like_missing_ones(home: Path) -> None:
    other = remember("Ben is vegetarian.", "--scope", "user-ben")
    for command in (("show",), ("edit",), ("rm",), ("log",)):
        text = ("Ben eats all.",) if command == ("edit",) else ()
        for identity in (other, other[-12:], other[:30]):
            reported = invoke("memory", *command, identity, *text)
            unknown = invoke("memory", *command, "nonesuch", *text)
            assert reported.status == unknown.status == 66
            assert reported.error == unknown.error.replace("nonesuch", identity)
    assert invoke("memory", "show", "--scope", "user-ben", other).output == "Ben is vegetarian.\n"
    assert (
        "changed" in invoke("memory", "edit", "--scope", "user-ben", other, "Ben eats all").errors
    )
    assert "added" in invoke("memory", "log", "--scope", "user-ben", other).output
    assert "deleted" in invoke("memory", "rm", "--scope", "user-ben", other).errors


def test_looking_everywhere_would_be_detected(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = remember("Ben is vegetarian.", "--scope", "user-ben")

    async def look_everywhere(*_: object) -> None:
        return None

    monkeypatch.setattr(facts, "visible_scopes", look_everywhere)
    assert invoke("memory", "show", other).status == 0


def test_global_and_conversation_entries_are_found_by_identity(home: Path) -> None:
    for scope in ("global", "conversation-abcdefgh2345", "user-me"):
        identity = remember(f"This is of {scope}.", "--scope", scope)
        assert invoke("memory", "show", identity).status == 0
        assert invoke("memory", "edit", identity, "changed").status == 0
        assert invoke("memory", "rm", identity).status == 0


def test_an_identity_that_another_user_has_as_well_is_ones_own(home: Path) -> None:
    identity = remember("Ada keeps bees.")
    (path,) = (home / "memory").rglob("facts/*.md")
    other = home / "memory" / "entries" / "user-ben" / "facts" / path.name
    other.parent.mkdir(parents=True)
    other.write_bytes(path.read_bytes())
    assert invoke("memory", "edit", identity, "Ada keeps goats.").status == 0
    assert invoke("memory", "rm", identity).status == 0
    assert "bees" in other.read_text()


def test_an_ambiguous_prefix_is_an_error(home: Path) -> None:
    first = remember("Ada keeps bees.")
    remember("Ada keeps goats.")
    outcome = invoke("memory", "show", first[:4])
    assert outcome.status == 66
    assert outcome.error == f"{first[:4]!r} matches several entries; use more characters"


def test_nothing_is_deleted_if_one_of_them_does_not_exist(home: Path) -> None:
    identity = remember("Ada keeps bees.")
    assert invoke("memory", "rm", identity, "nonesuch").status == 66
    assert "bees" in invoke("memory", "list").output
    gone = invoke("memory", "rm", "--json", identity, identity[-12:])
    assert [one["id"] for one in gone.json] == [identity]
    assert gone.errors == ""


def test_a_dash_is_the_text_of_standard_input(home: Path) -> None:
    text = "Zoë keeps bees.\nAnd a cat. 🐈\n"
    entry = run("memory", "add", "--json", "-", data=text.encode()).json
    assert entry["content"] == text.strip()
    assert run("memory", "search", "-", data=b"who keeps bees").output.count("\n") == 1
    assert run("memory", "add", "-", data=b"  ").status == 2
    refused = run("memory", "add", "-", data=b"\xff\xfe\xfd")
    assert (refused.status, refused.error) == (2, "standard input is not UTF-8 text")
    refused = run("memory", "add", "-", data=b"a" * (LARGEST_BYTES + 1))
    assert (refused.status, refused.error) == (2, "standard input is longer than 4 MiB")
    long = b"word " * 200_000
    assert run("memory", "add", "-", data=long).status == 0
    assert invoke("memory", "add", "-", "and", "more").status == 0


def test_text_is_understood_whatever_the_locale(home: Path) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert run("memory", "add", "Zoë keeps bees.", environment=plain).status == 0
    (entry,) = invoke("memory", "list", "--json").json
    assert entry["content"] == "Zoë keeps bees."
    found = run("memory", "search", "Zoë", environment=plain)
    assert found.output.endswith("Zo? keeps bees.\n")
    assert run("memory", "add", b"half \xff of it").status == 0
    assert "half \ufffd of it" in invoke("memory", "list").output


def test_a_line_is_no_longer_than_the_terminal_is_wide(home: Path) -> None:
    remember("Ada keeps bees, goats and a cat that is fond of neither of them. " * 100)
    with Terminal("memory", "list", columns=60) as terminal:
        assert terminal.wait() == 0
        (line,) = terminal.output.splitlines()
    assert len(line) == 60
    assert line.endswith("…")
    with Terminal("memory", "search", "bees", columns=10) as terminal:
        assert terminal.wait() == 0
        (line,) = terminal.output.splitlines()
    assert line.endswith("  Ada keeps bees, goa…")


def test_what_a_file_says_does_not_drive_the_terminal(home: Path) -> None:
    remember("Ada keeps bees.")
    (path,) = (home / "memory").rglob("facts/*.md")
    text = path.read_text()
    bad = text.replace("id: 0", 'id: "\\e[2J0', 1).replace("\nrole", '"\nrole', 1)
    path.write_text(bad.replace("bees", "\x1b[2Jbees\x9b"))
    for command in ("list", "log", "search"):
        words = ("bees",) if command == "search" else ()
        check_harmless(invoke("memory", command, *words, terminals="stdout stderr").output)
    check_harmless(invoke("memory", "forget", "-n", "bees", terminals="stdout stderr").output)


def test_a_disk_that_fails_leaves_no_doubt_of_what_is_remembered(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = remember("Ada keeps bees.")
    # Its folder is made now, since that fails by itself where there is none.
    invoke("memory", "rm", remember("Ada keeps cats."))

    def fill(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(files, "replace_file", fill)
    monkeypatch.setattr(os, "rename", fill)
    for command, words in (
        (("add", "Ada keeps goats."), "nothing was remembered: "),
        (("edit", identity, "Ada keeps goats."), "nothing was changed: "),
        (("rm", identity), "deleted 0 of 1: "),
    ):
        failed = invoke("memory", *command)
        assert failed.status == 1
        assert failed.error.startswith(words)
        assert "the disk is full; free some space and try again" in failed.error
    assert "bees" in invoke("memory", "list").output


def test_each_subcommand_has_a_line_in_the_help_that_is_whole(home: Path) -> None:
    listed = invoke("memory", "--help").output.partition("Commands:\n")[2].splitlines()
    assert len(listed) == 18
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)


def test_lists_are_cut_to_what_a_terminal_shows(home: Path) -> None:
    remember("Ada keeps bees. " * 50)
    (line,) = invoke("memory", "list", terminals="stdout").output.splitlines()
    assert (len(line), line[-1]) == (80, "…")
    assert len(invoke("memory", "list").output) > 700


BROKEN_CLOSE = """
from vibe_llms.embedding.core import register

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
        done, reported = result.errors.splitlines()
        assert done.startswith(printed)
        assert reported.startswith(warning)
        assert "[embedders.broken]" in reported
        assert "the pipe is gone" in reported
    found = invoke("memory", "search", "Ada")
    assert (found.status, found.errors.count(warning)) == (0, 1)
    assert "Ada keeps bees." in found.output


HANGING = """
import asyncio
from vibe_llms.embedding.core import register

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
    # Adding waits for no vectors.
    assert note not in invoke("memory", "add", "Ada keeps bees.").errors
    found = invoke("memory", "search", "bees")
    assert (found.status, found.errors.count(note), found.errors.count(remedy)) == (0, 1, 1)
    assert "Ada keeps bees." in found.output
    anew = invoke("memory", "reindex")
    assert (anew.status, anew.errors.count(note)) == (0, 1)
    assert "indexed 1 entry" in anew.errors


def plant_copies(home: Path, text: str) -> Path:
    """Store a fact, and what other programs make of its file; returns its folder."""
    short = remember(text)[-12:]
    folder = home / "memory" / "entries" / "user-me" / "facts"
    (path,) = folder.glob(f"*{short}.md")
    data = path.read_bytes()
    for name in (".sync-conflict-20261126-101500-ABCDEFG.md", " (1).md", ".md~"):
        path.with_name(f"{path.stem}{name}").write_bytes(data)
    return folder


def test_copies_by_other_programs_are_named_and_can_be_deleted_and_kept(home: Path) -> None:
    folder = plant_copies(home, "Ada keeps bees.")
    listed = invoke("memory", "list", "--json").json
    (original,) = [one for one in listed if not one["copy_of"]]
    copies = [one for one in listed if one["copy_of"]]
    assert len({one["id"] for one in listed}) == len(listed) == 4
    assert {one["copy_of"] for one in copies} == {original["id"]}
    short = original["id"][-12:]
    for command in (("list",), ("search", "bees")):
        assert invoke("memory", *command).output.count(f"(copy of {short}) Ada keeps bees.") == 3
    report = invoke("doctor")
    assert report.status != 0
    assert report.output.count(f"a copy of {short}") == 3
    # The advice mends it.
    first, second, third = (one["id"][-12:] for one in copies)
    for one in (first, second):
        assert f"vibe-llms memory rm {one}" in report.output
        assert invoke("memory", "rm", one).status == 0
    assert invoke("memory", "edit", third, "Ada keeps bees.").errors == f"changed {third}\n"
    assert "a copy of" not in invoke("doctor").output
    assert invoke("memory", "edit", short, "Ada keeps wild bees.").status == 0
    assert invoke("memory", "rm", short).status == 0
    assert invoke("memory", "list").output.endswith("  Ada keeps bees.\n")
    assert len([*folder.iterdir()]) == 1


def test_a_file_by_hand_without_id_and_time_is_an_entry(home: Path) -> None:
    remember("Ada keeps bees.")
    folder = home / "memory" / "entries" / "user-me" / "facts"
    (folder / "boats.md").write_text("---\ntopics: [sea]\n---\nAda owns two boats.\n")
    (found,) = invoke("memory", "search", "--json", "boats").json
    assert found["id"] == "boats"
    changed = datetime.fromtimestamp((folder / "boats.md").stat().st_mtime, UTC)
    assert datetime.fromisoformat(found["created"]) == changed
    assert invoke("memory", "edit", "boats", "Ada owns three boats.").errors == "changed boats\n"
    assert invoke("memory", "show", "boats").output == "Ada owns three boats.\n"
    assert invoke("memory", "show", "--json", "boats").json["topics"] == ["sea"]
    assert invoke("memory", "rm", "boats").status == 0
    assert invoke("doctor").status == 0


def test_a_damaged_file_is_noted_once_until_it_changes(home: Path) -> None:
    remember("Ada keeps bees.")
    path = home / "memory" / "entries" / "user-me" / "facts" / "note.md"
    path.write_text("just a note")
    notes = [invoke("memory", "search", "bees").errors for _ in range(3)]
    assert notes[0].startswith("note: ")
    assert notes[1:] == ["", ""]
    assert "note.md" in invoke("memory", "status").errors
    path.write_text("still just a note")
    assert "note.md" in invoke("memory", "list").errors
    assert invoke("memory", "list").errors == ""
