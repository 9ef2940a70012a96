"""A server from the warm process is like one that is started: streams, ends and all."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.fakes import warm
from tests.fakes.warm import start_warm_process, warm_command

SHOW = """
import os, sys
print(os.getppid(), *sys.argv[1:], os.environ["COLOR"], os.getcwd(), sys.stdin.read())
print("mcp" in sys.modules, file=sys.stderr)
sys.exit(3)
"""
WAIT = """
import os, sys
print(os.getpid(), flush=True)
sys.stdin.read()
os.abort()
"""


@pytest.fixture(params=["warm", "cold"])
def command(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, Sequence[str]], list[str]]:
    """The command of a server with this code, from a warm process or without one."""
    if request.param == "warm":
        request.getfixturevalue("warm_process")
    else:
        monkeypatch.setattr(warm, "_ADDRESS", "nobody-listens-here")

    def write(code: str, arguments: Sequence[str] = ()) -> list[str]:
        (tmp_path / "server.py").write_text(code)
        return warm_command(str(tmp_path / "server.py"), *arguments)

    return write


def test_a_server_has_its_streams_arguments_folder_environment_and_status(
    command: Callable[[str, Sequence[str]], list[str]],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    done = subprocess.run(
        command(SHOW, ["a", "b c"]),
        input="said",
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"COLOR": "green"},
        check=False,
    )
    parent, _, shown = done.stdout.partition(" ")
    assert shown == f"a b c green {tmp_path} said\n"
    is_warm = "warm" in request.node.callspec.id
    assert (int(parent) == os.getpid()) is not is_warm
    assert (done.stderr, done.returncode) == (f"{is_warm}\n", 3)


def test_a_server_ends_with_its_signal_once_its_input_ends(
    command: Callable[[str, Sequence[str]], list[str]],
) -> None:
    done = subprocess.run(command(WAIT, ()), input=b"", capture_output=True, check=False)
    assert done.returncode == -signal.SIGABRT


def test_a_server_ends_with_the_process_that_stands_for_it(
    command: Callable[[str, Sequence[str]], list[str]],
) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(command(WAIT, ()), stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        server = int(process.stdout.readline())
        process.kill()
        # Nobody has its output open any more.
        assert process.stdout.read() == b""
    # Its keeper takes its status a moment later.
    while Path(f"/proc/{server}").exists():
        time.sleep(0.01)


def test_the_warm_process_ends_with_pytest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(warm, "_ADDRESS", f"{warm._ADDRESS}-another")
    (tmp_path / "server.py").write_text("import os; print(os.getppid())")
    writing = start_warm_process()
    keeper = subprocess.run(
        warm_command(str(tmp_path / "server.py")), capture_output=True, check=True
    ).stdout
    assert int(keeper) != os.getpid()
    os.close(writing)
    while warm._ADDRESS in Path("/proc/net/unix").read_text():
        time.sleep(0.01)
