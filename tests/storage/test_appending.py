"""The open end of the lines: what stays open between two appends never misleads."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.faults.archives import FAST, FAST_INLINE, begin, lines_of, produce_details, say
from tests.faults.calls import SystemCalls
from tests.faults.leaks import count_descriptors
from tests.faults.workers import SHARED
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import (
    ArchiveLocked,
    ConversationMoved,
    ConversationNotFound,
    StorageError,
    StorageUnavailable,
)
from vibe_llms.base.files import LARGEST_FILE
from vibe_llms.base.folders import replace_file
from vibe_llms.base.locks import give_back, locked
from vibe_llms.base.offloading import LOOP_BYTES
from vibe_llms.messages.canisters import Canister, UserCanister
from vibe_llms.messages.codecs import encode_canister
from vibe_llms.messages.contents import ImageContent, TextualContent
from vibe_llms.storage import appending, archive
from vibe_llms.storage.archive import DirectoryArchive


def texts(held: DirectoryArchive) -> list[str]:
    canisters = DirectoryArchive(held.folder).restore_now(SHARED).canisters
    return [canister.text for canister in canisters if isinstance(canister, UserCanister)]


def check_replaced_file(held: DirectoryArchive) -> None:
    """A file that was replaced in between, as by a repair, is the one appended to."""
    held.append_now(SHARED, say("one"), None)
    replace_file(lines_of(held), lines_of(held).read_bytes(), LARGEST_FILE)
    held.append_now(SHARED, say("two"), None)
    assert texts(held)[-2:] == ["one", "two"], "it went into the file that was replaced"


def test_a_file_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    check_replaced_file(begin(tmp_path, settings=FAST_INLINE))


def test_that_check_sees_a_file_that_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appending._OpenFolder, "is_there", lambda self, status: True)
    with pytest.raises(AssertionError, match="the file that was replaced"):
        check_replaced_file(begin(tmp_path, settings=FAST_INLINE))


def test_a_conversation_that_was_removed_by_another_is_noticed(tmp_path: Path) -> None:
    held = begin(tmp_path, settings=FAST_INLINE)
    held.append_now(SHARED, say("one"), None)
    DirectoryArchive(tmp_path).remove_now(SHARED)
    for _ in range(2):
        with pytest.raises(ConversationNotFound):
            held.append_now(SHARED, say("two"), None)
    DirectoryArchive(tmp_path).create_now(SHARED, produce_details(), say("anew"))
    held.append_now(SHARED, say("three"), None)
    assert texts(held) == ["anew", "three"]


async def test_what_follows_a_message_is_deleted_if_nothing_was_added_since(
    tmp_path: Path,
) -> None:
    held = begin(tmp_path, settings=FAST_INLINE)
    one, two, three = say("one", "two", "three")
    held.append_now(SHARED, [one, two, three], None)
    other = DirectoryArchive(tmp_path)
    await other.retract(SHARED, after=one.identity, last=three.identity)
    assert texts(held)[-1] == "one"
    with pytest.raises(ConversationMoved):
        held.append_now(SHARED, say("four"), three.identity)
    held.append_now(SHARED, [two], one.identity)
    with pytest.raises(ConversationMoved):
        await other.retract(SHARED, after=one.identity, last=three.identity)
    with pytest.raises(ConversationNotFound):
        await other.retract(SHARED, after=three.identity, last=two.identity)
    assert texts(held)[-2:] == ["one", "two"]
    assert [one.excerpt for one in await held.search("three")] == []
    assert [one.excerpt for one in await held.search("two")] == ["[two]"]


def test_a_link_in_place_of_the_file_is_not_appended_to(tmp_path: Path) -> None:
    held = begin(tmp_path / "archive", settings=FAST_INLINE)
    held.append_now(SHARED, say("one"), None)
    lines = lines_of(held)
    lines.rename(tmp_path / "elsewhere")
    lines.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError):
        held.append_now(SHARED, say("two"), None)
    assert b"two" not in (tmp_path / "elsewhere").read_bytes()


def test_a_conversation_grows_to_the_largest_file_and_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = begin(tmp_path, settings=FAST_INLINE)
    (one, other) = say("one", "two")
    size = lines_of(held).stat().st_size + len(encode_canister(one)) + 1
    monkeypatch.setattr(appending, "LARGEST_FILE", size)
    held.append_now(SHARED, [one], None)
    with pytest.raises(StorageError, match="this conversation would be larger"):
        held.append_now(SHARED, [other], None)
    assert lines_of(held).stat().st_size == size


def check_lock_after_fork(held: DirectoryArchive) -> None:
    """What a forked process has inherited is not its own lock: it waits for the parent's."""
    writer = held.access_folder(SHARED).writer
    held.append_now(SHARED, say("one"), None)
    open_end, _ = writer._lock()
    child = os.fork()
    if not child:
        try:
            held.append_now(SHARED, say("child"), None)
        except ArchiveLocked:
            os._exit(7)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    give_back(open_end.folder)
    assert status == 7, "it wrote while the parent held the lock"


def settings_of(seconds: float) -> StorageSettings:
    return StorageSettings(durability="fast", lock_seconds=seconds, inline_bytes=1_000_000)


def test_a_forked_process_has_a_lock_of_its_own(tmp_path: Path) -> None:
    held = begin(tmp_path, settings=settings_of(0.05))
    check_lock_after_fork(held)
    held.append_now(SHARED, say("two"), None)
    assert texts(held)[-2:] == ["one", "two"]


def test_that_check_sees_a_lock_that_is_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = begin(tmp_path, settings=settings_of(0.05))
    mine = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: mine)
    with pytest.raises(AssertionError, match="while the parent held the lock"):
        check_lock_after_fork(held)


def test_another_thread_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    held = begin(tmp_path, settings=settings_of(0.05))
    turn = held.access_folder(SHARED).writer._turn
    failures: list[Exception] = []

    def append() -> None:
        try:
            held.append_now(SHARED, say("late"), None)
        except ArchiveLocked as error:
            failures.append(error)

    with turn:
        thread = threading.Thread(target=append)
        thread.start()
        thread.join(30)
    (failure,) = failures
    assert isinstance(failure, ArchiveLocked)
    assert failure.path == str(lines_of(held).parent)
    assert "locked by another thread for 0.05 s" in str(failure)
    assert "late" not in texts(held)


async def test_few_files_stay_open_and_none_after_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "OPEN_FOLDERS", 3)
    held = DirectoryArchive(tmp_path, FAST_INLINE)
    # What earlier tests have left behind closes now, and not in between.
    gc.collect()
    before = count_descriptors()
    for number in range(10):
        held.create_now(f"talk-{number}", produce_details(), say("first"))
        held.append_now(f"talk-{number}", say("second"), None)
    # Two for each, and the table of changes.
    assert count_descriptors() - before == 7
    held.append_now("talk-9", say("third"), None)
    assert len(held.restore_now("talk-9").canisters) == 3
    assert count_descriptors() - before == 7
    await held.close()
    assert count_descriptors() == before
    held.append_now("talk-9", say("fourth"), None)
    assert len(held.restore_now("talk-9").canisters) == 4


def test_more_files_stay_open_when_closed_ones_are_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "OPEN_FOLDERS", 3)
    monkeypatch.setattr(archive, "most_open", lambda: 10)
    held = DirectoryArchive(tmp_path, FAST_INLINE)
    # What earlier tests have left behind closes now, and not in between.
    gc.collect()
    before = count_descriptors()
    for number in range(20):
        held.create_now(f"talk-{number}", produce_details(), say("first"))
    for round_ in range(2):
        for number in range(8):
            held.append_now(f"talk-{number}", say(f"round {round_}"), None)
    assert count_descriptors() - before == 17
    for number in range(20):
        held.append_now(f"talk-{number}", say("last"), None)
    assert count_descriptors() - before == 21
    assert [len(held.restore_now(f"talk-{number}").canisters) for number in (0, 19)] == [4, 2]


# Without a thread.


class Loop:
    """Appends on an event loop, and how many of them went to a thread."""

    def __init__(self, held: DirectoryArchive) -> None:
        self.held = held
        self.threaded = 0

    async def append(self, *canisters: Canister, after: str | None = None) -> None:
        loop: Any = asyncio.get_running_loop()
        call = loop.call_soon_threadsafe

        def called(*values: Any, **named: Any) -> Any:
            self.threaded += 1
            return call(*values, **named)

        loop.call_soon_threadsafe = called
        try:
            await self.held.append(SHARED, canisters, after=after)
        finally:
            loop.call_soon_threadsafe = call


@pytest.fixture
async def loop(tmp_path: Path) -> AsyncIterator[Loop]:
    """Appends to a conversation whose file is open, and not synced."""
    loop = Loop(begin(tmp_path, settings=FAST))
    # It opens the file.
    await loop.append(*say("second"))
    assert loop.threaded == 1
    loop.threaded = 0
    yield loop
    await loop.held.close()


async def test_what_is_not_synced_is_appended_without_a_thread(loop: Loop) -> None:
    one, two = say("one", "two")
    with SystemCalls() as calls:
        await loop.append(one)
        await loop.append(two, after=one.identity)
    assert loop.threaded == 0
    # Is it the same file and unchanged; the table of marks, and the mark; the line, and its time.
    assert calls.names == ["stat", "fstat", "pwrite", "write", "fstat"] * 2
    assert texts(loop.held)[-2:] == ["one", "two"]


async def test_what_is_synced_is_appended_in_a_thread(tmp_path: Path) -> None:
    loop = Loop(begin(tmp_path, settings=StorageSettings()))
    await loop.append(*say("one"))
    with SystemCalls() as calls:
        await loop.append(*say("two"))
    assert loop.threaded == 2
    assert calls.names == ["stat", "fstat", "pwrite", "write", "fdatasync", "fstat"]
    await loop.held.close()


async def test_the_loop_does_not_wait_for_a_lock(loop: Loop) -> None:
    with locked(lines_of(loop.held).parent, seconds=0):
        appending = asyncio.ensure_future(loop.append(*say("one")))
        await asyncio.sleep(0)
        assert not appending.done()
    await appending
    turn = loop.held.access_folder(SHARED).writer._turn
    with turn:
        appending = asyncio.ensure_future(loop.append(*say("two")))
        await asyncio.sleep(0)
        assert not appending.done()
    await appending
    assert loop.threaded == 2
    assert texts(loop.held)[-2:] == ["one", "two"]


async def test_what_another_has_changed_is_read_in_a_thread(loop: Loop) -> None:
    (other,) = say("other")
    DirectoryArchive(loop.held.folder, FAST).append_now(SHARED, [other], None)
    await loop.append(*say("one"), after=other.identity)
    with lines_of(loop.held).open("ab") as lines:
        lines.write(b"torn")
    await loop.append(*say("two"))
    os.link(lines_of(loop.held), loop.held.folder / "copy")
    await loop.append(*say("three"))
    assert loop.threaded == 3
    assert texts(loop.held)[-4:] == ["other", "one", "two", "three"]
    assert b"three" not in (loop.held.folder / "copy").read_bytes()


async def test_what_is_large_or_stored_separately_is_written_in_a_thread(loop: Loop) -> None:
    await loop.append(UserCanister((ImageContent(b"picture", "image/png"),)))
    await loop.append(*say("word " * 300))
    assert loop.threaded == 2
    short = TextualContent("word " * 200)
    await loop.append(UserCanister((short,) * (LOOP_BYTES // 1000)))
    assert loop.threaded == 3


async def test_errors_of_the_disk_are_raised_and_nothing_is_left(loop: Loop) -> None:
    before = lines_of(loop.held).read_bytes()
    for number in range(5):
        with (
            SystemCalls(fail_at=number, error=errno.ENOSPC) as calls,
            suppress(StorageUnavailable),
        ):
            await loop.append(*say(f"number {number}"))
            # The line was written, and is only read again the next time.
            assert number == 4
            before = lines_of(loop.held).read_bytes()
        assert calls.failed
        assert lines_of(loop.held).read_bytes() == before
        # It opens the file again, after an error.
        await loop.append(*say("in between"))
        await loop.append(*say("in between"))
        before = lines_of(loop.held).read_bytes()


async def test_another_end_is_refused_without_a_thread(loop: Loop) -> None:
    with pytest.raises(ConversationMoved):
        await loop.append(*say("one"), after="another")
    assert loop.threaded == 0
    DirectoryArchive(loop.held.folder).remove_now(SHARED)
    with pytest.raises(ConversationNotFound):
        await loop.append(*say("one"))


async def test_a_disk_that_was_slow_is_left_to_the_threads_for_a_while(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)

    class Slow:
        def before(self, name: str, *_: object) -> None:
            nonlocal now
            now += 0.02 if name == "write" else 0

        def after(self, *_: object) -> None:
            return None

    with SystemCalls(observer=Slow()):
        await loop.append(*say("one"))
    assert loop.threaded == 0
    await loop.append(*say("two"))
    now += 9
    await loop.append(*say("three"))
    assert loop.threaded == 2
    now += 2
    await loop.append(*say("four"))
    assert loop.threaded == 2
    assert texts(loop.held)[-4:] == ["one", "two", "three", "four"]


async def test_a_network_file_system_is_left_to_the_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "find_network_mount", lambda folder: "nfs4")
    loop = Loop(begin(tmp_path, settings=FAST))
    for text in ("one", "two", "three"):
        await loop.append(*say(text))
    assert loop.threaded == 3
    await loop.held.close()
