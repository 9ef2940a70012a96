"""The command at a terminal: a pty to run it on, and a screen that understands what it may send."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from tests.fakes.warm import WarmProcess

LONGEST_SECONDS = 60.0
#: What a person may press, and the bytes that a terminal sends for it.
KEYS = {
    "enter": b"\r",
    "c-c": b"\x03",
    "c-d": b"\x04",
    "c-j": b"\n",
    "c-o": b"\x0f",
    "tab": b"\t",
    "up": b"\x1b[A",
    "alt-enter": b"\x1b\r",
    "backspace": b"\x7f",
}
#: The prompt, whichever way it is drawn: the cursor may be moved over the blank.
PROMPT = r"[>…]( |\x08\x1b\[2C)"
#: The prompt after the one at which a line was entered: with the line, that one is drawn once more,
#: and what is typed before the next is there is not read as keys.
NEXT_PROMPT = rf"\x1b\[\?2004l(?s:.*?){PROMPT}"
#: Every terminal is asked where its cursor is, and answers.
WHERE, _HERE = "\x1b[6n", b"\x1b[1;1R"
COMMAND = (sys.executable, "-m", "vibe_llms")
#: Variables that Python itself reads when it starts, as a warm process had them.
_READ_AT_THE_START = {
    name: os.environ.get(name)
    for name in ("PYTHONPATH", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONWARNINGS", "LC_ALL", "LANG")
}
#: Set by the fixtures `warm` and `cold`.
forks_command = False


def is_forked(command: Sequence[str], environment: Mapping[str, str] | None) -> bool:
    """Whether a process is forked from the warm one instead of started."""
    given = {**os.environ, **(environment or {})}
    alike = all(given.get(name) == value for name, value in _READ_AT_THE_START.items())
    return forks_command and command is COMMAND and alike


class Terminal:
    """The command on a pty, as a person would run it; every wait has an end.

    `pipes` are standard streams that are no terminal: `{"stdout": subprocess.PIPE}`. `emulated`,
    what it shows is seen in `emulator`.
    """

    def __init__(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        lines: int = 24,
        columns: int = 80,
        pipes: Mapping[str, Any] | None = None,
        command: Sequence[str] = COMMAND,
        emulated: bool = False,
    ) -> None:
        self._arguments = [*command, *arguments]
        self._environment = {**os.environ, "TERM": "xterm-256color", **(environment or {})}
        for name in ("NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR"):
            if name not in (environment or {}):
                self._environment.pop(name, None)
        self._size = (lines, columns)
        self._pipes = pipes or {}
        self._is_forked = is_forked(command, environment) and not pipes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.output = ""
        self._seen = 0
        self._answered = 0
        self.emulator = Emulator(lines, columns, self.send) if emulated else None

    def __enter__(self) -> Self:
        self._master, slave = pty.openpty()
        self.resize(*self._size)

        def control() -> None:
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        self.process: subprocess.Popen[bytes] | WarmProcess
        if self._is_forked:
            self.process = WarmProcess(self._arguments[2:], self._environment, slave)
        else:
            self.process = subprocess.Popen(
                self._arguments,
                env=self._environment,
                start_new_session=True,
                preexec_fn=control,  # noqa: PLW1509
                stdin=self._pipes.get("stdin", slave),
                stdout=self._pipes.get("stdout", slave),
                stderr=self._pipes.get("stderr", slave),
            )
        os.close(slave)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LONGEST_SECONDS)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        self.hang_up()

    def resize(self, lines: int, columns: int) -> None:
        """Make the window another size."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def hang_up(self) -> None:
        """Close the window."""
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def send(self, text: str) -> None:
        """Type a text."""
        self.send_bytes(text.encode())

    def send_bytes(self, data: bytes) -> None:
        """Type what need not be text."""
        os.write(self._master, data)

    def press(self, *keys: str) -> None:
        """Press keys by their names."""
        for key in keys:
            self.send_bytes(KEYS[key])

    def enter(self, text: str) -> None:
        """Type a line and send it."""
        self.send(text)
        self.press("enter")

    def expect(self, pattern: str) -> str:
        """Wait until something appears that was not there before; gives all up to its end."""
        end = time.monotonic() + LONGEST_SECONDS
        while (found := re.compile(pattern).search(self.output, self._seen)) is None:
            assert time.monotonic() < end, f"{pattern!r} did not appear in {self.output!r}"
            assert self._read(0.2), f"it ended without {pattern!r}: {self.output!r}"
        self._seen = found.end()
        return self.output[: found.end()]

    def wait(self) -> int:
        """Wait for the end; gives the exit status, negative where a signal ended it."""
        end = time.monotonic() + LONGEST_SECONDS
        while self._read(0.2):
            assert time.monotonic() < end, f"it did not end: {self.output!r}"
        return self.process.wait(LONGEST_SECONDS)

    def press_until_the_end(self, key: str) -> int:
        """Press a key until the command has ended; gives the exit status.

        The interpreter misses Ctrl-C in the instant between writing a question and reading.
        """
        for _ in range(int(LONGEST_SECONDS)):
            self.press(key)
            try:
                self.process.wait(1)
            except subprocess.TimeoutExpired:
                self._read(0.0)
                continue
            return self.wait()
        raise AssertionError(f"it did not end: {self.output!r}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command alone."""
        self.process.send_signal(number)

    def _read(self, seconds: float) -> bool:
        """Take in what is there; false where nothing can come any more."""
        if not select.select([self._master], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:
            data = b""
        text = self._decoder.decode(data)
        self.output += text
        if self.emulator is not None:
            self.emulator.feed(text)
            return bool(data)
        while self._answered < self.output.count(WHERE):
            self._answered += 1
            os.write(self._master, _HERE)
        return bool(data)


class Emulator:
    """A whole terminal emulator, which answers where its cursor is as a real one does."""

    def __init__(self, lines: int, columns: int, respond: Callable[[str], object]) -> None:
        import pyte

        self._screen = pyte.Screen(columns, lines)
        self._screen.write_process_input = respond  # type: ignore[method-assign,assignment]
        self._stream = pyte.Stream(self._screen)

    def feed(self, output: str) -> None:
        """Show some more output."""
        self._stream.feed(output)

    @property
    def rows(self) -> list[str]:
        """The lines that are seen."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def row(self) -> int:
        """The line of the cursor."""
        row: int = self._screen.cursor.y
        return row


class Screen:
    """What a terminal shows after some output; it knows just the sequences that we may send.

    `AssertionError` for every other control character, whatever it would do.
    """

    _SEQUENCE = re.compile(r"\x1b\[([0-9;]*)([a-zA-Z])")

    def __init__(self, lines: int = 24, columns: int = 80) -> None:
        self._size = (lines, columns)
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0

    def feed(self, output: str) -> Self:
        """Show some more output; a new line begins at the left, as terminals usually do it."""
        position = 0
        while position < len(output):
            if found := self._SEQUENCE.match(output, position):
                self._obey(found[1], found[2])
                position = found.end()
                continue
            self._put(output[position])
            position += 1
        return self

    @property
    def lines(self) -> list[str]:
        """All lines, those that have left the screen included."""
        rows = ["".join(row).rstrip() for row in self._rows]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    @property
    def text(self) -> str:
        """All lines as one text."""
        return "\n".join(self.lines)

    def _obey(self, parameters: str, letter: str) -> None:
        match letter:
            case "m":
                assert re.fullmatch(r"[0-9;]*", parameters)
            case "A":
                top = max(0, len(self._rows) - self._size[0])
                self._row -= int(parameters or 1)
                assert self._row >= top, "this is further up than the screen reaches"
            case "J":
                assert parameters in ("", "0")
                del self._rows[self._row + 1 :]
                del self._rows[self._row][self._column :]
            case "K":
                assert parameters in ("", "0")
                del self._rows[self._row][self._column :]
            case _:
                raise AssertionError(f"ESC [ {parameters} {letter} drives the terminal")

    def _put(self, character: str) -> None:
        match character:
            case "\n":
                self._column = 0
                self._row += 1
                if self._row == len(self._rows):
                    self._rows.append([])
            case "\r":
                self._column = 0
            case "\t":
                self._column = min(self._size[1] - 1, (self._column // 8 + 1) * 8)
            case _:
                assert unicodedata.category(character) not in ("Cc", "Cs"), (
                    f"U+{ord(character):04X} drives the terminal"
                )
                self._write(character)

    def _write(self, character: str) -> None:
        width = 0 if unicodedata.combining(character) or character in "\ufe0f\u200d" else 1
        width += width * (unicodedata.east_asian_width(character) in "WF")
        if self._column + width > self._size[1]:
            self._column = 0
            self._put("\n")
        row = self._rows[self._row]
        if not width:
            if row:
                row[-1] += character
            return
        row += [" "] * (self._column - len(row))
        row[self._column : self._column + width] = [character, *[""] * (width - 1)]
        self._column += width
