"""Programs that are forked from a process that has imported their packages already.

Importing the official package of MCP takes a second of computing, which is most of what a test of
its servers needs, and importing the command `vibe-llms` a third of one. A warm process does it once
for each process of pytest, and is forked for each server and each command:

    python warm.py SOCKET SERVER.py [ARGUMENT ...]
    python warm.py SOCKET -m MODULE [ARGUMENT ...]

hands its standard streams, its folder and its environment to the warm process, lives as long as
the fork, and ends with its status. If it is killed, the fork is killed; where nothing is warm, it
becomes the program itself. `WarmProcess` has one forked at a terminal of its own.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

#: Where the warm process of this process of pytest listens. Linux forgets the name with the socket.
_ADDRESS = f"vibe-llms-warm-{os.getpid()}-{os.urandom(8).hex()}"
_IMPORTED = (
    *("mcp.server.mcpserver", "mcp.server.lowlevel", "mcp.server.stdio", "uvicorn"),
    *("mcp.client.stdio", "mcp.client.streamable_http", "anyio._backends._asyncio", "httpx2"),
    *("prompt_toolkit", "prompt_toolkit.input.vt100", "prompt_toolkit.patch_stdout"),
    *("rich.console", "rich.markdown", "rich.syntax", "rich.table"),
    *(
        "vibe_llms.cli.commands",
        "vibe_llms.cli.repl",
        "vibe_llms.cli.running",
        "vibe_llms.cli.chat",
    ),
    *("vibe_llms.cli.conversations", "vibe_llms.cli.questions", "vibe_llms.cli.memory.facts"),
    *("vibe_llms.memory.core", "vibe_llms.providers.anthropic", "vibe_llms.providers.scripted"),
    *("vibe_llms.providers.windows", "vibe_llms.storage.home", "vibe_llms.storage.inspection"),
    *("vibe_llms.ensembles.mcp.ensemble", "vibe_llms.opening"),
)


def warm_command(server: str, *arguments: str) -> list[str]:
    """The command that starts the server of a file, from the warm process if there is one."""
    return [sys.executable, "-S", __file__, _ADDRESS, server, *arguments]


def warm_module(module: str, *arguments: str) -> list[str]:
    """The command that runs a module, from the warm process if there is one."""
    return [sys.executable, "-S", __file__, _ADDRESS, "-m", module, *arguments]


def start_warm_process() -> int:
    """Start the warm process, which ends with this one; closing what is returned ends it too.

    It is nobody's child, since tests look at the processes that they leave.
    """
    read, write = os.pipe()
    command = [sys.executable, __file__, "--serve", _ADDRESS, str(read)]
    subprocess.run(command, pass_fds=[read], start_new_session=True, check=True)
    os.close(read)
    return write


def _serve(address: str, ended: int) -> None:
    """Fork a keeper for each server, until the process of pytest has ended."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{address}")
    listener.listen(64)
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    sys.path.pop(0)
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        readable, _, _ = select.select([listener.fileno(), ended], [], [])
        if ended in readable:
            return
        client, _ = listener.accept()
        if not os.fork():
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _keep(client)
            os._exit(0)
        client.close()


def _keep(client: socket.socket) -> None:
    """Run the program of one request, and kill it if the process that asked for it is gone."""
    _, user, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        return
    data, streams, _, _ = socket.recv_fds(client, 1 << 20, 3)
    while not data.endswith(b"\n"):
        data += client.recv(1 << 20)
    request = json.loads(data)
    process = os.fork()
    if not process:
        client.close()
        if request.get("terminal"):
            os.setsid()
            fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
        _become(request, streams)
    if request.get("terminal"):
        client.sendall(f"{process}\n".encode())
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(process)
    readable, _, _ = select.select([client.fileno(), ended], [], [])
    if ended not in readable:
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    if ended in readable:
        client.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _become(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Run a file or a module as Python runs a program."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    time.tzset()
    # As Python makes them at the start of a program.
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    sys.stdout = _open_output(1, "strict")
    sys.stderr = _open_output(2, "backslashreplace")
    sys.argv = request["arguments"]
    status = 0
    try:
        if sys.argv[0] == "-m":
            del sys.argv[0]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as leaving:
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except Exception:  # noqa: BLE001 as Python itself does at the end of a program
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for output in (sys.stdout, sys.stderr):
        if not output.closed:
            output.flush()
    os._exit(status)


def _open_output(number: int, errors: str) -> io.TextIOWrapper:
    """A standard stream for output; stderr and what a person sees are written line by line."""
    by_line = number == 2 or os.isatty(number)
    binary = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
    return io.TextIOWrapper(binary, encoding="utf-8", errors=errors, line_buffering=by_line)


class WarmProcess:
    """A module that is run from the warm process with a terminal of its own.

    It is used as a `subprocess.Popen` is.
    """

    stdin = stdout = stderr = None

    def __init__(
        self, module: Sequence[str], environment: Mapping[str, str], terminal: int
    ) -> None:
        self.returncode: int | None = None
        self._keeper = socket.socket(socket.AF_UNIX)
        self._keeper.connect(f"\0{_ADDRESS}")
        request = {
            "arguments": ["-m", *module],
            "folder": os.getcwd(),
            "environment": dict(environment),
            "terminal": True,
        }
        data = json.dumps(request).encode() + b"\n"
        sent = socket.send_fds(self._keeper, [data], [terminal] * 3)
        self._keeper.sendall(data[sent:])
        self._reported = b""
        while b"\n" not in self._reported:
            self._reported += self._keeper.recv(64)
        self.pid = int(self._reported.partition(b"\n")[0])

    def poll(self) -> int | None:
        """Return the status if it has ended, else None."""
        if self.returncode is None and select.select([self._keeper], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the status; raise `TimeoutExpired` if it does not come."""
        if self.returncode is None:
            if not select.select([self._keeper], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("vibe-llms", timeout or 0.0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def _end(self) -> None:
        while data := self._keeper.recv(64):
            self._reported += data
        self._keeper.close()
        # A keeper that was killed says nothing.
        self.returncode = int(self._reported.partition(b"\n")[2] or b"1")

    def send_signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _ask(address: str, arguments: list[str]) -> NoReturn:
    """Be a server: have one forked, and end as it ends."""
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(f"\0{address}")
        except ConnectionRefusedError:
            os.execv(sys.executable, [sys.executable, *arguments])
        environment = dict(os.environ)
        request = {"arguments": arguments, "folder": os.getcwd(), "environment": environment}
        data = json.dumps(request).encode() + b"\n"
        sent = socket.send_fds(server, [data], [0, 1, 2])
        server.sendall(data[sent:])
        # A stream has ended when nobody has it open any more.
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        status = int(server.recv(16) or b"1")
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        _serve(sys.argv[2], int(sys.argv[3]))
    else:
        _ask(sys.argv[1], sys.argv[2:])
