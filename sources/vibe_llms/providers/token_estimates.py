"""Bounds on the tokens of a text that no server has counted; they hold for today's tokenizers.

Every message of a history is measured, so this takes a few passes over its bytes and no step for
each word: characters are replaced by marks of their classes, of which the runs are counted.
"""

from __future__ import annotations

import re

from msgspec import Struct

_LONG_RUN = re.compile(r"(.)\1{7,}", re.DOTALL)
# A run of 8 has 7 characters like the one before; 4 of it are counted.
_EQUAL, _KEPT = 7, 3
_BLANK = bytes(number for number in range(128) if chr(number).isspace())
#: From so many different signs on, a text is translated instead of searched for each of them.
_MANY = 32


def _mark(character: str) -> str:
    """The mark of a character's class: a letter, a digit, a blank, a sign, or an underscore."""
    if character.isdecimal():
        return "0"
    if character.isspace():
        return " "
    return "a" if character.isalnum() else "_" if character == "_" else "."


def _produce_table(**marks: str) -> bytes:
    """A table for bytes of ASCII; the characters of these classes get other marks."""
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
    """How many tokens something has: surely as many as `least`, about `likely`, within `ample`."""

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
    """The tokens of a text, for all tokenizers that models have today.

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
    """How many parts a blank and a text of ASCII have that no tokenizer joins to one token.

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
    """How many characters of ASCII there are, long runs of one and the same shortened."""
    size = len(data)
    if size <= _EQUAL:
        return size
    # As numbers, since bytes cannot be compared with their neighbours in one step.
    number = int.from_bytes(data, "little")
    equal = (number ^ number >> 8).to_bytes(size, "little")[:-1]
    if _RUN in equal:
        runs = equal.translate(_EQUALS).split()
        size -= sum([len(run) - _KEPT for run in runs if len(run) >= _EQUAL])
    return size


def _shorten_runs(text: str) -> str:
    """A text with its long runs of one character shortened."""
    # A long run has four times the same in every second character.
    data = text[::2].encode("utf-32-le", "surrogatepass")
    number = int.from_bytes(data, "little")
    if bytes(12) in (number ^ number >> 32).to_bytes(len(data), "little"):
        return _LONG_RUN.sub(r"\1\1\1\1", text)
    return text


def _narrow(text: str) -> bytes:
    """A text with letters, signs, digits and blanks of ASCII in place of all others."""
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
    # What is still not of ASCII is a letter.
    return text.encode("ascii", "replace").replace(b"?", b"a")
