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
    one_line,
    visible,
    wipe_status,
)

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_FRAMES = "|/-\\"
_FIRST_SECONDS = 0.3
_FRAME_SECONDS = 0.1
_SILENCE_SECONDS = 2.0


class Waiting:
    """A turning mark on stderr, some words, and the seconds that have passed.

    It appears after a moment, so that quick answers do not flicker, and only within an event loop.
    Whatever else is written takes its place, and it comes again below.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled and obeys(sys.stderr)
        self._words = ""
        self._since = self._from = 0.0
        self._frame = 0
        self._timer: asyncio.TimerHandle | None = None

    def show(self, words: str) -> None:
        """Wait for something from now on."""
        if self._enabled:
            self.clear()
            self._begin(words, _FIRST_SECONDS)

    def show_in_silence(self, words: str) -> None:
        """Something has come; wait for more, and appear if nothing comes for some seconds."""
        if self._enabled:
            self._begin(words, _SILENCE_SECONDS)

    def tell(self, words: str) -> bool:
        """Show news of what is waited for; gives whether it could be shown."""
        if self._enabled:
            self.show(one_line(words))
        return self._enabled

    def change(self, words: str) -> None:
        """Wait for the same, said in other words."""
        self._words = words

    def clear(self) -> None:
        """Nothing is waited for; the line is empty again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            wipe_status()

    def _begin(self, words: str, seconds: float) -> None:
        self._words, self._since = words, time.monotonic()
        self._from = self._since + seconds
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._draw)

    def _draw(self) -> None:
        if (early := self._from - time.monotonic()) > 0:
            self._timer = asyncio.get_running_loop().call_later(early, self._draw)
            return
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
