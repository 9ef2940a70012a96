"""Bounds on the tokens of a text that no server has counted; they hold for today's tokenizers.

Every message of a history is measured, so this takes a few passes over its bytes and no step per
word: characters are replaced by marks of their classes, and the runs of marks are counted.
"""

from __future__ import annotations

import re

from msgspec import Struct

_LONG_RUN = re.compile(r"(.)\1{7,}", re.DOTALL)
# A run of 8 has 7 characters equal to the one before; 4 of it are counted.
_EQUAL, _KEPT = 7, 3
_BLANK = bytes(number for number in range(128) if chr(number).isspace())
#: Number of different signs above which a text is translated, not searched for each of them.
_MANY = 32


def _mark(character: str) -> str:
    """Return the mark of a character's class: letter, digit, blank, sign, or underscore."""
    if character.isdecimal():
        return "0"
    if character.isspace():
        return " "
    return "a" if character.isalnum() else "_" if character == "_" else "."


def _produce_table(**marks: str) -> bytes:
    """Return a translation table for ASCII bytes that gives classes of characters these marks."""
    names = {"a": "letter", "0": "digit", " ": "blank", ".": "sign", "_": "line"}
    kinds = [names[_mark(chr(number))] for number in range(128)]
    return "".join(marks.get(kind, marks["others"]) for kind in kinds).encode() + bytes(128)


_LETTERS = _produce_table(letter="a", others=" ")
_DIGITS = _produce_table(digit="0", others=" ")
_SIGNS = _produce_table(sign=".", blank=" ", others="a")
_ASCII = bytes(range(128))
_RUN = bytes(_EQUAL)
_EQUALS = b"=" + b" " * 255


class Measure(Struct, frozen=True, gc=False):
    """Number of tokens: `least` is a lower bound, `likely` an estimate, `ample` an upper bound."""

    least: int = 0
    likely: int = 0
    ample: int = 0

    def __add__(self, other: Measure) -> Measure:
        return Measure(
            self.least + other.least, self.likely + other.likely, self.ample + other.ample
        )

    def __sub__(self, other: Measure) -> Measure:
        return Measure(
            self.least - other.least, self.likely - other.likely, self.ample - other.ample
        )


def measure_text(text: str) -> Measure:
    """Return the number of tokens of a text, for all tokenizers of today's models.

    >>> measure_text("The sky is blue, they say.")
    Measure(least=8, likely=9, ample=10)
    """
    if text.isascii():
        data = text.encode()
        least = _count_parts(b" " + data)
        narrow, wide = _count_characters(data.translate(None, _BLANK)), 0
    else:
        least = _count_parts(b" " + _narrow(text))
        short = _shorten_runs("".join(text.split()))
        narrow = len(short.encode("ascii", "ignore"))
        wide = len(short) - narrow
    likely = max(least + least // 8, narrow // 4 + wide * 5 // 8)
    return Measure(least, likely, max(likely, narrow // 2 + wide * 2))


def _count_parts(data: bytes) -> int:
    """Count the parts of an ASCII text, after a blank, that no tokenizer joins to one token.

    None joins words, letters with digits, or more than three digits. A sign may be one token with
    the word after it.
    """
    parts = data.translate(_LETTERS).count(b" a")
    digits = data.translate(_DIGITS)
    if b"0" in digits:
        parts += sum([(len(run) + 2) // 3 for run in digits.split()])
    signs = data.translate(_SIGNS)
    if b"." in signs:
        before_words = signs.count(b".a") - signs.count(b"..a")
        parts += signs.count(b" .") + signs.count(b"a.") - before_words
    return parts


def _count_characters(data: bytes) -> int:
    """Count the ASCII characters, with long runs of the same character shortened."""
    size = len(data)
    if size <= _EQUAL:
        return size
    # As integers, because bytes cannot be compared with their neighbors in one step.
    number = int.from_bytes(data, "little")
    equal = (number ^ number >> 8).to_bytes(size, "little")[:-1]
    if _RUN in equal:
        runs = equal.translate(_EQUALS).split()
        size -= sum([len(run) - _KEPT for run in runs if len(run) >= _EQUAL])
    return size


def _shorten_runs(text: str) -> str:
    """Shorten long runs of one character."""
    # Of a long run, every second character is taken: four of these in a row are equal.
    data = text[::2].encode("utf-32-le", "surrogatepass")
    number = int.from_bytes(data, "little")
    if bytes(12) in (number ^ number >> 32).to_bytes(len(data), "little"):
        return _LONG_RUN.sub(r"\1\1\1\1", text)
    return text


def _narrow(text: str) -> bytes:
    """Replace characters that are not ASCII by ASCII letters, signs, digits, and blanks."""
    text = text.replace("?", "!")
    others = text.encode("utf-8", "surrogatepass").translate(None, _ASCII)
    wide = others.decode("utf-8", "surrogatepass")
    if not wide.isalpha():
        marks = {one: _mark(one) for one in set(wide) if not one.isalpha()}
        if len(marks) > _MANY:
            text = text.translate({ord(one): mark for one, mark in marks.items()})
        else:
            for one, mark in marks.items():
                text = text.replace(one, mark)
    # All remaining characters outside ASCII are letters.
    return text.encode("ascii", "replace").replace(b"?", b"a")
