"""Ways in which the bytes of a file of messages go wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

Mutation = Callable[[bytes, random.Random], bytes]


def flip_bits(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 20))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def delete_bytes(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data))
    return data[:start] + data[start + chance.choice((1, 2, 30, 400, 5_000)) :]


def insert_bytes(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data))
    return data[:start] + chance.randbytes(chance.choice((1, 2, 100))) + data[start:]


def repeat_bytes(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data))
    return data[:start] + data[max(0, start - chance.choice((1, 200, 4_096))) :]


def glue_lines(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\n")
    number = chance.randrange(len(lines) - 1)
    lines[number : number + 2] = [lines[number] + lines[number + 1]]
    return b"\n".join(lines)


def zero_bytes(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data))
    end = min(len(data), start + chance.choice((1, 8, 512, 4_096)))
    return data[:start] + bytes(end - start) + data[end:]


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def replace_line(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\n")
    lines[chance.randrange(len(lines) - 1)] = chance.choice(HOSTILE_LINES)
    return b"\n".join(lines)


def insert_line(data: bytes, chance: random.Random) -> bytes:
    lines = data.split(b"\n")
    lines.insert(chance.randrange(len(lines)), chance.choice(HOSTILE_LINES))
    return b"\n".join(lines)


def replace_value(data: bytes, chance: random.Random) -> bytes:
    start = data.find(b":", chance.randrange(len(data))) + 1
    end = data.find(b",", start)
    return data[:start] + chance.choice(HOSTILE_VALUES) + data[end if end > start else start :]


def mark_order(data: bytes, chance: random.Random) -> bytes:
    return b"\xef\xbb\xbf" + data


def end_lines_otherwise(data: bytes, chance: random.Random) -> bytes:
    return data.replace(b"\n", chance.choice((b"\r\n", b"\r", b"\n\n", b" \n")))


def reencode(data: bytes, chance: random.Random) -> bytes:
    return data.decode().encode(chance.choice(("utf-16", "latin-1", "utf-32")), "replace")


HOSTILE_VALUES = (
    b"NaN",
    b"-Infinity",
    b"1" * 5_000,
    b"1e999999",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"null",
    b"true",
    b'"\\ud800"',
    b'"\\u0000"',
    b'"\xff\xfe"',
    b"{}",
    b"[[]]",
    b'""',
    b"\xed\xa0\x80",
)
HOSTILE_LINES = (
    b"",
    b" ",
    b"null",
    b"[]",
    b"{}",
    b"0",
    b'"text"',
    b'{"role":"user"}',
    b'{"role":"user","role":"assistant","identity":"a","created":"2026-01-01T00:00:00Z"}',
    b'{"role":null}',
    b'{"role":"user","identity":7}',
    b'{"role":"user","identity":"a","created":"yesterday"}',
    b'{"role":"invocation","identity":"a"}',
    b'{"role":"user","contents":[{"kind":"text"}]}',
    b'{"role":"user","contents":[{"kind":"text","data":{"by":"hash","hash":"..","size":-1}}]}',
    b'{"role":"user","contents":' + b"[" * 100_000,
    b'{"role":"later","contents":' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"role":"user","a":NaN}',
    b'{"role":"user","a":' + b"9" * 5_000 + b"}",
    b'{"role":"user","a":"\xff"}',
    b'{"role":"user","contents":[{"kind":"text","data":"a"}]}' * 2,
    b"\x00" * 100,
    b"\x1f\x8b\x08\x00",
    b"\xef\xbb\xbf{}",
)
MUTATIONS: tuple[Mutation, ...] = (
    flip_bits,
    flip_bits,
    delete_bytes,
    insert_bytes,
    repeat_bytes,
    glue_lines,
    zero_bytes,
    cut,
    replace_line,
    insert_line,
    replace_value,
    mark_order,
    end_lines_otherwise,
    reencode,
)


def mutate(data: bytes, count: int) -> Iterator[bytes]:
    """So many damaged forms of the bytes, the same ones every time."""
    for seed in range(count):
        chance = random.Random(seed)
        damaged = MUTATIONS[seed % len(MUTATIONS)](data, chance)
        if chance.random() < 0.2 and damaged:
            damaged = chance.choice((flip_bits, zero_bytes, cut))(damaged, chance)
        yield damaged
