"""The cage's program, a step at a time; that the steps hold together is seen in `test_attacks`."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vibe_llms.interpreter import cage, linux
from vibe_llms.interpreter.cage import CHANNELS, WORK, CagePlan


def produce_plan(folder: Path, *, spaces: bool = False, **settings: Any) -> CagePlan:
    values: dict[str, Any] = {
        "command": (sys.executable, "-c", "import time; time.sleep(3600)"),
        "environment": {},
        "folder": str(folder),
        "spaces": spaces,
        "disk_bytes": 1_000_000,
        "processes": 64,
        **settings,
    }
    plan = CagePlan(**values)
    for path in (plan.base, plan.channels):
        os.makedirs(path, exist_ok=True)
    return plan


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What would have been asked of the system."""
    reported: list[tuple[Any, ...]] = []
    for name in (
        *("unshare", "mount", "bind", "keep_mounts_apart", "make_read_only", "change_root"),
        *("die_with_parent", "hide_memory", "bound_capabilities", "drop_capabilities"),
    ):

        def note(*values: Any, called: str = name, **_: Any) -> None:
            reported.append((called, *values))

        monkeypatch.setattr(linux, name, note)
    for name in ("setgroups", "setresgid", "setresuid", "chown"):

        def note_change(*values: Any, called: str = name) -> None:
            reported.append((called, *values))

        monkeypatch.setattr(os, name, note_change)
    return reported


def test_what_is_shown_is_in_its_place_with_the_links_that_lead_to_it(
    tmp_path: Path, calls: list[tuple[Any, ...]]
) -> None:
    outside = tmp_path / "outside"
    (outside / "real" / "deep").mkdir(parents=True)
    (outside / "file").write_text("x")
    (outside / "link").symlink_to("real")
    (outside / "far").symlink_to(outside / "link" / "deep")
    root = str(tmp_path / "root")
    for name in ("far", "link/deep", "file", "none"):
        cage._show(str(outside / name), root)
    inside = Path(root + str(outside))
    assert os.readlink(inside / "link") == "real"
    assert os.readlink(inside / "far") == str(outside / "link" / "deep")
    bound = {Path(one[1]).name: one for one in calls if one[0] == "bind"}
    assert set(bound) == {"deep", "file"}
    assert ("make_read_only", str(inside / "file")) in calls
    cage._show(str(outside / "file"), str(tmp_path / "other"), writable=True)
    assert len([one for one in calls if one[0] == "make_read_only"]) == 2


def test_a_root_holds_the_system_a_folder_for_work_and_nothing_of_the_users(
    tmp_path: Path, calls: list[tuple[Any, ...]]
) -> None:
    plan = produce_plan(tmp_path, spaces=True, visible=(sys.prefix,))
    cage._furnish(plan)
    bound = [one[1] for one in calls if one[0] == "bind"]
    assert "/usr" in bound
    assert plan.channels in bound
    assert not [path for path in bound if path in ("/", "/etc", "/home", "/proc", "/root", "/tmp")]
    assert calls[-2:] == [("change_root", plan.base), ("make_read_only", "/")]
    (work,) = (one for one in calls if one[0] == "mount" and str(one[2]).endswith(WORK))
    assert "size=1000000" in work[-1]
    assert "kernel" in Path(plan.base, "etc", "passwd").read_text()


@pytest.mark.parametrize("refused", [False, True])
def test_namespaces_are_entered_as_root_or_within_one_of_users(
    calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    written: dict[str, str] = {}
    monkeypatch.setattr(cage, "_write", lambda path, text: written.update({path: text}))
    monkeypatch.setattr(os, "geteuid", lambda: 0 if not refused else 1000)
    monkeypatch.setattr(os, "getegid", lambda: 1000)
    cage._separate()
    flags = [one[1] for one in calls if one[0] == "unshare"]
    assert bool(flags[-1] & linux.NEW_USERS) == refused
    assert written.get("/proc/self/uid_map") == ("1000 1000 1" if refused else None)


def test_a_user_is_chosen_that_there_is_in_this_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = produce_plan(tmp_path, spaces=True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert cage._choose_user(plan) is None
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    maps = tmp_path / "uid_map"
    opened = open

    def read(path: Any, *values: Any, **options: Any) -> Any:
        return opened(maps if path == "/proc/self/uid_map" else path, *values, **options)

    monkeypatch.setattr("builtins.open", read)
    maps.write_text("0 0 4294967295\n")
    chosen = cage._choose_user(plan)
    assert chosen is not None
    assert chosen >= 1_900_000_000
    maps.write_text("0 1000 1\n1 100000 65535\n")
    inner = cage._choose_user(plan)
    assert inner is not None
    assert 40_000 < inner < 65_536
    maps.write_text("0 1000 1\n")
    assert cage._choose_user(plan) is None
    monkeypatch.setattr(cage, "_readable_by_others", lambda _: False)
    assert cage._choose_user(produce_plan(tmp_path / "flat")) is None


def test_whether_others_can_read_depends_on_all_folders_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", "/usr/lib")
    monkeypatch.setattr(os, "__file__", "/usr/lib/os.py")
    (tmp_path / "closed").mkdir(mode=0o700)
    assert not cage._readable_by_others(str(tmp_path / "closed" / "python"))
    assert cage._readable_by_others("/usr/bin/env")


def test_the_limit_of_processes_counts_the_users_others_where_they_count(tmp_path: Path) -> None:
    flat = produce_plan(tmp_path)
    assert cage._process_limit(flat, 5) == 64
    assert cage._process_limit(flat, None) > 64


def test_rights_are_dropped_for_an_unused_user(
    tmp_path: Path, calls: list[tuple[Any, ...]]
) -> None:
    cage._drop_rights(produce_plan(tmp_path), None)
    assert calls == []
    cage._drop_rights(produce_plan(tmp_path, spaces=True), 7)
    names = [one[0] for one in calls]
    assert names == [
        *("bound_capabilities", "setgroups", "setresgid", "setresuid", "drop_capabilities")
    ]


def test_files_are_collected_once_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    work = tmp_path / "work"
    (work / "__pycache__").mkdir(parents=True)
    (work / "__pycache__" / "x.pyc").write_text("x")
    (work / "a.txt").write_text("aa")
    (work / "large").write_bytes(bytes(50))
    (work / ".hidden").write_text("x")
    (work / "link").symlink_to(tmp_path / "secret")
    (work / "folder").symlink_to(tmp_path)
    os.mkfifo(work / "pipe")
    seen: dict[str, tuple[int, int]] = {}
    assert list(cage._collect(str(work), seen, 10)) == [
        {"name": "a.txt", "size": 2, "data": "YWE="},
        {"name": "large", "size": 50},
    ]
    assert list(cage._collect(str(work), seen, 10)) == []


@contextlib.contextmanager
def standard_streams() -> Iterator[tuple[int, int]]:
    """Pipes in place of this process's standard streams: what is written goes to its input."""
    kept = [os.dup(0), os.dup(1)]
    given, feed = os.pipe()
    heard, reported = os.pipe()
    os.dup2(given, 0)
    os.dup2(reported, 1)
    os.close(given)
    os.close(reported)
    try:
        yield feed, heard
    finally:
        for number, old in enumerate(kept):
            os.dup2(old, number)
            os.close(old)
        os.close(heard)


@pytest.mark.parametrize("leaves", [False, True])
def test_it_runs_commands_until_its_input_or_its_kernel_ends(
    tmp_path: Path,
    calls: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    leaves: bool,
) -> None:
    plan = produce_plan(tmp_path)
    Path(plan.base, "a.txt").write_text("a")
    code = "" if leaves else "import time; time.sleep(3600)"
    kernel = subprocess.Popen([sys.executable, "-c", code])
    monkeypatch.setattr(os, "fork", lambda: kernel.pid)
    monkeypatch.setattr(cage, "_choose_user", lambda _: None)
    reaped: list[int] = []

    def reap() -> set[int]:
        found = {kernel.pid} if kernel.poll() is not None else set()
        reaped.extend(found)
        return found

    monkeypatch.setattr(cage, "_reap", reap)
    before = signal.getsignal(signal.SIGCHLD)
    try:
        with standard_streams() as (feed, heard):
            if not leaves:
                os.write(feed, b"collect 100\nseal\nseal\nbogus\ninterrupt\n")
                os.close(feed)
            cage._serve(plan, work=plan.base)
            if leaves:
                os.close(feed)
            lines = os.read(heard, 65536).decode().splitlines()
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, before)
        kernel.kill()
        kernel.communicate()
    started, *rest = map(json.loads, lines)
    assert started["started"] == kernel.pid
    assert "code can reach the network" in started["gaps"][0]
    if leaves:
        assert reaped == [kernel.pid]
    else:
        assert rest == [{"files": [{"name": "a.txt", "size": 1, "data": "YQ=="}]}, {"sealed": True}]
        assert ("hide_memory",) in calls


def test_children_that_have_ended_are_reaped_all_of_them() -> None:
    code = (
        "from vibe_llms.interpreter import cage; import subprocess, time\n"
        "made = [subprocess.Popen(['true']) for _ in range(3)]; time.sleep(0.5)\n"
        "assert cage._reap() == {one.pid for one in made}, 'not all'\n"
        "assert cage._reap() == set()\n"
        "child = subprocess.Popen(['sleep', '5']); assert cage._reap() == set(); child.kill()\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_the_kernel_process_has_its_limits(tmp_path: Path) -> None:
    plan = produce_plan(tmp_path)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            cage._become(plan, None, plan.base)
            sizes = resource.getrlimit(resource.RLIMIT_FSIZE)
            if sizes == (1_000_000, 1_000_000) and os.getcwd() == plan.base:
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_it_is_known_whether_the_system_gives_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise PermissionError

    assert not cage.find_obstacle()
    monkeypatch.setattr(linux, "unshare", refuse)
    assert "cannot create namespaces" in cage.find_obstacle()
    assert CHANNELS != WORK
