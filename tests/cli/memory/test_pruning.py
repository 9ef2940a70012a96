"""`memory prune` at the terminal and for programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.command import invoke
from tests.cli.terminal import Terminal


@pytest.fixture
def old(home: Path) -> Path:
    """A home with three facts, of which two are years old."""
    for text, importance in (("bees", "0.3"), ("an allergy", "0.9"), ("goats", "0.3")):
        invoke("memory", "add", "--importance", importance, f"Ada has {text}.")
    for path in (home / "memory").rglob("facts/*.md"):
        text = path.read_text()
        if "goats" not in text:
            lines = [
                "created_at: '2020-01-01T12:00:00+00:00'" if "created_at" in line else line
                for line in text.splitlines()
            ]
            path.write_text("\n".join(lines) + "\n")
            os.utime(path, (1_577_880_000, 1_577_880_000))
    return home


def survey(home: Path) -> list[str]:
    rows = invoke("memory", "list", "--json").json
    return sorted(row["content"] for row in rows)


def test_it_lists_then_removes(old: Path) -> None:
    listed = invoke("memory", "prune", "--days", "365", "--dry-run")
    assert "Ada has bees." in listed.output
    assert "allergy" not in listed.output
    assert "would forget 1 entry; nothing was changed" in listed.errors
    assert len(survey(old)) == 3
    report = invoke("memory", "prune", "--days", "365", "--dry-run", "--json").json
    assert (report["count"], report["dry_run"]) == (1, True)
    assert report["forgotten"][0]["content"] == "Ada has bees."
    done = invoke("memory", "prune", "--days", "365", "--yes")
    assert (done.status, "forgot 1 entry" in done.errors) == (0, True)
    assert survey(old) == ["Ada has an allergy.", "Ada has goats."]
    again = invoke("memory", "prune", "--days", "365", "--yes")
    assert "no old entries" in again.errors
    all_of_it = invoke("memory", "prune", "--days", "365", "--importance", "1", "--yes", "--json")
    assert [one["content"] for one in all_of_it.json["forgotten"]] == ["Ada has an allergy."]


def test_it_uses_the_settings(old: Path) -> None:
    (old / "config.toml").write_text("[memory]\nkeep-days = 365\nkeep-importance = 1.0\n")
    assert invoke("memory", "prune", "--dry-run", "--json").json["count"] == 2


def test_without_an_age_it_says_what_to_set(old: Path) -> None:
    refused = invoke("memory", "prune", "--dry-run")
    assert refused.status == 78
    assert "no age is set; use --days" in refused.error
    assert invoke("memory", "prune", "--days", "0").status == 2
    assert len(survey(old)) == 3


def test_without_a_terminal_it_needs_yes(old: Path) -> None:
    refused = invoke("memory", "prune", "--days", "365")
    assert refused.status != 0
    assert "--yes" in refused.errors
    assert len(survey(old)) == 3


def test_at_a_terminal_it_asks(old: Path) -> None:
    with Terminal("memory", "prune", "--days", "365") as terminal:
        terminal.expect("Ada has bees.")
        terminal.expect(r"Remove it permanently\? \[y/N\]: ")
        terminal.enter("n")
        assert terminal.wait() == 1
    assert len(survey(old)) == 3
