"""The line that says what is being waited for: on a terminal only, and gone without a trace."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time

from vibe_llms.cli.layout import cut
from vibe_llms.cli.terminal import DIM, RESET, columns, has_colours, obeys, visible, write

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_FRAMES = "|/-\\"
_FIRST_SECONDS = 0.3
_FRAME_SECONDS = 0.1
_CLEAR = "\r\x1b[K"


class Waiting:
    """A turning mark on stderr, some words, and the seconds that have passed.

    It appears after a moment, so that quick answers do not flicker, and only within an event loop.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled and obeys(sys.stderr)
        self._words = ""
        self._since = 0.0
        self._drawn = False
        self._frame = 0
        self._timer: asyncio.TimerHandle | None = None

    def show(self, words: str) -> None:
        """Wait for something from now on."""
        if not self._enabled:
            return
        self.clear()
        self._words, self._since = words, time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(_FIRST_SECONDS, self._draw)

    def change(self, words: str) -> None:
        """Wait for the same, said in other words."""
        self._words = words

    def wipe(self) -> None:
        """Make room for another line, by whatever thread; this one comes again behind it."""
        if self._drawn:
            with contextlib.suppress(OSError):
                write(sys.stderr, _CLEAR)

    def clear(self) -> None:
        """Nothing is waited for; the line is empty again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._drawn:
            self._drawn = False
            with contextlib.suppress(OSError):
                write(sys.stderr, _CLEAR)

    def _draw(self) -> None:
        frames = _FRAMES if _can_show(_FRAMES) else _PLAIN_FRAMES
        self._frame = (self._frame + 1) % len(frames)
        passed = time.monotonic() - self._since
        text = visible(f"{frames[self._frame]} {self._words} {passed:.0f} s")
        text = cut(text, columns(sys.stderr) - 1)
        self._drawn = True
        with contextlib.suppress(OSError):
            write(sys.stderr, _CLEAR + (f"{DIM}{text}{RESET}" if has_colours(sys.stderr) else text))
        self._timer = asyncio.get_running_loop().call_later(_FRAME_SECONDS, self._draw)


def _can_show(text: str) -> bool:
    try:
        text.encode(sys.stderr.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
