"""The few ways in which the archive touches the disk."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.calls import SystemCalls
from vibe_llms.base.exceptions import StorageError
from vibe_llms.base.folders import (
    READ,
    copy_new,
    make_folder,
    new_folder,
    open_folder,
    read_within,
    refuse_link,
    remove_folder,
    replace_file,
    storage_errors,
    synchronise,
    write_all,
    write_new,
)


def test_missing_folders_are_made_private_and_durable(tmp_path: Path) -> None:
    with SystemCalls() as calls:
        make_folder(tmp_path / "a" / "b" / "c")
    assert calls.count("mkdir") == calls.count("fsync") == 3
    for path in (tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"):
        assert path.stat().st_mode & 0o777 == 0o700
    with SystemCalls() as calls:
        make_folder(tmp_path / "a" / "b" / "c")
    assert set(calls.names) == {"stat"}


def test_a_folder_that_another_process_makes_at_the_same_time_is_used(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    mkdir = os.mkdir

    class Faster:
        def before(self, name: str, arguments: object, options: object) -> None:
            if name == "mkdir":
                mkdir(path)

        def after(self, *_: object) -> None:
            return None

    with SystemCalls(observer=Faster()):
        make_folder(path)
    assert path.is_dir()


def test_a_file_in_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file")
    with pytest.raises(NotADirectoryError), open_folder(tmp_path / "file"):
        pass


def test_a_new_file_must_be_new(tmp_path: Path) -> None:
    write_new(tmp_path / "file", b"data", durable=True)
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "file", b"other", durable=True)
    assert (tmp_path / "file").read_bytes() == b"data"
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "link", b"other", durable=True)
    assert not (tmp_path / "elsewhere").exists()


class Refusing:
    """A system that does not copy between files."""

    def __init__(self, failing: int) -> None:
        self._failing = failing

    def before(self, name: str, arguments: object, options: object) -> None:
        if name == "copy_file_range":
            raise OSError(self._failing, os.strerror(self._failing))

    def after(self, *_: object) -> None:
        return None


def copy_start(folder: Path, size: int, *, durable: bool = False) -> bytes:
    with (folder / "source").open("rb") as source:
        copy_new(folder / "copy", source.fileno(), size, durable=durable)
    data = (folder / "copy").read_bytes()
    (folder / "copy").unlink()
    return data


@pytest.mark.parametrize(
    "number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.EPERM]
)
def test_where_the_system_cannot_copy_we_do(tmp_path: Path, number: int) -> None:
    whole = os.urandom(2_500_000)
    (tmp_path / "source").write_bytes(whole)
    with SystemCalls(observer=Refusing(number)) as calls:
        for size in (0, 1, 1_048_576, 2_499_999, 2_500_000):
            assert copy_start(tmp_path, size) == whole[:size]
    assert calls.count("copy_file_range") == 4


def test_a_copy_that_stops_half_way_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.urandom(100_000)
    (tmp_path / "source").write_bytes(whole)
    copied = os.copy_file_range
    for most in (1_000, 0):
        monkeypatch.setattr(
            os,
            "copy_file_range",
            lambda source, target, size, offset_src, most=most: copied(
                source, target, min(size, most), offset_src=offset_src
            ),
        )
        assert copy_start(tmp_path, 99_999) == whole[:-1]
    monkeypatch.delattr(os, "copy_file_range")
    assert copy_start(tmp_path, 99_999, durable=True) == whole[:-1]


def test_a_copy_that_fails_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(bytes(1_000))
    with (
        SystemCalls(observer=Refusing(errno.ENOSPC)),
        pytest.raises(OSError, match="No space left"),
    ):
        copy_start(tmp_path, 1_000)
    (tmp_path / "copy").unlink()
    with pytest.raises(OSError, match="it became shorter"):
        copy_start(tmp_path, 1_001)


def test_a_copy_is_private_new_and_synchronised(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"data")
    source = os.open(tmp_path / "source", READ)
    with SystemCalls() as calls:
        copy_new(tmp_path / "copy", source, 4, durable=True)
    assert calls.names == ["open", "copy_file_range", "fdatasync"]
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        copy_new(tmp_path / "copy", source, 4, durable=True)
    os.close(source)


def test_a_replaced_file_is_synchronised_then_renamed_then_its_folder_synchronised(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with SystemCalls() as calls:
        replace_file(tmp_path / "file", b"new", 9)
    assert [name for name in calls.names if name not in ("open", "stat", "fstat")] == [
        "write",
        "fdatasync",
        "rename",
        "fsync",
    ]
    assert (tmp_path / "file").read_bytes() == b"new"
    with SystemCalls() as calls:
        replace_file(tmp_path / "file", b"newer", 9, durable=False)
    assert "fsync" not in calls.names
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]


@pytest.mark.parametrize("call", ["write", "fdatasync", "rename"])
def test_a_file_whose_replacing_fails_is_the_old_one(tmp_path: Path, call: str) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with SystemCalls() as counted:
        replace_file(tmp_path / "other", b"new", 9)
    at = counted.names.index(call)
    with SystemCalls(fail_at=at, error=errno.EIO) as calls, pytest.raises(OSError, match="error"):
        replace_file(tmp_path / "file", b"new", 9)
    assert calls.failed == call
    assert (tmp_path / "file").read_bytes() == b"old"
    assert {path.name for path in tmp_path.iterdir()} == {"file", "other"}


def test_a_link_in_place_of_a_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"outside")
    (tmp_path / "file").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match=r"symbolic|Too many"):
        read_within(tmp_path, "file")
    replace_file(tmp_path / "file", b"new", 9)
    assert (tmp_path / "outside").read_bytes() == b"outside"
    assert read_within(tmp_path, "file") == b"new"


def test_only_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    refuse_link(tmp_path)
    refuse_link(tmp_path / "nothing")
    with (
        pytest.raises(StorageError, match="which is not followed here"),
        storage_errors(tmp_path / "link"),
    ):
        refuse_link(tmp_path / "link")


def test_a_file_is_read_whole_in_any_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256)) * 100
    (tmp_path / "file").write_bytes(data)
    reading = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: reading(descriptor, min(size, 999)))
    assert read_within(tmp_path, "file") == data


def test_bytes_are_written_whole_in_any_parts(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY, 0o600)
    with SystemCalls(short_writes=3) as calls:
        write_all(descriptor, b"ten bytes.")
        write_all(descriptor, b"")
    os.close(descriptor)
    assert calls.count("write") == 4
    assert (tmp_path / "file").read_bytes() == b"ten bytes."


def test_a_new_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with new_folder(path, durable=True) as temporary:
        assert not path.exists()
        assert temporary.name.startswith(".new-")
        (temporary / "file").write_text("data")
    assert (path / "file").read_text() == "data"
    with suppress(ZeroDivisionError), new_folder(tmp_path / "other", durable=False) as made:
        (made / "file").write_text("data")
        raise ZeroDivisionError
    assert [*tmp_path.iterdir()] == [path]


def test_a_new_folder_does_not_take_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "file").write_text("old")
    with pytest.raises(FileExistsError), new_folder(path, durable=False) as temporary:
        (temporary / "file").write_text("new")
    assert (path / "file").read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]
    (tmp_path / "plain").write_text("a file")
    with pytest.raises(NotADirectoryError), new_folder(tmp_path / "plain", durable=False):
        pass


def test_a_folder_is_removed_with_what_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "file").write_text("")
    (path / "link").symlink_to(tmp_path)
    remove_folder(path)
    remove_folder(path)
    assert [*tmp_path.iterdir()] == []


def test_nothing_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / "folder").mkdir()
    for _ in range(5):
        for work in (
            lambda: read_within(tmp_path, "folder"),
            lambda: read_within(tmp_path, "nothing"),
            lambda: write_new(tmp_path / "folder", b"", durable=True),
            lambda: replace_file(tmp_path / "folder", b"", 9),
        ):
            with pytest.raises(OSError, match=r"\w"):
                work()
    assert len(os.listdir("/proc/self/fd")) == before


def test_where_a_sync_leaves_bytes_in_the_drive_the_stronger_one_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, which has no fdatasync."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda *arguments: asked.append(arguments))
    monkeypatch.delattr(os, "fdatasync")
    with (tmp_path / "file").open("wb") as file:
        synchronise(file.fileno())
        assert asked == [(file.fileno(), 51)]
