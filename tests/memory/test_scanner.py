"""A folder is looked at as closely as it has to be: nothing that changed is missed for long."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from vibe_llms.memory import scanner
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import GLOBAL, Entry
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.places import Difference, FileStat
from vibe_llms.memory.scanner import DirectoryScanner


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look counts as one that takes long, and the next whole one is far away."""
    monkeypatch.setattr(scanner, "_QUICK", 0.0)
    monkeypatch.setattr(scanner, "_REST", 1e9)
    monkeypatch.setattr(scanner, "_UNSETTLED", -(10**18))


def count(monkeypatch: pytest.MonkeyPatch, name: str) -> list[None]:
    """Counts the calls of a method of the files."""
    calls: list[None] = []
    original = getattr(MemoryFiles, name)

    def counting(self: MemoryFiles, *arguments: object, **named: object) -> object:
        calls.append(None)
        return original(self, *arguments, **named)

    monkeypatch.setattr(MemoryFiles, name, counting)
    return calls


async def contents(memory: Memory) -> list[str]:
    found = await memory.search("lantern")
    return sorted(one.entry.content for one in found)


@pytest.mark.usefixtures("slow")
async def test_where_nothing_changed_no_file_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(tmp_path, durable=False)
    await memory.add("A red lantern.")
    looks, glances = count(monkeypatch, "scan"), count(monkeypatch, "scan_inodes")
    for _ in range(5):
        assert await contents(memory) == ["A red lantern."]
    assert len(looks) <= 1
    assert len(glances) <= 1


@pytest.mark.usefixtures("slow")
async def test_what_others_add_move_and_remove_is_noticed_at_a_glance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, other = Memory(tmp_path, durable=False), Memory(tmp_path, durable=False)
    await memory.add("A red lantern.")
    assert await contents(memory) == ["A red lantern."]
    blue = await other.add("A blue lantern.")
    looks = count(monkeypatch, "scan")
    assert await contents(memory) == ["A blue lantern.", "A red lantern."]
    # An editor writes another file and gives it the old name.
    (path,) = tmp_path.rglob(f"*{blue.identity}.md")
    path.with_name("new").write_text(path.read_text("utf-8").replace("blue", "green"), "utf-8")
    os.replace(path.with_name("new"), path)
    assert await contents(memory) == ["A green lantern.", "A red lantern."]
    path.write_text("no entry", "utf-8")
    os.utime(path.parent)
    path.unlink()
    assert await contents(memory) == ["A red lantern."]
    assert looks == []


@pytest.mark.usefixtures("slow")
async def test_a_file_written_over_in_place_is_noticed_by_the_next_whole_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(tmp_path, durable=False)
    entry = await memory.add("A red lantern.")
    await contents(memory)
    (path,) = tmp_path.rglob(f"*{entry.identity}.md")
    text = path.read_text("utf-8")
    path.write_text(text.replace("lantern", "kettle"), "utf-8")
    # What is shown is what the file says now, whatever it was found by.
    assert await contents(memory) == ["A red kettle."]
    monkeypatch.setattr(scanner, "_REST", 0.0)
    assert await contents(memory) == []


def test_a_folder_that_may_change_unseen_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanner, "_QUICK", 0.0)
    monkeypatch.setattr(scanner, "_REST", 1e9)
    files = MemoryFiles(tmp_path, durable=False)
    now = datetime.now(UTC)
    files.write(Entry(content="one", identity="one", created=now))
    nothing: dict[str, FileStat] = {}
    watch = DirectoryScanner(files, GLOBAL)
    first = watch.scan(nothing, thorough=True)
    assert first is not None
    assert len(first.changed) == 1
    # It has just changed, so that its time of change proves nothing yet.
    assert watch.scan(nothing, thorough=False) == first
    assert watch.scan({**first.changed, "facts/gone.md": FileStat(1, 2, 3, 4)}, thorough=True) == (
        Difference(["facts/gone.md"], {})
    )
    monkeypatch.setattr(scanner, "_UNSETTLED", -(10**18))
    assert watch.scan(nothing, thorough=False) is not None
    assert watch.scan(nothing, thorough=False) is None
    assert watch.is_listed()
    watch.reset()
    assert watch.scan(nothing, thorough=False) is not None
