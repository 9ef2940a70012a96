"""Markdown that is drawn while it streams: finished blocks for good, the open one again and again.

A drawing never reaches further up than the screen: of an open block that has become longer, what
will not change any more is drawn for good, and of a table, whose columns may still change, the end
is shown until it is complete. What stands in the scrollback is never drawn twice.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile
from typing import TextIO

from vibe_llms.cli.drawing import Drawing, Row
from vibe_llms.cli.terminal import obeys, visible, write

_FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
_LIST = re.compile(r"^ {0,3}([-*+]|\d{1,9}[.)])\s")
_PAUSE_SECONDS = 0.08
#: The part of the time that drawing may take.
_SHARE = 0.2


class MarkdownStream:
    """Draws Markdown on a terminal as it arrives."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._redraws = obeys(stream)
        self._open = ""
        self._committed: list[Row] = []
        self._window: list[Row] = []
        self._begun = False
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0.0
        self._failure: OSError | None = None

    def feed(self, text: str) -> None:
        """Some more text."""
        if self._failure is not None:
            raise self._failure
        self._open += text
        if not self._redraws:
            if "\n" in text:
                self._draw()
        elif self._timer is None:
            wait = self._next - time.monotonic()
            if wait > 0:
                self._timer = asyncio.get_running_loop().call_later(wait, self._draw_later)
            else:
                self._draw()

    def hide(self) -> None:
        """Make room for a line of somebody else's; the next piece of text draws the block again."""
        if self._window:
            self._paint([])

    def close(self) -> None:
        """The text is complete."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._open.strip():
            self._settle(self._open)
        self._open = ""

    def _draw_later(self) -> None:
        self._timer = None
        try:
            self._draw()
        except OSError as error:
            # Nobody hears an error here; it is raised with the next piece of text.
            self._failure = error

    def _draw(self) -> None:
        began = time.monotonic()
        done, rest = split_blocks(self._open)
        if done.strip():
            self._settle(done)
        self._open = rest
        if self._redraws and rest.strip():
            self._show(rest)
        now = time.monotonic()
        self._next = now + max(_PAUSE_SECONDS, (now - began) / _SHARE)

    def _settle(self, text: str) -> None:
        """Draw blocks for good."""
        rows = self._render(text)
        self._paint(rows[self._count_settled(rows) :])
        self._window, self._committed = [], []
        self._begun = True

    def _show(self, text: str) -> None:
        """Draw the open block, so that it can be drawn again."""
        rows = self._render(text)
        fresh = rows[self._count_settled(rows) :]
        first = self._find_first(fresh)
        if _has_table(text):
            self._paint(fresh[first:])
            return
        self._paint(fresh)
        self._committed += fresh[:first]
        self._window = fresh[first:]

    def _count_settled(self, rows: Sequence[Row]) -> int:
        """How many of the rows stand there for good.

        None where what stands there turned out otherwise: then the block is drawn once more,
        since a repetition is better than a gap.
        """
        if rows[: len(self._committed)] != self._committed:
            self._committed = []
        return len(self._committed)

    def _find_first(self, rows: Sequence[Row]) -> int:
        """The first of the rows that fit on the screen together with all that follow."""
        room = self._drawing.height - 1
        first = len(rows)
        while first > 0 and (room := room - self._drawing.measure(rows[first - 1 : first])) >= 0:
            first -= 1
        return first

    def _paint(self, rows: Sequence[Row]) -> None:
        """Draw rows in place of the window; what is the same stays untouched."""
        pairs = zip(self._window, rows, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        up = self._drawing.measure(self._window[same:])
        self._window = list(rows)
        erase = f"\r\x1b[{up}A\x1b[J" if up else ""
        if text := erase + "".join(f"{row.text}\n" for row in rows[same:]):
            write(self._stream, text)

    def _render(self, text: str) -> list[Row]:
        rows = self._drawing.render(visible(text))
        return [Row("", 0), *rows] if self._begun and rows else rows

    @cached_property
    def _drawing(self) -> Drawing:
        # It brings rich along, which nobody needs before there is something to draw.
        return Drawing(self._stream)


def _has_table(text: str) -> bool:
    """Whether a line is made as the one under the header of a table."""
    return any(
        "|" in line and "-" in line and not line.strip(" \t|:-") for line in text.split("\n")
    )


def split_blocks(text: str) -> tuple[str, str]:
    r"""The blocks that nothing to come can change any more, and what is still open.

    A block ends at an empty line outside a fence, unless the next line goes on with a list.

    >>> split_blocks("One.\n\nTwo")
    ('One.\n\n', 'Two')
    >>> split_blocks("- a\n\n- b")
    ('', '- a\n\n- b')
    """
    lines = text.split("\n")
    fence = ""
    in_list = False
    done = 0
    position = 0
    for index, line in enumerate(lines):
        if found := _FENCE.match(line):
            if not fence:
                fence = found[1]
            elif found[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        elif not fence:
            if _LIST.match(line):
                in_list = True
            elif line.strip() and not line.startswith((" ", "\t")) and not lines[index - 1].strip():
                in_list = False
        position += len(line) + 1
        if line.strip() or fence or index + 1 >= len(lines):
            continue
        following = lines[index + 1]
        if not following or (in_list and (_LIST.match(following) or following[0] in " \t")):
            continue
        if in_list and len(following) < 3 and index + 2 >= len(lines):
            continue
        done = position
        in_list = False
    return text[:done], text[done:]
