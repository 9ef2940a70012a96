"""The history of entries: from git each version, from the files what they show."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.memory.repositories import ask_git, make_program
from vibe_llms.base.exceptions import MemoryNotFound, StorageError
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import GLOBAL, Role, Scope
from vibe_llms.memory.history import Change, survey_changes
from vibe_llms.memory.versions import Versions

ADA = Scope.of_user("ada")


def reported(changes: list[Change]) -> list[tuple[str, str]]:
    return [(str(one.kind), one.entry.content) for one in changes]


async def survey(memory: Memory, identity: str = "", scope: Scope | None = None) -> list[Change]:
    scopes = None if scope is None else [scope]
    return [*await survey_changes(memory, scopes=scopes, identity=identity)]


async def test_git_shows_each_version(tmp_path: Path) -> None:
    memory = Memory(tmp_path, durable=False, versions=Versions(tmp_path, quiet_seconds=1000))
    assert memory.versions is not None
    assert await survey(memory) == []
    entry = await memory.add("Ada lives in Lisbon.", scope=ADA)
    await memory.versions.commit()
    await memory.revise(entry.identity, content="Ada lives in Porto.")
    await memory.versions.commit()
    other = await memory.add("Ada keeps bees.", scope=ADA)
    await memory.remove(entry.identity, replaced_by=other.identity)
    await memory.versions.commit()
    place = next((tmp_path / "entries" / "user-ada" / "deleted").rglob("*.md"))
    place.rename(tmp_path / "entries" / "user-ada" / "facts" / place.name)
    await memory.versions.commit()
    next(tmp_path.rglob(f"*{other.identity}.md")).unlink()
    await memory.add("Ben keeps goats.")
    foreign = tmp_path / "entries" / "user-ada" / "facts" / "mine.md"
    foreign.write_text("---\nid: mine-1\ncreated_at: 2026-01-01\n---\n\nby hand\n")
    (tmp_path / "entries" / "user-ada" / "facts" / "broken.md").write_text("no entry")
    # What has changed in between is shown as well.
    changes = await survey(memory, scope=ADA)
    lisbon, porto, bees = "Ada lives in Lisbon.", "Ada lives in Porto.", "Ada keeps bees."
    assert reported(changes)[:2] == [("added", lisbon), ("changed", porto)]
    assert sorted(reported(changes)[2:4]) == [("added", bees), ("deleted", porto)]
    assert reported(changes)[4] == ("brought back", porto)
    assert sorted(reported(changes)[5:]) == [("added", "by hand"), ("removed", bees)]
    names = ask_git(tmp_path, "log", "--reverse", "--format=%H").split()
    assert [one.commit for one in changes if one.entry.identity == entry.identity] == names[:4]
    assert len(await survey(memory)) == 8
    one = await survey(memory, identity=entry.identity[-12:])
    assert [str(change.kind) for change in one] == ["added", "changed", "deleted", "brought back"]
    assert one[2].entry.replaced_by == other.identity
    assert reported(await survey(memory, identity="mine-1")) == [("added", "by hand")]
    # A copy at another place, in one go, is still the same entry.
    path = next((tmp_path / "entries" / "user-ada" / "facts").glob(f"*{entry.identity}.md"))
    path.rename(path.with_name(f"other__{entry.identity}.md"))
    assert reported(await survey(memory, identity=entry.identity))[-1] == ("changed", porto)
    await memory.forget("Porto")
    assert reported(await survey(memory, identity=entry.identity))[-1] == ("removed", porto)


async def test_files_show_what_was_made_changed_and_deleted(tmp_path: Path) -> None:
    memory = Memory(tmp_path, durable=False)
    long_ago = datetime(2020, 5, 1, tzinfo=UTC)
    said = await memory.add("I like tea", role=Role.USER, created=long_ago, scope=ADA)
    entry = await memory.add("Ada keeps bees.", scope=ADA)
    kept = await memory.add("Ada keeps wild bees.")
    await memory.remove(entry.identity, replaced_by=kept.identity)
    path = next(tmp_path.rglob(f"*{kept.identity}.md"))
    later = datetime.now(UTC) + timedelta(minutes=5)
    os.utime(path, (later.timestamp(), later.timestamp()))
    (path.parent / "broken.md").write_text("no entry")
    changes = await survey(memory)
    assert reported(changes) == [
        ("added", "I like tea"),
        ("added", "Ada keeps bees."),
        ("added", "Ada keeps wild bees."),
        ("deleted", "Ada keeps bees."),
        ("changed", "Ada keeps wild bees."),
    ]
    # When it was written, not when it was said.
    assert changes[0].time > long_ago
    assert changes[3].entry.replaced_by == kept.identity
    assert reported(await survey(memory, scope=GLOBAL)) == [
        reported(changes)[2],
        reported(changes)[4],
    ]
    assert reported(await survey(memory, identity=said.identity)) == [reported(changes)[0]]


async def test_a_foreign_identity_has_the_time_that_its_file_says(
    tmp_path: Path,
) -> None:
    facts = tmp_path / "entries" / "global" / "facts"
    facts.mkdir(parents=True)
    (facts / "a.md").write_text("---\nid: mine-1\ncreated_at: 2026-01-01\n---\n\nby hand\n")
    (first, *_) = await survey(Memory(tmp_path))
    assert first.time == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("versions", [False, True])
async def test_what_is_not_known_is_reported(tmp_path: Path, versions: bool) -> None:
    kept = Versions(tmp_path, quiet_seconds=1000) if versions else None
    memory = Memory(tmp_path, durable=False, versions=kept)
    first = await memory.add("Ada keeps bees.")
    second = await memory.add("Ben keeps goats.")
    # Their beginnings are their times.
    assert first.identity[:6] == second.identity[:6]
    with pytest.raises(MemoryNotFound, match="several entries"):
        await survey(memory, identity=first.identity[:6])
    with pytest.raises(MemoryNotFound, match="too short"):
        await survey(memory, identity="abc")
    with pytest.raises(MemoryNotFound, match="no entry matches"):
        await survey(memory, identity="nonesuch")


async def test_where_git_fails_the_files_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(tmp_path, durable=False, versions=Versions(tmp_path, quiet_seconds=1000))
    await memory.add("Ada keeps bees.")
    assert [one.commit != "" for one in await survey(memory)] == [True]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [one.commit != "" for one in await survey(memory)] == [False]


async def test_a_git_that_hangs_is_killed_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "memory"
    memory = Memory(folder, durable=False, versions=Versions(folder))
    entry = await memory.add("Ada keeps bees.")
    await memory.close()
    make_program(tmp_path / "bin" / "git", "sleep 1000")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    lines: list[str] = []
    async with asyncio.timeout(20):
        found = await survey_changes(memory, notify=lines.append, seconds=0.5)
    assert [one.entry.identity for one in found] == [entry.identity]
    (line,) = lines
    assert line.startswith(
        "git cannot be read; changes come from the files: git for-each-ref took longer"
    )
    await memory.close()


async def test_what_git_keeps_is_shown_where_it_can_only_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(tmp_path, durable=False, versions=Versions(tmp_path))
    await memory.add("Ada keeps bees.")
    await memory.close()

    async def refuse(self: Versions, **_: float) -> int:
        raise StorageError("the file system is read-only")

    monkeypatch.setattr(Versions, "commit", refuse)
    lines: list[str] = []
    (change,) = await survey_changes(memory, notify=lines.append)
    assert change.commit
    words = "the latest changes are not committed and not listed: the file system is read-only"
    assert lines == [words]
