"""`memory reindex|dedup|status|watch` at the terminal and for programs."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.cli.command import invoke, remember
from tests.cli.terminal import Terminal
from vibe_llms.memory.changes import HeldScope

pytestmark = pytest.mark.usefixtures("warm")


def test_edits_by_hand_are_printed_until_ctrl_c(home: Path) -> None:
    invoke("memory", "add", "Ada keeps bees.")
    path = next((home / "memory").rglob("facts/*.md"))
    with Terminal("memory", "watch") as terminal:
        terminal.expect("Ctrl-C ends it")
        path.write_text(path.read_text().replace("bees", "goats"))
        terminal.expect("user-me: 1 changed; 1 remembered")
        text = path.read_text()
        path.write_text(text.replace("---", "", 1))
        terminal.expect("user-me: 1 changed; 0 remembered")
        # A note is broken where the terminal ends.
        words = r"no\s+front\s+matter\s+between"
        if not re.search(words, terminal.output):
            # It may have been seen while the change before was reported.
            terminal.expect(words)
        path.write_text(text)
        terminal.expect("user-me: 1 changed; 1 remembered")
        path.unlink()
        terminal.expect("user-me: 1 gone; 0 remembered")
        terminal.press("c-c")
        assert terminal.wait() == 130


def test_without_its_package_it_says_how_to_install_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    refused = invoke("memory", "watch")
    assert refused.status == 78
    assert "python -m pip install 'vibe-llms[watch]'" in refused.error


def test_programs_get_a_line_for_each_change(home: Path) -> None:
    invoke("memory", "add", "Ada keeps bees.")
    path = next((home / "memory").rglob("facts/*.md"))
    with Terminal("memory", "watch", "--json") as terminal:
        terminal.expect("Ctrl-C ends it")
        path.write_text(path.read_text().replace("bees", "goats"))
        line = terminal.expect(r"\{.*\}\r\n").splitlines()[-1]
        terminal.press("c-c")
        assert terminal.wait() == 130
    reported = {"scope": "user-me", "added": 0, "changed": 1, "gone": 0, "entries": 1}
    assert json.loads(line) == reported


def test_programs_get_the_number_of_indexed_entries(home: Path) -> None:
    invoke("memory", "add", "Ada keeps bees.")
    assert invoke("memory", "reindex", "--json") == (0, '{"entries": 1}\n', "")


SLOW = """
import asyncio
from vibe_llms.embedding.core import register

class Embedder:
    model = "slow"

    def __init__(self, row, configuration):
        pass

    async def embed(self, texts, *, question=False):
        await asyncio.sleep(0.6 if len(texts) == 64 else 1000)
        return [[1.0, 2.0] for _ in texts]

    async def close(self):
        pass

register("slow", Embedder)
"""


@pytest.mark.parametrize(
    "command",
    [
        ("reindex",),
        ("search", "fact"),
        ("dedup", "-m", "scripted/demo"),
        ("dedup", "-n", "-m", "scripted/demo"),
    ],
)
def test_long_work_shows_progress_and_ctrl_c_ends_it(
    home: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    items = [{"data": {"content": f"fact number {number}"}} for number in range(100)]
    (tmp_path / "memory.json").write_text(json.dumps({"memories": items}))
    invoke("memory", "import", str(tmp_path / "memory.json"))
    (tmp_path / "slow_embedder.py").write_text(SLOW)
    (home / "config.toml").write_text(
        '[embedders.slow]\nmodule = "slow_embedder"\n[memory]\nembedder = "slow"\n'
    )
    words = {
        "reindex": "building the index: 64 of 100 entries embedded ",
        "search": "searching: 64 of 100 entries embedded ",
    }
    with Terminal("memory", *command, environment={"PYTHONPATH": find_path(tmp_path)}) as terminal:
        terminal.expect(words.get(command[0], "comparing facts "))
        terminal.press("c-c")
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.output
    (home / "config.toml").unlink()
    assert invoke("memory", "list").output.count("\n") == 100


def find_path(folder: Path) -> str:
    return os.pathsep.join([str(folder), *sys.path])


@pytest.fixture
def answers(tmp_path: Path) -> str:
    """The address of a model to which the first two notes say the same, the first one more."""
    path = tmp_path / "repeats.toml"
    path.write_text("[[replies]]\nparts = [{ text = '{\"groups\": [[1, 2]]}' }]\n")
    return f"scripted/{path}"


def test_duplicate_facts_are_shown_and_merged(home: Path, answers: str) -> None:
    remember("The box stands in the cellar.")
    kept = remember("The box stands in the cellar behind the stairs.")
    assert invoke("memory", "dedup", "--scope", "global").errors == "no duplicate facts\n"
    assert invoke("memory", "dedup").errors == "no duplicate facts\n"
    dry = invoke("memory", "dedup", "--dry-run", "-m", answers)
    assert dry.errors == "would merge 1 fact; nothing was changed\n"
    assert dry.output.splitlines()[0].startswith(f"{kept[-12:]}  ")
    assert dry.output.splitlines()[1].startswith("  ")
    assert len(invoke("memory", "list", "--json").json) == 2
    reported = invoke("memory", "dedup", "-m", answers, "--json").json
    (group,) = reported["groups"]
    assert group["kept"]["id"] == kept
    assert group["kept"]["merged_from"] == [one["id"] for one in group["given_up"]]
    assert group["before"] == "The box stands in the cellar behind the stairs."
    assert (reported["skipped"], reported["dry_run"]) == ([], False)
    assert [one["id"] for one in invoke("memory", "list", "--json").json] == [kept]


def test_the_model_of_the_settings_is_asked(home: Path, answers: str) -> None:
    remember("The box stands in the cellar.")
    remember("The box stands in the cellar behind the stairs.")
    (home / "config.toml").write_text(f'[memory.ingestion]\nmodel = "{answers}"\n')
    assert invoke("memory", "dedup").errors == "merged 1 fact\n"


def test_groups_that_changed_are_reported(
    home: Path, answers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember("The shelf stands in the cellar.")
    remember("The shelf stands in the cellar today.")
    monkeypatch.setattr(HeldScope, "is_unchanged", lambda self, known: False)
    done = invoke("memory", "dedup", "-m", answers)
    assert "skipped 1 group that changed; run it again" in done.errors


def test_a_setting_of_deduplication_that_does_not_fit_is_named(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("[memory.deduplication]\nlikeness = 2\n")
    errors = invoke("memory", "dedup").errors
    assert "[memory.deduplication], key 'likeness'" in errors


def test_an_unusable_embedder_is_reported_and_words_are_compared(home: Path, answers: str) -> None:
    remember("The box stands in the cellar.")
    remember("The box stands in the cellar today.")
    (home / "config.toml").write_text('[memory]\nembedder = "sentence-transformers//no/folder"\n')
    done = invoke("memory", "dedup", "-m", answers)
    assert "note: facts are compared by words only: " in done.errors
    assert done.errors.endswith("merged 1 fact\n")
