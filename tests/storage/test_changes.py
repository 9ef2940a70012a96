"""Lists that do not look at every file: what they see at once, and what after the next look."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.faults.archives import FAST, lines_of, produce_details, say
from tests.faults.calls import SystemCalls
from tests.faults.leaks import count_descriptors
from vibe_llms.base.databases import open_database
from vibe_llms.base.exceptions import StorageError
from vibe_llms.messages.codecs import encode_canister
from vibe_llms.storage import changes, search
from vibe_llms.storage.archive import INDEX, DirectoryArchive
from vibe_llms.storage.changes import CHANGES, TABLE_BYTES, Changes, compare, slot_of
from vibe_llms.storage.indexing import FoundConversation, Indexer
from vibe_llms.storage.search import Index, Seen

OLD = "old"
LONG_AGO = 1_000_000_000


@pytest.fixture
def archive(tmp_path: Path) -> DirectoryArchive:
    """An archive of many conversations that was looked at when all of it was old.

    A list of one shows `shown`; `old` is the last one.
    """
    archive = DirectoryArchive(tmp_path, FAST)
    archive.prepare()
    for number in range(40):
        archive.create_now(f"other{number}", produce_details(), say("a river"))
    archive.create_now(OLD, produce_details(), say("a lantern"))
    archive.create_now("shown", produce_details(), say("a meadow"))
    for folder in archive.conversations.iterdir():
        os.utime(folder / "messages.jsonl", (LONG_AGO, LONG_AGO))
    os.utime(lines_of(archive, OLD), (0, 1_000))
    os.utime(lines_of(archive, "shown"), (LONG_AGO + 1, LONG_AGO + 1))
    settle(archive)
    return archive


def settle(archive: DirectoryArchive) -> None:
    """All is known, and the folder has not changed for a while."""
    os.utime(archive.conversations, (LONG_AGO, LONG_AGO))
    archive.verify_now()
    archive.survey_now(1)
    with SystemCalls() as calls:
        archive.survey_now(1)
    assert calls.count("scandir") == 0


def newest(archive: DirectoryArchive) -> str:
    return archive.survey_now(1)[0].identity


def found(archive: DirectoryArchive, text: str) -> set[str]:
    return {finding.conversation for finding in archive.search_now(text, 1_000)}


def edit(archive: DirectoryArchive, identity: str, old: bytes, new: bytes) -> None:
    """Change a file in its place, as an editor may; only its own size and time show it."""
    path = lines_of(archive, identity)
    with path.open("rb+") as file:
        data = file.read().replace(old, new)
        file.seek(0)
        file.write(data)
        file.truncate()
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def write_more(archive: DirectoryArchive, identity: str, text: str) -> None:
    """Append as another program may."""
    with lines_of(archive, identity).open("ab") as file:
        file.write(b"".join(encode_canister(one) + b"\n" for one in say(text)))


def test_where_nothing_changed_only_what_is_shown_is_looked_at(archive: DirectoryArchive) -> None:
    for work in (
        lambda: archive.survey_now(1),
        lambda: archive.search_now("meadow"),
        archive.count_now,
    ):
        with SystemCalls() as calls:
            work()
        assert calls.count("scandir") == calls.count("listdir") == 0
        assert calls.count("stat") <= 6


CHANGED: Sequence[Callable[[DirectoryArchive], object]] = (
    lambda archive: archive.append_now(OLD, say("a torch"), None),
    lambda archive: archive.access_folder(OLD).append(say("a torch"), after=None),
)


@pytest.mark.parametrize("change", CHANGED)
def test_a_message_of_ours_is_seen_at_once(
    archive: DirectoryArchive, change: Callable[[DirectoryArchive], object]
) -> None:
    change(DirectoryArchive(archive.folder, FAST))
    with SystemCalls() as calls:
        assert newest(archive) == OLD
    assert calls.count("scandir") == 0
    assert calls.count("stat") < 20
    assert found(archive, "torch") == {OLD}


def test_changed_details_are_seen_at_once(archive: DirectoryArchive) -> None:
    other = DirectoryArchive(archive.folder, FAST)
    other.access_folder(OLD).revise({"tags": ["lamp"]})
    assert [one.identity for one in archive.survey_now(1, "lamp")] == [OLD]
    assert archive.count_now("lamp") == 1


def test_a_repair_is_seen_at_once(archive: DirectoryArchive) -> None:
    edit(archive, OLD, b"}\n", b"}\ndamaged\n")
    os.utime(lines_of(archive, OLD), (0, 1_000))
    settle(archive)
    DirectoryArchive(archive.folder, FAST).access_folder(OLD).repair()
    assert newest(archive) == OLD


def test_a_torn_end_that_is_set_aside_is_seen_at_once(archive: DirectoryArchive) -> None:
    with lines_of(archive, OLD).open("ab") as file:
        file.write(b'{"torn')
    os.utime(lines_of(archive, OLD), (0, 1_000))
    settle(archive)
    DirectoryArchive(archive.folder, FAST).access_folder(OLD).append((), after=None)
    assert newest(archive) == OLD


def test_new_and_removed_conversations_of_ours_are_seen_at_once(archive: DirectoryArchive) -> None:
    other = DirectoryArchive(archive.folder, FAST)
    with SystemCalls() as calls:
        other.create_now("new", produce_details(), say("a torch"))
        other.fork_now(OLD, "fork", produce_details())
        assert found(archive, "torch") == {"new"}
    # Only these are looked at, because nothing else can have changed.
    assert calls.count("stat") < 40
    assert found(archive, "lantern") == {OLD, "fork"}
    other.remove_now(OLD)
    assert found(archive, "lantern") == {"fork"}
    other.remove_now("new")
    other.create_now("new", produce_details(), say("a candle"))
    assert found(archive, "torch") == set()
    assert found(archive, "candle") == {"new"}


class During:
    """Does something before or after the first call of a name."""

    def __init__(self, name: str, work: Callable[[], object], *, after: bool = False) -> None:
        self._name = name
        self._work = work
        self._after = after

    def before(self, name: str, arguments: object, options: object) -> None:
        if not self._after:
            self._meet(name)

    def after(self, name: str, *_: object) -> None:
        if self._after:
            self._meet(name)

    def _meet(self, name: str) -> None:
        if name == self._name:
            self._name = ""
            self._work()


def test_a_list_between_the_mark_and_the_message_does_not_miss_the_message(
    archive: DirectoryArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = DirectoryArchive(archive.folder, FAST)
    seen: list[str] = []
    with SystemCalls(observer=During("write", lambda: seen.append(newest(archive)))):
        other.append_now(OLD, say("a torch"), None)
    assert seen == ["shown"]
    assert newest(archive) == OLD
    os.utime(lines_of(archive, OLD), (0, 1_000))
    monkeypatch.setattr(search, "CHECK_SECONDS", 0.0)
    archive.verify_now()
    with SystemCalls(observer=During("write", archive.verify_now)):
        other.append_now(OLD, say("a torch"), None)
    assert newest(archive) == OLD
    # Then it is no longer waited for.
    with SystemCalls() as calls:
        newest(archive)
    assert calls.count("stat") <= 6


@pytest.mark.parametrize("name", ["write", "pwrite"])
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_during_an_append_hides_no_message(
    archive: DirectoryArchive, name: str, after: bool
) -> None:
    def crash() -> None:
        raise KeyboardInterrupt

    other = DirectoryArchive(archive.folder, FAST)
    with (
        SystemCalls(observer=During(name, crash, after=after)),
        pytest.raises(KeyboardInterrupt),
    ):
        other.append_now(OLD, say("a torch"), None)
    written = (name, after) == ("write", True)
    assert newest(archive) == (OLD if written else "shown")
    assert found(archive, "torch") == ({OLD} if written else set())


def test_a_mark_that_cannot_be_made_stops_the_change(archive: DirectoryArchive) -> None:
    before = lines_of(archive, OLD).read_bytes()

    def refuse() -> None:
        raise OSError(errno.EIO, "failed", str(archive.folder / CHANGES))

    with (
        SystemCalls(observer=During("pwrite", refuse)),
        pytest.raises(StorageError, match=f"{CHANGES}: the disk reported an error"),
    ):
        archive.append_now(OLD, say("a torch"), None)
    assert lines_of(archive, OLD).read_bytes() == before
    with SystemCalls(observer=During("pwrite", refuse)):
        archive.remove_now(OLD)
    assert found(archive, "lantern") == set()


# Other programs.


def test_what_is_shown_is_never_old(archive: DirectoryArchive) -> None:
    edit(archive, "shown", b"a meadow", b"a garden")
    assert archive.survey_now(1)[0].title == "a garden"
    edit(archive, "shown", b"a garden", b"a forest")
    assert found(archive, "garden") == set()
    assert found(archive, "forest") == {"shown"}
    (archive.conversations / "shown" / "metadata.toml").write_text("damaged =")
    assert archive.survey_now(1)[0].problem.startswith("this is not valid TOML")
    shutil.rmtree(archive.conversations / "shown")
    assert newest(archive) != "shown"


def test_what_another_program_adds_or_deletes_is_seen_at_once(archive: DirectoryArchive) -> None:
    folders = archive.conversations
    shutil.copytree(folders / OLD, folders / "copy")
    assert found(archive, "lantern") == {OLD, "copy"}
    settle(archive)
    # It may have changed others, too.
    write_more(archive, "other1", "a torch")
    shutil.rmtree(folders / OLD)
    assert found(archive, "lantern") == {"copy"}
    assert found(archive, "torch") == {"other1"}
    settle(archive)
    (folders / "other2").rename(folders.parent / "aside")
    shutil.copytree(folders / "copy", folders / "other2")
    assert found(archive, "lantern") == {"copy", "other2"}


def test_a_restored_backup_is_seen_at_once(archive: DirectoryArchive, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    shutil.copytree(archive.conversations, backup)
    archive.append_now(OLD, say("a torch"), None)
    archive.remove_now("other1")
    settle(archive)
    shutil.rmtree(archive.conversations)
    shutil.copytree(backup, archive.conversations)
    os.utime(archive.conversations, (LONG_AGO, LONG_AGO))
    assert found(archive, "torch") == set()
    assert archive.count_now() == 42


def test_a_change_within_one_tick_of_the_clock_is_seen(archive: DirectoryArchive) -> None:
    """The time of the folder of conversations may be the same after the next change."""
    folders = archive.conversations
    # Ahead of a clock that may stand still for a moment.
    os.utime(folders, ns=(0, time.time_ns() + 10**9))
    status = folders.stat()
    archive.survey_now(1)
    shutil.copytree(folders / OLD, folders / "copy")
    os.utime(folders, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert found(archive, "lantern") == {OLD, "copy"}


@pytest.mark.parametrize(
    ("nanoseconds", "scans"),
    [
        pytest.param(1, 0, id="the clock of the system"),
        pytest.param(0, 1, id="a clock of 10 ms, of 1 s or of 2 s"),
    ],
)
def test_new_conversations_are_looked_for_again_only_within_a_tick_of_the_clock(
    archive: DirectoryArchive, monkeypatch: pytest.MonkeyPatch, nanoseconds: int, scans: int
) -> None:
    # Long enough for any machine.
    monkeypatch.setattr(search, "_TICK_SECONDS", 1_000.0)
    DirectoryArchive(archive.folder, FAST).create_now("new", produce_details(), say("a torch"))
    just_now = (time.time_ns() // 10**7 - 10_000) * 10**7 + nanoseconds
    os.utime(archive.conversations, ns=(0, just_now))
    assert found(archive, "torch") == {"new"}
    for _ in range(3):
        with SystemCalls() as calls:
            archive.survey_now(1)
        assert calls.count("scandir") == scans


# What a list among conversations costs that were just written.


class Statements:
    """Counts the databases that are opened, and the statements of their connections."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = 0
        self.texts: list[str] = []
        self._open = open_database
        monkeypatch.setattr(search, "open_database", self.open)

    def open(self, *values: Any, **named: Any) -> sqlite3.Connection:
        self.opened += 1
        database = self._open(*values, **named)
        database.set_trace_callback(self.texts.append)
        return database

    def count(self, text: str) -> int:
        return sum(text in one for one in self.texts)


def write_many(archive: DirectoryArchive, count: int) -> None:
    other = DirectoryArchive(archive.folder, FAST)
    for number in range(count):
        writer = (archive, other)[number % 2]
        writer.create_now(f"written{number}", produce_details(), say("a torch"))


def test_a_list_among_conversations_just_written_costs_what_it_shows(
    archive: DirectoryArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = Statements(monkeypatch)
    archive = DirectoryArchive(archive.folder, FAST)
    write_many(archive, 200)
    assert len(archive.survey_now(50)) == 50
    # As a tenth of a second later.
    os.utime(archive.conversations, ns=(0, time.time_ns() - 10**9 // 2 | 1))
    archive.survey_now(50)
    statements.texts.clear()
    for number in range(5):
        archive.append_now(f"written{number}", say("more"), None)
        with SystemCalls() as calls:
            assert archive.survey_now(50)[0].identity == f"written{number}"
        assert calls.count("scandir") == 0
        # The two files of each that is shown, of that which has changed, and a few folders.
        assert calls.count("stat") <= 2 * 50 + 15
    assert statements.opened == 1
    # The journal is emptied, and not created each time.
    assert (archive.folder / f"{INDEX}-journal").stat().st_size == 0
    # Neither all names nor the state of the whole table, for a few changes.
    assert statements.count("select identity, inode") == 0
    assert statements.count("insert or replace into state") == 0


def test_a_new_conversation_is_found_among_names_that_are_known(
    archive: DirectoryArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = Statements(monkeypatch)
    archive = DirectoryArchive(archive.folder, FAST)
    write_many(archive, 50)
    archive.survey_now(50)
    statements.texts.clear()
    for number in range(5):
        archive.create_now(f"new{number}", produce_details(), say("more"))
        assert newest(archive) == f"new{number}"
    archive.remove_now("new4")
    assert newest(archive) == "new3"
    assert archive.count_now() == 42 + 50 + 4
    assert statements.opened == 1
    assert statements.count("select identity, inode from") == 0


def test_many_changes_are_noted_in_the_index_for_the_next_process(
    archive: DirectoryArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_FEW_SLOTS", 3)
    for number in range(10):
        archive.append_now(f"other{number}", say("a torch"), None)
        assert newest(archive) == f"other{number}"
    assert len(found(archive, "torch")) == 10
    with SystemCalls() as calls:
        assert len(found(DirectoryArchive(archive.folder, FAST), "torch")) == 10
    # It looks at three that are noted in memory only, and at those that it shows.
    assert calls.count("stat") <= 2 * (10 + 3) + 15


def test_what_another_connection_changes_is_not_remembered_otherwise(
    archive: DirectoryArchive,
) -> None:
    other = DirectoryArchive(archive.folder, FAST)
    for number in range(10):
        for writer, reader in ((archive, other), (other, archive)):
            writer.append_now(OLD, say(f"torch{number}"), None)
            assert newest(reader) == OLD
            assert found(writer, f"torch{number}") == {OLD}
            os.utime(lines_of(archive, OLD), (0, 1_000 + number))
            settle(reader)
        writer.create_now(f"new{number}", produce_details(), say("a candle"))
        assert archive.count_now() == other.count_now() == 42 + number + 1


def test_an_index_that_is_replaced_while_it_is_open_is_opened_again(
    archive: DirectoryArchive,
) -> None:
    """As a backup may do, into a new file or into the same one."""
    index = archive.folder / INDEX
    backup = index.read_bytes()
    replacements: Sequence[Callable[[], object]] = (index.unlink, lambda: None)
    for replace in replacements:
        archive.append_now(OLD, say("a torch"), None)
        assert found(archive, "torch") == {OLD}
        archive.create_now("new", produce_details(), say("a torch"))
        assert found(archive, "torch") == {OLD, "new"}
        replace()
        index.write_bytes(backup)
        assert found(archive, "torch") == {OLD, "new"}
        archive.remove_now("new")
        assert found(archive, "torch") == {OLD}
    DirectoryArchive(archive.folder, FAST).discard_index()
    assert found(archive, "torch") == {OLD}


def test_a_forked_process_opens_the_index_itself(archive: DirectoryArchive) -> None:
    newest(archive)
    child = os.fork()
    if not child:
        status = 1
        try:
            archive.append_now(OLD, say("a torch"), None)
            status = 7 if newest(archive) == OLD else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert search._INHERITED == []
    assert newest(archive) == OLD


async def test_closing_closes_the_index(archive: DirectoryArchive) -> None:
    gc.collect()
    before = count_descriptors()
    await asyncio.gather(*(archive.survey(limit=1) for _ in range(8)))
    await archive.close()
    assert count_descriptors() <= before
    assert await archive.count() == 42
    assert [one.identity for one in await archive.survey(limit=1)] == ["shown"]
    await archive.close()


def test_states_of_a_table_are_compared_number_by_number() -> None:
    chance = random.Random(0)
    for count in (0, 1, 2, 40, 4_096):
        before = chance.randbytes(TABLE_BYTES)
        slots = set(chance.sample(range(1, 4_097), count))
        now = bytearray(before)
        for slot in slots:
            now[8 * slot + chance.randrange(8)] ^= 1
        # The first number is that of the table itself.
        now[0] ^= chance.randrange(2)
        assert compare(before, bytes(now)) == slots
    marked = bytearray(TABLE_BYTES)
    marked[8 * 4_096] = 1
    assert compare(b"", bytes(marked)) == {4_096}
    assert compare(bytes(marked), b"") == set()


async def test_what_another_program_writes_is_seen_after_the_next_answer(
    archive: DirectoryArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: Sequence[Callable[[], Awaitable[object]]] = (
        lambda: archive.survey(limit=1),
        lambda: archive.search("x"),
    )
    for number, ask in enumerate(questions):
        write_more(archive, OLD, f"torch{number}")
        # All was looked at just now.
        await ask()
        await archive.close()
        assert found(archive, f"torch{number}") == set()
        monkeypatch.setattr(search, "CHECK_SECONDS", 0.0)
        await ask()
        await archive.close()
        monkeypatch.undo()
        assert found(archive, f"torch{number}") == {OLD}
        assert newest(archive) == OLD


def test_only_a_look_at_everything_counts_as_one(
    archive: DirectoryArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = looked(archive)
    archive.append_now(OLD, say("a torch"), None)
    archive.survey_now(1)
    assert looked(archive) == begun
    monkeypatch.setattr(search, "CHECK_SECONDS", 0.0)
    archive.survey_now(1)
    assert looked(archive) == begun
    archive.verify_now()
    assert looked(archive) > begun


def looked(archive: DirectoryArchive) -> float:
    with closing(sqlite3.connect(archive.folder / INDEX)) as database:
        (value,) = database.execute("select value from state where name = 'seen'").fetchone()
    return msgspec.msgpack.decode(value, type=Seen).checked


async def test_a_list_of_everything_looks_at_everything(archive: DirectoryArchive) -> None:
    write_more(archive, OLD, "a torch")
    assert archive.survey_now()[0].identity == OLD
    edit(archive, OLD, b"a lantern", b"a new name")
    assert await archive.resolve("a new name") == OLD


async def test_a_look_in_the_background_that_fails_is_tried_again(
    archive: DirectoryArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_more(archive, OLD, "a torch")
    monkeypatch.setattr(search, "CHECK_SECONDS", 0.0)
    verify = Index.verify
    failed: list[str] = []

    def fail(self: Index) -> None:
        failed.append("once")
        raise StorageError("it failed", path="index")

    monkeypatch.setattr(Index, "verify", fail)
    await archive.survey(limit=1)
    await archive.close()
    assert failed == ["once"]
    monkeypatch.setattr(Index, "verify", verify)
    await archive.survey(limit=1)
    await archive.close()
    assert newest(archive) == OLD


async def test_one_look_in_the_background_is_enough(
    archive: DirectoryArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "CHECK_SECONDS", 0.0)
    begun, may_end = threading.Event(), threading.Event()
    looks: list[str] = []

    def wait(self: Index) -> None:
        looks.append("a look")
        begun.set()
        assert may_end.wait(30)

    monkeypatch.setattr(Index, "verify", wait)
    await archive.survey(limit=1)
    assert await asyncio.to_thread(begun.wait, 30)
    await archive.survey(limit=1)
    await archive.search("meadow")
    may_end.set()
    await archive.close()
    assert looks == ["a look"]


# What tells that marks may be missing.


def test_after_a_start_of_the_machine_everything_is_looked_at(
    archive: DirectoryArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_more(archive, OLD, "a torch")
    assert newest(archive) == "shown"
    monkeypatch.setattr(search, "identify_boot", lambda: "another")
    assert newest(archive) == OLD
    # Without a name for the start, every time.
    monkeypatch.setattr(search, "identify_boot", str)
    for before, after in (("torch", "candle"), ("candle", "lamp")):
        edit(archive, OLD, before.encode(), after.encode())
        assert found(archive, after) == {OLD}


def test_the_start_of_this_machine_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    changes.identify_boot.cache_clear()
    assert len(changes.identify_boot()) == 36
    changes.identify_boot.cache_clear()
    monkeypatch.setattr(changes, "_BOOT", "/nowhere")
    assert changes.identify_boot() == ""
    changes.identify_boot.cache_clear()


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.write_bytes(os.urandom(TABLE_BYTES)),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), path.symlink_to("/nowhere")),
        make_pipe,
    ],
)
def test_without_its_table_everything_is_looked_at(
    archive: DirectoryArchive, damage: Callable[[Path], object]
) -> None:
    write_more(archive, OLD, "a torch")
    damage(archive.folder / CHANGES)
    assert newest(archive) == OLD
    assert found(archive, "torch") == {OLD}


def test_an_index_that_is_lost_looks_at_everything(archive: DirectoryArchive) -> None:
    write_more(archive, OLD, "a torch")
    (archive.folder / INDEX).unlink()
    assert newest(archive) == OLD


def test_very_many_changes_are_seen(
    archive: DirectoryArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_MANY_SLOTS", 3)
    for number in range(10):
        archive.append_now(f"other{number}", say("a torch"), None)
    with SystemCalls() as calls:
        assert found(archive, "torch") == {f"other{number}" for number in range(10)}
    assert calls.count("scandir") == 1


# A new index.


def test_many_conversations_are_indexed_with_a_report(tmp_path: Path) -> None:
    reports: list[tuple[int, int]] = []
    archive = DirectoryArchive(tmp_path, FAST, report=lambda *report: reports.append(report))
    archive.prepare()
    for number in range(250):
        archive.create_now(f"c{number}", produce_details(), say(f"word{number}", "x" * 600))
    lines_of(archive, "c7").unlink()
    lines_of(archive, "c8").write_bytes(b"damaged\n")
    (archive.conversations / "c9" / "metadata.toml").write_text("damaged =")
    listed = {one.identity: one for one in archive.survey_now()}
    assert reports == [(0, 250), (100, 250), (200, 250), (250, 250)]
    assert len(listed) == 250
    assert {name for name, one in listed.items() if one.problem} == {"c7", "c9"}
    assert found(archive, "x" * 600) == {*listed} - {"c7", "c8"}
    assert found(archive, "word249") == {"c249"}
    for identity in ("c1", "c249"):
        archive.remove_now(identity)
    assert found(archive, "word249") == found(archive, "word1") == set()
    assert len(archive.search_now("x" * 600, 1_000)) == 246
    # A few are indexed without one.
    archive.create_now("new", produce_details(), say("new"))
    assert found(archive, "new") == {"new"}
    assert len(reports) == 4


def test_a_new_index_that_fails_half_way_is_made_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = DirectoryArchive(tmp_path, FAST)
    archive.prepare()
    for number in range(1_200):
        archive.create_now(f"c{number}", produce_details(), say(f"word{number}"))
    read = Indexer._read

    def fail(self: Indexer, found: FoundConversation) -> object:
        if found.identity == "c500":
            raise KeyboardInterrupt
        return read(self, found)

    monkeypatch.setattr(Indexer, "_read", fail)
    with pytest.raises(KeyboardInterrupt):
        archive.survey_now(1)
    monkeypatch.undo()
    assert archive.count_now() == 1_200
    assert found(archive, "word500") == {"c500"}


# The table.


def test_a_mark_changes_the_slot_of_its_conversation(tmp_path: Path) -> None:
    table = Changes(tmp_path)
    before = table.read()
    assert len(before) == TABLE_BYTES
    assert (tmp_path / CHANGES).stat().st_mode & 0o777 == 0o600
    table.mark("abcd")
    after = table.read()
    assert compare(before, after) == {slot_of("abcd")}
    table.mark("abcd")
    assert compare(after, table.read()) == {slot_of("abcd")}
    assert compare(b"", before) == set()
    assert compare(before, b"") == set()
    slots = {slot_of(f"conversation{number}") for number in range(100_000)}
    assert (min(slots), max(slots)) == (1, TABLE_BYTES // 8 - 1)


def test_a_table_that_was_replaced_is_not_marked_any_more(tmp_path: Path) -> None:
    table = Changes(tmp_path)
    table.mark("abcd")
    (tmp_path / CHANGES).unlink()
    table.mark("efgh")
    before = Changes(tmp_path).read()
    assert compare(b"", before) == {slot_of("efgh")}
    table.close()
    table.mark("abcd")
    assert compare(before, Changes(tmp_path).read()) == {slot_of("abcd")}


def test_two_that_make_the_table_at_once_make_one(tmp_path: Path) -> None:
    other = Changes(tmp_path)
    with SystemCalls(observer=During("fstat", lambda: other.mark("abcd"))):
        Changes(tmp_path).mark("efgh")
    assert compare(bytes(TABLE_BYTES), other.read()) == {slot_of("abcd"), slot_of("efgh")}


def test_a_table_that_cannot_be_made_is_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(errno.ENOSPC, "full")

    with SystemCalls(observer=During("fstat", refuse)):
        assert Changes(tmp_path).read() == b""
    (tmp_path / CHANGES).unlink()
    monkeypatch.delattr(os, "posix_fallocate")
    Changes(tmp_path).mark("abcd")
    assert len(Changes(tmp_path).read()) == TABLE_BYTES


# Many at once.


def check_readers_and_writers(archive: DirectoryArchive, rounds: int) -> None:
    """No list misses a message that was acknowledged before the list began."""
    identities = [f"other{number}" for number in range(8)]
    failures: list[BaseException] = []
    counts = dict.fromkeys(identities, 1)
    writing = threading.Event()
    writing.set()

    def write(some: Sequence[str]) -> None:
        mine = DirectoryArchive(archive.folder, FAST)
        for number in range(rounds):
            for identity in some:
                mine.append_now(identity, say(f"{number}"), None)
                counts[identity] += 1

    def read() -> None:
        while writing.is_set():
            known = dict(counts)
            listed = {one.identity: one.messages for one in archive.survey_now(1_000)}
            assert all(listed[identity] >= count for identity, count in known.items())

    def guard(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  (raised by the main thread)
            failures.append(error)

    readers = [threading.Thread(target=guard, args=(read,)) for _ in range(2)]
    writers = [
        threading.Thread(target=guard, args=(lambda some=identities[start::2]: write(some),))
        for start in range(2)
    ]
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    writing.clear()
    for thread in readers:
        thread.join()
    if failures:
        raise failures[0]
    assert {one.identity: one.messages for one in archive.survey_now(8)} == counts


@pytest.mark.storm
def test_lists_during_appends_miss_nothing(
    archive: DirectoryArchive,
    monkeypatch: pytest.MonkeyPatch,
    rounds: Callable[[int, int], int],
) -> None:
    # Only the marks count here, not the look at what is shown.
    monkeypatch.setattr(Index, "_find_changed", lambda _: set())
    check_readers_and_writers(archive, rounds(20, 500))


@pytest.mark.parametrize(
    ("passed", "due"), [(0.0, False), (9.0, False), (11.0, True), (-1.0, True), (-90_000.0, True)]
)
def test_a_clock_that_was_set_back_puts_no_look_off(
    archive: DirectoryArchive, monkeypatch: pytest.MonkeyPatch, passed: float, due: bool
) -> None:
    now = looked(archive)
    monkeypatch.setattr(time, "time", lambda: now + passed)
    archive.survey_now(1)
    assert archive._is_due is due
