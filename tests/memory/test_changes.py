"""Several changes as one: against the files as they are, without interruption."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from vibe_llms.base.exceptions import ArchiveLocked, MemoryInvalid
from vibe_llms.memory.changes import HeldScope, evict
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Entry, Role, Scope
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.index import ScopeIndex
from vibe_llms.memory.records import IndexRecord
from vibe_llms.messages.identities import produce_identity

ADA, PLACE = Scope.of_user("ada"), Scope.of_conversation("c1")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def entry(content: str = "tea", *, scope: Scope = ADA, role: Role = Role.FACT) -> Entry:
    return Entry(
        content=content, identity=produce_identity(), scope=scope, created=BEGIN, role=role
    )


async def test_what_is_added_is_held_found_and_a_repeat_from_then_on(memory: Memory) -> None:
    fact, turn = entry(" tea "), entry("tea", role=Role.USER)

    def work(held: HeldScope) -> None:
        assert held.scope == ADA
        assert not held.holds(fact)
        assert held.has_forgotten(fact)
        added = held.add(fact)
        assert added.content == "tea"
        held.add(turn)
        assert held.holds(fact)
        assert not held.has_forgotten(fact)
        assert held.find(fact.identity) == added
        assert held.find_repeat(entry("TEA!")) == added
        assert [known.identity for known in held.entries] == sorted([fact.identity, turn.identity])

    await memory.change(ADA, work)
    assert {one.entry.identity for one in await memory.search("tea", scopes=[ADA])} == {
        fact.identity,
        turn.identity,
    }


async def test_what_may_not_be_remembered_is_refused_here_too(memory: Memory) -> None:
    with pytest.raises(MemoryInvalid):
        await memory.change(ADA, lambda held: held.add(entry(" ")))
    assert await memory.survey(ADA) == []


async def test_what_is_dropped_is_not_reported_as_deleted(memory: Memory) -> None:
    fact = await memory.add("tea", scope=ADA)

    def work(held: HeldScope) -> None:
        assert held.delete(fact, replaced_by="other")
        assert not held.delete(fact)
        assert not held.rewrite(fact)
        assert held.find(fact.identity) is None
        assert held.is_deleted(fact)
        assert not held.holds(fact)
        assert not held.has_forgotten(fact)

    await memory.change(ADA, work)
    await memory.forget("tea")
    assert await memory.change(ADA, lambda held: held.has_forgotten(fact))
    assert await memory.change(PLACE, lambda held: held.has_forgotten(fact))


async def test_a_change_by_hand_is_seen(memory: Memory) -> None:
    fact = await memory.add("tea", scope=ADA)
    (path,) = memory.folder.rglob("*.md")
    path.write_text(path.read_text().replace("tea", "cocoa"))
    found = await memory.change(ADA, lambda held: held.find(fact.identity))
    assert found is not None
    assert found.content == "cocoa"


async def test_others_wait_until_a_change_is_whole(memory: Memory) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(held: HeldScope) -> int:
        begun.set()
        assert go_on.wait(60)
        held.add(entry("coffee"))
        return len(held.entries)

    changing = asyncio.create_task(memory.change(ADA, work))
    await asyncio.to_thread(begun.wait, 60)
    other = Memory(memory.folder, durable=False, lock_seconds=0)
    with pytest.raises(ArchiveLocked):
        await other.add("tea", scope=ADA)
    waiting = asyncio.create_task(Memory(memory.folder, durable=False).add("tea", scope=ADA))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    go_on.set()
    assert await changing == 1
    await waiting
    assert len(await memory.survey(ADA)) == 2


async def test_the_oldest_go_first_summaries_never_and_what_is_important_last(
    memory: Memory,
) -> None:
    kinds = [(Role.FACT, 0.9), (Role.SUMMARY, 0.5), (Role.USER, 0.5), (Role.FACT, 0.5)]
    for day, (role, importance) in enumerate(kinds * 2):
        created = BEGIN + timedelta(days=day)
        await memory.add(f"n{day}", scope=ADA, role=role, importance=importance, created=created)

    async def left(most: int) -> list[str]:
        await memory.change(ADA, lambda held: evict(held, most))
        return [one.content for one in await memory.survey(ADA)]

    assert len(await left(6)) == 8
    assert await left(4) == ["n0", "n1", "n4", "n5", "n6", "n7"]
    assert await left(2) == ["n0", "n1", "n4", "n5"]
    assert await left(1) == ["n1", "n4", "n5"]
    assert len(list(memory.folder.rglob("deleted/**/*.md"))) == 5


async def test_a_file_that_goes_while_entries_are_evicted_is_passed_over(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(3):
        await memory.add(f"n{day}", scope=ADA, created=BEGIN + timedelta(days=day))
    monkeypatch.setattr(
        HeldScope,
        "read",
        lambda self, known: None if known.created == BEGIN else self._index.read(known),
    )
    gone = await memory.change(ADA, lambda held: evict(held, 2))
    assert [one.content for one in gone] == ["n1"]


def count_costs(folder: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How often a folder is looked through, and sorted, where so many entries are looked up."""
    memory = Memory(folder, durable=False)

    async def fill() -> list[str]:
        return [(await memory.add(f"fact {number}", scope=ADA)).identity for number in range(count)]

    identities = asyncio.run(fill())
    looks = sorts = 0
    look = MemoryFiles.scan

    def count_look(self: MemoryFiles, scope: Scope, *, deleted: bool = False) -> object:
        nonlocal looks
        looks += 1
        return look(self, scope, deleted=deleted)

    def count_sort(self: ScopeIndex) -> Iterator[IndexRecord]:
        nonlocal sorts
        sorts += 1
        return iter(self._database)

    def work(held: HeldScope) -> None:
        for number, identity in enumerate(identities):
            found = held.find(identity)
            assert found is not None
            assert found.content == f"fact {number}"
            if number % 3 == 0:
                assert held.rewrite(msgspec.structs.replace(found, importance=0.9))
                assert held.find(identity) != found
            if number % 3 == 1:
                assert held.delete(found)
                assert held.find(identity) is None
        assert held.find("unknown") is None

    with monkeypatch.context() as counting:
        counting.setattr(MemoryFiles, "scan", count_look)
        counting.setattr(ScopeIndex, "__iter__", count_sort)
        asyncio.run(memory.change(ADA, work))
    left = asyncio.run(memory.survey(ADA))
    assert [entry.content for entry in left] == [
        f"fact {number}" for number in range(count) if number % 3 != 1
    ]
    assert [entry.importance for entry in left][:2] == [0.9, 0.5]
    return looks, sorts


def test_looking_up_many_entries_looks_through_the_folder_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, sorts = count_costs(tmp_path, 60, monkeypatch)
    # Once more where the index is stored.
    assert looks <= 2
    assert sorts == 0


def test_looking_through_the_folder_for_each_entry_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locate(self: HeldScope, identity: str) -> IndexRecord | None:
        return next((known for known in self.entries if known.identity == identity), None)

    monkeypatch.setattr(HeldScope, "_locate", locate)
    looks, sorts = count_costs(tmp_path, 60, monkeypatch)
    assert looks > 60 < sorts


async def test_what_is_changed_by_hand_while_it_is_held_is_seen_where_it_is_found(
    memory: Memory,
) -> None:
    fact = await memory.add("tea", scope=ADA)
    other = await memory.add("coffee", scope=ADA)
    (path,) = memory.folder.rglob(f"*{fact.identity}.md")
    (others,) = memory.folder.rglob(f"*{other.identity}.md")

    def work(held: HeldScope) -> None:
        assert held.find(fact.identity) == fact
        path.write_text(path.read_text().replace("tea", "rum"))
        found = held.find(fact.identity)
        assert found is not None
        assert found.content == "rum"
        # Another file has its name now, and the entry lies somewhere else.
        path.rename(path.with_name("moved.md"))
        others.rename(path)
        assert held.find(fact.identity) == found
        assert held.delete(found)
        assert held.find(fact.identity) is None
        assert held.find(other.identity) == other

    await memory.change(ADA, work)
    assert [one.content for one in await memory.survey(ADA)] == ["coffee"]


async def test_of_copies_of_an_entry_the_first_is_taken_until_it_goes(memory: Memory) -> None:
    fact = await memory.add("tea", scope=ADA)
    (path,) = memory.folder.rglob("*.md")
    copy = path.with_name("zz.md")

    def work(held: HeldScope) -> None:
        assert held.find(fact.identity) == fact
        copy.write_bytes(path.read_bytes().replace(b"tea", b"rum"))
        assert len(held.entries) == 2
        assert held.find(fact.identity) == fact
        assert held.delete(fact)
        left = held.find(fact.identity)
        assert left is not None
        assert left.content == "rum"

    await memory.change(ADA, work)


async def test_what_is_written_over_a_damaged_file_is_damaged_no_more(memory: Memory) -> None:
    fact = await memory.add("tea", scope=ADA)
    (path,) = memory.folder.rglob("*.md")
    whole = path.read_bytes()

    def work(held: HeldScope) -> None:
        (known,) = held.entries
        path.write_bytes(b"no entry")
        assert held.find(fact.identity) is None
        held.write_over(fact, known)
        assert held.find(fact.identity) == fact

    await memory.change(ADA, work)
    assert path.read_bytes() == whole
    (status,) = await memory.status()
    assert (status.entries, status.damaged) == (1, ())
