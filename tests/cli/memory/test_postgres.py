"""The commands of memory do the same where it is kept in a database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import invoke, write_script
from tests.cli.memory.test_ingesting import SCRIPT, STUCK
from tests.fakes.postgres import temporary_database


@pytest.fixture(autouse=True)
def configured(home: Path) -> Iterator[None]:
    home.mkdir()
    with temporary_database() as place:
        (home / "config.toml").write_text(
            f"{place.table}[stream]\nretries = 0\n[memory]\nwait = true\n"
            "[memory.ingestion]\nneighbours = 0\nsummaries = false\n"
        )
        yield


def test_what_the_commands_do_with_files_they_do_with_rows(home: Path, tmp_path: Path) -> None:
    identity = invoke("memory", "add", "--json", "Ada keeps bees.").json["id"]
    invoke("memory", "add", "Ada drinks tea.")
    assert [one["id"] for one in invoke("memory", "search", "--json", "bees").json] == [identity]
    assert "Ada keeps bees." in invoke("memory", "show", identity[-8:]).output
    assert [one["change"] for one in invoke("memory", "log", "--json").json] == ["added", "added"]
    assert invoke("memory", "rm", identity).status == 0
    assert "PostgreSQL, user local" in invoke("memory", "status").output
    assert "user-me: 1 remembered, 1 deleted" in invoke("memory", "status").output
    file = tmp_path / "memory.json"
    invoke("memory", "export", str(file))
    preview = invoke("memory", "forget", "--dry-run", "--history", "tea")
    assert "would forget 1 fact" in preview.errors
    assert invoke("memory", "forget", "--yes", "ada").errors == "forgot 2 entries\n"
    assert invoke("memory", "list").output == ""
    assert invoke("memory", "import", str(file)).errors == "imported 1 entry into user-me\n"
    assert invoke("memory", "reindex").errors == "indexed 1 entry\n"
    assert invoke("memory", "dedup").errors == "no duplicate facts\n"
    refused = invoke("memory", "watch")
    assert refused.status != 0
    assert "in PostgreSQL and has no files" in refused.errors
    assert not (home / "memory").exists()


def test_a_turn_is_remembered_and_what_is_left_is_taken_up(tmp_path: Path) -> None:
    model = write_script(tmp_path, SCRIPT)
    answered = invoke("chat", "-m", model, "--memory", "My cat is called Tom.")
    assert answered.output == "That is a fine name.\n"
    assert "The user has a cat called Tom" in invoke("memory", "list").output
    # Recalled in the next conversation, from the database.
    status = invoke("memory", "status", "--json").json
    assert status["ingestion"]["queued"] == 0
    broken = write_script(tmp_path, STUCK.replace("delay-seconds = 3600", 'error = "overloaded"'))
    invoke("memory", "forget", "--yes", "cat")
    invoke("chat", "-m", broken, "--memory", "My cat is called Tom.")
    left = invoke("memory", "status", "--json").json["ingestion"]
    assert (left["running"], left["queued"]) == (0, 1)
    write_script(tmp_path, SCRIPT)
    assert "processed 1 turn" in invoke("memory", "ingest").errors
    assert "The user has a cat called Tom" in invoke("memory", "list").output
