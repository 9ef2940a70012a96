"""What is known of the terminal, and text that cannot drive it."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO

from vibe_llms.cli.characters import replace_hidden
from vibe_llms.cli.layout import draw_columns, wrap

DIM, BOLD, RESET = "\x1b[2m", "\x1b[1m", "\x1b[0m"

#: Begins each line of our own questions; no other text can send it to a terminal.
MARK = "┃"
# Framed by them, a reply would look like a question; the thin ones are as good for its tables.
_OURS = str.maketrans("┃┏┗", "│┌└")
_OURS_ESCAPED = {code: f"\\u{code:04x}" for code in _OURS}


def visible(text: str) -> str:
    r"""The text with control characters shown instead of sent: no escape sequence survives.

    New lines and tabs stay; characters that hide or reorder text are shown too, and the mark of
    our own questions becomes another one.

    >>> visible("a\x1b[2Jb\rc\r\n")
    'a␛[2Jb␍c\n'
    """
    return replace_hidden(text.replace("\r\n", "\n").translate(_OURS), _show)


def _show(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if code == 0x2800:
        return " "
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class VisibleText:
    """`visible` for text that comes in pieces, with what belongs together across two of them."""

    def __init__(self) -> None:
        self._before = ""
        self._held = ""

    def feed(self, text: str) -> str:
        """Some more text, as far as its meaning does not depend on what follows."""
        text, self._held = _split_end(self._held + text)
        return self._show(text)

    def close(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return self._show(held)

    def _show(self, text: str) -> str:
        if not text:
            return ""
        result = visible(self._before + text)[len(visible(self._before)) :]
        self._before = text[-1].replace("\r", "")
        return result


def _split_end(text: str) -> tuple[str, str]:
    held = text.endswith(("\r", "\u200c", "\u200d", "\u180e"))
    return (text[:-1], text[-1]) if held else (text, "")


def one_line(text: str) -> str:
    """The text without line breaks, for lists and for notes."""
    return " ".join(text.split())


def shown(text: str) -> str:
    """The text as stdout may have it: made visible on a terminal, as it is elsewhere."""
    return visible(text) if is_terminal(sys.stdout) else text


def write_json(text: str) -> None:
    """JSON and a new line on stdout; a terminal is sent nothing that is hidden or drives it."""
    write(sys.stdout, f"{escape_json(text) if is_terminal(sys.stdout) else text}\n")


def escape_json(text: str) -> str:
    r"""JSON with escapes for what `visible` shows or replaces: the same value.

    >>> escape_json('"a\u202eb"')
    '"a\\u202eb"'
    """
    return replace_hidden(text, _escape).translate(_OURS_ESCAPED)


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[index : index + 4]}" for index in range(0, len(units), 4))


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at the stream."""
    return stream.isatty()


def obeys(stream: TextIO) -> bool:
    """Whether the stream is a terminal that knows how to move its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colours(stream: TextIO) -> bool:
    """Whether styles may be sent: a terminal, and neither NO_COLOR nor TERM=dumb forbids it."""
    return obeys(stream) and not os.environ.get("NO_COLOR")


def styled(text: str, style: str) -> str:
    """The text in a style, where stdout takes styles."""
    return f"{style}{text}{RESET}" if has_colours(sys.stdout) else text


def columns(stream: TextIO) -> int:
    """How many characters a line of the terminal has."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def lines(stream: TextIO) -> int:
    """How many lines the terminal has."""
    try:
        return os.get_terminal_size(stream.fileno()).lines or 24
    except (OSError, ValueError):
        return 24


def note(text: str, *, dim: bool = False) -> None:
    """A line on stderr, where everything goes that is no answer; a terminal wraps it at words."""
    if is_terminal(sys.stderr):
        text = "\n".join(wrap(visible(text), columns(sys.stderr)))
    aside(f"{text}\n", dim=dim, fresh=True)


def note_columns(rows: Iterable[Sequence[str]]) -> None:
    """Notes whose columns are aligned; on a terminal the last one is wrapped."""
    seen = is_terminal(sys.stderr)
    rows = [tuple(visible(cell) if seen else cell for cell in row) for row in rows]
    for line in draw_columns(rows, columns(sys.stderr) if seen else None):
        aside(f"{line}\n", fresh=True)


def aside(text: str, *, dim: bool = False, fresh: bool = False) -> None:
    """Text on stderr, `fresh` in a line of its own. That it cannot be written is no error."""
    shown = visible(text) if is_terminal(sys.stderr) else text
    if dim and has_colours(sys.stderr):
        body = shown.rstrip("\n")
        shown = f"{DIM}{body}{RESET}{shown[len(body) :]}"
    with contextlib.suppress(OSError):
        write(sys.stderr, shown, fresh=fresh)


class _Owner:
    """The owner of the terminal: one for the process, whichever streams lead there.

    `sink` takes what is written while a prompt or question owns it; `status` and `unfinished` are
    the streams that show a status line, and a line without its end.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.sink: Callable[[TextIO, str, bool], None] | None = None
        self.status: TextIO | None = None
        self.unfinished: TextIO | None = None


_OWNER = _Owner()
_CLEAR = "\r\x1b[K"


def write(stream: TextIO, text: str, *, fresh: bool = False) -> None:
    """Text at once, whatever the locale can show; what it cannot is replaced.

    On a terminal it waits where a question is asked, takes the place of a status line, and begins
    a line of its own if it is to be `fresh`.
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
    """Text at once, without asking who owns the terminal: only for its owner."""
    stream = origin(stream)
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()
    except OSError as error:
        # Which stream it was is not known further up.
        raise OSError(error.errno, error.strerror, stream.name) from error


def draw_status(text: str) -> None:
    """A line on stderr that goes as soon as anything else is written.

    Nothing is drawn while a question is asked, or behind a line that goes on.
    """
    with _OWNER.lock, contextlib.suppress(OSError):
        if _OWNER.sink is None and not _is_in_line():
            send(sys.stderr, f"{_CLEAR}{text}")
            _OWNER.status = sys.stderr


def wipe_status() -> None:
    """The status line goes without a trace."""
    with _OWNER.lock, contextlib.suppress(OSError):
        drawn, _OWNER.status = _OWNER.status, None
        if drawn is not None and drawn is sys.stderr:
            send(drawn, _CLEAR)


def _is_in_line() -> bool:
    return _OWNER.unfinished is not None and _OWNER.unfinished in (sys.stdout, sys.stderr)


@contextlib.contextmanager
def divert(sink: Callable[[TextIO, str, bool], None]) -> Iterator[None]:
    """Have the terminal alone: what others write to it goes to `sink`, also what they `print`."""
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
def hold_output() -> Iterator[None]:
    """Have the terminal alone; what others write to it comes afterwards, in its order."""
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
    """The stream itself, also while a diverted one takes its place."""
    return stream.origin if isinstance(stream, _Diverted) else stream


def open_closed_streams() -> None:
    """Give the standard streams that were closed before the start to nobody.

    Otherwise a file of the archive could be opened in their place and be written to by accident.
    """
    # Opened in this order, each takes the lowest free descriptor: its own.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def drop_unwritten() -> None:
    """Give what the standard streams could not take to nobody.

    Otherwise Python itself would try once more at its end, complain, and leave with status 120.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with open(os.devnull, "wb") as nobody:
                os.dup2(nobody.fileno(), stream.fileno())
