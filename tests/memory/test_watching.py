"""Watching: edits by hand are noticed while one looks on, however an editor makes them."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.memory.repositories import ask_git
from vibe_llms.base.exceptions import PackageMissing
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import GLOBAL, Scope
from vibe_llms.memory.versions import Versions
from vibe_llms.memory.watching import Noticed, watch

ADA, BEN = Scope.of_user("ada"), Scope.of_user("ben")
_PATIENCE_SECONDS = 60


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(tmp_path / "memory", durable=False)


def text_of(identity: str, content: str) -> str:
    return f"---\nid: {identity}\ncreated_at: 2026-01-01\n---\n\n{content}\n"


async def gather(changes: AsyncIterator[Noticed], wanted: set[tuple[Scope, int]]) -> list[Noticed]:
    """What is noticed until each scope has as many entries as it shall have."""
    found: list[Noticed] = []
    async with asyncio.timeout(_PATIENCE_SECONDS):
        async for one in changes:
            found.append(one)
            if wanted <= {(each.scope, each.entries) for each in found}:
                return found
    raise AssertionError("the watch has ended")


async def test_edits_of_every_kind_are_noticed(memory: Memory) -> None:
    entry = await memory.add("Ada keeps bees.", scope=ADA)
    facts = memory.folder / "entries" / "user-ada" / "facts"
    path = next(facts.glob("*.md"))
    async with watch(memory) as changes:
        # As editors write: another file, renamed over the old one.
        (facts / "4913~").write_text(path.read_text().replace("bees", "wild bees"))
        os.replace(facts / "4913~", path)
        (one,) = await gather(changes, {(ADA, 1)})
        assert (one.added, one.changed, one.gone) == (0, 1, 0)
        (facts / "new.md").write_text(text_of("new-1", "Ada keeps goats."))
        (one,) = await gather(changes, {(ADA, 2)})
        assert (one.added, one.changed, one.gone) == (1, 0, 0)
        (facts / "new.md").unlink()
        (one,) = await gather(changes, {(ADA, 1)})
        assert (one.added, one.changed, one.gone) == (0, 0, 1)
        # Into a scope that was not there yet.
        home = memory.folder / "entries" / "user-ben" / "facts"
        home.mkdir(parents=True)
        path.rename(home / path.name)
        found = await gather(changes, {(ADA, 0), (BEN, 1)})
        assert {(one.scope, one.added, one.gone) for one in found if one.added + one.gone} == {
            (ADA, 0, 1),
            (BEN, 1, 0),
        }
        await Memory(memory.folder).remove(entry.identity)
        await gather(changes, {(BEN, 0)})
        shutil.rmtree(memory.folder / "entries" / "user-ben")
        (one, *_) = await gather(changes, {(BEN, 0)})
        assert one.gone == 1


async def test_a_storm_of_edits_is_reported_briefly(memory: Memory) -> None:
    facts = memory.folder / "entries" / "global" / "facts"
    facts.mkdir(parents=True)
    async with watch(memory) as changes:
        for number in range(1000):
            (facts / f"{number}.md").write_text(text_of(f"n-{number}", f"fact number {number}"))
        found = await gather(changes, {(GLOBAL, 1000)})
    assert sum(one.added for one in found) == 1000
    assert len(found) < 100
    assert len(await memory.search("number 512")) > 0


async def test_what_came_before_the_watch_began_is_noticed(memory: Memory) -> None:
    await memory.add("Ada keeps bees.")
    async with watch(memory) as changes:
        facts = memory.folder / "entries" / "global" / "facts"
        # No change has been asked for, so nothing is watched yet.
        (facts / "new.md").write_text(text_of("new-1", "Ben keeps goats."))
        (one,) = await gather(changes, {(GLOBAL, 2)})
    assert one.added == 1


async def test_a_memory_that_is_empty_is_watched(memory: Memory) -> None:
    async with watch(memory) as changes:
        task = asyncio.create_task(gather(changes, {(GLOBAL, 1)}))
        await asyncio.sleep(0)
        await Memory(memory.folder).add("Ada keeps bees.")
        found = await task
    assert sum(one.added for one in found) == 1


async def test_links_are_not_followed(memory: Memory, tmp_path: Path) -> None:
    await memory.add("Ada keeps bees.")
    outside = tmp_path / "outside" / "facts"
    outside.mkdir(parents=True)
    (memory.folder / "entries" / "user-ada").symlink_to(outside.parent)
    async with watch(memory) as changes:
        (outside / "secret.md").write_text(text_of("s-1", "a secret"))
        (memory.folder / "entries" / "global" / "facts" / "new.md").write_text(
            text_of("new-1", "Ben keeps goats.")
        )
        found = await gather(changes, {(GLOBAL, 2)})
    assert {one.scope for one in found} == {GLOBAL}


async def test_versions_of_edits_are_kept_while_it_watches(tmp_path: Path) -> None:
    memory = Memory(tmp_path, durable=False, versions=Versions(tmp_path, quiet_seconds=0.01))
    entry = await memory.add("Ada keeps bees.")
    path = next(tmp_path.rglob(f"*{entry.identity}.md"))
    async with watch(memory) as changes:
        path.write_text(path.read_text().replace("bees", "goats"))
        await gather(changes, {(GLOBAL, 1)})
    await memory.close()
    assert "goats" in ask_git(tmp_path, "log", "-p")


async def test_leaving_and_cancelling_end_it(memory: Memory) -> None:
    async with watch(memory) as changes:
        pass
    assert [one async for one in changes] == []

    async def work() -> None:
        async with watch(memory) as others:
            async for _ in others:
                pass

    task = asyncio.create_task(work())
    await asyncio.sleep(0.1)
    task.cancel()
    async with asyncio.timeout(_PATIENCE_SECONDS):
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_missing_package_is_reported(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    with pytest.raises(PackageMissing, match=r"vibe-llms\[watch\]"):
        async with watch(memory):
            pass
    assert not memory.folder.exists()
