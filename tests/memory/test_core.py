"""Memory as a whole: nothing is lost, nothing crosses scopes, nothing deleted stays."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.memory import workers
from tests.memory.workers import Worker, kill_at_random
from vibe_llms.base.exceptions import MemoryDamaged, MemoryInvalid, MemoryNotFound, SecretRefused
from vibe_llms.memory import files as memory_files
from vibe_llms.memory import scanner
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import GLOBAL, LARGEST_BYTES, Entry, Role, Scope
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.index import ScopeIndex

ADA, BEN = Scope.of_user("ada"), Scope.of_user("ben")


def path_of(memory: Memory, entry: Entry) -> Path:
    (path,) = memory.folder.rglob(f"*__{entry.identity}.md")
    return path


def edit(path: Path, old: str, new: str) -> None:
    """Change a file as a person does: the clock of the file system has moved on since the last."""
    text, changed = path.read_text().replace(old, new), path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == changed:
        path.write_text(text)


async def contents(memory: Memory, question: str, scope: Scope = GLOBAL) -> list[str]:
    return sorted(one.entry.content for one in await memory.search(question, scopes=[scope]))


async def test_what_is_added_is_found_surveyed_and_accessed(memory: Memory) -> None:
    entry = await memory.add(" Ada likes green tea. ", topics=("drinks",), importance=0.7)
    said = await memory.add("I like tea", role=Role.USER, conversation="c1")
    assert entry.content == "Ada likes green tea."
    assert await memory.survey() == [entry, said]
    assert await memory.survey(GLOBAL, role=Role.FACT) == [entry]
    assert await memory.access(entry.identity) == entry
    assert await memory.access(entry.identity[-12:]) == entry
    assert set(await contents(memory, "tea")) == {entry.content, said.content}
    assert await contents(memory, "drinks") == [entry.content]
    await memory.close()
    await memory.close()
    other = Memory(memory.folder)
    assert set(await contents(other, "tea")) == {entry.content, said.content}


async def test_nothing_is_made_where_only_questions_are_asked(memory: Memory) -> None:
    assert await memory.search("tea", scopes=[ADA]) == []
    assert await memory.survey() == await memory.forget("tea") == []
    assert await memory.status() == []
    assert await memory.forget("tea", scopes=[ADA]) == []
    await memory.close()
    assert not (memory.folder / "entries").exists()


async def test_a_scope_keeps_no_lock_that_no_task_uses(memory: Memory) -> None:
    for name in ("ada", "bob"):
        await memory.add("tea", scope=Scope.of_user(name))
    gc.collect()
    assert not memory._turnstiles


async def test_what_may_not_be_remembered_is_refused(memory: Memory) -> None:
    for content, importance in ((" ", 0.5), ("x", 3)):
        with pytest.raises(MemoryInvalid):
            await memory.add(content, importance=importance)
    entry = await memory.add("tea")
    wrong: tuple[dict[str, Any], ...] = ({"content": "\n"}, {"importance": "high"}, {"scope": ADA})
    for changes in wrong:
        with pytest.raises(MemoryInvalid):
            await memory.revise(entry.identity, **changes)
    with pytest.raises(MemoryInvalid):
        await memory.forget(" ")
    assert await memory.access(entry.identity) == entry


async def test_secrets_are_refused_unless_they_are_to_be_kept(memory: Memory) -> None:
    secret = "My PIN is 4711"
    entry = Entry(content=secret, identity="entry-1", created=datetime.now(UTC))
    for refused in (memory.restore(entry), memory.add(secret), memory.add("x", topics=(secret,))):
        with pytest.raises(SecretRefused):
            await refused
    assert await memory.survey() == []
    kept = [
        await memory.restore(entry, keep_secrets=True),
        await memory.add("Ada's PIN is 1234", keep_secrets=True),
    ]
    assert await memory.survey() == kept


async def test_an_unknown_or_ambiguous_identity_is_reported(memory: Memory) -> None:
    first = await memory.add("tea")
    await memory.add("coffee")
    for identity, reported in (
        ("abc", "too short"),
        (first.identity[:5], "matches several"),
        ("zzzz", "no entry matches"),
    ):
        with pytest.raises(MemoryNotFound, match=reported):
            await memory.access(identity)
    assert await memory.access(first.identity[-12:-5]) == first
    path = path_of(memory, first)
    (path.parent / "copy.md").write_bytes(path.read_bytes())
    with pytest.raises(MemoryNotFound, match="several files have the id"):
        await memory.remove(first.identity)


async def test_an_entry_whose_file_goes_after_the_look_is_not_found(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = await memory.add("tea")

    def lose(self: MemoryFiles, scope: Scope, place: str) -> Entry:
        raise FileNotFoundError

    monkeypatch.setattr(MemoryFiles, "read", lose)
    with pytest.raises(MemoryNotFound):
        await memory.access(entry.identity)
    assert await memory.survey() == []


@pytest.mark.parametrize("known", [True, False])
async def test_an_entry_that_cannot_be_read_is_no_entry_that_is_not_there(
    memory: Memory, known: bool
) -> None:
    entry = await memory.add("tea")
    path = path_of(memory, entry)
    if known:
        await memory.search("tea")
    with pytest.MonkeyPatch.context() as failing:

        def fail(*_: object) -> bytes:
            raise OSError(5, "Input/output error")

        failing.setattr(memory_files, "read_within", fail)
        other = memory if known else Memory(memory.folder, durable=False)
        with pytest.raises(MemoryDamaged, match="cannot be read: Input/output error") as raised:
            await other.remove(entry.identity)
        assert raised.value.path == str(path)
    assert await other.remove(entry.identity) == entry


async def test_a_damaged_file_is_not_blamed_for_another_identity(memory: Memory) -> None:
    entry = await memory.add("tea")
    path_of(memory, entry).write_text("no front matter")
    with pytest.raises(MemoryNotFound, match="no entry matches 'zzzz'"):
        await memory.access("zzzz")
    with pytest.raises(MemoryDamaged):
        await memory.access(entry.identity)


async def test_what_is_revised_is_found_by_its_new_words_and_keeps_what_others_wrote(
    memory: Memory,
) -> None:
    entry = await memory.add("Ada likes tea", scope=ADA)
    path = path_of(memory, entry)
    theirs = "# mine\nmood: 12:30\ntags:\n  - a\n"
    path.write_text(path.read_text().replace("\n---\n", f"\n{theirs}---\n", 1))
    revised = await memory.revise(entry.identity, content="Ada likes cocoa", importance=0.9)
    assert theirs in path.read_text()
    assert await memory.access(entry.identity) == revised
    assert await contents(memory, "tea", ADA) == []
    assert await contents(memory, "cocoa", ADA) == ["Ada likes cocoa"]


async def test_what_another_has_written_is_seen_at_the_next_look(tmp_path: Path) -> None:
    one, other = Memory(tmp_path, durable=False), Memory(tmp_path, durable=False)
    for number in range(3):
        added = await other.add(f"fact {number}", scope=ADA)
        assert [entry.identity for entry in await one.outline(ADA)][number:] == [added.identity]
        assert (await one.survey(ADA))[-1] == added
        assert [await one.access(added.identity)] == [*await one.read(ADA, await one.outline(ADA))][
            number:
        ]
    await one.close()
    await other.close()


async def test_two_that_revise_one_entry_at_once_lose_nothing_of_each_other(
    tmp_path: Path,
) -> None:
    one, other = Memory(tmp_path, durable=False), Memory(tmp_path, durable=False)
    identity = (await one.add("fact 0", scope=ADA)).identity
    for number in range(10):
        await asyncio.gather(
            one.revise(identity, content=f"fact {number}"),
            other.revise(identity, topics=(f"topic {number}",)),
        )
        for memory in (one, other):
            entry = await memory.access(identity)
            assert (entry.content, entry.topics) == (f"fact {number}", (f"topic {number}",))
    await one.close()
    await other.close()


async def test_what_is_removed_is_found_no_more_and_lies_among_the_deleted(memory: Memory) -> None:
    entry = await memory.add("Ada likes tea")
    await memory.remove(entry.identity, replaced_by="new")
    assert await contents(memory, "tea") == []
    (status,) = await memory.status()
    assert (status.entries, status.deleted) == (0, 1)
    assert "replaced_by: new" in path_of(memory, entry).read_text()


@pytest.mark.parametrize("again", ["Ada likes tea", "ada likes  TEA."])
async def test_the_same_fact_twice_is_one(memory: Memory, again: str) -> None:
    entry = await memory.add("Ada likes tea")
    assert await memory.add(again) == entry
    assert await Memory(memory.folder).add(again) == entry
    await memory.add(again, scope=ADA)
    assert len(await memory.survey()) == 2
    # One of two copies made by hand goes, and the other is still known.
    (path,) = (memory.folder / "entries" / "global" / "facts").iterdir()
    copy = path.with_name("copy.md")
    copy.write_bytes(path.read_bytes())
    await memory.search("tea")
    copy.unlink()
    assert (await memory.add(again)).identity == entry.identity
    # And one that says something else by now is no repetition.
    edit(path, "tea", "ale")
    assert (await memory.add(again)).identity != entry.identity


async def test_what_people_do_by_hand_is_seen_at_the_next_search(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where a scan takes longer, as on a busy machine, the next one may rest for a moment.
    monkeypatch.setattr(scanner, "_QUICK", math.inf)
    entry = await memory.add("Ada likes tea")
    path = path_of(memory, entry)
    assert await contents(memory, "tea") == ["Ada likes tea"]
    for old, new in (("tea", "rum"), ("rum", "ale"), ("ale", "cocoa with cream")):
        edit(path, old, new)
        assert await contents(memory, old) == []
        assert await contents(memory, new) == [f"Ada likes {new}"]
    # The same length, and the time of the bytes set back.
    status = path.stat()
    edit(path, "cocoa", "water")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert await contents(memory, "water") == ["Ada likes water with cream"]
    moved = path.rename(path.with_name("drinks.md"))
    assert await contents(memory, "water") == ["Ada likes water with cream"]
    (moved.parent / "second.md").write_text(
        "---\nid: by-hand\ncreated_at: 2026-05-04\n---\nBen likes water\n"
    )
    assert len(await contents(memory, "water")) == 2
    moved.unlink()
    assert await contents(memory, "water") == ["Ben likes water"]


async def test_foreign_files_are_reported_skipped_and_never_changed(memory: Memory) -> None:
    await memory.add("Ada likes tea")
    folder = memory.folder / "entries" / "global" / "facts"
    planted = {
        "empty.md": b"",
        "notes.md": b"tea, only notes\n",
        "binary.md": random.Random(1).randbytes(5_000),
        "latin.md": b"---\nid: x\ncreated_at: 2026-05-04\n---\ntea \xe9\n",
        "bomb.md": b"---\nx: " + b"[" * 60_000 + b"\n---\n",
        "object.md": b"---\nx: !!python/object/apply:os.mkdir [planted]\n---\ntea\n",
        "huge.md": b"tea " * (LARGEST_BYTES // 4 + 1),
        "picture.png": b"tea",
    }
    for name, data in planted.items():
        (folder / name).write_bytes(data)
    os.mkfifo(folder / "pipe.md")
    for _ in range(2):
        assert await contents(memory, "tea") == ["Ada likes tea"]
        (status,) = await memory.status()
        reported = {Path(error.path).name for error in status.damaged if error.path}
        assert reported == {*planted, "pipe.md"} - {"picture.png"}
        assert status.entries == 1
    entry = (await memory.survey())[0]
    await memory.revise(entry.identity, content="Ada likes rum")
    await memory.reindex()
    await memory.remove(entry.identity)
    assert {name: (folder / name).read_bytes() for name in planted} == planted
    assert not Path("planted").exists()
    # What is repaired or removed is reported no more.
    (folder / "notes.md").write_text("---\nid: x\ncreated_at: 2026-05-04\n---\ntea\n")
    (folder / "pipe.md").unlink()
    (status,) = await memory.status()
    assert (status.entries, len(status.damaged)) == (1, len(planted) - 2)
    assert all(isinstance(error, MemoryDamaged) for error in status.damaged)


async def mix_users(memory: Memory, rounds: int) -> bool:
    """Whether two users saw only what is theirs, over random additions and searches."""
    chance = random.Random(5)
    hits = 0
    things = ("tea", "rum", "ale", "cocoa", "water")
    theirs: dict[Scope, set[str]] = {ADA: set(), BEN: set()}
    for number in range(rounds):
        scope = chance.choice((ADA, BEN))
        if chance.random() < 0.5:
            entry = await memory.add(
                f"{scope.name} {chance.choice(things)} {number}",
                scope=scope,
                role=chance.choice((Role.FACT, Role.USER)),
                conversation="shared",
            )
            theirs[scope].add(entry.identity)
        else:
            found = await memory.search(chance.choice(things), scopes=[scope])
            hits += len(found)
            if not {one.entry.identity for one in found} <= theirs[scope]:
                return False
            if any(one.entry.scope != scope for one in found):
                return False
    for scope, identities in theirs.items():
        if {one.identity for one in await memory.survey(scope)} != identities:
            return False
    assert hits > rounds, "what is never found is not mixed up"
    return True


async def test_users_never_see_each_other(memory: Memory) -> None:
    assert await mix_users(memory, 300)


async def test_users_that_see_each_other_are_detected(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = MemoryFiles.path_of
    monkeypatch.setattr(MemoryFiles, "path_of", lambda self, scope, name="": place(self, ADA, name))
    assert not await mix_users(memory, 300)


def hostile_names(count: int) -> list[str]:
    chance = random.Random(9)
    parts = (
        "..",
        "/",
        "\\",
        "\0",
        ".",
        "~",
        "$HOME",
        "user-",
        "A",
        " ",
        "\n",
        "é",
        "%2e",
        "-",
        "x",
    )
    names = ["", "..", "/etc", "a/b", "a\n", "-", "_x", "x" * 65, "\ud800", "aux/../..", "\u0661"]
    while len(names) < count:
        name = "".join(chance.choices(parts, k=chance.randint(1, 6)))
        if name.strip("usrex-") or name.startswith("-"):
            names.append(name)
    return names


async def test_names_that_are_no_scope_are_refused_and_nothing_outside_is_touched(
    tmp_path: Path,
) -> None:
    memory = Memory(tmp_path / "deep" / "memory", durable=False)
    await memory.add("tea")
    before = sorted(tmp_path.rglob("*"))
    for name in hostile_names(2000):
        for text in (name, f"user-{name}", f"conversation-{name}", f"global-{name}"):
            with pytest.raises(MemoryInvalid):
                Scope.parse(text)
        for kind, one in (("user", name), ("conversation", name), (name, "ada"), (name, "")):
            with pytest.raises(MemoryInvalid):
                Scope(kind, one)
        for of in (Scope.of_user, Scope.of_conversation):
            with pytest.raises(MemoryInvalid):
                of(name)
    for name in hostile_names(60):
        with pytest.raises(MemoryNotFound):
            await memory.access(f"{name}....")
    assert sorted(tmp_path.rglob("*")) == before


def test_two_processes_add_at_once_and_everything_is_there(tmp_path: Path) -> None:
    together = [Worker(workers.add_facts, tmp_path, seed, 100) for seed in range(2)]
    reported = {identity for worker in together for identity in worker.finish()}
    found = asyncio.run(Memory(tmp_path).survey())
    assert len(reported) == 200
    assert {entry.identity for entry in found} == reported


def add_the_same_in_processes(folder: Path) -> int:
    """How many files there are after two processes have added the same 30 facts."""
    together = [Worker(workers.add_the_same, folder, seed, 30) for seed in range(2)]
    for worker in together:
        worker.finish()
    return len(list(folder.rglob("*.md")))


def test_two_processes_that_add_the_same_leave_one_copy_of_each(tmp_path: Path) -> None:
    assert add_the_same_in_processes(tmp_path) == 30


def add_in_threads(folder: Path, count: int, *, same: bool) -> int:
    """How many entries there are after four threads with a memory each have added facts."""
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            memory = Memory(folder, durable=False, lock_seconds=60)
            who = 0 if same else number
            for one in range(count):
                asyncio.run(memory.add(f"thread {who} fact {one}"))
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    return len(asyncio.run(Memory(folder).survey()))


def test_four_threads_add_at_once_and_everything_is_there(tmp_path: Path) -> None:
    assert add_in_threads(tmp_path, 100, same=False) == 400


def test_four_threads_that_add_the_same_leave_one_copy_of_each(tmp_path: Path) -> None:
    assert add_in_threads(tmp_path, 10, same=True) == 10


def test_a_memory_without_a_lock_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_files, "locked", lambda *_, **__: nullcontext())
    write = MemoryFiles.write

    def write_slowly(self: MemoryFiles, entry: Entry) -> str:
        time.sleep(0.002)
        return write(self, entry)

    monkeypatch.setattr(MemoryFiles, "write", write_slowly)
    assert add_in_threads(tmp_path, 10, same=True) > 10


def is_whole_after_a_kill(folder: Path, reported: list[str]) -> bool:
    """Whether what was acknowledged is there, and the index has what the files have."""
    expected: dict[str, str | None] = {}
    for line in reported:
        kind, identity, *rest = line.split(" ", 2)
        if kind == "begin":
            # It was killed in the midst of a change, so both what was and what becomes is right.
            expected.pop(identity, None)
        else:
            expected[identity] = rest[0] if rest else None
    there = {
        path.name.partition("__")[2].removesuffix(".md"): path
        for path in (folder / "entries" / "global" / "facts").glob("[!.]*.md")
    }
    index = ScopeIndex(MemoryFiles(folder), GLOBAL)
    index.refresh()
    if {known.identity for known in index} != set(there) or index.damaged:
        return False
    gone = {
        path.name for path in (folder / "entries" / "global" / "deleted" / "facts").glob("*.md")
    }
    if gone & {path.name for path in there.values()}:
        return False
    for identity, content in expected.items():
        known = [one for one in index if one.identity == identity]
        entry = index.read(known[0]) if known else None
        if (entry.content if entry else None) != content:
            return False
    return True


@pytest.mark.storm
def test_acknowledged_entries_survive_a_kill(
    tmp_path: Path, rounds: Callable[[int, int], int]
) -> None:
    acknowledged = 0
    for seed in range(rounds(15, 500)):
        folder = tmp_path / str(seed % 3)
        reported = list(kill_at_random(workers.change_facts, folder, seed=seed))
        acknowledged += len(reported)
        assert is_whole_after_a_kill(folder, reported), f"seed {seed}"
    assert acknowledged


def test_facts_acknowledged_before_they_are_written_are_detected(tmp_path: Path) -> None:
    assert not all(
        is_whole_after_a_kill(
            tmp_path / str(seed),
            list(kill_at_random(workers.change_facts_in_place, tmp_path / str(seed), seed=seed)),
        )
        for seed in range(60)
    )


def traces(folder: Path, phrase: str) -> list[str]:
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and phrase.encode().lower() in path.read_bytes().lower()
    ]


async def scatter(memory: Memory) -> Memory:
    """Put a secret everywhere; gives a second memory that has it in its own index."""
    await memory.add("Ada likes tea")
    await memory.add("The code is XYZZYQ today")
    await memory.add("harmless", topics=("about xyzzyq",))
    await memory.add("nothing", speaker="Xyzzyq", scope=ADA)
    await memory.add("plain", category="xyzzyq", role=Role.USER)
    await memory.add("still", further={"deep": [{"er": "it's xyzzyq"}]})
    gone = await memory.add("also xyzzyq, deleted")
    await memory.remove(gone.identity, replaced_by="x")
    hidden = await memory.add("with a remark")
    path = path_of(memory, hidden)
    path.write_text(path.read_text().replace("\n---\n", "\n# xyzzyq\n---\n", 1))
    folder = path.parent
    (folder / "foreign.md").write_text("xyzzyq")
    (folder / "notes.txt").write_text("xyzzyq")
    (folder / ".new-left.md-00").write_text("xyzzyq")
    (folder / "huge.md").write_bytes(b"x" * LARGEST_BYTES + b" xyzzyq")
    by_hand = await memory.add("xyzzyq, removed by hand")
    await memory.close()
    other = Memory(memory.folder, durable=False)
    for scope in (GLOBAL, ADA):
        await other.search("xyzzyq", scopes=[scope])
    path_of(memory, by_hand).unlink()
    return other


async def test_what_is_forgotten_leaves_no_trace(memory: Memory) -> None:
    other = await scatter(memory)
    assert any(place.startswith("index") for place in traces(memory.folder, "xyzzyq"))
    gone = await memory.forget(" xyzzyQ ")
    assert traces(memory.folder, "xyzzyq") == []
    assert {"harmless", "nothing", "plain", "still"} <= {entry.content for entry in gone}
    assert await contents(memory, "tea") == ["Ada likes tea"]
    # Nor does what another process has in its memory come back.
    await other.close()
    await memory.close()
    assert traces(memory.folder, "xyzzyq") == []
    assert await contents(Memory(memory.folder), "tea") == ["Ada likes tea"]
    assert await memory.forget("role: memory") == await memory.forget("2026") == []


async def test_an_index_that_keeps_forgotten_words_is_detected(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scatter(memory)
    monkeypatch.setattr(ScopeIndex, "discard", lambda self: None)
    await memory.forget("xyzzyq")
    assert traces(memory.folder, "xyzzyq") != []


async def test_forgetting_regards_neither_spaces_nor_how_accents_are_kept(memory: Memory) -> None:
    await memory.add("Zoë's\n café", scope=ADA)
    assert await memory.forget("zoe\u0308's cafe\u0301", scopes=[BEN]) == []
    assert len(await memory.forget("zoe\u0308's cafe\u0301", scopes=[ADA])) == 1


async def test_the_index_is_stored_after_a_search_and_the_search_does_not_wait(
    memory: Memory,
) -> None:
    for number in range(70):
        await memory.add(f"tea {number}", role=Role.USER)
    files = MemoryFiles(memory.folder)
    with files.changing(GLOBAL):
        assert len(await contents(memory, "tea")) == 10
    assert not (memory.folder / "index").exists()
    assert len(await contents(memory, "tea")) == 10
    assert (memory.folder / "index").exists()


async def test_an_addition_does_not_look_at_all_the_others(memory: Memory) -> None:
    looks = 0
    look = MemoryFiles.scan

    def count(self: MemoryFiles, scope: Scope, *, deleted: bool = False) -> object:
        nonlocal looks
        looks += 1
        return look(self, scope, deleted=deleted)

    with pytest.MonkeyPatch.context() as seeded:
        seeded.setattr(MemoryFiles, "scan", count)
        for number in range(500):
            await memory.add(f"fact {number}")
    assert looks < 50
    assert len(await memory.survey()) == 500


async def test_turns_are_never_repetitions_and_keep_their_time(memory: Memory) -> None:
    when = datetime(2026, 5, 4, tzinfo=UTC)
    for _ in range(2):
        await memory.add("yes", role=Role.USER, created=when.replace(tzinfo=None))
    assert [entry.created for entry in await memory.survey()] == [when, when]


async def test_a_recall_by_words_reports_what_cannot_be_read(tmp_path: Path) -> None:
    reported: list[str] = []
    memory = Memory(tmp_path, durable=False, notify=reported.append)
    path_of(memory, await memory.add("Ada likes tea.")).write_text("no front matter")
    assert await memory.recall("tea", seconds=60) == []
    (words,) = reported
    assert "searches skip it until it is fixed" in words


async def test_many_that_cannot_be_read_are_one_notice(tmp_path: Path) -> None:
    reported: list[str] = []
    memory = Memory(tmp_path, durable=False, notify=reported.append)
    for number in range(30):
        path_of(memory, await memory.add(f"Ada likes tea {number}.")).write_text("no front matter")
    assert await memory.recall("tea", seconds=60) == []
    (words,) = reported
    assert words.endswith(" (29 more files are damaged; see: vibe-llms doctor)")


async def test_what_cannot_be_read_is_reported_once_and_breaks_nothing_else(tmp_path: Path) -> None:
    reported: list[str] = []
    memory = Memory(tmp_path, durable=False, notify=reported.append)
    await memory.add("Ada likes tea.")
    broken = tmp_path / "entries" / "global" / "facts" / "broken.md"
    broken.write_text("---\nid: [\n---\n\nAda likes coffee.\n")
    for _ in range(2):
        (found,) = await memory.search("What does Ada like?")
        assert found.entry.content == "Ada likes tea."
        assert len(await memory.survey()) == 1
    (words,) = reported
    assert str(broken) in words
    assert "searches skip it until it is fixed" in words
    broken.write_text("---\nid: b1\ncreated_at: 2026-05-04\n---\n\nAda likes coffee.\n")
    assert len(await memory.survey()) == 2
    broken.write_text("Ada likes coffee.\n")
    assert len(await memory.survey()) == 1
    assert len(reported) == 2
    await memory.close()
