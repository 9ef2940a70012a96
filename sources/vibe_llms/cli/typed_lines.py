"""What is typed while an answer is written, line by line."""

from __future__ import annotations

import asyncio
import codecs
import os
import sys
from collections.abc import Callable
from typing import Self

from vibe_llms.cli.terminal import is_terminal

_BYTES = 4096


class TypedLines:
    """Gives each line that is typed during the block to a function; without a terminal, none."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""
        self._file = sys.stdin.fileno() if is_terminal(sys.stdin) else None

    def open(self) -> None:
        """Read; a question takes the terminal away, so this is called after it too."""
        if self._file is not None:
            asyncio.get_running_loop().add_reader(self._file, self._read)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            asyncio.get_running_loop().remove_reader(self._file)
            if self._begun:
                self._take(self._begun)

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
        *lines, self._begun = (self._begun + self._decoder.decode(data)).split("\n")
        for line in lines:
            self._take(line)
