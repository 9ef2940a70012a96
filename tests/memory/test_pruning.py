"""Forgetting by age and importance: what goes, what stays, and nothing half."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.embedders import WordsEmbedder
from tests.fakes.postgres import temporary_database
from vibe_llms import open_session
from vibe_llms.base.configuration import Places, load_configuration
from vibe_llms.base.exceptions import ConfigurationError
from vibe_llms.base.locks import LockTimeout
from vibe_llms.memory import store as store_module
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import GLOBAL, Entry, Role, Scope
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.metadata import MARK, PENDING
from vibe_llms.memory.pruning import Retention, survey_old
from vibe_llms.memory.settings import read_memory_settings
from vibe_llms.messages.events import NoticeEvent

#: Files have the time of the test, so the tests look back from the future.
LATER = datetime.now(UTC) + timedelta(days=100)
RULE = Retention.of(30, 0.8, LATER)
ME = Scope.of_user("me")


@pytest.fixture(params=["files", "postgres"])
async def memory(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Memory]:
    if request.param == "files":
        one = Memory(tmp_path, durable=False, embedder=WordsEmbedder())
        yield one
        await one.close()
        return
    with temporary_database() as place:
        overrides = {"archive": {"module": "vibe_llms.storage.postgres", "dsn": place.dsn}}
        async with open_session(home=tmp_path, configuration=overrides) as session:
            hook: Any = session.access_memory()
            yield hook.memory


async def contents(memory: Memory) -> list[str]:
    return sorted(one.content for one in await memory.survey())


async def test_old_entries_go_and_important_ones_stay(memory: Memory) -> None:
    await memory.add("Ada keeps bees.", scope=ME, importance=0.79)
    await memory.add("Ada is allergic to nuts.", scope=ME, importance=0.8)
    await memory.add("It will be warm.", scope=GLOBAL, role=Role.USER)
    await memory.add("Ada bought a goat.", scope=ME, created=LATER - timedelta(days=29))
    wanted = [entry.content for _, entry in await survey_old(memory.store, RULE)]
    assert sorted(wanted) == ["Ada keeps bees.", "It will be warm."]
    assert len(await memory.survey()) == 4
    gone = await memory.prune(RULE)
    assert sorted(one.content for one in gone) == sorted(wanted)
    assert await contents(memory) == ["Ada bought a goat.", "Ada is allergic to nuts."]
    assert [one.entry.content for one in await memory.search("Does Ada keep bees?", scopes=[ME])][
        :1
    ] != ["Ada keeps bees."]
    assert await memory.prune(RULE) == []


async def test_only_the_scopes_that_are_named_are_pruned(memory: Memory) -> None:
    await memory.add("Ada keeps bees.", scope=ME)
    await memory.add("Ben keeps goats.", scope=GLOBAL)
    await memory.prune(RULE, scopes=[ME, Scope.of_user("nobody")])
    assert await contents(memory) == ["Ben keeps goats."]


async def test_a_change_makes_an_entry_young(memory: Memory) -> None:
    """What was changed lately is kept, although it was created long ago."""
    old = datetime(2020, 1, 1, tzinfo=UTC)
    entry = await memory.add("Ada keeps bees.", scope=ME, created=old)
    now = datetime.now(UTC)
    await memory.revise(entry.identity, content="Ada keeps goats.")
    assert await memory.prune(Retention.of(1, 0.8, now)) == []
    assert len(await memory.prune(Retention.of(1, 0.8, now + timedelta(days=2)))) == 1


async def test_deleted_entries_go_whatever_their_importance(memory: Memory) -> None:
    entry = await memory.add("Ada is allergic to nuts.", scope=ME, importance=1.0)
    await memory.remove(entry.identity)
    ((place, found),) = await survey_old(memory.store, RULE)
    assert place.startswith("deleted/")
    assert found.identity == entry.identity
    await memory.prune(RULE)
    assert dict(memory.store.scan(ME, deleted=True)) == {}


async def test_a_turn_whose_facts_are_missing_waits(memory: Memory) -> None:
    turn = await memory.add(
        "I keep bees.",
        scope=ME,
        role=Role.USER,
        further={MARK: PENDING},
        lines=f"{MARK}: {PENDING}\n",
    )
    assert await memory.prune(RULE) == []
    assert await contents(memory) == [turn.content]


async def test_the_least_important_goes_first(memory: Memory) -> None:
    for number in (0.5, 0.1, 0.7, 0.3):
        await memory.add(f"The number is {number}.", scope=ME, importance=number)
    gone = await memory.prune(RULE)
    assert [one.importance for one in gone] == [0.1, 0.3, 0.5, 0.7]


async def test_an_unreadable_file_is_kept(tmp_path: Path) -> None:
    memory = Memory(tmp_path, durable=False)
    entry = await memory.add("Ada keeps bees.")
    await memory.add("Ada keeps goats.")
    (path,) = tmp_path.rglob(f"*__{entry.identity}.md")
    path.write_text("no front matter")
    await memory.prune(RULE)
    assert [one.name for one in tmp_path.rglob("*__*.md")] == [path.name]
    await memory.close()


async def test_an_edit_between_looking_and_removing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(tmp_path, durable=False)
    entry = await memory.add("Ada keeps bees.")
    await memory.add("Ada keeps goats.")
    (path,) = tmp_path.rglob(f"*__{entry.identity}.md")
    erase = store_module.IndexedStore._erase

    def edit(*given: Any) -> Any:
        future = LATER.timestamp()
        os.utime(path, (future, future))
        return erase(*given)

    monkeypatch.setattr(store_module.IndexedStore, "_erase", edit)
    gone = await memory.prune(Retention.of(30, 0.8, LATER))
    assert [one.content for one in gone] == ["Ada keeps goats."]
    assert await contents(memory) == ["Ada keeps bees."]
    await memory.close()


async def test_an_interrupted_removal_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(tmp_path, durable=False, embedder=WordsEmbedder())
    for number in range(5):
        await memory.add(f"The number is {number}.", importance=number / 10)
    await memory.embed()
    erase = MemoryFiles.erase

    def fail(files: MemoryFiles, scope: Scope, places: Sequence[str]) -> None:
        erase(files, scope, places[:2])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFiles, "erase", fail)
        with pytest.raises(KeyboardInterrupt):
            memory._store.prune(GLOBAL, RULE, LockTimeout(5.0))
    assert len(await memory.survey()) == 3
    assert len(await memory.prune(RULE)) == 3
    assert await memory.survey() == []
    assert not any(b"number" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    await memory.close()


def _prune(folder: str, seed: int) -> None:
    async def work() -> None:
        memory = Memory(Path(folder), durable=False)
        chance = random.Random(seed)
        for number in range(10):
            if chance.random() < 0.5:
                await memory.prune(RULE)
            created = LATER if number % 2 else datetime.now(UTC)
            await memory.add(f"Number {number} of {seed}.", created=created)
        await memory.prune(RULE)
        await memory.close()

    asyncio.run(work())


def test_several_processes_prune_and_add_at_once(tmp_path: Path) -> None:
    """Young entries are all there, and old ones are gone, also for the index."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_prune, args=(str(tmp_path), seed)) for seed in range(3)]
    for one in processes:
        one.start()
    for one in processes:
        one.join(120)
    assert [one.exitcode for one in processes] == [0, 0, 0]

    async def check() -> None:
        memory = Memory(tmp_path, durable=False)
        await memory.prune(RULE)
        wanted = [f"Number {number} of {seed}." for seed in range(3) for number in (1, 3, 5, 7, 9)]
        assert await contents(memory) == sorted(wanted)
        await memory.close()

    asyncio.run(check())


async def converse(home: Path, **memory: Any) -> list[str]:
    """Remember a turn in a new session, and return the notices."""
    heard: list[str] = []

    def hear(event: Any) -> None:
        if isinstance(event, NoticeEvent):
            heard.append(event.notice.text)

    configuration = {"memory": {"enabled": True, **memory}}
    async with open_session(home=home, configuration=configuration, event_handler=hear) as session:
        conversation = await session.begin("scripted/demo", memory=True)
        await conversation.converse("I keep bees.")
    return heard


async def test_a_session_prunes_in_the_background_only_if_an_age_is_set(home: Path) -> None:
    places = Places.under(home)
    one = Memory(places.data / "memory", durable=False)
    kept: list[Entry] = [
        await one.add(f"Ada has {thing}.", scope=ME, importance=importance)
        for thing, importance in (("goats", 0.2), ("an allergy", 0.9))
    ]
    await one.close()
    year = (datetime.now(UTC) - timedelta(days=400)).timestamp()
    for path in (home / "memory").rglob("*__*.md"):
        text = path.read_text()
        path.write_text(text.replace(f"{kept[0].created.year}-", f"{kept[0].created.year - 2}-"))
        os.utime(path, (year, year))

    async def left() -> set[str]:
        memory = Memory(places.data / "memory", durable=False)
        found = {entry.content for entry in await memory.survey(ME)}
        await memory.close()
        return found & {entry.content for entry in kept}

    await converse(home)
    assert len(await left()) == 2
    heard = await converse(home, **{"keep-days": 365})
    assert await left() == {"Ada has an allergy."}
    assert "memory forgot 1 old entry" in heard


@pytest.mark.parametrize(
    "settings",
    [
        {"keep-days": 0},
        {"keep-days": -1},
        {"keep-days": 1e9},
        {"keep-days": "year"},
        {"keep-importance": 2},
        {"keep-importance": -0.1},
    ],
)
def test_a_value_that_cannot_be_is_named(tmp_path: Path, settings: dict[str, Any]) -> None:
    configuration = load_configuration(
        Places.under(tmp_path), environment={}, overrides={"memory": settings}
    )
    with pytest.raises(ConfigurationError, match=f"'{next(iter(settings))}'"):
        read_memory_settings(configuration)
