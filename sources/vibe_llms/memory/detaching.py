"""Starts a command in a process of its own, which outlives this one and its terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from vibe_llms.storage.files import make_folder

#: A log that is longer begins anew.
_LOG_BYTES = 256 * 1024


def detach(arguments: Sequence[str], log: Path, *, data: bytes = b"") -> int:
    """Start `vibe-llms ARGUMENTS` in a session of its own; returns the process id.

    It uses none of our streams: its output goes into the `log`, and `data` is its standard input,
    which other users cannot read, unlike arguments.
    """
    make_folder(log.parent)
    with open(_open_log(log), "ab") as output:
        process = subprocess.Popen(
            # -P: nothing is imported from the current folder.
            [sys.executable, "-P", "-m", "vibe_llms", *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as stream:
        stream.write(data)
    # It is not waited for: no warning that it is still running.
    process.returncode = 0
    return process.pid


def has_ended(process: int) -> bool:
    """Whether a process has ended that this one has started."""
    try:
        return os.waitpid(process, os.WNOHANG)[0] == process
    except ChildProcessError:
        return True


def _open_log(path: Path) -> int:
    long = path.exists() and path.stat().st_size > _LOG_BYTES
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if long else 0)
    # A named pipe in its place is an error, and nothing to wait for.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
