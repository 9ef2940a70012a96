"""Versions in the background: whatever git does, what is remembered is saved without waiting."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.memory.repositories import ask_git, list_committed, list_files, make_program
from vibe_llms.base.exceptions import StorageError, VersioningFailed
from vibe_llms.memory import repository, versions
from vibe_llms.memory.core import Memory
from vibe_llms.memory.repository import Repository
from vibe_llms.memory.versions import Versions

_PATIENCE_SECONDS = 60


class Kept:
    """A memory with versions, and what they reported."""

    def __init__(self, folder: Path, **options: float) -> None:
        self.reported: list[str] = []
        chosen = {"quiet_seconds": 0.01, **options}
        self.versions = Versions(folder, notify=self.reported.append, **chosen)
        self.memory = Memory(folder, durable=False, versions=self.versions)


def replace_git(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    make_program(folder / "bin" / "git", script)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")


async def wait_for(path: Path) -> None:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while not path.exists():
            await asyncio.sleep(0.01)


async def test_what_changes_is_committed_in_the_background(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    entry = await kept.memory.add("Ada keeps bees.")
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while not (tmp_path / ".git" / "refs" / "heads" / "main").exists():
            await asyncio.sleep(0.01)
    await kept.memory.revise(entry.identity, content="Ada keeps wild bees.")
    await kept.memory.remove(entry.identity)
    await kept.memory.close()
    assert list_committed(tmp_path) == list_files(tmp_path)
    await kept.memory.close()
    status = await kept.versions.status()
    assert status.last is not None
    assert datetime.now(UTC) - status.last < timedelta(minutes=5)
    assert (status.failure, status.since, kept.reported) == ("", None, [])
    assert threading.active_count() < 20


async def test_what_belongs_together_is_one_commit_however_long_it_takes(tmp_path: Path) -> None:
    kept = Kept(tmp_path, quiet_seconds=0.0)
    before = set(threading.enumerate())
    with kept.memory.grouped():
        await kept.memory.add("Ada keeps bees.")
        with kept.memory.grouped():
            await kept.memory.add("Ben keeps goats.")
        # Nothing is at work that could commit half of it.
        assert not [one for one in set(threading.enumerate()) - before if one.name == "versions"]
        assert not (tmp_path / ".git" / "refs" / "heads" / "main").exists()
        await kept.memory.add("Cleo keeps cats.")
    await kept.memory.close()
    assert ask_git(tmp_path, "log", "--format=%s").splitlines() == ["Add 3"]


async def test_what_was_noticed_before_waits_for_what_belongs_together(tmp_path: Path) -> None:
    kept = Kept(tmp_path, quiet_seconds=_PATIENCE_SECONDS)
    await kept.memory.add("Ada keeps bees.")
    with kept.memory.grouped():
        await kept.memory.add("Ben keeps goats.")
        # This ends the quiet moment that the first change has begun.
        await kept.versions.close()
        assert not (tmp_path / ".git" / "refs" / "heads" / "main").exists()
    await kept.memory.close()
    assert ask_git(tmp_path, "log", "--format=%s").splitlines() == ["Add 2"]


async def test_many_changes_are_few_commits(tmp_path: Path) -> None:
    kept = Kept(tmp_path, quiet_seconds=_PATIENCE_SECONDS)
    for number in range(50):
        await kept.memory.add(f"fact {number}")
    # Closing waits for no quiet moment.
    await kept.memory.close()
    assert ask_git(tmp_path, "log", "--format=%s").splitlines() == ["Add 50"]
    await kept.memory.add("one more, after it was closed")
    await kept.memory.close()
    assert ask_git(tmp_path, "log", "--format=%s").splitlines() == ["Add 1", "Add 50"]


async def test_a_question_commits_nothing(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    await kept.memory.search("bees")
    await kept.memory.survey()
    await kept.memory.close()
    assert not (tmp_path / ".git").exists()


async def test_no_one_waits_for_a_git_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    replace_git(tmp_path, monkeypatch, f'touch "{started}"; sleep 1000')
    kept = Kept(tmp_path / "memory", close_seconds=0.5)
    await kept.memory.add("the first one")
    await wait_for(started)
    # That git lives on, while everything else goes its way.
    async with asyncio.timeout(_PATIENCE_SECONDS):
        for number in range(20):
            await kept.memory.add(f"fact {number}")
        assert len(await kept.memory.search("fact")) == 10
        assert kept.versions._thread is not None
        await kept.memory.close()
    assert len(await Memory(tmp_path / "memory").survey()) == 21
    assert len(kept.reported) == 1
    assert "entries are saved" in kept.reported[0]
    # The next one does not even try to wait, since it was so slow a moment ago.
    other = Kept(tmp_path / "memory", close_seconds=1000)
    started.unlink()
    await other.memory.add("another")
    await wait_for(started)
    async with asyncio.timeout(_PATIENCE_SECONDS):
        await other.memory.close()
    status = await other.versions.status()
    assert status.failure
    assert status.since is not None
    monkeypatch.undo()
    assert await other.versions.commit() == 23
    assert (await other.versions.status()).failure == ""


async def test_waiting_for_git_would_be_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_git(tmp_path, monkeypatch, "sleep 1000")
    kept = Kept(tmp_path / "memory")

    def commit_at_once(self: Versions) -> None:
        self.repository.commit()

    monkeypatch.setattr(Versions, "notice", commit_at_once)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await kept.memory.add("the first one")
    kept.versions.repository.git.abort()


async def test_a_missing_git_is_reported_once_and_shown_by_the_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    reported: list[str] = []
    for name in ("bees", "goats"):
        kept = Kept(tmp_path / "memory")
        await kept.memory.add(f"Ada keeps {name}.")
        await kept.memory.add(f"Ben keeps {name}.")
        await kept.memory.close()
        # Another process, later, has nothing new to report.
        reported += kept.reported
    assert len(reported) == 1
    assert "git is not installed" in reported[0]
    status = await kept.versions.status()
    assert "git is not installed" in status.failure
    with pytest.raises(VersioningFailed, match="git is not installed"):
        await kept.versions.commit()
    monkeypatch.undo()
    # The status shows what was, until there is a commit again.
    assert (await kept.versions.status()).failure
    assert await kept.versions.commit() == 5
    assert (await kept.versions.status()).failure == ""


async def test_a_failure_of_another_kind_is_reported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "memory"
    kept = Kept(folder)
    monkeypatch.setenv("PATH", str(tmp_path))
    await kept.memory.add("Ada keeps bees.")
    await kept.memory.close()
    monkeypatch.undo()
    (folder / ".git").write_text("gitdir: elsewhere")
    await kept.memory.add("Ben keeps goats.")
    await kept.memory.close()
    assert ["is not installed" in text for text in kept.reported] == [True, False]
    assert "not a folder with a git" in (await kept.versions.status()).failure


async def test_a_disk_that_keeps_no_state_is_reported_once_by_each_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path)
    (tmp_path / "versions.json").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    for number in range(3):
        await kept.memory.add(f"fact {number}")
        await kept.memory.close()
    assert len(kept.reported) == 1
    assert len(await kept.memory.survey()) == 3


async def test_a_full_disk_has_room_for_the_state_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path)
    await kept.memory.add("Ada keeps bees.")
    await kept.memory.close()
    before = await kept.versions.status()

    def fill(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    await kept.memory.add("Ben keeps goats.")
    monkeypatch.setattr(versions, "replace_file", fill)
    monkeypatch.setattr(repository, "write_new", fill)
    monkeypatch.setattr(repository, "replace_file", fill)
    with pytest.raises(StorageError, match="the disk is full"):
        await kept.versions.commit()
    status = await kept.versions.status()
    assert "the disk is full; free some space" in status.failure
    assert status.last == before.last
    assert kept.reported[0].startswith("entries are saved, but were not committed to git: ")


async def test_a_fault_of_ours_does_not_end_the_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path)
    seen: list[object] = []
    monkeypatch.setattr(threading, "excepthook", seen.append)

    def fail(_: Repository) -> int:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Repository, "commit", fail)
        await kept.memory.add("Ada keeps bees.")
        await kept.memory.close()
        end = time.monotonic() + _PATIENCE_SECONDS
        while not seen:
            assert time.monotonic() < end
    await kept.memory.add("Ben keeps goats.")
    await kept.memory.close()
    assert list_committed(tmp_path) == list_files(tmp_path)


async def test_a_state_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    await kept.memory.add("Ada keeps bees.")
    await kept.memory.close()
    for data in (b"", b"[]", b"\xff", b'{"failure": 1}'):
        (tmp_path / "versions.json").write_bytes(data)
        assert (await kept.versions.status()).failure == ""


async def test_a_repository_that_another_one_holds_is_waited_for(tmp_path: Path) -> None:
    kept = Kept(tmp_path, seconds=2)
    await kept.memory.add("Ada keeps bees.")
    await kept.memory.close()
    refused = pytest.raises(StorageError, match="another process")
    with kept.versions.repository.working(), refused:
        await kept.versions.commit()
    assert await kept.versions.commit() == 0
