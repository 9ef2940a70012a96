"""The measure of retrieval, run as its docstring says, on a dialogue of our own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / ".auxiliary" / "benchmarks" / "memory_retrieval.py"
TEXTS = {
    "a": "My violin was made by my grandfather.",
    "b": "The ferry to the island was late again.",
    "c": "We planted three apple trees behind the barn.",
}
QUESTIONS: list[tuple[str, int, list[str]]] = [
    ("Who made the violin?", 1, ["a"]),
    ("What happened to the ferry?", 1, ["b"]),
    # Of two passages that answer this one, one has none of its words.
    ("Which trees were planted?", 2, ["c", "a"]),
    ("What is the name of the horse?", 5, []),
]


def run(folder: Path, *arguments: str) -> list[str]:
    """The lines that the script prints."""
    done = start(folder, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def start(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    items = [
        {"id": name, "speaker": "Ada", "text": text, "created_at": f"2026-0{place}-01T10:00:00"}
        for place, (name, text) in enumerate(TEXTS.items(), 1)
    ]
    questions: list[dict[str, Any]] = [
        {"question": question, "category": category, "evidence": evidence}
        for question, category, evidence in QUESTIONS
    ]
    data = folder / "data.json"
    dialogue = {"conversation": "one", "items": items, "questions": questions}
    data.write_text(json.dumps([dialogue]))
    command = [sys.executable, str(SCRIPT), str(data), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("arguments", [(), ("--embedder", "none"), ("--mmr", "0.7")])
def test_the_figures_are_printed_by_category_and_the_last_line_is_the_recall(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    head, first, second, every, last = run(tmp_path, *arguments)
    assert head.split() == ["category", "asked", "recall@5", "recall@10", "MRR@10", "nDCG@10"]
    assert first.split() == ["1", "2", "100.0", "100.0", "100.0", "100.0"]
    assert second.split()[:5] == ["2", "1", "50.0", "50.0", "100.0"]
    assert every.split()[:4] == ["all", "3", "83.3", "83.3"]
    assert last == "recall@10 83.3"


def test_an_embedder_without_weights_is_an_error_and_not_the_figures_of_words(
    tmp_path: Path,
) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    done = start(tmp_path, "--embedder", "onnx", "--model", str(weights))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("nothing is measured, since the embedder makes no vectors: onnx")
