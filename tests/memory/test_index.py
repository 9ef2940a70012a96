"""The index of a scope: in step with the files, and made anew where it is damaged."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from tests.faults.processes import Worker as _Worker
from tests.memory.workers import Worker, add_facts
from vibe_llms.base import folders as storage_files
from vibe_llms.base.exceptions import MemoryDamaged
from vibe_llms.embedding.words import split_words
from vibe_llms.memory import files as memory_files
from vibe_llms.memory import scanner, snapshot
from vibe_llms.memory.core import Memory
from vibe_llms.memory.database import IndexDatabase
from vibe_llms.memory.entries import GLOBAL, Entry, Role, Scope
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.index import ScopeIndex
from vibe_llms.memory.parts import WeightedPart
from vibe_llms.memory.retrieval import FOUND_ROLES
from vibe_llms.memory.scanner import DirectoryScanner

WHEN = datetime(2026, 5, 4, 10, 30, tzinfo=UTC)
THINGS = ("lantern", "kettle", "harbour", "violin", "orchard", "glacier", "saddle", "compass")


def turn(number: int, content: str, *, minutes: int = 0, conversation: str = "c1") -> Entry:
    return Entry(
        content=content,
        identity=f"turn-{number}",
        role=Role.ASSISTANT if number % 2 else Role.USER,
        created=WHEN + timedelta(minutes=minutes),
        conversation=conversation,
    )


def fact(number: int, content: str) -> Entry:
    created = WHEN + timedelta(seconds=number)
    return Entry(content=content, identity=f"fact-{number}", created=created)


def fill(folder: Path, count: int = 40) -> MemoryFiles:
    files = MemoryFiles(folder, durable=False)
    for number in range(count):
        files.write(fact(number, f"fact {number} about a {THINGS[number % 8]} x{number}"))
    return files


def found_by(index: ScopeIndex, question: str) -> set[str]:
    asked = [WeightedPart(dict.fromkeys(split_words(question), 1.0), 1.0)]
    return {record.identity for record in index.records(index.score(asked, 100, FOUND_ROLES))}


def is_right(index: ScopeIndex, count: int = 40) -> bool:
    """Whether each fact is found by its word, and its content belongs to its identity."""
    return len(index) == count and all(
        found_by(index, f"x{number}") == {f"fact-{number}"} for number in range(count)
    )


def damage(data: bytes, chance: random.Random) -> bytes:
    position = chance.randrange(len(data))
    if chance.random() < 0.5:
        return data[:position]
    return (
        data[:position] + bytes([data[position] ^ 1 << chance.randrange(8)]) + data[position + 1 :]
    )


def survive_damage(folder: Path, points: int) -> bool:
    """Whether an index is right after its files were truncated, or bits in them turned."""
    files = fill(folder)
    first = ScopeIndex(files, GLOBAL)
    first.refresh()
    first.store(always=True)
    (generation,) = (folder / "index" / "global").iterdir()
    whole = {path: path.read_bytes() for path in generation.iterdir()}
    assert {path.name for path in whole} == {"manifest", "database"}
    chance = random.Random(7)
    for _ in range(points):
        path = chance.choice(sorted(whole))
        path.write_bytes(damage(whole[path], chance))
        index = ScopeIndex(files, GLOBAL)
        try:
            index.refresh()
            right = is_right(index)
        except (ValueError, KeyError, IndexError, TypeError, OverflowError):
            return False
        if not right:
            return False
        path.write_bytes(whole[path])
    return True


def test_an_index_with_damaged_files_is_made_anew(tmp_path: Path) -> None:
    assert survive_damage(tmp_path, 200)


def test_an_index_without_checksums_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_digest", lambda data, embedder: "")
    assert not survive_damage(tmp_path, 200)


def test_what_is_stored_is_used_and_brought_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = fill(tmp_path)
    first = ScopeIndex(files, GLOBAL)
    first.refresh()
    first.store(always=True)
    # What is as it was is not stored again.
    before = os.listdir(tmp_path / "index" / "global")
    first.store(always=True)
    assert os.listdir(tmp_path / "index" / "global") == before
    files.write(fact(40, "fact 40 x40"))
    read: list[str] = []
    reading = MemoryFiles.read

    def note(self: MemoryFiles, scope: Scope, place: str) -> Entry:
        read.append(place)
        return reading(self, scope, place)

    monkeypatch.setattr(MemoryFiles, "read", note)
    second = ScopeIndex(files, GLOBAL)
    second.refresh()
    assert [place.partition("__")[2] for place in read] == ["fact-40.md"]
    assert is_right(second, 41)


def test_an_index_of_another_version_or_that_contradicts_itself_is_not_used(tmp_path: Path) -> None:
    files = fill(tmp_path)
    first = ScopeIndex(files, GLOBAL)
    first.refresh()
    first.store(always=True)
    (generation,) = (tmp_path / "index" / "global").iterdir()
    manifest = msgspec.json.decode((generation / "manifest").read_bytes())
    empty = IndexDatabase().serialize()
    lies: list[dict[str, object]] = [
        {"format": "0"},
        {"format": f"4 {sys.byteorder}"},
        {"checksums": {}},
        {"embedder": "another"},
        {"checksums": {"database": snapshot._digest(empty, "")}},
    ]
    for changed in lies:
        (generation / "manifest").write_bytes(msgspec.json.encode(manifest | changed))
        index = ScopeIndex(files, GLOBAL)
        index.refresh()
        assert is_right(index)


def test_anything_that_lies_among_the_generations_is_removed(tmp_path: Path) -> None:
    files = fill(tmp_path)
    folder = tmp_path / "index" / "global"
    (folder / "deep" / "deeper").mkdir(parents=True)
    (folder / "file").write_text("lantern")
    (folder / "link").symlink_to(tmp_path / "entries")
    index = ScopeIndex(files, GLOBAL)
    index.refresh()
    index.store(always=True)
    assert len(os.listdir(folder)) == 1
    assert is_right(index)
    index.discard()
    assert os.listdir(folder) == []
    index.refresh()
    assert is_right(index)
    assert (tmp_path / "entries" / "global").is_dir()


def test_a_full_disk_or_a_busy_scope_keeps_no_index_and_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = fill(tmp_path)
    index = ScopeIndex(files, GLOBAL)
    index.refresh()
    with files.changing(GLOBAL):
        index.store(always=True, seconds=0)
    assert not (tmp_path / "index").exists()

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as seeded:
        seeded.setattr(snapshot, "write_new", fail)
        index.store(always=True)
    assert os.listdir(tmp_path / "index" / "global") == []
    index.store(always=True)
    assert len(os.listdir(tmp_path / "index" / "global")) == 1
    assert is_right(index)


def test_a_scope_whose_folder_has_gone_is_not_made_again(tmp_path: Path) -> None:
    files = fill(tmp_path, 1)
    index = ScopeIndex(files, GLOBAL)
    index.refresh()
    (tmp_path / "entries" / "global").rename(tmp_path / "away")
    index.refresh()
    index.store(always=True)
    assert len(index) == 0
    assert not (tmp_path / "entries" / "global").exists()


def test_few_changes_are_not_worth_storing(tmp_path: Path) -> None:
    files = fill(tmp_path, 3)
    index = ScopeIndex(files, GLOBAL)
    index.store(always=True)
    index.refresh()
    index.store()
    assert not (tmp_path / "index").exists()
    index.store(always=True)
    assert (tmp_path / "index").exists()


def test_a_turn_is_found_by_the_words_of_its_neighbours(tmp_path: Path) -> None:
    files = MemoryFiles(tmp_path, durable=False)
    index = ScopeIndex(files, GLOBAL)
    files.write(turn(0, "Where is the lantern?"))
    files.write(turn(2, "It is in the harbour.", minutes=2))
    # Another conversation, at the same time, and one more than an hour later.
    files.write(turn(3, "It is unknown.", minutes=1, conversation="c2"))
    files.write(turn(4, "Goodbye.", minutes=63))
    index.refresh()
    assert found_by(index, "lantern") == {"turn-0", "turn-2"}
    assert found_by(index, "harbour") == {"turn-0", "turn-2"}
    # One that comes later may belong between two that are there.
    files.write(turn(1, "Let me see.", minutes=1))
    index.refresh()
    assert found_by(index, "lantern") == {"turn-0", "turn-1", "turn-2"}
    assert found_by(index, "harbour") == {"turn-0", "turn-1", "turn-2"}
    # And what was between two may go.
    files.erase(GLOBAL, [files.place_of(turn(1, "", minutes=1))])
    index.refresh()
    assert found_by(index, "harbour") == {"turn-0", "turn-2"}


def test_turns_of_no_known_conversation_are_nobodys_neighbours(tmp_path: Path) -> None:
    files = MemoryFiles(tmp_path, durable=False)
    for scope in (GLOBAL, Scope.of_conversation("c1")):
        for number, text in enumerate(("Where is the lantern?", "In the harbour.")):
            entry = turn(number, text, minutes=number, conversation="")
            files.write(msgspec.structs.replace(entry, scope=scope))
        index = ScopeIndex(files, scope)
        index.refresh()
        assert len(found_by(index, "lantern")) == (1 if scope == GLOBAL else 2)


def test_windows_are_the_same_however_the_index_came_about(tmp_path: Path) -> None:
    chance = random.Random(3)
    files = MemoryFiles(tmp_path, durable=False)
    index = ScopeIndex(files, GLOBAL)
    there: dict[int, Entry] = {}
    for number in range(120):
        entry = turn(
            number,
            " ".join(chance.choices(THINGS, k=3)),
            minutes=chance.randrange(600),
            conversation=chance.choice(("c1", "c2")),
        )
        files.write(entry)
        there[number] = entry
        if chance.random() < 0.3:
            gone = there.pop(chance.choice(sorted(there)))
            files.erase(GLOBAL, [files.place_of(gone)])
        if chance.random() < 0.3:
            index.refresh()
    index.refresh()
    fresh = ScopeIndex(files, GLOBAL)
    fresh.refresh()
    for thing in THINGS:
        scores = [
            {
                record.identity: found[record.number].best
                for found in (one.score(asked, 200, FOUND_ROLES),)
                for record in one.records(found)
            }
            for one in (index, fresh)
            for asked in ([WeightedPart({split_words(thing)[0]: 1.0}, 1.0)],)
        ]
        assert scores[0] == pytest.approx(scores[1], rel=1e-6)


def test_a_file_that_goes_while_it_is_read_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = fill(tmp_path, 2)
    read = MemoryFiles.read

    def lose(self: MemoryFiles, scope: Scope, place: str) -> Entry:
        if "fact-1" in place:
            raise FileNotFoundError
        return read(self, scope, place)

    monkeypatch.setattr(MemoryFiles, "read", lose)
    index = ScopeIndex(files, GLOBAL)
    index.refresh()
    assert len(index) == 1


def test_two_processes_that_store_leave_one_whole_index(tmp_path: Path) -> None:
    together = [Worker(add_facts, tmp_path, seed, 70) for seed in range(2)]
    for worker in together:
        assert isinstance(worker, _Worker)
        worker.finish()
    assert [worker.code for worker in together] == [0, 0]
    assert len(os.listdir(tmp_path / "index" / "global")) == 1
    index = ScopeIndex(MemoryFiles(tmp_path), GLOBAL)
    index.refresh()
    assert len(index) == 140


async def test_a_reader_whose_generation_goes_makes_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    memory = Memory(tmp_path, durable=False)
    assert await memory.reindex() == 40
    reading = Path.read_bytes

    def lose(self: Path) -> bytes:
        if self.name == "database":
            shutil.rmtree(self.parent)
        return reading(self)

    monkeypatch.setattr(Path, "read_bytes", lose)
    index = ScopeIndex(MemoryFiles(tmp_path), GLOBAL)
    index.refresh()
    assert is_right(index)


def finds_what_could_not_be_read(folder: Path, *, many: bool) -> bool:
    """Whether entries are found again whose files could not be read for a moment."""
    files = fill(folder)
    index = ScopeIndex(files, GLOBAL)
    with pytest.MonkeyPatch.context() as failing:
        if many:
            failing.setattr(scanner, "_QUICK", 0.0)
            failing.setattr(scanner, "_REST", 1e9)
            failing.setattr(scanner, "_UNSETTLED", -(10**18))

        def fail(*_: object) -> bytes:
            raise OSError(errno.EMFILE, "Too many open files")

        with failing.context() as full:
            full.setattr(memory_files, "read_within", fail)
            index.refresh()
            assert len(index) == 0
            assert len(index.damaged) == 40
        index.refresh(thorough=False)
    return is_right(index) and not index.damaged


@pytest.mark.parametrize("many", [False, True])
def test_files_that_could_not_be_read_for_a_moment_are_read_again(
    tmp_path: Path, many: bool
) -> None:
    assert finds_what_could_not_be_read(tmp_path, many=many)


@pytest.mark.parametrize("many", [False, True])
def test_files_that_are_deleted_on_a_passing_error_are_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    if many:
        monkeypatch.setattr(DirectoryScanner, "rescan_later", lambda self: None)
    else:
        read = MemoryFiles.read

        def hide_the_cause(self: MemoryFiles, scope: Scope, place: str) -> Entry:
            try:
                return read(self, scope, place)
            except MemoryDamaged as error:
                raise error from None

        monkeypatch.setattr(MemoryFiles, "read", hide_the_cause)
    assert not finds_what_could_not_be_read(tmp_path, many=many)


def test_a_file_that_could_not_be_read_and_goes_is_damaged_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = fill(tmp_path, 2)
    index = ScopeIndex(files, GLOBAL)
    read = storage_files.read_within

    def fail(folder: Path, name: str, limit: int) -> bytes:
        if "fact-1" in name:
            raise OSError(errno.EIO, "Input/output error")
        return read(folder, name, limit)

    monkeypatch.setattr(memory_files, "read_within", fail)
    index.refresh()
    (place,) = index.damaged
    files.erase(GLOBAL, [place])
    index.refresh()
    assert index.damaged == {}
    assert len(index) == 1
