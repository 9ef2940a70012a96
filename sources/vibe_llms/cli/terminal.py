"""What is known of the terminal, and text that cannot drive it."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

from vibe_llms.cli.characters import replace_hidden

DIM, BOLD, RESET = "\x1b[2m", "\x1b[1m", "\x1b[0m"

#: What begins the lines of a question of ours; nobody else can send it to a terminal.
MARK = "┃"
# Framed by them, a reply would look like a question; the thin ones are as good for its tables.
_OURS = str.maketrans("┃┏┗", "│┌└")


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
    r"""JSON with escapes for what `visible` shows: the same value.

    >>> escape_json('"a\u202eb"')
    '"a\\u202eb"'
    """
    return replace_hidden(text, _escape)


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


def note(text: str, *, dim: bool = False) -> None:
    """A line on stderr, where everything goes that is no answer."""
    aside(f"{text}\n", dim=dim)


def aside(text: str, *, dim: bool = False) -> None:
    """Text on stderr. That nobody can read it is no reason to give the answer up."""
    shown = visible(text) if is_terminal(sys.stderr) else text
    if dim and has_colours(sys.stderr):
        body = shown.rstrip("\n")
        shown = f"{DIM}{body}{RESET}{shown[len(body) :]}"
    with contextlib.suppress(OSError):
        write(sys.stderr, shown)


def write(stream: TextIO, text: str) -> None:
    """Text at once, whatever the locale can show; what it cannot is replaced."""
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
