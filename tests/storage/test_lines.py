"""Lines of a file that comes in parts: they are the same however it is cut."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from vibe_llms.messages.codecs import LineUnreadable
from vibe_llms.storage.lines import Line, LineReader


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_are_the_same_however_the_parts_are_cut(size: int) -> None:
    data = b"one\n\nthree\n" + b"x" * 20 + b"\nfive\nto"
    reader = LineReader(cut(data, size), 10)
    assert reader.torn == 0
    assert list(reader) == [
        Line(1, 0, 3, b"one"),
        Line(2, 4, 0, b""),
        Line(3, 5, 5, b"three"),
        Line(4, 11, 20, None),
        Line(5, 32, 4, b"five"),
    ]
    assert reader.torn == 2


def test_any_file_in_any_parts_has_the_lines_of_a_split() -> None:
    chance = random.Random(3)
    for _ in range(300):
        data = bytes(chance.choices(b"ab\n", k=chance.randrange(60)))
        reader = LineReader(cut(data, chance.randrange(1, 9)), 4)
        *whole, rest = data.split(b"\n")
        assert [line.data for line in reader] == [one if len(one) <= 4 else None for one in whole]
        assert reader.torn == len(rest)


def test_a_last_line_with_nul_bytes_is_torn() -> None:
    reader = LineReader([b"one\ntw\0\0\n", b"th"], 10)
    assert [line.data for line in reader] == [b"one"]
    assert reader.torn == 7
    # In the middle it is a line that cannot be read.
    assert len(list(LineReader([b"o\0\ntwo\n"], 10))) == 2


def test_a_line_that_is_too_long_is_not_held_in_memory() -> None:
    part = b"x" * 65536
    tracemalloc.start()
    reader = LineReader((part for _ in range(1000)), 100_000)
    assert list(reader) == []
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
    assert reader.torn == 65536 * 1000
    with pytest.raises(LineUnreadable, match="exceeds line-bytes"):
        Line(1, 0, 200_000, None).decode()
