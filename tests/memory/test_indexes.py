"""Few indexes stay, none is made again while it is used, and none is lost that was not stored."""

from __future__ import annotations

import asyncio
import gc
import weakref
from array import array
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.embedders import WordsEmbedder
from vibe_llms.base.locks import LockTimeout
from vibe_llms.memory import snapshot
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import GLOBAL, Role, Scope
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.index import ScopeIndex
from vibe_llms.memory.indexes import MOST, Indexes

ADA = Scope.of_user("ada")


def talk(number: int) -> Scope:
    return Scope.of_conversation(f"c{number}")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Scope]:
    """The scopes for which an index was made, as often as that was."""
    scopes: list[Scope] = []
    begin = ScopeIndex.__init__

    def note(self: ScopeIndex, files: MemoryFiles, scope: Scope, *others: Any) -> None:
        scopes.append(scope)
        begin(self, files, scope, *others)

    monkeypatch.setattr(ScopeIndex, "__init__", note)
    return scopes


def count_alive() -> int:
    gc.collect()
    return sum(isinstance(one, ScopeIndex) for one in gc.get_objects())


async def converse(memory: Memory, count: int) -> None:
    """Turns in as many conversations, and searches as before each turn."""
    for number in range(count):
        await memory.add(f"a lantern {number}", scope=talk(number), role=Role.USER)
        await memory.add(f"a kettle {number}", scope=talk(number))
        found = await memory.search("lantern", scopes=[ADA, GLOBAL, talk(number)])
        assert [one.entry.content for one in found] == [f"a lantern {number}"]


async def is_bounded(folder: Path, count: int = 60) -> bool:
    """Whether a process that saw many conversations keeps few indexes."""
    before = count_alive()
    memory = Memory(folder, durable=False)
    await converse(memory, count)
    return count_alive() - before <= MOST


async def test_of_many_conversations_few_indexes_stay(tmp_path: Path) -> None:
    assert await is_bounded(tmp_path)


@pytest.mark.slow
async def test_indexes_that_all_stay_are_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Indexes, "_shrink", lambda self: None)
    assert not await is_bounded(tmp_path)


async def test_a_dropped_index_is_stored_and_not_rebuilt_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(tmp_path, durable=False)
    await converse(memory, MOST + 10)
    read: list[Scope] = []
    original = ScopeIndex._put

    def note(self: ScopeIndex, *arguments: object) -> None:
        read.append(self.scope)
        original(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ScopeIndex, "_put", note)
    for number in range(MOST + 10):
        assert len(await memory.search("lantern", scopes=[talk(number)])) == 1
    assert read == []


async def test_a_constantly_used_index_is_built_once(tmp_path: Path, made: list[Scope]) -> None:
    memory = Memory(tmp_path, durable=False)
    await converse(memory, 60)
    assert made.count(ADA) == made.count(GLOBAL) == 1
    assert [made.count(talk(number)) for number in range(60)] == [1] * 60


async def test_looking_through_all_scopes_drives_out_none_in_use(
    tmp_path: Path, made: list[Scope]
) -> None:
    memory = Memory(tmp_path, durable=False)
    await converse(memory, 40)
    made.clear()
    sweeps: Sequence[Callable[[], object]] = (memory.survey, memory.status, memory.reindex)
    for sweep in sweeps:
        await sweep()  # type: ignore[misc]
    latest = [talk(number) for number in range(40 - MOST + 2, 40)]
    assert not {ADA, GLOBAL, *latest} & set(made)
    assert made


async def test_embedding_all_scopes_drives_out_none_in_use(
    tmp_path: Path, made: list[Scope]
) -> None:
    memory = Memory(tmp_path, durable=False, embedder=WordsEmbedder())
    for number in range(2 * MOST):
        await memory.add("a lantern", scope=talk(number), role=Role.USER)
    assert len(await memory.search("lantern", scopes=[talk(0)])) == 1
    made.clear()
    assert await memory.embed() == 2 * MOST - 1
    assert len(await memory.search("lantern", scopes=[talk(0)])) == 1
    assert made
    assert talk(0) not in made


def refresh_in(indexes: Indexes, scope: Scope) -> ScopeIndex:
    with indexes.using(scope) as index, index.lock:
        index.refresh()
        return index


def fill(folder: Path, count: int) -> MemoryFiles:
    memory = Memory(folder, durable=False)

    async def work() -> None:
        for number in range(count):
            await memory.add("a lantern", scope=talk(number))

    asyncio.run(work())
    return MemoryFiles(folder, durable=False)


def test_what_is_used_stays_whatever_comes_in_between(tmp_path: Path) -> None:
    indexes = Indexes(fill(tmp_path, 10), "", most=2)
    with indexes.using(talk(0)) as index, indexes.pinned(talk(1)):
        for number in range(2, 10):
            refresh_in(indexes, talk(number))
        assert len(indexes) == 2
        with indexes.using(talk(0)) as again:
            assert again is index
    with indexes.using(talk(0)) as again:
        assert again is index
    with indexes.using(talk(1), passing=True):
        # A pin drives nothing out; the next who uses one does.
        assert len(indexes) == 2


def test_all_that_are_used_at_once_stay_and_then_as_many_as_shall(tmp_path: Path) -> None:
    files = fill(tmp_path, 6)
    indexes = Indexes(files, "", most=2)
    with indexes.holding([talk(number) for number in range(6)]) as held:
        assert len(indexes) == len(held) == 6
    assert len(indexes) == 2
    assert [index.scope for index in held] == [talk(number) for number in range(6)]


def test_an_index_whose_scope_another_holds_stays_until_it_can_be_stored(tmp_path: Path) -> None:
    files = fill(tmp_path, 4)
    indexes = Indexes(files, "", most=1)
    with files.changing(talk(0)):
        first = weakref.ref(refresh_in(indexes, talk(0)))
        for number in range(1, 4):
            refresh_in(indexes, talk(number))
        # It cannot be stored, and others can.
        assert first() is not None
        assert len(indexes) == 1
    refresh_in(indexes, talk(1))
    assert len(indexes) == 1
    assert (tmp_path / "index" / str(talk(0))).is_dir()
    gc.collect()
    assert first() is None


def test_on_a_full_disk_they_are_let_go_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshot, "write_new", fail)
    indexes = Indexes(fill(tmp_path, 5), "", most=2)
    for number in range(5):
        assert len(refresh_in(indexes, talk(number))) == 1
    assert len(indexes) == 2
    monkeypatch.undo()
    # What is still there can be stored later on.
    indexes.keep(LockTimeout(1))
    stored = {path.parent.name for path in (tmp_path / "index").glob("*/*")}
    assert stored == {str(talk(3)), str(talk(4))}


def test_one_that_is_used_while_it_is_stored_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexes = Indexes(fill(tmp_path, 3), "", most=1)
    first = refresh_in(indexes, talk(0))
    store = ScopeIndex.store

    def use(self: ScopeIndex, *, always: bool = False, seconds: float | None = None) -> bool:
        stored = store(self, always=always, seconds=seconds)
        if always and self is first:
            monkeypatch.undo()
            assert refresh_in(indexes, talk(0)) is first
        return stored

    monkeypatch.setattr(ScopeIndex, "store", use)
    refresh_in(indexes, talk(1))
    with indexes.using(talk(0)) as again:
        assert again is first


async def makes_vectors_once(folder: Path) -> bool:
    """Whether vectors are made once, while more scopes are used than there is room for."""
    embedder = Slow()
    memory = Memory(folder, durable=False, embedder=embedder)
    scopes = [talk(number) for number in range(3 * MOST)]
    for scope in scopes:
        for number in range(3):
            await memory.add(f"{scope} {number}", scope=scope)
    count = await asyncio.gather(*(memory.embed([scope]) for scope in scopes))
    return count == [3] * len(scopes)


class Slow(WordsEmbedder):
    """Others get their turn while it thinks."""

    async def embed(
        self, texts: Sequence[str], *, question: bool = False
    ) -> Sequence[array[float]]:
        await asyncio.sleep(0.01)
        return await super().embed(texts, question=question)


async def test_vectors_find_the_index_that_they_were_made_for(tmp_path: Path) -> None:
    assert await makes_vectors_once(tmp_path)


@pytest.mark.slow
async def test_an_index_that_goes_while_its_vectors_are_made_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Indexes, "pinned", lambda *_, **__: nullcontext())
    assert not await makes_vectors_once(tmp_path)
