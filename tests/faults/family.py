"""The processes that a test has started, and those that they have started, however they end."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

#: The variable by which they are known: children inherit it.
VARIABLE = "FAMILY"
_PATIENCE_SECONDS = 20.0


class Family:
    """Give `environment` to a process, and it and its descendants are counted.

    One that has another environment is counted if `name` is one of its arguments.
    """

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)
        self.environment = {VARIABLE: self.name}

    def members(self, *, zombies: bool = False) -> set[int]:
        """Those that live; with `zombies`, our own children too that were not reaped."""
        mark = f"{VARIABLE}={self.name}".encode()
        found: set[int] = set()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                own = mark in (entry / "environ").read_bytes().split(b"\0") or (
                    self.name.encode() in (entry / "cmdline").read_bytes().split(b"\0")
                )
            except OSError:
                continue
            if (own and state != "Z") or (zombies and state == "Z" and int(parent) == os.getpid()):
                found.add(int(entry.name))
        return found

    def wait_until_gone(self, seconds: float = _PATIENCE_SECONDS) -> None:
        """An `AssertionError` where one of them lives on."""
        end = time.monotonic() + seconds
        while left := self.members():
            assert time.monotonic() < end, f"these live on: {left}"
            time.sleep(0.02)
