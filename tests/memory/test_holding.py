"""A held scope blocks changes of that scope, and nothing else."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.embedders import WordsEmbedder
from tests.memory import workers
from tests.memory.workers import Worker
from vibe_llms.base.cross_loop_lock import CrossLoopLock
from vibe_llms.base.exceptions import ArchiveLocked, MemoryNotFound
from vibe_llms.base.locks import LockTimeout
from vibe_llms.memory import indexes as indexes_module
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import GLOBAL, Entry, Role, Scope
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.index import ScopeIndex
from vibe_llms.memory.store import IndexedStore

ADA, BEN, TALK = Scope.of_user("ada"), Scope.of_user("ben"), Scope.of_conversation("c1")
SCOPES = (GLOBAL, ADA, BEN, TALK)
ROLES = (Role.FACT, Role.USER)


@contextmanager
def held_elsewhere(folder: Path, scope: Scope) -> Iterator[None]:
    """Another process holds a scope."""
    worker = Worker(workers.hold_scope, folder, 0, str(scope))
    worker.wait_until_reported(1)
    try:
        yield
    finally:
        worker.kill()


async def goes_on_in_parallel(folder: Path, *, seconds: float) -> bool:
    """Whether all others go on within so many seconds while another process holds one scope."""
    memory = Memory(folder, durable=False, lock_seconds=120)
    for scope in (ADA, BEN):
        await memory.add("a red lantern", scope=scope)
    adding: list[asyncio.Task[Entry]] = []
    went_on = False
    with held_elsewhere(folder, ADA), suppress(TimeoutError):
        # More than there are threads for all tasks.
        adding += (
            asyncio.create_task(memory.add(f"lantern {number}", scope=ADA)) for number in range(60)
        )
        await asyncio.sleep(0.1)
        async with asyncio.timeout(seconds):
            await memory.add("a blue lantern", scope=BEN)
            await memory.revise((await memory.survey(BEN))[0].identity, importance=0.9)
            assert len(await memory.search("lantern", scopes=[BEN])) == 2
            assert len(await memory.search("lantern", scopes=[ADA])) == 1
            assert len(await memory.search("lantern", scopes=[ADA, BEN])) == 3
            assert len(await memory.survey()) == 3
            assert len(await memory.status()) == 2
        assert not any(task.done() for task in adding)
        went_on = True
    await asyncio.gather(*adding)
    assert len(await memory.survey(ADA)) == 61
    await memory.close()
    return went_on


async def test_all_others_go_on_while_another_process_holds_a_scope(tmp_path: Path) -> None:
    assert await goes_on_in_parallel(tmp_path, seconds=60)


async def test_one_lock_for_a_whole_memory_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = threading.Lock()
    for name in ("search", "carry_out", "survey"):
        original = getattr(IndexedStore, name)

        def work(*arguments: Any, original: Callable[..., Any] = original) -> Any:
            with lock:
                return original(*arguments)

        monkeypatch.setattr(IndexedStore, name, work)
    assert not await goes_on_in_parallel(tmp_path, seconds=1)


async def test_changes_that_wait_in_the_threads_of_all_are_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hold(self: Memory, scope: Scope, work: Callable[[LockTimeout], Any]) -> Any:
        return await asyncio.to_thread(work, LockTimeout(120))

    monkeypatch.setattr(Memory, "_run_locked", hold)
    assert not await goes_on_in_parallel(tmp_path, seconds=1)


async def fail_together(folder: Path, count: int, *, seconds: float) -> bool:
    """Whether additions that wait in vain all end as if each had waited alone."""
    memory = Memory(folder, durable=False, lock_seconds=1)
    with held_elsewhere(folder, ADA):
        adding = [
            asyncio.create_task(memory.add(f"lantern {number}", scope=ADA))
            for number in range(count)
        ]
        done, _ = await asyncio.wait(adding, timeout=seconds)
    reported = await asyncio.gather(*adding, return_exceptions=True)
    assert all(isinstance(one, ArchiveLocked) and "for 1 s" in str(one) for one in reported[:2])
    return len(done) == count


async def test_those_that_wait_together_time_out_together(tmp_path: Path) -> None:
    assert await fail_together(tmp_path, 60, seconds=30)


@pytest.mark.slow
async def test_those_who_wait_one_after_the_other_are_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = LockTimeout.__init__
    monkeypatch.setattr(LockTimeout, "__init__", lambda self, seconds, **_: begin(self, seconds))
    assert not await fail_together(tmp_path, 10, seconds=4)


async def test_a_queue_that_moves_is_waited_for_however_long_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = MemoryFiles.write

    def write_slowly(self: MemoryFiles, entry: Entry) -> str:
        time.sleep(0.02)
        return write(self, entry)

    monkeypatch.setattr(MemoryFiles, "write", write_slowly)
    memory = Memory(tmp_path, durable=False, lock_seconds=0.2)
    await asyncio.gather(*(memory.add(f"lantern {number}") for number in range(50)))
    assert len(await memory.survey()) == 50


async def is_nothing_of_what_was_cancelled(folder: Path) -> bool:
    """Whether additions that were cancelled while they waited came to nothing."""
    memory = Memory(folder, durable=False, lock_seconds=120)
    other = Memory(folder, durable=False)
    with held_elsewhere(folder, ADA):
        adding = [
            asyncio.create_task(memory.add(f"lantern {number}", scope=ADA)) for number in range(3)
        ]
        await asyncio.sleep(0.2)
        for task in adding:
            task.cancel()
        reported = await asyncio.gather(*adding, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in reported)
        await asyncio.sleep(0.2)
    # What waits would have its turn before these.
    for number in range(30):
        await other.add(f"kettle {number}", scope=ADA)
        await asyncio.sleep(0.01)
    return {entry.content.split()[0] for entry in await other.survey(ADA)} == {"kettle"}


async def test_what_is_cancelled_while_it_waits_changes_nothing(tmp_path: Path) -> None:
    assert await is_nothing_of_what_was_cancelled(tmp_path)


async def test_a_thread_that_waits_for_no_one_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LockTimeout, "end", lambda self: None)
    assert not await is_nothing_of_what_was_cancelled(tmp_path)


async def test_what_is_cancelled_before_its_thread_gets_to_run_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(tmp_path, durable=False)
    came, runs = threading.Event(), threading.Event()
    changing = MemoryFiles.changing

    def change_late(self: MemoryFiles, *given: Any, **options: Any) -> AbstractContextManager[None]:
        monkeypatch.undo()
        came.set()
        assert runs.wait(60)
        return changing(self, *given, **options)

    monkeypatch.setattr(MemoryFiles, "changing", change_late)
    adding = asyncio.create_task(memory.add("a red lantern"))
    await asyncio.to_thread(came.wait)
    adding.cancel()
    await asyncio.wait([adding])
    await memory.add("a blue lantern")
    runs.set()
    async with asyncio.timeout(30):
        while any(thread.name.startswith("memory") for thread in threading.enumerate()):
            await asyncio.sleep(0.01)
    assert [entry.content for entry in await memory.survey()] == ["a blue lantern"]


async def test_a_change_that_is_cancelled_in_its_midst_is_made_whole(tmp_path: Path) -> None:
    memory = Memory(tmp_path, durable=False)
    begun, go_on = threading.Event(), threading.Event()

    def work(held: Any) -> None:
        begun.set()
        assert go_on.wait(60)
        held.add(Entry(content="tea", identity="tea", scope=ADA, created=datetime.now(UTC)))

    changing = asyncio.create_task(memory.change(ADA, work))
    await asyncio.to_thread(begun.wait, 60)
    changing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await changing
    go_on.set()
    # The next one waits for it.
    await memory.add("coffee", scope=ADA)
    assert {entry.content for entry in await memory.survey(ADA)} == {"tea", "coffee"}


def share(folder: Path, count: int) -> tuple[set[str], Memory]:
    """One memory used by threads with event loops of their own; what they added."""
    memory = Memory(folder, durable=False, lock_seconds=60)
    reported: set[str] = set()

    async def work(seed: int) -> None:
        for number in range(count):
            scope = SCOPES[(seed + number) % len(SCOPES)]
            role = (Role.FACT, Role.USER)[number % 2]
            added = await memory.add(f"{number} of {seed}", scope=scope, role=role)
            reported.add(added.identity)
            order = SCOPES if seed % 2 else SCOPES[::-1]
            await memory.search(f"{number}", scopes=order)

    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(lambda seed: asyncio.run(work(seed)), range(4)):
            pass
    return reported, memory


def is_whole(memory: Memory, reported: set[str]) -> bool:
    """Whether all that was reported is there once, in the files and in the indexes."""

    def identities(entries: Sequence[Entry]) -> list[str]:
        return sorted(entry.identity for entry in entries)

    for scope in SCOPES:
        with memory._store.indexes.using(scope) as index:
            index.refresh()
            if len(index._database._lay_out().spots) != len(index):
                return False
        found = asyncio.run(memory.search("of", scopes=[scope]))
        if len({one.entry.identity for one in found}) != len(found):
            return False
    other = Memory(memory.folder)
    return (
        identities(asyncio.run(memory.survey()))
        == sorted(reported)
        == identities(asyncio.run(other.survey()))
    )


@pytest.mark.storm
def test_threads_and_processes_over_several_scopes_lose_nothing(
    tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    count = rounds(30, 400)
    names = " ".join(map(str, SCOPES))
    together = [
        Worker(workers.add_to_scopes, tmp_path, seed, names, count) for seed in range(10, 12)
    ]
    reported, memory = share(tmp_path, count)
    for worker in together:
        reported |= set(worker.finish())
        assert worker.code == 0
    assert len(reported) == 4 * count + 2 * len(SCOPES) * count
    assert is_whole(memory, reported)


@pytest.mark.slow
def test_threads_that_share_an_index_without_its_lock_are_detected(tmp_path: Path) -> None:
    # In a process of its own: SQLite may well crash it.
    process = multiprocessing.get_context("spawn").Process(target=share_unlocked, args=(tmp_path,))
    process.start()
    process.join(60)
    assert process.exitcode not in (0, None)


def share_unlocked(folder: Path) -> None:
    """Share indexes without their locks; the process fails as soon as something goes wrong."""
    begin = ScopeIndex.__init__

    def begin_unlocked(self: ScopeIndex, *arguments: Any) -> None:
        begin(self, *arguments)
        self.lock = nullcontext()  # type: ignore[assignment]

    setattr(ScopeIndex, "__init__", begin_unlocked)  # noqa: B010
    sys.setswitchinterval(1e-6)
    for number in range(20):
        reported, memory = share(folder / str(number), 20)
        assert is_whole(memory, reported)


class ImpatientLock:
    """Fails where it had to be waited for so long that it must be a deadlock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        assert self._lock.acquire(timeout=5), "a deadlock"

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def deadlocks(folder: Path) -> bool:
    """Whether two threads that search two scopes in other orders wait for each other."""
    memory = Memory(folder, durable=False)
    for scope in (ADA, BEN):
        asyncio.run(memory.add("a red lantern", scope=scope))
    meeting = threading.Barrier(2)
    refresh = ScopeIndex.refresh

    def refresh_together(self: ScopeIndex, *, thorough: bool = True) -> None:
        refresh(self, thorough=thorough)
        # Both have one lock now, if they can.
        with suppress(threading.BrokenBarrierError):
            meeting.wait(0.5)

    failed: list[AssertionError] = []

    def search(scopes: Sequence[Scope]) -> None:
        try:
            asyncio.run(memory.search("lantern", scopes=scopes))
        except AssertionError as error:
            failed.append(error)

    with pytest.MonkeyPatch.context() as slow:
        slow.setattr(ScopeIndex, "refresh", refresh_together)
        threads = [
            threading.Thread(target=search, args=(scopes,)) for scopes in ((ADA, BEN), (BEN, ADA))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return bool(failed)


@pytest.mark.parametrize("ordered", [True, False])
def test_searches_of_the_same_scopes_in_other_orders_never_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    begin = ScopeIndex.__init__

    def begin_impatiently(self: ScopeIndex, *arguments: Any) -> None:
        begin(self, *arguments)
        self.lock = ImpatientLock()  # type: ignore[assignment]

    monkeypatch.setattr(ScopeIndex, "__init__", begin_impatiently)
    if not ordered:
        monkeypatch.setattr(indexes_module, "sorted", list, raising=False)
    assert deadlocks(tmp_path) != ordered


async def test_an_entry_that_a_search_saw_before_its_writer_took_it_in_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(tmp_path, durable=False)
    await memory.add("a red lantern")
    write = MemoryFiles.write

    def write_and_search(self: MemoryFiles, entry: Entry) -> str:
        place = write(self, entry)
        thread = threading.Thread(target=lambda: asyncio.run(memory.search("lantern")))
        thread.start()
        thread.join()
        return place

    monkeypatch.setattr(MemoryFiles, "write", write_and_search)
    await memory.add("a blue lantern")
    with memory._store.indexes.using(GLOBAL) as index:
        assert len(index) == len([*index]) == index.count_entries(["lantern"])["lantern"] == 2


async def disturb(folder: Path, seed: int, *, seconds: float = 60) -> str:
    """What is wrong after changes, searches and their cancelling at random; nothing if all is."""
    chance = random.Random(seed)
    memory = Memory(folder, durable=False, lock_seconds=60, embedder=WordsEmbedder(8))
    reported: dict[str, str] = {}
    maybe: set[str] = set()
    gone: set[str] = set()

    async def work(number: int) -> None:
        scope = chance.choice(SCOPES)
        match chance.choice(("add", "add", "search", "revise", "remove", "forget", "reindex")):
            case "add":
                content = f"thing{seed}x{number:02} of {scope}"
                maybe.add(content)
                entry = await memory.add(content, scope=scope, role=chance.choice(ROLES))
                reported[entry.identity] = content
            case "search":
                await memory.search(f"thing{seed}x{number // 2:02}", scopes=SCOPES)
            case "reindex":
                await memory.reindex()
            case kind if reported:
                identity, content = chance.choice([*reported.items()])
                # From now on it may be there or not, until it is reported.
                del reported[identity]
                gone.add(content)
                with suppress(MemoryNotFound):
                    if kind == "revise":
                        await memory.revise(identity, importance=0.9)
                        gone.discard(content)
                        reported[identity] = content
                    elif kind == "remove":
                        await memory.remove(identity)
                    else:
                        await memory.forget(content.split()[0], scopes=SCOPES)

    running: set[asyncio.Task[None]] = set()
    for number in range(60):
        running.add(asyncio.create_task(work(number)))
        await asyncio.sleep(chance.random() * 0.004)
        if chance.random() < 0.6:
            chance.choice([*running]).cancel()
        running = {task for task in running if not task.done()}
    for task in running:
        if chance.random() < 0.5:
            task.cancel()
    # What was cancelled blocks nothing; what goes on in threads comes to its end.
    try:
        async with asyncio.timeout(seconds):
            await asyncio.gather(*running, return_exceptions=True)
            for scope in SCOPES:
                await memory.change(scope, lambda held: held.entries)
    except TimeoutError:
        return "it is stuck"
    there = {entry.identity: entry.content for entry in await memory.survey()}
    if lost := {identity for identity in reported if there.get(identity) != reported[identity]}:
        return f"{len(lost)} were lost"
    if new := set(there.values()) - maybe:
        return f"{new} was never added"
    for scope in SCOPES:
        with memory._store.indexes.using(scope) as index, index.lock:
            index.refresh()
            if len(index._database._lay_out().spots) != len(index):
                return "words are counted twice"
    other = Memory(folder, durable=False)
    if {entry.identity for entry in await other.survey()} != there.keys():
        return "the index differs from the files"
    if left := [path.name for path in (folder / "entries").rglob(".new-*")]:
        return f"{left} are left"
    await memory.close()
    return ""


@pytest.mark.storm
async def test_cancelling_at_any_moment_leaves_a_whole_memory(
    tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    threads = threading.active_count()
    for seed in range(rounds(4, 100)):
        assert await disturb(tmp_path / str(seed), seed) == "", f"seed {seed}"
    # Those that all tasks share may stay.
    assert threading.active_count() <= threads + 40


async def test_turns_that_are_lost_by_cancelling_are_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CrossLoopLock, "__aexit__", _leave_only_unharmed)
    for seed in range(10):
        if await disturb(tmp_path / str(seed), seed, seconds=2) == "it is stuck":
            return
    pytest.fail("nothing stood still")


async def _leave_only_unharmed(
    self: CrossLoopLock, kind: object, error: object, trace: object
) -> None:
    if not isinstance(error, asyncio.CancelledError):
        with self._lock:
            self._call_next()


async def test_changes_leave_no_threads_behind(tmp_path: Path) -> None:
    memory = Memory(tmp_path, durable=False)
    await memory.add("the first")
    for number in range(30):
        await asyncio.gather(*(memory.add(f"{number}", scope=scope) for scope in SCOPES))
    async with asyncio.timeout(30):
        while any(thread.name.startswith("memory") for thread in threading.enumerate()):
            await asyncio.sleep(0.01)
    assert len(memory._turnstiles) == 0
