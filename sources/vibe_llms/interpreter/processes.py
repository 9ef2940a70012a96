"""Processes as `/proc` shows them: trees of processes, their resources, and their end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

from msgspec import Struct

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_END_SECONDS = 5.0


class Process(Struct, frozen=True):
    """A process: its parent, its threads, its memory, and its CPU time in seconds.

    The time includes children that it has waited for. A later process with the same number has
    another `started`.
    """

    identity: int
    parent: int
    state: str
    tasks: int
    resident_bytes: int
    virtual_bytes: int
    seconds: float
    started: int


def survey_processes() -> Iterator[Process]:
    """Yield all visible processes."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := read_process(int(name))) is not None:
            yield process


def read_process(identity: int) -> Process | None:
    """Return a process, or None if it has ended."""
    try:
        with open(f"/proc/{identity}/stat", encoding="utf-8", errors="replace") as file:
            words = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    # The fields from the third on, see proc_pid_stat(5).
    return Process(
        identity=identity,
        parent=int(words[1]),
        state=words[0],
        tasks=int(words[17]),
        resident_bytes=int(words[21]) * _PAGE,
        virtual_bytes=int(words[20]),
        seconds=sum(map(int, words[11:15])) / _TICKS,
        started=int(words[19]),
    )


def survey_tree(root: int, spared: frozenset[int] = frozenset()) -> list[Process]:
    """Return a process and all its descendants, parents before their children.

    Omit the processes in `spared` and their descendants.
    """
    children: dict[int, list[Process]] = {}
    for process in survey_processes():
        if process.identity in spared:
            continue
        children.setdefault(process.parent, []).append(process)
    top = read_process(root)
    tree = [] if top is None else [top]
    for process in tree:
        tree += children.get(process.identity, ())
    return tree


def measure_memory(process: Process) -> int:
    """Return the bytes that a process uses; shared memory counts in part, if reported."""
    try:
        with open(f"/proc/{process.identity}/smaps_rollup", encoding="ascii") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return process.resident_bytes


def count_tasks(user: int) -> int:
    """Return the number of threads of a user, which is how the system counts processes."""
    tasks = 0
    for process in survey_processes():
        try:
            owner = os.stat(f"/proc/{process.identity}").st_uid
        except OSError:
            continue
        if owner == user:
            tasks += process.tasks
    return tasks


def send(process: Process, number: int) -> None:
    """Send a signal to a process, and never to a later one with the same number."""
    try:
        descriptor = os.pidfd_open(process.identity)
    except ProcessLookupError:
        return
    try:
        now = read_process(process.identity)
        if now is not None and now.started == process.started:
            signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        return
    finally:
        os.close(descriptor)


def end_tree(root: int, spared: frozenset[int] = frozenset()) -> bool:
    """Kill all descendants of a process, except some; return True if none is left.

    They are stopped first, so that none can start another while the others die.
    """
    until = time.monotonic() + _END_SECONDS
    while time.monotonic() < until:
        living = [one for one in survey_tree(root, spared)[1:] if one.state not in "ZX"]
        if not living:
            return True
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in living:
                send(process, number)
        for process in living:
            # Processes that became children of this one are reaped; others are not its own.
            with suppress(ChildProcessError):
                os.waitpid(process.identity, os.WNOHANG)
        time.sleep(0.01)
    return False
