"""What commands say if the embedder that is set makes no vectors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import invoke

SCRIPT = '[[replies]]\nparts = [{ text = "Hello." }]\n'


@pytest.fixture
def script(home: Path, tmp_path: Path) -> str:
    (tmp_path / "weights").mkdir()
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'[memory]\nenabled = true\nembedder = "onnx/{tmp_path}/weights"\n'
        "[memory.ingestion]\nmodel = ''\n"
    )
    path = tmp_path / "script.toml"
    path.write_text(SCRIPT)
    return f"scripted/{path}"


def test_the_lines_of_a_turn_say_that_words_alone_are_searched(script: str) -> None:
    invoke("memory", "add", "The user likes tea.")
    found = invoke("chat", "-m", script, "--jsonl", "Do I like tea?")
    events = [json.loads(line) for line in found.output.splitlines()]
    notices = [one["notice"]["text"] for one in events if one["event"] == "notice"]
    assert [text for text in notices if "memory is searched by words only: onnx" in text]
    assert events[-1]["event"] == "turn-ended"


def test_a_turn_that_prints_one_object_says_it_beside_it(script: str) -> None:
    invoke("memory", "add", "The user likes tea.")
    found = invoke("chat", "-m", script, "--json", "Do I like tea?")
    assert found.json["text"] == "Hello."
    assert "memory is searched by words only: onnx" in found.errors


def test_a_search_says_it(script: str) -> None:
    invoke("memory", "add", "The user likes tea.")
    found = invoke("memory", "search", "--json", "tea")
    assert len(found.json) == 1
    assert "memory is searched by words only: onnx" in found.errors
