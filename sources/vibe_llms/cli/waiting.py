"""The line that says what is being waited for: on a terminal only, and gone without a trace."""

from __future__ import annotations

import asyncio
import sys
import time

from vibe_llms.cli.layout import cut
from vibe_llms.cli.terminal import (
    DIM,
    RESET,
    columns,
    draw_status,
    has_colours,
    obeys,
    visible,
    wipe_status,
)

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_FRAMES = "|/-\\"
_FIRST_SECONDS = 0.3
_FRAME_SECONDS = 0.1


class Waiting:
    """A turning mark on stderr, some words, and the seconds that have passed.

    It appears after a moment, so that quick answers do not flicker, and only within an event loop.
    Whatever else is written takes its place, and it comes again below.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled and obeys(sys.stderr)
        self._words = ""
        self._since = 0.0
        self._frame = 0
        self._timer: asyncio.TimerHandle | None = None

    def show(self, words: str, *, after: float = _FIRST_SECONDS) -> None:
        """Wait for something from now on; it appears `after` so many seconds."""
        if not self._enabled:
            return
        self.clear()
        self._words, self._since = words, time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(after, self._draw)

    def change(self, words: str) -> None:
        """Wait for the same, said in other words."""
        self._words = words

    def clear(self) -> None:
        """Nothing is waited for; the line is empty again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            wipe_status()

    def _draw(self) -> None:
        frames = _FRAMES if _can_show(_FRAMES) else _PLAIN_FRAMES
        self._frame = (self._frame + 1) % len(frames)
        passed = f" {time.monotonic() - self._since:.0f} s"
        room = columns(sys.stderr) - len(passed) - 3
        text = f"{frames[self._frame]} {cut(visible(self._words), max(1, room))}{passed}"
        draw_status(f"{DIM}{text}{RESET}" if has_colours(sys.stderr) else text)
        self._timer = asyncio.get_running_loop().call_later(_FRAME_SECONDS, self._draw)


def _can_show(text: str) -> bool:
    try:
        text.encode(sys.stderr.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
