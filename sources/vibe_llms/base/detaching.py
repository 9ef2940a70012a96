"""Starts commands in processes that outlive this one and its terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from vibe_llms.base.folders import make_folder

#: Size in bytes above which a log is truncated at the next start.
_LOG_BYTES = 256 * 1024


def detach(arguments: Sequence[str], log: Path, *, data: bytes = b"") -> int:
    """Start `vibe-llms ARGUMENTS` in a session of its own, and return the process id.

    Its output goes to `log`. `data` is its standard input; other users cannot read it.
    """
    make_folder(log.parent)
    with open(_open_log(log), "ab") as output:
        process = subprocess.Popen(
            # -P: import nothing from the current folder.
            [sys.executable, "-P", "-m", "vibe_llms", *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as stream:
        stream.write(data)
    # Avoids the warning that the process is still running.
    process.returncode = 0
    return process.pid


def has_ended(process: int) -> bool:
    """Return True if a process that this one started has ended."""
    try:
        return os.waitpid(process, os.WNOHANG)[0] == process
    except ChildProcessError:
        return True


def _open_log(path: Path) -> int:
    long = path.exists() and path.stat().st_size > _LOG_BYTES
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if long else 0)
    # O_NONBLOCK makes a named pipe in its place an error instead of a wait.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
