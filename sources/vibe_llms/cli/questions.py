"""Questions to the user at the terminal.

`confirm` asks before a command changes something. `Questions` asks while a turn runs, and sets
questions apart from the output of models, tools and servers: every line begins with a mark that
nothing else can send to the terminal, because `visible` replaces it. During a question nothing else
is drawn, and keys pressed before it do not answer it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from vibe_llms.base.exceptions import RequestError
from vibe_llms.cli.running import interruptible
from vibe_llms.cli.terminal import (
    BOLD,
    DIM,
    MARK,
    RESET,
    columns,
    delay_output,
    has_colours,
    is_terminal,
    lines,
    note,
    origin,
    send,
)
from vibe_llms.cli.text import cut, fold, width, wrap
from vibe_llms.messages.hidden import visible

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyBindings

_YELLOW = "\x1b[33m"
_TITLE = "vibe-llms asks"
#: Minimum cells for an answer after a question; with less, it gets its own line.
_ANSWER_CELLS = 8
_MIN_LINES = 4


def confirm(
    question: str,
    *,
    yes: bool = False,
    about: Iterable[str] = (),
    remedy: str = "use -y to skip the question",
) -> bool:
    """Ask a yes-or-no question below the lines that it is about; `yes` skips it.

    Raises `RequestError` with the remedy if there is no terminal.
    """
    if yes:
        return True
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise RequestError(f"not a terminal; {remedy}")
    for line in about:
        note(line)
    with interruptible():
        return click.confirm(question, err=True)


class QuestionLine(NamedTuple):
    """A line of text, its indent, and the indent of its continuation lines."""

    text: str
    indent: int = 0
    hang: int = 0


class Questions:
    """The questions of a terminal, asked one at a time.

    `pause` is called to finish the current drawing, and `resume` when the question is over.
    """

    def __init__(
        self,
        pause: Callable[[], None] = lambda: None,
        resume: Callable[[], None] = lambda: None,
    ) -> None:
        self._pause = pause
        self._resume = resume
        self._turn = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[TypedQuestion]:
        """Take the terminal for a question; other output is printed after it."""
        from prompt_toolkit.application import in_terminal

        # An open prompt is suspended.
        async with self._turn, in_terminal():
            self._pause()
            try:
                with delay_output():
                    question = TypedQuestion()
                    try:
                        yield question
                    finally:
                        question.close()
            finally:
                self._resume()


class TypedQuestion:
    """One question: its subject, then the question itself, right above the answer."""

    def __init__(self) -> None:
        self._stream = origin(sys.stderr)
        self._colours = has_colours(self._stream)
        self._mark, corner, end, rule = f"{MARK} ", "┏", "┗", "━"
        try:
            self._mark.encode(self._stream.encoding or "ascii")
        except UnicodeEncodeError:
            self._mark, corner, end, rule = "| ", "+", "+", "-"
        self._end = end + rule
        self._fresh = True
        self._printed = 0
        title = cut(f"{corner}{rule} {_TITLE} ", self.cells)
        self._send(self._paint(title + rule * (self.cells - width(title)), _YELLOW))

    @property
    def cells(self) -> int:
        """Width of a line after the mark."""
        return max(8, columns(self._stream) - width(self._mark))

    def print(self, text: str, style: str = "") -> None:
        """Print wrapped text."""
        for line in wrap(visible(text), self.cells):
            self._print(line, style)

    def show(self, body: Sequence[QuestionLine], *, below: int, more: str = "") -> bool:
        """Print the text that fits on the screen; return True if its middle is omitted.

        `below` is the number of lines that follow; `more` says how to see the middle. The end is
        always shown.
        """
        room = max(_MIN_LINES, lines(self._stream) - self._printed - below - 1)
        drawn = list(_shorten(body, self.cells, room))
        for line in drawn:
            if line is None:
                self.print(f"··· {_count(body)} in all{more} ···", DIM)
            else:
                self._print(line)
        return None in drawn

    def show_whole(self, body: Sequence[QuestionLine]) -> None:
        """Print all of the text."""
        for line in _draw(body, self.cells):
            self._print(line)

    async def read(self, question: str, bindings: KeyBindings) -> str:
        """Read the answer, dropping input that was typed before the question was printed."""
        from prompt_toolkit import PromptSession
        from prompt_toolkit.formatted_text import FormattedText
        from prompt_toolkit.input.typeahead import clear_typeahead
        from prompt_toolkit.output import create_output

        *above, last = wrap(visible(question.rstrip()), self.cells)
        if width(last) + _ANSWER_CELLS > self.cells:
            above, last = [*above, last], ""
        for line in above:
            self._print(line, BOLD)
        mark = ("ansiyellow" if self._colours else "", self._mark)
        message = ("bold" if self._colours else "", f"{last} " if last else "")
        session: PromptSession[str] = PromptSession(
            key_bindings=bindings,
            output=create_output(stdout=self._stream),
            reserve_space_for_menu=0,
        )
        if self._fresh:
            clear_typeahead(session.app.input)
            _flush_input()
        self._fresh = False
        # The running turn handles signals.
        return await session.prompt_async(
            FormattedText([mark, message]),
            prompt_continuation=FormattedText([mark]),
            handle_sigint=False,
            set_exception_handler=False,
        )

    def close(self) -> None:
        """End the question."""
        self._send(self._paint(self._end, _YELLOW))

    def _print(self, line: str, style: str = "") -> None:
        self._send(f"{self._paint(self._mark, _YELLOW)}{self._paint(line, style)}".rstrip())

    def _send(self, line: str) -> None:
        self._printed += 1
        with contextlib.suppress(OSError):
            send(self._stream, f"{line}\n")

    def _paint(self, text: str, style: str) -> str:
        return f"{style}{text}{RESET}" if style and text and self._colours else text


def _flush_input() -> None:
    import termios

    with contextlib.suppress(OSError, ValueError, termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def _shorten(body: Sequence[QuestionLine], cells: int, room: int) -> Iterator[str | None]:
    """Yield the lines of a text; if there are too many, its beginning, None and its end."""
    # Only the two ends of a very long text are laid out.
    most = cells * room
    first = list(islice(_draw((_clip(one, slice(most)) for one in body), cells), room + 1))
    if len(first) <= room and all(len(one.text) <= most for one in body):
        yield from first
        return
    below = (room - 1) // 2
    yield from first[: room - 1 - below]
    yield None
    last = (list(_draw([_clip(one, slice(-most, None))], cells)) for one in reversed(body))
    ends = list(islice(chain.from_iterable(map(reversed, last)), below))
    yield from reversed(ends)


def _clip(line: QuestionLine, part: slice) -> QuestionLine:
    return line._replace(text=line.text[part])


def _draw(body: Iterable[QuestionLine], cells: int) -> Iterator[str]:
    for text, indent, hang in body:
        begin, further = (" " * min(one, cells // 2) for one in (indent, hang))
        pieces = fold(visible(text), cells - max(len(begin), len(further)))
        yield begin + pieces[0]
        for piece in pieces[1:]:
            yield further + piece


def _count(body: Sequence[QuestionLine]) -> str:
    return f"{len(body):,} lines" if len(body) > 1 else f"{len(body[0].text):,} characters"


def bind(handlers: dict[str, Callable[[Any], None]]) -> KeyBindings:
    """Make key bindings that end a question without an answer."""
    from prompt_toolkit.key_binding import KeyBindings

    bindings = KeyBindings()
    for key, handler in handlers.items():
        bindings.add(key)(handler)
    return bindings
