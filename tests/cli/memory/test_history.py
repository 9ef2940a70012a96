"""`memory log|forget`, and what `memory status` says of versions."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import invoke, remember
from tests.memory.repositories import ask_git
from vibe_llms.base.exceptions import StorageError
from vibe_llms.memory.versions import Versions

pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture
def versioned(home: Path) -> Path:
    """A home where versions are kept."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text("[memory]\nversioning = true\n")
    return home


def test_each_change_is_committed_and_logged(versioned: Path) -> None:
    identity = remember("Ada lives in Lisbon.")
    invoke("memory", "edit", identity, "Ada lives in Porto.")
    invoke("memory", "rm", identity)
    short = identity[-12:]
    lines = [line[18:] for line in invoke("memory", "log", short).output.splitlines()]
    assert lines == [
        f"added         {short}  Ada lives in Lisbon.",
        f"changed       {short}  Ada lives in Porto.",
        f"deleted       {short}  Ada lives in Porto.",
    ]
    reported = invoke("memory", "log", "--json").json
    assert [one["change"] for one in reported] == ["added", "changed", "deleted"]
    assert reported[0]["entry"]["content"] == "Ada lives in Lisbon."
    assert reported[0]["commit"] in ask_git(versioned / "memory", "log", "--format=%H")
    assert invoke("memory", "log", "--scope", "global").output == ""
    assert (
        "versions: one commit per command, tool call and turn; the last 20"
        in invoke("memory", "status").output
    )
    status = invoke("memory", "status", "--json").json["versions"]
    assert status["last"]
    assert status["failure"] == ""
    assert invoke("memory", "log", "nonesuch").status == 66


def test_without_versions_the_files_are_read(home: Path) -> None:
    assert "no entries yet" in invoke("memory", "log").errors
    identity = remember("Ada keeps bees.")
    invoke("memory", "rm", identity)
    (added, gone) = invoke("memory", "log").output.splitlines()
    assert added[18:].startswith("added ")
    assert gone[18:].startswith("deleted ")
    assert invoke("memory", "status", "--json").json["versions"] is None
    assert not (home / "memory" / ".git").exists()


def test_what_replaced_an_entry_is_named(home: Path) -> None:
    identity = remember("Ada lives in Lisbon.")
    invoke("memory", "rm", identity)
    path = next((home / "memory").rglob("deleted/facts/*.md"))
    path.write_text(path.read_text().replace("\n---\n", "\nreplaced_by: abcd-new\n---\n", 1))
    assert invoke("memory", "log").output.endswith("Ada lives in Lisbon. (for abcd-new)\n")


@pytest.mark.parametrize("text", ["Lisbon", 'the sea\'s $HOME; "Lisbon" --yes'])
def test_forget_names_what_git_holds_with_a_command_that_purges_it(
    versioned: Path, text: str
) -> None:
    remember(f"About {text}.")
    remember("Ada keeps bees.")
    folder = versioned / "memory"
    reported = invoke("memory", "forget", "--yes", "--", text).errors.splitlines()
    assert reported[0] == "forgot 1 entry"
    commit = ask_git(folder, "log", "--format=%h", "--abbrev=12", "--reverse").split()[0]
    assert reported[1] == f"git still contains it in 1 commit ({commit}); to remove it there too:"
    # As a user would paste it.
    done = subprocess.run(reported[2], shell=True, capture_output=True, text=True, check=True)
    assert f"removed from git, which contained it in 1 commit ({commit})" in done.stderr
    assert "About" not in ask_git(folder, "log", "--all", "-p")
    assert "bees" in ask_git(folder, "log", "--all", "-p")
    assert invoke("memory", "forget", "--yes", "--", text).errors == "forgot 0 entries\n"


def test_the_command_that_purges_keeps_to_its_scope(versioned: Path) -> None:
    remember("Ada was in Lisbon.", "--scope", "user-ada")
    remember("Ben was in Lisbon.", "--scope", "user-ben")
    reported = invoke(
        "memory", "forget", "--yes", "--scope", "user-ben", "Lisbon"
    ).errors.splitlines()
    assert shlex.split(reported[2])[-4:] == ["--scope", "user-ben", "--", "Lisbon"]
    subprocess.run(reported[2], shell=True, capture_output=True, check=True)
    left = ask_git(versioned / "memory", "log", "--all", "-p")
    assert "Ada was in Lisbon." in left
    assert "Ben was in Lisbon." not in left


def test_what_git_kept_before_it_was_turned_off_is_named_as_well(versioned: Path) -> None:
    remember("Ada lives in Lisbon.")
    (versioned / "config.toml").unlink()
    reported = invoke("memory", "forget", "--yes", "Lisbon").errors
    assert "git still contains it in 1 commit" in reported
    assert "removed from git" in invoke("memory", "forget", "--yes", "--history", "Lisbon").errors


def test_a_repository_around_is_named(home: Path, tmp_path: Path) -> None:
    remember("Ada lives in Lisbon.")
    ask_git(tmp_path, "init", "-q")
    reported = invoke("memory", "forget", "--yes", "Lisbon").errors
    assert (
        f"note: the git repository in {tmp_path} may contain copies; it was not changed" in reported
    )


def test_where_git_is_missing_the_memory_goes_on(
    versioned: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    remember("Ben keeps goats.")
    monkeypatch.setenv("PATH", str(tmp_path))
    first = invoke("memory", "add", "Ada lives in Lisbon.")
    assert first.status == 0
    assert "note: entries are saved, but were not committed to git" in first.errors
    assert "note" not in invoke("memory", "add", "Ada keeps bees.").errors
    status = invoke("memory", "status")
    assert "vibe-llms: no versions since 20" in status.errors
    assert "git is not installed" in status.errors
    forgot = invoke("memory", "forget", "--yes", "Lisbon")
    assert forgot.status == 0
    assert "note: cannot search the versions in git: git is not installed" in forgot.errors
    failed = invoke("memory", "forget", "--yes", "--history", "Lisbon")
    assert (failed.status, "git is not installed" in failed.errors) == (1, True)


def test_changes_without_a_version_are_read_from_the_files(
    versioned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember("Ada lives in Lisbon.")
    invoke("memory", "forget", "--yes", "Lisbon")
    invoke("memory", "forget", "--yes", "--history", "Lisbon")
    monkeypatch.setenv("VIBE_LLMS_MEMORY__VERSIONING", "false")
    identity = remember("Ada keeps bees.")
    monkeypatch.setenv("VIBE_LLMS_MEMORY__VERSIONING", "true")

    async def fail(self: Versions, **_: float) -> None:
        raise StorageError("git is slow")

    monkeypatch.setattr(Versions, "commit", fail)
    reported = invoke("memory", "log")
    assert reported.output.endswith(f"added         {identity[-12:]}  Ada keeps bees.\n")
