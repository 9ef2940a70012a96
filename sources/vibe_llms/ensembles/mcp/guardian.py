"""The parent of a server's process: it ends the server and all of its descendants.

    python -I -S guardian.py CONTROL PROGRAM COMMAND...

A daemon leaves its process group and its session, so a signal to the group does not reach it. But a
process that loses its parent becomes a child of the nearest ancestor that adopts orphans, which is
this program, so the tree below it is always complete. It ends the tree when the server ends, when
CONTROL is closed, and when the process PROGRAM, which uses the server, ends for any reason.

It consists of two processes, parent and child, and each ends the tree if the other is killed. It
imports little and nothing of this library, to start in a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_RESTORED = (13, 25)  # SIGPIPE and SIGXFSZ: Python ignores them, servers expect their defaults
#: Byte written to CONTROL that asks the server to end.
TERMINATE = b"t"
#: Seconds to end the tree; processes that cannot be killed survive.
END_SECONDS = 5.0
_GRACE_SECONDS = 1.0
_POLL_SECONDS, _REAP_MILLISECONDS = 0.01, 60_000
#: Importing `signal` takes as long as all other imports, so only some functions do it.
_SIGKILL, _SIGTERM, _SIGSTOP = 9, 15, 19


def main() -> None:
    """Start the server, wait until it or the program ends, and end all descendants."""
    control, program, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    os.set_inheritable(control, False)
    outer = os.getpid()
    _adopt_orphans()
    inner = os.fork()
    if inner:
        os.close(control)
        guardian = Guardian(inner)
        guardian.detach()
        while guardian.status is None:
            guardian.reap(0)
        guardian.end()
    _adopt_orphans()
    try:
        server = os.posix_spawnp(
            command[0], command, _read_environment(), setsid=True, setsigdef=_RESTORED
        )
    except OSError as error:
        os.write(control, b"%d" % (error.errno or 0))
        os._exit(127)
    os.write(control, b"0")
    guardian = Guardian(server)
    guardian.detach()
    guardian.watch(control, outer, program)
    guardian.end()


def _adopt_orphans() -> None:
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Guardian:
    """A watcher of one child; `status` is its exit status as `waitpid` reports it."""

    def __init__(self, child: int) -> None:
        self._child = child
        self.status: int | None = None

    def detach(self) -> None:
        """Release the server's streams, so that they end when the server ends."""
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)

    def watch(self, control: int, *others: int) -> None:
        """Wait until the child ends, `control` is closed, or one of the other processes ends."""
        import select

        poll = select.poll()
        poll.register(control, select.POLLIN)
        try:
            for process in (self._child, *others):
                poll.register(os.pidfd_open(process), select.POLLIN)
        except ProcessLookupError:
            return
        while self.reap(os.WNOHANG) and self.status is None:
            # Wakes up regularly to reap adopted processes that have ended.
            for ready, _ in poll.poll(_REAP_MILLISECONDS):
                if ready == control and os.read(control, 1) == TERMINATE:
                    os.killpg(self._child, _SIGTERM)
                else:
                    self.reap(os.WNOHANG)
                    return

    def reap(self, options: int) -> bool:
        """Collect ended children; return True if others remain, including adopted ones."""
        try:
            while (ended := os.waitpid(-1, options))[0]:
                if ended[0] == self._child:
                    self.status = ended[1]
                    return True
        except ChildProcessError:
            return False
        return True

    def end(self) -> NoReturn:
        """End all descendants, then exit with the child's status.

        They get a moment to clean up. Then all are stopped before any is killed, so that none can
        start another.
        """
        begun = time.monotonic()
        signals: tuple[int, ...] = (_SIGTERM,)
        while self.reap(os.WNOHANG) and time.monotonic() < begun + END_SECONDS:
            if time.monotonic() > begun + _GRACE_SECONDS:
                signals = (_SIGSTOP, _SIGKILL)
            found = list_descendants(os.getpid()) if signals else []
            for number in signals:
                for process, started in found:
                    send(process, started, number)
            signals = ()
            time.sleep(_POLL_SECONDS)
        _end_with(self.status)


def list_descendants(root: int) -> list[tuple[int, int]]:
    """List the descendants of a process, each with its start time."""
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (about := _read_process(int(name))) is not None:
            children.setdefault(about[0], []).append((int(name), about[1]))
    found = list(children.get(root, ()))
    for process, _ in found:
        found += children.get(process, ())
    return found


def send(process: int, started: int, number: int) -> None:
    """Send a signal to a process, but never to a newer process with the same number."""
    import signal

    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        about = _read_process(process)
        if about is not None and about[1] == started:
            signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        return
    finally:
        os.close(descriptor)


def _read_process(process: int) -> tuple[int, int] | None:
    """Return the parent of a process and its start time in clock ticks; see proc_pid_stat(5)."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(words[1]), int(words[19])


def _read_environment() -> dict[bytes, bytes]:
    """Read the original environment, to which Python may have added a locale."""
    with open("/proc/self/environ", "rb") as file:
        given = (entry.partition(b"=") for entry in file.read().split(b"\0") if entry)
        return {name: value for name, _, value in given}


def _end_with(status: int | None) -> NoReturn:
    """Exit with the child's status, or by the same signal."""
    if status is not None and os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    number = _SIGKILL if status is None else os.WTERMSIG(status)
    if number != _SIGKILL:
        import resource
        import signal

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(1)


if __name__ == "__main__":
    main()
