"""What a text has of tokens at least, likely and within: the same as by the words of its rule."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable

import pytest

from vibe_llms.providers.token_estimates import Measure, measure_text

#: The parts that no tokenizer joins, and the runs that are shortened, as expressions.
PARTS = re.compile(r"[^\W\d_]+|\d{1,3}|[^\w\s]+(?!\w)")
LONG_RUN = re.compile(r"(.)\1{7,}", re.DOTALL)
ALPHABETS = (
    "abc  ",
    "a0_. \n",
    "aA1,.;:!?_ \t\x1c\x1f\0",
    "天地\uff0c。 、a1?",
    "éàüß ¼²٣४, .",
    "😀😀— a",
    "".join(map(chr, range(128))),
    "\ud800\udc00a?",
    "—=- ",
    "\u2028\u3000\xa0 \x85a1",
    "ーー々〆〇",
    "".join(map(chr, range(0x2000, 0x2C00))),
)
LENGTHS = (1, 1, 1, 1, 2, 3, 7, 8, 9, 20)


def measure_by_rule(text: str) -> Measure:
    least = len(PARTS.findall(text))
    short = LONG_RUN.sub(r"\1\1\1\1", "".join(text.split()))
    narrow = sum(one.isascii() for one in short)
    wide = len(short) - narrow
    likely = max(least + least // 8, narrow // 4 + wide * 5 // 8)
    return Measure(least, likely, max(likely, narrow // 2 + wide * 2))


@pytest.mark.storm
def test_a_measure_is_that_of_the_rule(rounds: Callable[[int, int], int]) -> None:
    chance = random.Random(7)
    for _ in range(rounds(3_000, 100_000)):
        letters = "".join(chance.sample(ALPHABETS, chance.choice((1, 1, 2, 3))))
        runs = (
            chance.choice(letters) * chance.choice(LENGTHS) for _ in range(chance.randrange(60))
        )
        text = "".join(runs)
        assert measure_text(text) == measure_by_rule(text), ascii(text)


def test_each_character_is_of_the_class_of_the_rule() -> None:
    # Scripts, signs, surrogates and private use; pictures; what lies beyond.
    for first, end in ((0, 0x3200), (0xD7F0, 0x10800), (0x1F000, 0x1FC00), (0xE0000, 0xE0200)):
        for start in range(first, end, 16):
            text = " ".join(f"a{chr(n)}b{chr(n)} {chr(n) * 8}" for n in range(start, start + 16))
            assert measure_text(text) == measure_by_rule(text), hex(start)


@pytest.mark.parametrize(
    "piece",
    ["a", "1", "-", " ", "word ", "a.", "天", "\uff0c", "x1_.", "aaaaaaaab", "天天天天天天天天。"],
)
def test_a_long_text_takes_time_in_proportion(piece: str) -> None:
    def take(text: str) -> float:
        start = time.thread_time()
        measure_text(text)
        return time.thread_time() - start

    few, many = (piece * (size // len(piece)) for size in (20_000, 320_000))
    # Sixteen times the text takes sixteen times the time; in proportion to its square, 256 times.
    assert min(take(many) for _ in range(3)) < 80 * max(min(take(few) for _ in range(5)), 50e-6)


def test_many_different_signs_take_no_longer_than_few() -> None:
    signs = "".join(one for one in map(chr, range(0x80, 0x110000, 4)) if not one.isalpha())
    start = time.thread_time()
    assert measure_text(signs).least > 0
    # Were the text searched for each of them, it would take tens of seconds.
    assert time.thread_time() - start < 5
