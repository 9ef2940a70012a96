"""Lines that are typed while an answer is written."""

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
#: Index of the flags of the terminal's own editing in the result of `tcgetattr`.
_LOCAL_FLAGS = 3


class TypedLines:
    """Lines typed at a terminal during the block, each passed to a function.

    The terminal does not show typed text, which would appear within the answer.
    """

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        #: Beginning of a line that has not been ended by Enter.
        self.begun = ""
        self._file = sys.stdin.fileno() if is_terminal(sys.stdin) else None
        self._echo = ExitStack()

    def open(self) -> None:
        """Start reading; called again after a question, which takes the terminal away."""
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
    """Turn off the echo of a terminal during the block."""
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
