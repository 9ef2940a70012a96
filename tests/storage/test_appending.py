"""The open end of the lines: what stays open between two appends never misleads."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest

from tests.faults.archives import FAST_INLINE, begin, lines_of, produce_details, say
from tests.faults.leaks import count_descriptors
from tests.faults.workers import SHARED
from vibe_llms.configuration import StorageSettings
from vibe_llms.exceptions import (
    ArchiveLocked,
    ConversationMoved,
    ConversationNotFound,
    StorageError,
)
from vibe_llms.files import LARGEST_FILE
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.codecs import encode_canister
from vibe_llms.storage import appending, archive
from vibe_llms.storage.archive import DirectoryArchive
from vibe_llms.storage.files import replace_file
from vibe_llms.storage.locks import give_back


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
    monkeypatch.setattr(appending._Held, "is_there", lambda self, status: True)
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
    assert "another thread has held it for 0.05 s" in str(failure)
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
