"""Running git: within its time, with its children, and with nothing that it was not given."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from tests.memory.repositories import make_program
from vibe_llms.base.exceptions import VersioningFailed
from vibe_llms.memory.git import Git, ask, is_held

_PATIENCE_SECONDS = 60


def wait_for(path: Path) -> str:
    end = time.monotonic() + _PATIENCE_SECONDS
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < end, f"{path.name} does not come"
        time.sleep(0.01)
    return path.read_text().strip()


def wait_for_the_end(number: int) -> None:
    """Wait until a process has gone, or is one that only waits to be taken in."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while Path("/proc", str(number)).exists():
        if Path("/proc", str(number), "stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        assert time.monotonic() < end, "it lives on"
        time.sleep(0.01)


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git that never ends, and has a child; the file has the child's number."""
    file = tmp_path / "child"
    make_program(tmp_path / "bin" / "git", f'sleep 1000 & echo $! > "{file}"; wait')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return file


def test_what_takes_too_long_is_ended_with_its_children(tmp_path: Path, hanging: Path) -> None:
    git = Git(tmp_path)
    with pytest.raises(VersioningFailed, match="git status took longer") as raised:
        git.run("status", ends=time.monotonic() + 0.5)
    assert raised.value.slow
    wait_for_the_end(int(wait_for(hanging)))


def test_closing_ends_what_runs_and_lets_nothing_begin(tmp_path: Path, hanging: Path) -> None:
    git = Git(tmp_path)
    errors: list[VersioningFailed] = []

    def work() -> None:
        with pytest.raises(VersioningFailed) as raised:
            git.run("status")
        errors.append(raised.value)

    thread = threading.Thread(target=work)
    thread.start()
    child = int(wait_for(hanging))
    git.abort()
    thread.join(_PATIENCE_SECONDS)
    assert errors[0].slow
    wait_for_the_end(child)
    with pytest.raises(VersioningFailed, match="when the memory was closed"):
        git.run("status")
    git.allow()
    with pytest.raises(VersioningFailed, match="took longer"):
        git.run("status", ends=time.monotonic())


def test_a_git_that_is_missing_or_cannot_be_run_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(VersioningFailed, match="git is not installed"):
        Git(tmp_path).run("status")
    make_program(tmp_path / "git", "").write_text("#!/no/such/program\n")
    with pytest.raises(VersioningFailed, match="git cannot be started: No such file"):
        Git(tmp_path).run("status")


def test_what_git_says_of_a_failure_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_program(tmp_path / "bin" / "git", "echo one >&2; echo 'fatal: two' >&2; exit 128")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(VersioningFailed, match=r"^git log: two$"):
        Git(tmp_path).run("log")
    make_program(tmp_path / "bin" / "git", "exit 3")
    with pytest.raises(VersioningFailed, match=r"^git log: status 3$"):
        Git(tmp_path).run("log")


def test_the_environment_holds_what_git_needs_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_program(tmp_path / "bin" / "git", "env; umask")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    lines = Git(tmp_path).run("version").decode().splitlines()
    names = {line.partition("=")[0] for line in lines}
    assert f"GIT_DIR={tmp_path / '.git'}" in lines
    assert f"GIT_WORK_TREE={tmp_path}" in lines
    assert "0077" in lines
    assert not names & {"ANTHROPIC_API_KEY", "HOME", "GIT_EXEC_PATH", "XDG_CONFIG_HOME"}


def test_a_git_at_work_in_the_folder_holds_its_locks(tmp_path: Path, hanging: Path) -> None:
    lock = tmp_path / "index.lock"
    lock.write_text("")
    assert not is_held(lock, tmp_path)
    with lock.open():
        assert is_held(lock, tmp_path)
    git = Git(tmp_path)

    def work() -> None:
        with pytest.raises(VersioningFailed):
            git.run("gc")

    thread = threading.Thread(target=work)
    thread.start()
    wait_for(hanging)
    # A script is known by its own name, as git is.
    assert is_held(lock, tmp_path)
    assert not is_held(lock, tmp_path / "bin")
    git.abort()
    thread.join(_PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "fatal: write error: No space left on device\nfast-import: dumping crash report to x",
            "git fast-import: the disk is full; free some space and try again",
        ),
        ("fatal: sha1 file 'x' write error. Out of diskspace", "git fast-import: the disk is full"),
        ("error: unable to write: Read-only file system", "git fast-import: the file system is"),
        ("warning: x\nfatal: Unsupported command\nfast-import: dumping", "git fast-import: Unsup"),
        ("one\ntwo", "git fast-import: two"),
        ("", "git fast-import: status 1"),
    ],
)
def test_of_all_that_git_says_the_reason_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, reason: str
) -> None:
    (tmp_path / "said").write_text(said)
    make_program(tmp_path / "bin" / "git", f'cat "{tmp_path}/said" >&2; exit 1')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(VersioningFailed) as raised:
        Git(tmp_path).run("fast-import")
    assert str(raised.value).startswith(reason)


async def test_a_cancelled_caller_does_not_wait_for_git(tmp_path: Path, hanging: Path) -> None:
    git = Git(tmp_path)
    task = asyncio.create_task(ask(git, lambda: git.run("status")))
    number = await asyncio.to_thread(wait_for, hanging)
    task.cancel()
    async with asyncio.timeout(_PATIENCE_SECONDS):
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.to_thread(wait_for_the_end, int(number))
    # The next one may ask it again.
    with pytest.raises(VersioningFailed, match="took longer"):
        git.run("status", ends=time.monotonic() + 0.2)
