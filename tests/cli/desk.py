"""A terminal of this very process, with an emulator that shows what is on it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tests.cli.terminal import Emulator


class Desk:
    """A terminal of this process: standard streams on a pty, and an emulator that shows it."""

    #: How often `until` looks.
    looks = 2000

    def __init__(self, lines: int, columns: int) -> None:
        self._master, slave = pty.openpty()
        self.size = (lines, columns)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.files = [open(slave, mode, closefd=False) for mode in ("r", "w")]  # noqa: SIM115
        self._slave = slave
        self.emulator = Emulator(lines, columns, self.type)
        self.raw = ""
        self.failures: list[dict[str, Any]] = []

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def read(self) -> None:
        text = os.read(self._master, 65536).decode("utf-8", "replace")
        self.raw += text
        self.emulator.feed(text)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the screen is so."""
        for _ in range(self.looks):
            if condition():
                return
            await asyncio.sleep(0.005)
        raise AssertionError("\n".join(self.emulator.rows))

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """This terminal is the one of the process."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._master, self.read)
        loop.set_exception_handler(lambda _, context: self.failures.append(context))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdin", self.files[0])
            patch.setattr(sys, "stdout", self.files[1])
            patch.setattr(sys, "stderr", self.files[1])
            yield
        loop.remove_reader(self._master)
        assert self.failures == []

    def close(self) -> None:
        for file in self.files:
            file.close()
        os.close(self._slave)
        os.close(self._master)


@contextlib.asynccontextmanager
async def opened(lines: int = 24, columns: int = 80) -> AsyncIterator[Desk]:
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.input import create_input

    desk = Desk(lines, columns)
    try:
        with desk.taken(), create_app_session(input=create_input(sys.stdin)):
            yield desk
    finally:
        desk.close()
