"""What is typed while an answer is written, line by line."""

from __future__ import annotations

import asyncio
import codecs
import os
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Self

from vibe_llms.cli.terminal import is_terminal

_BYTES = 4096
#: Where `tcgetattr` has the flags of the terminal's own editing.
_LOCAL_FLAGS = 3


class TypedLines:
    """Gives each line that is typed during the block to a function; without a terminal, none.

    The terminal does not show what is typed, which would stand within the answer.
    """

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        #: The beginning of a line whose Enter has not come.
        self.begun = ""
        self._file = sys.stdin.fileno() if is_terminal(sys.stdin) else None
        self._echo = ExitStack()

    def open(self) -> None:
        """Read; a question takes the terminal away, so this is called after it too."""
        if self._file is not None:
            asyncio.get_running_loop().add_reader(self._file, self._read)

    def __enter__(self) -> Self:
        if self._file is not None:
            self._echo.enter_context(without_echo(self._file))
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            asyncio.get_running_loop().remove_reader(self._file)
        self._echo.close()

    def _read(self) -> None:
        assert self._file is not None
        try:
            data = os.read(self._file, _BYTES)
        except OSError:
            data = b""
        if not data:
            # The terminal is gone, or Ctrl-D was pressed.
            asyncio.get_running_loop().remove_reader(self._file)
            return
        *lines, self.begun = (self.begun + self._decoder.decode(data)).split("\n")
        for line in lines:
            self._take(line)


@contextmanager
def without_echo(file: int) -> Iterator[None]:
    """Let a terminal not show what is typed during the block."""
    try:
        before = termios.tcgetattr(file)
    except termios.error:
        yield
        return
    changed = [*before]
    changed[_LOCAL_FLAGS] = before[_LOCAL_FLAGS] & ~termios.ECHO
    termios.tcsetattr(file, termios.TCSANOW, changed)
    try:
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(file, termios.TCSANOW, before)
