"""Progress on stderr: the line with the current wait, and the tool calls of a turn."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence

from vibe_llms.cli.terminal import (
    DIM,
    RESET,
    can_redraw,
    columns,
    draw_status,
    has_colours,
    wipe_status,
)
from vibe_llms.cli.text import cut
from vibe_llms.messages.canisters import InvocationCanister, ResultCanister
from vibe_llms.messages.contents import Content, TextualContent
from vibe_llms.messages.hidden import one_line, visible

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN_FRAMES = "|/-\\"
_FIRST_SECONDS = 0.3
_FRAME_SECONDS = 0.1
_SILENCE_SECONDS = 2.0
_SHORT = 200
_SHORT_ARGUMENTS = 60


class Waiting:
    """A spinner on stderr with a text and the seconds that have passed, on terminals only.

    It appears after a moment, so that quick answers do not flicker, and needs an event loop. Other
    output replaces it, and it appears again below.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled and can_redraw(sys.stderr)
        self._words = ""
        self._since = self._from = 0.0
        self._frame = 0
        self._timer: asyncio.TimerHandle | None = None

    def show(self, words: str) -> None:
        """Start to wait for something."""
        if self._enabled:
            self.clear()
            self._begin(words, _FIRST_SECONDS)

    def show_in_silence(self, words: str) -> None:
        """Wait for more after something has arrived; appears after some seconds of silence."""
        if self._enabled:
            self._begin(words, _SILENCE_SECONDS)

    def show_news(self, words: str) -> bool:
        """Show news about the wait; return True if they could be shown."""
        if self._enabled:
            self.show(one_line(words))
        return self._enabled

    def change(self, words: str) -> None:
        """Change the text."""
        self._words = words

    def clear(self) -> None:
        """Stop waiting, and clear the line."""
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


class IndexProgress:
    """A spinner with the number of indexed conversations, if that takes more than a moment."""

    def __init__(self) -> None:
        self._waiting = Waiting()
        self._loop = asyncio.get_running_loop()
        self.begun = False

    def report(self, done: int, total: int) -> None:
        """Show how many conversations are indexed; callable from any thread."""
        self._loop.call_soon_threadsafe(self._show, done, total)

    def clear(self) -> None:
        """Clear the line."""
        self.begun = False
        self._waiting.clear()

    def _show(self, done: int, total: int) -> None:
        words = f"indexing conversations: {done:,} of {total:,}"
        if done == total:
            self.clear()
        elif self.begun:
            self._waiting.change(words)
        else:
            self.begun = True
            self._waiting.show(words)


def _can_show(text: str) -> bool:
    try:
        text.encode(sys.stderr.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


class Stages:
    """A display of tool calls: name, arguments, progress, result and time.

    Folded, a running call is the line that `wait` shows, and then one line that `show_news` prints.
    Otherwise each event is a line. `whole` prints arguments and results in full.
    """

    def __init__(
        self,
        show_news: Callable[[str], None],
        wait: Callable[[str], None],
        *,
        folded: bool = False,
        whole: bool = False,
    ) -> None:
        self._print = show_news
        self._wait = wait
        self._folded = folded and not whole
        self._whole = whole
        self._running: dict[str, tuple[InvocationCanister, float, str]] = {}

    def begin(self, invocation: InvocationCanister) -> None:
        """Show that a call starts."""
        self._running[invocation.identity] = (invocation, time.monotonic(), "")
        if not self._folded:
            self._print(f"→ {invocation.name} {self._draw_arguments(invocation)}")
        self._show()

    def report(
        self, invocation: InvocationCanister, text: str, done: float | None, total: float | None
    ) -> None:
        """Show the progress of a call."""
        words = " ".join(part for part in (_draw_share(done, total), one_line(text)) if part)
        if self._folded:
            begun = self._running.get(invocation.identity)
            if begun is not None:
                self._running[invocation.identity] = (*begun[:2], words)
        else:
            self._print(f"· {invocation.name}: {words if self._whole else shorten(words)}")
        self._show()

    def end(self, invocation: InvocationCanister, result: ResultCanister) -> None:
        """Show the result of a call."""
        begun = self._running.pop(invocation.identity, None)
        took = f" ({time.monotonic() - begun[1]:.1f}s)" if begun is not None else ""
        text = result.display or _plain(result.contents)
        drawn = text if self._whole else shorten(text)
        if self._folded:
            call = f"{invocation.name} {shorten(invocation.arguments, _SHORT_ARGUMENTS)}"
            self._print(f"{'✗' if result.failed else '✓'} {call} → {drawn}{took}")
        else:
            self._print(f"{'✗' if result.failed else '←'} {invocation.name}: {drawn}{took}")
        self._show()

    def _show(self) -> None:
        """Show the calls that are still running."""
        running = list(self._running.values())
        match running:
            case []:
                self._wait("waiting for the answer")
            case [(invocation, _, words)]:
                call = f"{invocation.name} {shorten(invocation.arguments, _SHORT_ARGUMENTS)}"
                self._wait(f"running {call}" + (f" · {words}" if words else ""))
            case _:
                names = ", ".join(invocation.name for invocation, _, _ in running)
                self._wait(f"running {len(running)} tools: {names}")

    def _draw_arguments(self, invocation: InvocationCanister) -> str:
        if not self._whole:
            return shorten(invocation.arguments)
        parsed = invocation.parsed
        if parsed is None:
            return invocation.arguments
        return json.dumps(parsed, ensure_ascii=False, indent=2)


def shorten(text: str, length: int = _SHORT) -> str:
    """Shorten a text to one line.

    >>> shorten("some words", 6)
    'some …'
    """
    return cut(one_line(text), length)


def _draw_share(done: float | None, total: float | None) -> str:
    if done is None:
        return ""
    return f"{done:g}/{total:g}" if total else f"{done:g}"


def _plain(contents: Sequence[Content]) -> str:
    texts = [c.data for c in contents if isinstance(c, TextualContent) and isinstance(c.data, str)]
    return "".join(texts) or f"({len(contents)} contents)"
