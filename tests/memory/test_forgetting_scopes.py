"""A whole scope is forgotten: nothing shows afterwards that there was one, and others stay."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from pathlib import Path

import pytest

from tests.fakes.embedders import WordsEmbedder
from tests.memory.repositories import ask_git
from vibe_llms.embedding.cache import digest_text
from vibe_llms.memory.chunks import split_passages
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Role, Scope
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.forgetting import survey_traces
from vibe_llms.memory.purging import find_held, purge
from vibe_llms.memory.repository import Repository
from vibe_llms.memory.snapshot import discard_snapshots
from vibe_llms.memory.store import IndexedStore

ADA, BEN = Scope.of_user("ada"), Scope.of_user("ben")
WORD = "xyzzyq"


async def plant(memory: Memory) -> bytes:
    """Something of every kind in one scope, and a fact in another; the digest of a vector."""
    for role in Role:
        await memory.add(f"a {role} of {WORD}", role=role, scope=ADA, category="L1")
    entry = await memory.add(f"{WORD} deleted", scope=ADA)
    await memory.remove(entry.identity)
    folder = memory.folder / "entries" / "user-ada"
    (folder / "facts" / "broken.md").write_text(f"---\n[ {WORD}")
    (folder / "facts" / f".new-{WORD}").write_text(WORD)
    (folder / f"{WORD}.txt").write_bytes(b"\xff\0")
    (folder / "photos").mkdir()
    (folder / "photos" / "beach").write_text(WORD)
    (folder / "photos" / "all").symlink_to(memory.folder.parent / "photos")
    upkeep = memory.folder / "upkeep" / "user-ada"
    upkeep.mkdir(parents=True)
    (upkeep / "deduplicated.json").write_text("{}")
    await memory.add("Ben keeps goats", scope=BEN)
    await memory.search(WORD, scopes=[ADA, BEN])
    (fact,) = await memory.survey(ADA, role=Role.FACT)
    return digest_text(split_passages(fact)[0])


def find_traces(folder: Path) -> list[str]:
    """What shows the scope, by its name or its words, but for what git holds."""
    words = (WORD, "user-ada")
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if any(word in path.name for word in words)
        or (path.is_file() and any(word.encode() in path.read_bytes() for word in words))
    )


@pytest.mark.parametrize("stored", [False, True])
async def test_nothing_stays_of_a_scope(tmp_path: Path, stored: bool) -> None:
    memory = Memory(tmp_path / "memory", durable=False, embedder=WordsEmbedder())
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "mine").write_text(WORD)
    digest = await plant(memory)
    if stored:
        await memory.close()
        assert any((memory.folder / "index" / "user-ada").iterdir())
        memory = Memory(memory.folder, embedder=WordsEmbedder())
        assert await memory.search(WORD, scopes=[ADA])
    cache = memory.folder / "embeddings" / "vectors.sqlite"
    assert digest in cache.read_bytes()
    seen = await survey_traces(memory.store, None, scopes=[ADA])
    gone = await memory.forget_scope(ADA)
    assert sorted(map(str, gone)) == sorted(str(one.entry) for one in seen)
    # What was left unfinished goes when an index is stored, too.
    assert len(gone) == 9 - stored
    for _ in range(2):
        assert find_traces(memory.folder) == []
        assert digest not in cache.read_bytes()
        assert await memory.search(WORD, scopes=[ADA]) == []
        assert len(await memory.search("goats", scopes=[BEN])) == 1
        await memory.close()
        assert {one.scope for one in await memory.status()} == {BEN}
    assert (tmp_path / "photos" / "mine").exists()
    assert await memory.forget_scope(ADA) == []
    assert find_traces(memory.folder) == []
    assert (await memory.add("Ada is back", scope=ADA)).scope == ADA
    await memory.close()


@pytest.mark.parametrize("part", ["files", "vectors"])
async def test_leftovers_of_a_forgotten_scope_are_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    memory = Memory(tmp_path / "memory", durable=False, embedder=WordsEmbedder())
    digest = await plant(memory)
    await memory.close()
    if part == "files":
        monkeypatch.setattr(MemoryFiles, "erase_scope", lambda self, scope: None)
    else:
        monkeypatch.setattr(IndexedStore, "clear_cache", lambda self: None)
        monkeypatch.setattr("vibe_llms.memory.store._digest_all", lambda entries: set())
    await memory.forget_scope(ADA)
    cache = memory.folder / "embeddings" / "vectors.sqlite"
    assert bool(find_traces(memory.folder)) == (part == "files")
    assert (digest in cache.read_bytes()) == (part == "vectors")
    await memory.close()


async def test_what_is_left_of_a_scope_without_its_folder_goes(tmp_path: Path) -> None:
    memory = Memory(tmp_path, durable=False)
    await plant(memory)
    await memory.close()
    for folder in ("index", "upkeep"):
        assert (tmp_path / folder / "user-ada").is_dir()
    discard_snapshots(tmp_path / "entries" / "user-ada")
    (tmp_path / "entries" / "user-ada").rmdir()
    memory = Memory(tmp_path, durable=False)
    assert await memory.forget_scope(ADA) == []
    assert find_traces(tmp_path) == []
    await memory.close()


async def test_searches_while_a_scope_is_forgotten_find_it_or_nothing_and_leave_nothing(
    tmp_path: Path,
) -> None:
    memory, other = Memory(tmp_path, durable=False), Memory(tmp_path, durable=False)
    kept = await memory.add("Ben keeps goats", scope=BEN)
    for _ in range(4):
        added = {(await memory.add(f"{WORD} {number}", scope=ADA)).identity for number in range(3)}
        searches = [
            asyncio.create_task(one.search(f"{WORD} goats", scopes=[ADA, BEN]))
            for one in (other, memory) * 4
        ]
        assert {entry.identity for entry in await memory.forget_scope(ADA)} == added
        for found in await asyncio.gather(*searches):
            identities = {one.entry.identity for one in found}
            assert kept.identity in identities
            assert identities <= {*added, kept.identity}
        for one in (memory, other):
            assert await one.search(WORD, scopes=[ADA]) == []
            await one.close()
        assert find_traces(tmp_path) == []


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_search_while_a_scope_is_erased_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    erasing, searched = threading.Event(), threading.Event()
    erase = MemoryFiles.erase_scope

    def erase_later(self: MemoryFiles, scope: Scope) -> None:
        erasing.set()
        assert searched.wait(30)
        erase(self, scope)

    memory = Memory(tmp_path, durable=False)
    added = await memory.add(WORD, scope=ADA)
    reader = Memory(tmp_path, durable=False) if elsewhere else memory
    monkeypatch.setattr(MemoryFiles, "erase_scope", erase_later)
    forgetting = asyncio.create_task(memory.forget_scope(ADA))
    await asyncio.to_thread(erasing.wait, 30)
    found = await reader.search(WORD, scopes=[ADA])
    searched.set()
    assert [one.entry for one in found] == [added]
    assert await forgetting == [added]
    await reader.close()
    assert find_traces(tmp_path) == []
    assert await reader.search(WORD, scopes=[ADA]) == []
    await memory.close()


def add_many(folder: Path, started: int) -> None:
    async def work() -> None:
        memory = Memory(folder, durable=False)
        for number in range(40):
            await memory.add(f"number {number} of {started}", scope=ADA)
        await memory.close()

    asyncio.run(work())


async def test_an_addition_in_between_begins_the_scope_anew(tmp_path: Path) -> None:
    memory = Memory(tmp_path, durable=False)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=add_many, args=(tmp_path, one)) for one in range(2)]
    for worker in workers:
        worker.start()
    forgotten = 0
    while any(worker.is_alive() for worker in workers):
        forgotten += len(await memory.forget_scope(ADA))
        await asyncio.sleep(0.01)
    assert [worker.exitcode for worker in workers] == [0, 0]
    # What was added is either gone or there; nothing failed.
    assert forgotten + len(await memory.survey(ADA)) == 80
    await memory.close()


async def test_git_holds_nothing_of_a_scope_that_was_purged(tmp_path: Path) -> None:
    memory, repository = Memory(tmp_path, durable=False), Repository(tmp_path)
    await memory.add("Ben keeps goats", scope=BEN)
    repository.commit()
    await plant(memory)
    (tmp_path / "entries" / "user-ben" / "facts" / f"{WORD}.txt").write_text("Ben's own")
    repository.commit()
    await memory.forget_scope(ADA)
    held = await find_held(repository, None, scopes=[ADA])
    assert len(held) == 1
    repository.commit()
    assert await find_held(repository, None, scopes=[ADA]) == held
    assert await purge(repository, None, scopes=[ADA]) == held
    assert await find_held(repository, None, scopes=[ADA]) == []
    assert await purge(repository, None, scopes=[ADA]) == []
    listed = ask_git(tmp_path, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    texts = [ask_git(tmp_path, "cat-file", "-p", one) for one in listed.split()]
    assert not [text for text in texts if "user-ada" in text or f"of {WORD}" in text]
    assert f"user-ben/facts/{WORD}.txt" in ask_git(tmp_path, "ls-files")
    assert any("Ben keeps goats" in text for text in texts)
    assert ask_git(tmp_path, "status", "--porcelain") == ""
    await memory.close()
