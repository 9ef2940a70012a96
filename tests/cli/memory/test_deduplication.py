"""The command `memory dedup`: facts that say the same, shown and merged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import invoke
from tests.cli.memory.test_facts import remember
from vibe_llms.memory.changes import HeldScope


def test_facts_that_say_the_same_are_shown_and_merged(home: Path) -> None:
    remember("The box stands in the cellar.")
    kept = remember("The box stands in the cellar behind the stairs.")
    assert invoke("memory", "dedup", "--scope", "global").errors == "no two facts say the same\n"
    dry = invoke("memory", "dedup", "--dry-run")
    assert dry.errors == "would merge 1 fact; nothing was changed\n"
    assert dry.output.splitlines()[0].startswith(f"{kept[-12:]}  ")
    assert dry.output.splitlines()[1].startswith("  ")
    assert len(invoke("memory", "list", "--json").json) == 2
    told = invoke("memory", "dedup", "--json").json
    (group,) = told["groups"]
    assert group["kept"]["id"] == kept
    assert group["kept"]["merged_from"] == [one["id"] for one in group["given_up"]]
    assert group["before"] == "The box stands in the cellar behind the stairs."
    assert (told["skipped"], told["dry_run"]) == ([], False)
    assert [one["id"] for one in invoke("memory", "list", "--json").json] == [kept]


def test_groups_that_changed_meanwhile_are_told_of(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        remember(f"Shelf {number} stands in the cellar.")
        remember(f"Shelf {number} stands in the cellar today.")
    monkeypatch.setattr(HeldScope, "is_unchanged", lambda self, known: False)
    done = invoke("memory", "dedup")
    assert "left 2 groups as they are: something changed meanwhile; run it again" in done.errors


def test_a_setting_of_deduplication_that_does_not_fit_is_named(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[memory.deduplication]\nlikeness = 2\n")
    errors = invoke("memory", "dedup").errors
    assert "[memory.deduplication], key 'likeness'" in errors


def test_an_embedder_that_cannot_be_used_is_told_of_and_words_are_compared(home: Path) -> None:
    remember("The box stands in the cellar.")
    remember("The box stands in the cellar today.")
    (home / "config.toml").write_text('[memory]\nembedder = "sentence-transformers//no/folder"\n')
    done = invoke("memory", "dedup")
    assert "note: facts are compared by their words alone: " in done.errors
    assert done.errors.endswith("merged 1 fact\n")
