"""Processes as the system describes them."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec

from vibe_llms.interpreter import processes
from vibe_llms.interpreter.processes import (
    count_tasks,
    end_tree,
    measure_memory,
    read_process,
    survey_tree,
)

NEVER = "import time; time.sleep(3600)"


def start(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)


def test_this_process_is_described() -> None:
    reported = read_process(os.getpid())
    assert reported is not None
    assert (reported.identity, reported.parent) == (os.getpid(), os.getppid())
    assert reported.tasks >= 1
    assert 0 < reported.resident_bytes < reported.virtual_bytes
    assert reported.seconds > 0
    assert 0 < measure_memory(reported) <= reported.resident_bytes * 2
    assert count_tasks(os.getuid()) >= 1


def test_an_ended_process_is_not_listed() -> None:
    child = start("")
    child.communicate()
    assert read_process(child.pid) is None
    assert survey_tree(child.pid) == []
    ended = processes.Process(
        identity=child.pid,
        parent=1,
        state="Z",
        tasks=0,
        resident_bytes=5,
        virtual_bytes=5,
        seconds=0,
        started=0,
    )
    assert measure_memory(ended) == 5
    processes.send(ended, 9)


def test_a_signal_reaches_no_later_process_with_the_same_number() -> None:
    child = start(NEVER)
    try:
        now = read_process(child.pid)
        assert now is not None
        processes.send(msgspec.structs.replace(now, started=now.started - 1), 9)
        assert child.poll() is None
        processes.send(now, 9)
        assert child.wait(20) == -9
    finally:
        child.kill()
        child.communicate()


def test_a_tree_is_surveyed_and_ended_but_for_what_is_spared() -> None:
    nested = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {NEVER!r}])\n"
        "print(child.pid, flush=True)\n" + NEVER
    )
    spared, parent = start(NEVER), start(nested)
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        found = [one.identity for one in survey_tree(parent.pid)]
        assert found == [parent.pid, child]
        others = {one.identity for one in survey_tree(os.getpid())} - {*found, os.getpid()}
        assert spared.pid in others
        assert end_tree(os.getpid(), spared=frozenset(others))
        assert spared.poll() is None
        assert survey_tree(parent.pid)[1:] == []
    finally:
        spared.kill()
        spared.communicate()
        parent.kill()
        parent.communicate()
