"""What git prints, read as values; names of every kind survive the way there and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.memory.repositories import ask_git
from vibe_llms.memory.core import Memory
from vibe_llms.memory.objects import read_batch, read_log, read_objects, unquote
from vibe_llms.memory.repository import Repository


@pytest.mark.parametrize(
    ("quoted", "path"),
    [
        (b"plain name.md", b"plain name.md"),
        (rb'"a\tb\"c\\d\303\274"', b'a\tb"c\\d\xc3\xbc'),
        (rb'"\a\b\v\f\r\n"', b"\a\b\v\f\r\n"),
    ],
)
def test_what_git_quotes_is_understood(quoted: bytes, path: bytes) -> None:
    assert unquote(quoted) == path


async def test_history_trees_and_objects_are_read(tmp_path: Path) -> None:
    memory = Memory(tmp_path, durable=False)
    repository = Repository(tmp_path)
    entry = await memory.add("Ada keeps bees.")
    repository.commit()
    await memory.remove(entry.identity)
    repository.commit()
    with repository.working() as run:
        newest, first = read_log(run)
        objects = [(kind, data) for kind, _, data in read_objects(run)]
        missing = [*read_batch(run("cat-file", "--batch", data=b"0" * 40 + b"\n"))]
    assert [change.status for change in first.changes] == ["A", "A"]
    assert sorted(change.status for change in newest.changes) == ["A", "D"]
    assert newest.name.decode() == ask_git(tmp_path, "rev-parse", "HEAD").strip()
    assert {kind for kind, _ in objects} == {b"blob", b"tree", b"commit"}
    assert sum(b"bees" in data for _, data in objects) == 1
    assert missing == []
