"""`memory reindex|status|watch` at the terminal and for programs."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.cli.command import invoke
from tests.cli.terminal import Terminal


def test_what_is_edited_by_hand_is_told_until_somebody_ends_it(home: Path) -> None:
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
        words = r"it\s+does\s+not\s+begin\s+with\s+front\s+matter"
        if not re.search(words, terminal.output):
            # It may have been seen while the change before was told.
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


def test_programs_are_told_a_line_for_each_change(home: Path) -> None:
    invoke("memory", "add", "Ada keeps bees.")
    path = next((home / "memory").rglob("facts/*.md"))
    with Terminal("memory", "watch", "--json") as terminal:
        terminal.expect("Ctrl-C ends it")
        path.write_text(path.read_text().replace("bees", "goats"))
        line = terminal.expect(r"\{.*\}\r\n").splitlines()[-1]
        terminal.press("c-c")
        assert terminal.wait() == 130
    told = {"scope": "user-me", "added": 0, "changed": 1, "gone": 0, "entries": 1}
    assert json.loads(line) == told


def test_programs_are_told_how_much_is_indexed(home: Path) -> None:
    invoke("memory", "add", "Ada keeps bees.")
    assert invoke("memory", "reindex", "--json") == (0, '{"entries": 1}\n', "")


SLOW = """
import asyncio
from vibe_llms.memory.embedders.core import register

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


@pytest.mark.parametrize("command", [("reindex",), ("search", "fact"), ("dedup",), ("dedup", "-n")])
def test_long_work_tells_how_far_it_is_and_ctrl_c_ends_it(
    home: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    items = [{"data": {"content": f"fact number {number}"}} for number in range(100)]
    (tmp_path / "memory.json").write_text(json.dumps({"memories": items}))
    invoke("memory", "import", str(tmp_path / "memory.json"))
    (tmp_path / "slow_embedder.py").write_text(SLOW)
    (home / "config.toml").write_text(
        '[embedders.slow]\nmodule = "slow_embedder"\n[memory]\nembedder = "slow"\n'
    )
    words = {"reindex": "making the index: 64 ", "search": "searching: 64 "}
    with Terminal("memory", *command, environment={"PYTHONPATH": find_path(tmp_path)}) as terminal:
        terminal.expect(words.get(command[0], "comparing facts "))
        terminal.press("c-c")
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.output
    (home / "config.toml").unlink()
    assert invoke("memory", "list").output.count("\n") == 100


def find_path(folder: Path) -> str:
    return os.pathsep.join([str(folder), *sys.path])
