"""Servers of the official package of MCP, started from a process that has imported it already.

Importing the package takes a second of computing, which is most of what a test of such a server
needs. A warm process does it once for each process of pytest, and is forked for each server:

    python warm.py SOCKET SERVER.py [ARGUMENT ...]

hands its standard streams, its folder and its environment to the warm process, lives as long as
the fork, and ends with its status. If it is killed, the fork is killed; where nothing is warm, it
becomes the server itself.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
from typing import Any, NoReturn

#: Where the warm process of this process of pytest listens. Linux forgets the name with the socket.
_ADDRESS = f"vibe-llms-warm-{os.getpid()}-{os.urandom(8).hex()}"
_IMPORTED = ("mcp.server.mcpserver", "mcp.server.lowlevel", "mcp.server.stdio", "uvicorn")


def warm_command(server: str, *arguments: str) -> list[str]:
    """The command that starts the server of a file, from the warm process if there is one."""
    return [sys.executable, "-S", __file__, _ADDRESS, server, *arguments]


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
    """Run the server of one request, and kill it if the process that asked for it is gone."""
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
        _become(request, streams)
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
    """Run the server's file as the program that it is."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = request["arguments"]
    status = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as leaving:
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except Exception:  # noqa: BLE001 as Python itself does at the end of a program
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


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
