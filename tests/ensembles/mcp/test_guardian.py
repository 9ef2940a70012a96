"""The guardian by itself: what it ends, what it leaves alone, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from tests.faults.family import Family
from vibe_llms.ensembles.mcp import guardian

#: Each generation of these starts the next and ends, and none of them heeds SIGTERM. They end after
#: half a minute, also where the test is killed.
RUNAWAYS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
end = time.monotonic() + 30
if os.fork() == 0:
    while time.monotonic() < end:
        os.setsid()
        if os.fork() == 0:
            time.sleep(30)
        time.sleep(0.002)
        if os.fork():
            os._exit(0)
print("begun", flush=True)
sys.stdin.read()
"""


def start(code: str, family: Family) -> tuple[subprocess.Popen[str], socket.socket]:
    """A guardian over some code, whose arguments have the name of the family."""
    control, given = socket.socketpair()
    with given:
        process = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", guardian.__file__),
                *(str(given.fileno()), str(os.getpid())),
                *(sys.executable, "-S", "-c", code, family.name),
            ],
            pass_fds=(given.fileno(),),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    assert control.recv(16) == b"0"
    return process, control


@pytest.mark.parametrize("way", ["control", "server"])
def test_even_processes_that_run_away_are_ended(way: str) -> None:
    family = Family()
    process, control = start(RUNAWAYS, family)
    with control, process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "begun\n"
        if way == "control":
            control.close()
        else:
            process.stdin.close()
        assert process.wait(60) == (-9 if way == "control" else 0)
    family.wait_until_gone()


@pytest.mark.parametrize(
    ("code", "status"),
    [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 15)", -15), ("pass", 0)],
)
def test_it_ends_as_the_server_did(code: str, status: int) -> None:
    process, control = start(code, Family())
    with control, process:
        assert process.wait(60) == status


def test_a_signal_reaches_no_later_process_with_the_same_number() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    try:
        ((process, started),) = (
            one for one in guardian.list_descendants(os.getpid()) if one[0] == child.pid
        )
        guardian.send(process, started - 1, signal.SIGKILL)
        assert child.poll() is None
        guardian.send(process, started, signal.SIGKILL)
        assert child.wait(20) == -9
        guardian.send(process, started, signal.SIGKILL)
    finally:
        child.kill()
        child.wait()
