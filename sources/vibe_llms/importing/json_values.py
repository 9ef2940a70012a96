"""Reading of large JSON, one value at a time.

Exports are arrays of conversations that are larger than memory. A value that is not valid JSON is
skipped, and the ones after it are still read.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from msgspec import Struct

from vibe_llms.base.files import describe_size

_PART_BYTES = 1024 * 1024
#: Limit of one value, in characters.
_LARGEST_VALUE = 128 * 1024**2
_DECODER = json.JSONDecoder(strict=False, parse_constant=lambda _: None)
_INVALID = "it is not valid JSON"
_SPACE = re.compile(r"[ \t\r\n]*")
_SEPARATORS = re.compile(r"[ \t\r\n,]*")
#: Brackets, and strings, with their last quote as a group if it was read.
_TOKENS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(")?|[\[{\]}]', re.DOTALL)
_NEXT = re.compile(r"[,\]]")
#: Errors at the end of what was read, which more data may resolve, are this close to it.
_MARGIN = 16


class Damaged(Struct, frozen=True):
    """A value that cannot be read, with the reason."""

    reason: str


class JsonValues:
    """Iterator over the elements of a top-level array, or over one top-level value.

    A value that cannot be read is a `Damaged`. `limit` is the largest value in characters.
    """

    def __init__(self, file: BinaryIO, limit: int = _LARGEST_VALUE) -> None:
        self._file = file
        self._limit = limit
        self._text = ""
        self._place = 0
        self._ended = False
        self._over = False
        #: Number of bytes that were read.
        self.consumed = 0
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode

    def __iter__(self) -> Iterator[Any]:
        self._skip(_SPACE)
        if self._peek() != "[":
            if self._peek():
                yield self._read_value()
            return
        self._place += 1
        before: Any = None
        while True:
            self._skip(_SEPARATORS)
            following = self._peek()
            if following == "]":
                self._place += 1
                self._skip(_SPACE)
                if self._peek():
                    yield Damaged("more follows the end of the list, and is not read")
                return
            if not following:
                yield Damaged("the file ends before the list of conversations does")
                return
            start = self._place
            value = self._read_value()
            # After an error in a value, its rest may look like further ones.
            if not (_is_invalid(value) and _is_invalid(before)):
                yield value
            before = value
            if self._place == start or self._over:
                # Nothing is left, or nothing was recognized here, and going on would repeat it.
                return

    def _peek(self) -> str:
        return self._text[self._place : self._place + 1]

    def _skip(self, pattern: re.Pattern[str]) -> None:
        while True:
            found = pattern.match(self._text, self._place)
            self._place = found.end() if found else self._place
            if self._place < len(self._text) or not self._fill():
                return

    def _fill(self, size: int = _PART_BYTES) -> bool:
        """Read more text and drop what is behind; return False at the end."""
        if self._ended:
            return False
        data = self._file.read(size)
        self._ended = not data
        self.consumed += len(data)
        more = self._decode(data, final=not data)
        self._text = self._text[self._place :] + more
        self._place = 0
        return not self._ended or bool(more)

    def _read_value(self) -> Any:
        while True:
            try:
                value, self._place = _DECODER.raw_decode(self._text, self._place)
            except json.JSONDecodeError as error:
                waiting = len(self._text) - self._place
                open_ended = error.msg.startswith("Unterminated string")
                if open_ended or error.pos >= len(self._text) - _MARGIN:
                    # Doubling keeps the total time linear.
                    if waiting <= self._limit and self._fill(max(_PART_BYTES, waiting)):
                        continue
                    if waiting > self._limit:
                        reason = f"it is larger than {describe_size(self._limit)}"
                        return self._skip_value(reason)
                    self._over = True
                    return Damaged("the file ends in the middle of it")
                return self._skip_value(f"{_INVALID}: {error.msg}")
            except RecursionError:
                return self._skip_value("it is nested too deeply")
            except ValueError as error:
                # Such as an integer with thousands of digits.
                return self._skip_value(str(error))
            else:
                return value

    def _skip_value(self, reason: str) -> Damaged:
        """Skip a value that cannot be read, by its brackets and strings alone."""
        if self._peek() not in "[{":
            found = _NEXT.search(self._text, self._place)
            self._place = found.start() if found else len(self._text)
            return Damaged(reason)
        depth = 0
        while True:
            last = self._place
            for token in _TOKENS.finditer(self._text, self._place):
                text = token[0]
                if text[0] == '"' and token[1] is None:
                    break
                last = token.end()
                if text in ("[", "{"):
                    depth += 1
                elif text in ("]", "}"):
                    depth -= 1
                    if depth <= 0:
                        self._place = last if depth == 0 else token.start()
                        return Damaged(reason)
            else:
                last = len(self._text)
            self._place = last
            waiting = len(self._text) - last
            if waiting > self._limit or not self._fill(max(_PART_BYTES, waiting)):
                self._over = True
                return Damaged(f"{reason}; nothing after it can be read")


def parse_json(text: str) -> Any:
    """Return the value of JSON text, or None if it is not valid."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def _is_invalid(value: Any) -> bool:
    return isinstance(value, Damaged) and value.reason.startswith(_INVALID)


def read_lines(file: BinaryIO, limit: int = _LARGEST_VALUE) -> Iterator[dict[str, Any] | Damaged]:
    """Yield the JSON objects of lines. A line that is not one is a `Damaged`; empty ones are none.

    An incomplete last line, which a running program may still be writing, is skipped.
    """
    while line := file.readline(limit):
        if not line.endswith(b"\n") and len(line) >= limit:
            while line and not line.endswith(b"\n"):
                line = file.readline(_PART_BYTES)
            yield Damaged(f"a line is longer than {describe_size(limit)}")
            continue
        if not line.strip():
            continue
        try:
            value = _DECODER.decode(line.decode("utf-8-sig", "replace"))
        except (ValueError, RecursionError):
            if line.endswith(b"\n"):
                yield Damaged("a line is not valid JSON")
            continue
        yield value if isinstance(value, dict) else Damaged("a line is not a JSON object")
