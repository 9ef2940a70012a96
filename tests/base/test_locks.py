"""Locks on folders, between processes and between threads of one."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from tests.faults import workers
from tests.faults.archives import FAST, begin, lines_of, produce_details, say
from tests.faults.processes import Worker
from tests.faults.workers import SHARED
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import ArchiveLocked, StorageError
from vibe_llms.base.locks import LockTimeout, locked


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path, seconds=1):
        with pytest.raises(ArchiveLocked), locked(tmp_path, seconds=0):
            pass
        with pytest.raises(ArchiveLocked), locked(tmp_path, seconds=0.01, shared=True):
            pass
    with locked(tmp_path, seconds=0):
        pass


def test_a_wait_that_was_ended_takes_no_lock_even_if_it_is_free(tmp_path: Path) -> None:
    patience = LockTimeout(60)
    patience.end()
    with pytest.raises(ArchiveLocked), locked(tmp_path, seconds=patience):
        pass
    assert not patience.met
    with locked(tmp_path, seconds=0):
        pass


def test_a_shared_lock_is_held_by_many_and_keeps_one_out(tmp_path: Path) -> None:
    with (
        locked(tmp_path, seconds=0, shared=True),
        locked(tmp_path, seconds=0, shared=True),
        pytest.raises(ArchiveLocked),
        locked(tmp_path, seconds=0.01),
    ):
        pass
    with locked(tmp_path, seconds=0):
        pass


def test_the_error_of_a_long_wait_says_how_to_find_the_holder(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=StorageSettings(lock_seconds=0.02))
    folder = archive.conversations / SHARED
    before = lines_of(archive).read_bytes()
    with locked(folder, seconds=0):
        with pytest.raises(ArchiveLocked) as raised:
            archive.append_now(SHARED, say("further"), None)
        with pytest.raises(ArchiveLocked):
            archive.remove_now(SHARED)
        with pytest.raises(ArchiveLocked):
            archive.access_folder(SHARED).revise({"name": "new"})
        # Readers never wait.
        assert len(archive.restore_now(SHARED).canisters) == 1
    assert str(raised.value) == (
        f"{folder}: another process has locked it for 0.02 s; try again, "
        f"or find the process: fuser {folder}"
    )
    assert lines_of(archive).read_bytes() == before
    archive.append_now(SHARED, say("further"), None)


def test_a_collection_waits_for_those_who_write(tmp_path: Path) -> None:
    archive = begin(tmp_path, settings=StorageSettings(lock_seconds=0.02))
    long = say("x" * 2_000)
    with locked(archive.contents.folder, seconds=0, shared=True):
        archive.append_now(SHARED, long, None)
        with pytest.raises(ArchiveLocked):
            archive.collect_now()
    with locked(archive.contents.folder, seconds=0):
        with pytest.raises(ArchiveLocked):
            archive.append_now(SHARED, long, None)
        with pytest.raises(ArchiveLocked):
            archive.append_now(SHARED, archive.restore_now(SHARED).canisters[1:], None)
        with pytest.raises(ArchiveLocked):
            archive.fork_now(SHARED, "fork", produce_details())
        # What has and names no content need not wait.
        archive.append_now(SHARED, say("short"), None)
    assert archive.collect_now() == []


def test_a_lock_that_becomes_free_is_taken(tmp_path: Path) -> None:
    taken = threading.Event()

    def wait() -> None:
        with locked(tmp_path, seconds=60):
            taken.set()

    with locked(tmp_path, seconds=0):
        thread = threading.Thread(target=wait)
        thread.start()
        assert not taken.wait(0.05)
    assert taken.wait(60)
    thread.join()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    holder = Worker(workers.hold_a_lock, tmp_path, 0)
    holder.wait_until_reported(1)
    with pytest.raises(ArchiveLocked), locked(tmp_path, seconds=0):
        pass
    holder.kill()
    with locked(tmp_path, seconds=0):
        pass


def test_a_folder_that_goes_while_one_waits_is_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    errors: list[OSError] = []

    def wait() -> None:
        try:
            with locked(folder, seconds=60):
                raise AssertionError("it was given an invisible folder")
        except OSError as error:
            errors.append(error)

    for again in (False, True):
        with locked(folder, seconds=0):
            thread = threading.Thread(target=wait)
            thread.start()
            while not _is_waited_for(folder, thread):
                thread.join(0.005)
            folder.rename(tmp_path / f"gone-{again}")
            if again:
                folder.mkdir()
        thread.join()
        folder.mkdir(exist_ok=True)
    assert [error.errno for error in errors] == [errno.ENOENT, errno.ENOENT]


def _is_waited_for(folder: Path, thread: threading.Thread) -> bool:
    """Whether the thread has opened the folder, which it does before it waits."""
    assert thread.is_alive()
    opened = [os.readlink(f"/proc/self/fd/{name}") for name in _descriptors()]
    return opened.count(str(folder)) == 2


def _descriptors() -> list[str]:
    return [
        name for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")
    ]


def test_a_folder_that_is_not_there_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), locked(tmp_path / "nothing", seconds=0):
        pass
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(OSError, match=r"\w"), locked(tmp_path / "link", seconds=0):
        pass


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EBADF, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    archive = begin(tmp_path, settings=FAST)
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StorageError, match=r"cannot lock a folder.*on a local disk"):
        archive.append_now(SHARED, say("further"), None)


def test_nothing_stays_open_or_behind(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with locked(tmp_path, seconds=0), pytest.raises(ArchiveLocked), locked(tmp_path, seconds=0):
            pass
    assert len(os.listdir("/proc/self/fd")) == before
    assert [*tmp_path.iterdir()] == []


def test_a_waiting_task_is_released_by_another_thread(tmp_path: Path) -> None:
    patience = LockTimeout(600)
    reported: list[ArchiveLocked] = []

    def wait() -> None:
        try:
            with locked(tmp_path, seconds=patience):
                pass
        except ArchiveLocked as error:
            reported.append(error)

    with locked(tmp_path, seconds=0):
        thread = threading.Thread(target=wait)
        thread.start()
        patience.end()
        thread.join(60)
        assert not thread.is_alive()
    assert "for 600 s" in str(reported[0])
    assert not patience.met


def test_patience_counts_from_when_one_began_to_wait(tmp_path: Path) -> None:
    begun = time.monotonic() - 600
    with locked(tmp_path, seconds=1), pytest.raises(ArchiveLocked, match="for 599 s"):
        acquire_in_vain(tmp_path, LockTimeout(599, begun=begun))
    patience = LockTimeout(599, begun=begun)
    # What is free is taken at once, however long others waited.
    with locked(tmp_path, seconds=patience):
        assert patience.met
        assert patience.is_over


def acquire_in_vain(folder: Path, patience: LockTimeout) -> None:
    with locked(folder, seconds=patience):
        pytest.fail("it was held")
