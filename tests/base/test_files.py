"""Files that others made: read without waiting, only if they are regular, up to a limit, and in
places that decide what runs only if no other user can have written them.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
from pathlib import Path

import pytest

from tests.faults.archives import hand_over
from tests.faults.odd_files import ODD_FILES, put_in_place
from vibe_llms.base.files import (
    UntrustedFile,
    find_distrust,
    opened,
    parse_toml,
    read_beneath,
    read_file,
    read_parts,
    read_trusted,
    walk_files,
)


def test_a_regular_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert read_file(path, 100) == b"x" * 100
    with pytest.raises(OSError, match="it is larger than 99 bytes"):
        read_file(path, 99)
    with opened(path) as descriptor, pytest.raises(OSError, match="larger than 99 bytes"):
        list(read_parts(descriptor, 99))
    link = tmp_path / "link"
    link.symlink_to(path)
    assert read_file(link, 100) == b"x" * 100


def test_a_file_without_a_size_of_its_own_is_read_to_its_end() -> None:
    if not Path("/proc/self/status").exists():
        assert sys.platform != "linux"
        return
    assert read_file("/proc/self/status", 100_000).startswith(b"Name:")
    with pytest.raises(OSError, match="larger than 20 bytes"):
        read_file("/proc/self/status", 20)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("pipe", "it is a named pipe, not a regular file"),
        ("socket", "it is a named pipe or a socket, not a regular file"),
        ("device", "it is a device, not a regular file"),
        ("folder", "Is a directory"),
        ("sparse", "it is larger than 1 MiB"),
        ("vanished", "No such file"),
        ("dangling", "No such file"),
        ("loop", "symbolic links"),
    ],
)
def test_anything_else_is_refused_at_once(tmp_path: Path, kind: str, reason: str) -> None:
    path = tmp_path / "odd"
    put_in_place(kind, path)
    before = len(os.listdir("/dev/fd"))
    with pytest.raises(OSError, match=reason):
        read_file(path, 1024**2)
    assert len(os.listdir("/dev/fd")) == before


def test_a_pipe_with_a_writer_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    keep = os.open(path, os.O_RDWR)
    try:
        with pytest.raises(OSError, match="a named pipe"):
            read_file(path, 10)
    finally:
        os.close(keep)


@pytest.mark.parametrize("kind", [name for name in ODD_FILES if name.startswith("deep-")])
def test_toml_that_is_nested_too_deeply_is_invalid_and_costs_no_time(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "deep.toml"
    put_in_place(kind, path)
    before = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    with pytest.raises(ValueError, match=r"."):
        parse_toml(path.read_bytes())
    assert sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - before < 5


def test_ordinary_toml_is_read_as_it_is() -> None:
    text = (
        'a.b.c = 1\nrow = "' + "." * 5_000 + '"\nprose = """' + "One two. Three. " * 500 + '"""\n'
    )
    tree = parse_toml(text.encode())
    assert tree["a"] == {"b": {"c": 1}}
    assert tree["row"] == "." * 5_000


def test_a_file_that_decides_what_runs_is_read_where_it_is_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"a = 1")
    assert read_trusted(path) == b"a = 1"
    # A link into a folder of dotfiles, as many have it.
    link = tmp_path / "link.toml"
    link.symlink_to(path)
    assert read_trusted(link) == b"a = 1"


@pytest.mark.parametrize("place", [".", "config.toml"])
def test_a_file_of_another_user_or_in_their_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"a = 1")
    hand_over(tmp_path / place, monkeypatch)
    with pytest.raises(UntrustedFile, match=r"belongs to .*uid .*, not to you .*chown") as refused:
        read_trusted(path)
    assert refused.value.filename


@pytest.mark.parametrize("place", [".", "config.toml"])
def test_a_file_that_others_may_write_is_refused(tmp_path: Path, place: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"a = 1")
    os.chmod(tmp_path / place, 0o777)
    with pytest.raises(UntrustedFile, match=r"others may write to it .*chmod go-w"):
        read_trusted(path)
    os.chmod(tmp_path / place, 0o755)
    assert read_trusted(path) == b"a = 1"


def test_a_file_that_others_may_read_is_refused_where_it_is_private(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_bytes(b"a = 1")
    path.chmod(0o640)
    assert read_trusted(path) == b"a = 1"
    with pytest.raises(UntrustedFile, match=f"other users can read it; run: chmod 600 {path}"):
        read_trusted(path, private=True)


def test_only_a_group_of_the_users_own_may_write(tmp_path: Path) -> None:
    import grp
    import pwd

    status = tmp_path.stat()
    me = pwd.getpwuid(os.geteuid())
    own = grp.getgrgid(me.pw_gid)
    alone = own.gr_name == me.pw_name and {*own.gr_mem} <= {me.pw_name}

    def produce(mode: int, group: int) -> os.stat_result:
        return os.stat_result((mode, *status[1:4], status.st_uid, group, *status[6:]))

    assert bool(find_distrust(produce(0o100664, me.pw_gid), "x")) is not alone
    assert find_distrust(produce(0o100664, 54_321), "x")
    assert find_distrust(produce(0o100666, me.pw_gid), "x")
    assert not find_distrust(produce(0o100644, 54_321), "x")


def test_what_is_swapped_in_between_is_not_read(tmp_path: Path) -> None:
    """The check is of what was opened: a pipe in its place gives an error or the old text."""
    path, other = tmp_path / "config.toml", tmp_path / "other"
    path.write_bytes(b"a = 1")
    os.mkfifo(other)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(path, tmp_path / "kept")
            os.rename(other, path)
            os.rename(path, other)
            os.rename(tmp_path / "kept", path)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(300):
            try:
                assert read_trusted(path) == b"a = 1"
            except OSError:
                continue
    finally:
        stop.set()
        thread.join()


def test_a_file_in_a_folder_is_not_read_through_a_link(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    (folder / "deep").mkdir(parents=True)
    outside.mkdir()
    for path in (folder / "deep" / "a.txt", outside / "a.txt"):
        path.write_text(path.parent.name)
    (folder / "file.txt").symlink_to(outside / "a.txt")
    (folder / "linked").symlink_to(outside)
    assert read_beneath(folder, folder / "deep" / "a.txt", 100) == b"deep"
    for name in ("file.txt", "linked/a.txt"):
        with pytest.raises(OSError, match="it is a symbolic link"):
            read_beneath(folder, folder / name, 100)
    with pytest.raises(FileNotFoundError):
        read_beneath(folder, folder / "b.txt", 100)


def test_a_folder_that_is_nested_endlessly_is_walked_in_part(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    before = os.getcwd()
    try:
        os.chdir(tmp_path)
        for _ in range(150):
            os.mkdir("d")
            os.chdir("d")
        Path("deep.txt").write_text("deep")
    finally:
        os.chdir(before)
    found = dict(walk_files(tmp_path))
    assert [Path(path).name for path in found] == ["a.txt", "d"]
    assert "nested too deeply" in str([*found.values()][-1])


def test_a_folder_that_is_itself_a_link_is_walked(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_text("a")
    (tmp_path / "link").symlink_to("folder")
    ((path, status),) = walk_files(tmp_path / "link")
    assert path == str(tmp_path / "link" / "a.txt")
    assert not isinstance(status, OSError)


def test_a_walk_reads_the_status_of_files_and_passes_over_what_is_none(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("b")
    (tmp_path / ".hidden").write_text("h")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    (tmp_path / "itself").symlink_to(tmp_path / "itself")
    (tmp_path / "up").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "b.txt")
    os.mkfifo(tmp_path / "pipe")
    found = {Path(path).name: one for path, one in walk_files(tmp_path)}
    assert [*found] == ["b.txt", "link"]
    assert not isinstance(found["b.txt"], OSError)
    assert isinstance(found["link"], OSError)
    followed = dict(walk_files(tmp_path, follow_links=True))
    assert not any(isinstance(one, OSError) for one in followed.values())
