"""`memory watch`: what is edited by hand is told at the terminal."""

from __future__ import annotations

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
