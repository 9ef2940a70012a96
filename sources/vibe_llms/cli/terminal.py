"""The terminal: its properties, output to it, and text made harmless for it."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO

from vibe_llms.cli.text import draw_columns, pad, width, wrap
from vibe_llms.messages.hidden import OURS, one_line, replace_hidden, show_hidden, visible

DIM, BOLD, RESET = "\x1b[2m", "\x1b[1m", "\x1b[0m"

#: Begins each line of our questions; no other text can print it on a terminal.
MARK = "┃"
#: Indent of a row's further lines, if they do not fit beside its head.
_HANG = 4
_OURS_ESCAPED = {code: f"\\u{code:04x}" for code in OURS}


def without_escapes(text: str) -> str:
    r"""Replace control characters other than white space by visible symbols.

    >>> without_escapes("a\x1b[2Jb\r\n")
    'a␛[2Jb\r\n'
    """
    return text.translate(_CONTROLS)


_CONTROLS = {
    code: show_hidden(chr(code))
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in "\t\n\r\f"
}


class VisibleText:
    """`visible` for text in pieces; keeps sequences together that span two pieces."""

    def __init__(self) -> None:
        self._before = ""
        self._pending = ""

    def feed(self, text: str) -> str:
        """Add text; return the part that does not depend on later text."""
        text, self._pending = _split_end(self._pending + text)
        return self._show(text)

    def close(self) -> str:
        """Return the part that was held back."""
        pending, self._pending = self._pending, ""
        return self._show(pending)

    def _show(self, text: str) -> str:
        if not text:
            return ""
        result = visible(self._before + text)[len(visible(self._before)) :]
        self._before = text[-1].replace("\r", "")
        return result


def _split_end(text: str) -> tuple[str, str]:
    held = text.endswith(("\r", "\u200c", "\u200d", "\u180e"))
    return (text[:-1], text[-1]) if held else (text, "")


def shown(text: str) -> str:
    """Return the text for stdout: made visible on a terminal, unchanged elsewhere."""
    return visible(text) if is_terminal(sys.stdout) else text


def write_json(text: str) -> None:
    """Print JSON on stdout; on a terminal, hidden and control characters are escaped."""
    write(sys.stdout, f"{escape_json(text) if is_terminal(sys.stdout) else text}\n")


def escape_json(text: str) -> str:
    r"""Escape the characters in JSON that `visible` replaces; its value stays the same.

    >>> escape_json('"a\u202eb"')
    '"a\\u202eb"'
    """
    return replace_hidden(text, _escape).translate(_OURS_ESCAPED)


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[index : index + 4]}" for index in range(0, len(units), 4))


def is_terminal(stream: TextIO) -> bool:
    """Return True if the stream is a terminal."""
    return stream.isatty()


def can_redraw(stream: TextIO) -> bool:
    """Return True if the stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colours(stream: TextIO) -> bool:
    """Return True if the stream is a terminal with styles; NO_COLOR and TERM=dumb disable them."""
    return can_redraw(stream) and not os.environ.get("NO_COLOR")


def styled(text: str, style: str) -> str:
    """Return the text in a style, if stdout has styles."""
    return f"{style}{text}{RESET}" if has_colours(sys.stdout) else text


def columns(stream: TextIO) -> int:
    """Return the width of the terminal in cells."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def lines(stream: TextIO) -> int:
    """Return the number of lines of the terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).lines or 24
    except (OSError, ValueError):
        return 24


def note(text: str, *, dim: bool = False) -> None:
    """Print a line on stderr; on a terminal it wraps at words."""
    if is_terminal(sys.stderr):
        text = "\n".join(wrap(visible(text), columns(sys.stderr)))
    aside(f"{text}\n", dim=dim, fresh=True)


def write_lines(text: str, hang: str = "") -> None:
    """Print lines on stdout; on a terminal they wrap at words, with `hang` as their indent."""
    text = shown(text)
    if is_terminal(sys.stdout):
        text = "\n".join(wrap(text, columns(sys.stdout), hang))
    write(sys.stdout, f"{text}\n")


def write_row(head: str, text: str, *, cells: int = 0, gap: int = 1) -> None:
    """Print a padded head and a text on stdout; on a terminal the text wraps beside the head."""
    begun, text = pad(shown(head), cells) + " " * gap, one_line(text)
    longest = max(map(width, text.split()), default=0)
    room = columns(sys.stdout) - width(begun)
    beside = room >= max(longest, columns(sys.stdout) // 2)
    write_lines(f"{begun}{text}".rstrip(), " " * (width(begun) if beside else _HANG))


def note_columns(rows: Iterable[Sequence[str]]) -> None:
    """Print rows on stderr in aligned columns; on a terminal the last column wraps."""
    seen = is_terminal(sys.stderr)
    rows = [tuple(visible(cell) if seen else cell for cell in row) for row in rows]
    for line in draw_columns(rows, columns(sys.stderr) if seen else None):
        aside(f"{line}\n", fresh=True)


def aside(text: str, *, dim: bool = False, fresh: bool = False) -> None:
    """Print text on stderr, `fresh` on its own line; errors are ignored."""
    shown = visible(text) if is_terminal(sys.stderr) else text
    if dim and has_colours(sys.stderr):
        body = shown.rstrip("\n")
        shown = f"{DIM}{body}{RESET}{shown[len(body) :]}"
    with contextlib.suppress(OSError):
        write(sys.stderr, shown, fresh=fresh)


class _Owner:
    """The only owner of the terminal in the process.

    `sink` receives all output while a prompt or question owns the terminal. `status` is the stream
    that shows a status line, `unfinished` the stream with a line that has no end yet.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.sink: Callable[[TextIO, str, bool], None] | None = None
        self.status: TextIO | None = None
        self.unfinished: TextIO | None = None


_OWNER = _Owner()
_CLEAR = "\r\x1b[K"


def write(stream: TextIO, text: str, *, fresh: bool = False) -> None:
    """Write text at once; characters that the encoding lacks are replaced.

    On a terminal it waits for an open question, replaces a status line, and begins a new line if it
    is `fresh`.
    """
    stream = origin(stream)
    if not is_terminal(stream):
        send(stream, text)
        return
    with _OWNER.lock:
        if _OWNER.sink is not None:
            _OWNER.sink(stream, text, fresh)
            return
        wipe_status()
        send(stream, f"\n{text}" if fresh and _is_in_line() else text)
        if text:
            _OWNER.unfinished = None if text.endswith(("\n", "\x1b[J")) else stream


def send(stream: TextIO, text: str) -> None:
    """Write text at once; only for the owner of the terminal."""
    stream = origin(stream)
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()
    except OSError as error:
        # The caller does not know which stream it was.
        raise OSError(error.errno, error.strerror, stream.name) from error


def draw_status(text: str) -> None:
    """Draw a line on stderr that disappears with the next output.

    Nothing is drawn during a question, or after an unfinished line.
    """
    with _OWNER.lock, contextlib.suppress(OSError):
        if _OWNER.sink is None and not _is_in_line():
            send(sys.stderr, f"{_CLEAR}{text}")
            _OWNER.status = sys.stderr


def wipe_status() -> None:
    """Remove the status line."""
    with _OWNER.lock, contextlib.suppress(OSError):
        drawn, _OWNER.status = _OWNER.status, None
        if drawn is not None and drawn is sys.stderr:
            send(drawn, _CLEAR)


def _is_in_line() -> bool:
    return _OWNER.unfinished is not None and _OWNER.unfinished in (sys.stdout, sys.stderr)


@contextlib.contextmanager
def divert(sink: Callable[[TextIO, str, bool], None]) -> Iterator[None]:
    """Own the terminal: output of others, including `print`, goes to `sink`."""
    with _OWNER.lock:
        wipe_status()
        if _is_in_line():
            send(sys.stderr, "\n")
            _OWNER.unfinished = None
        before, _OWNER.sink = _OWNER.sink, sink
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_Diverted(one) if is_terminal(one) else one for one in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        _OWNER.sink = before


@contextlib.contextmanager
def delay_output() -> Iterator[None]:
    """Own the terminal; output of others is printed afterwards, in order."""
    queue: list[tuple[TextIO, str, bool]] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(divert(lambda *written: queue.append(written)))
        try:
            yield
        finally:
            with _OWNER.lock:
                stack.close()
                for stream, text, fresh in queue:
                    with contextlib.suppress(*(() if stream is sys.stdout else (OSError,))):
                        write(stream, text, fresh=fresh)


class _Diverted(io.TextIOBase):
    """A standard stream while a prompt or question owns the terminal."""

    def __init__(self, stream: TextIO) -> None:
        self.origin = stream

    def write(self, text: str, /) -> int:
        write(self.origin, text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.origin, name)

    def isatty(self) -> bool:
        return self.origin.isatty()

    def fileno(self) -> int:
        return self.origin.fileno()


def origin(stream: TextIO) -> TextIO:
    """Return the real stream behind a diverted one."""
    return stream.origin if isinstance(stream, _Diverted) else stream


def open_closed_streams() -> None:
    """Connect standard streams that were closed before the start to /dev/null.

    Otherwise a file of the archive could take their place and be written to by accident.
    """
    # Opened in this order, each takes the lowest free descriptor: its own.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def drop_unwritten() -> None:
    """Drop output that the standard streams could not take.

    Otherwise Python would try again at its end, complain, and exit with status 120.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with open(os.devnull, "wb") as sink:
                os.dup2(sink.fileno(), stream.fileno())
