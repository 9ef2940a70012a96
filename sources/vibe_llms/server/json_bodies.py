"""Decoding of large JSON bodies in steps, between which other threads run.

The decoder of msgspec holds the GIL for the whole body. So the strings of a large body are first
located, window by window. This limits the number of values, and long strings are decoded separately
in pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from secrets import token_hex
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import force_setattr

from vibe_llms.server.failures import Rejected

T = TypeVar("T")

#: Smaller bodies are decoded at once, in about 1 ms.
WHOLE_BYTES = 128 * 1024
#: Longer strings are decoded separately, in pieces of this size.
PIECE_BYTES = 256 * 1024
#: Maximum number of values in a body: numbers, strings, member names, objects, and lists.
MOST_VALUES = 300_000
#: Part of a string that does not split an escape or a surrogate pair. The outer repetition is not
#: possessive, since Python 3.11.2 then ends within a pair:
#: https://github.com/python/cpython/issues/106052
_STRING = re.compile(
    rb'(?:[^\\"]++|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}'
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*",
)
_QUOTE = ord('"')
#: Unguessable placeholder of long strings.
_MARK = f"long string {token_hex(16)} "
_MARK_BYTES = _MARK.encode()
#: Shorter gaps between strings are not counted.
_SHORT_GAP = 8


def decode_large(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode a body of any size.

    Raises the errors of the decoder, and `Rejected` if the body has too many values. The decoder
    sees a placeholder for each long string, so it cannot check its length.
    """
    if len(body) <= WHOLE_BYTES:
        return decoder.decode(body)
    kept: list[bytes] = []
    strings: dict[str, _LongString] = {}
    end = 0
    for start, stop, cuts in _survey_long_strings(body):
        mark = f"{_MARK}{len(strings)}"
        strings[mark] = _LongString(body, start, stop, cuts)
        kept += body[end:start], mark.encode()
        end = stop
    kept.append(body[end:])
    decoded = decoder.decode(b"".join(kept) if strings else body)
    return _fill(decoded, strings) if strings else decoded


def _survey_long_strings(body: bytes) -> Iterator[tuple[int, int, list[int]]]:
    """Yield the start and end of each long string, and the positions where it can be split.

    Stops at invalid JSON, which the decoder then reports.
    """
    values, position, size = 0, 0, len(body)
    while (quote := _find(body, position)) >= 0:
        values += 1 + _count_values(body, position, quote)
        if values > MOST_VALUES:
            raise _too_many()
        start = stop = quote + 1
        cuts: list[int] = []
        while True:
            limit = min(stop + PIECE_BYTES, size)
            matched = _STRING.match(body, stop, limit)
            assert matched is not None
            reached = matched.end()
            if reached < size and body[reached] == _QUOTE:
                stop = reached
                break
            if reached == stop:
                return
            stop = _find_cut(body, reached)
            cuts.append(stop)
        if cuts:
            yield start, stop, cuts
        position = stop + 1
    if values + _count_values(body, position, size) > MOST_VALUES:
        raise _too_many()


def _find(body: bytes, position: int) -> int:
    """Return the position of the next quote, searching one window at a time, or -1."""
    size = len(body)
    while position < size:
        found = body.find(b'"', position, position + PIECE_BYTES)
        if found >= 0:
            return found
        position += PIECE_BYTES
    return -1


def _count_values(body: bytes, start: int, stop: int) -> int:
    """Return the approximate number of values between two strings."""
    if stop - start < _SHORT_GAP:
        return 0
    count = 0
    for begin in range(start, stop, PIECE_BYTES):
        end = min(begin + PIECE_BYTES, stop)
        count += sum(body.count(sign, begin, end) for sign in (b",", b"[", b"{"))
        if count > MOST_VALUES:
            break
    return count


def _find_cut(body: bytes, place: int) -> int:
    """Return the start of the UTF-8 character at a position."""
    for _ in range(3):
        if place < len(body) and body[place] & 0xC0 == 0x80:
            place -= 1
    return place


class _LongString:
    """A string of a body that is decoded separately."""

    def __init__(self, body: bytes, start: int, stop: int, cuts: list[int]) -> None:
        self.source = memoryview(body)[start:stop]
        places = [start, *cuts, stop]
        self.text = "".join(
            msgspec.json.decode(b'"%b"' % body[begin:end], type=str)
            for begin, end in pairwise(places)
        )


def _fill(decoded: T, strings: Mapping[str, _LongString]) -> T:
    """Replace the placeholders in a decoded value with the long strings, in place."""
    whole: list[Any] = [decoded]
    waiting: list[Any] = [whole]
    while waiting:
        one = waiting.pop()
        members: Iterable[tuple[Any, Any]]
        match one:
            case list():
                members = enumerate(one)
            case dict():
                for key in [key for key in one if key in strings]:
                    one[strings[key].text] = one.pop(key)
                members = [*one.items()]
            case _:
                members = [(name, getattr(one, name)) for name in one.__struct_fields__]
        for key, member in members:
            match member:
                case str() if member in strings:
                    _put(one, key, strings[member].text)
                case Raw() if _MARK_BYTES in bytes(member):
                    _put(one, key, _fill_raw(member, strings))
                case list() | dict() | Struct():
                    waiting.append(member)
    return whole[0]  # type: ignore[no-any-return]


def _put(holder: Any, key: Any, value: object) -> None:
    if isinstance(holder, Struct):
        force_setattr(holder, key, value)
    else:
        holder[key] = value


def _fill_raw(raw: Raw, strings: Mapping[str, _LongString]) -> Raw:
    def find(match: re.Match[bytes]) -> bytes:
        found = strings.get(match[0].decode())
        return match[0] if found is None else bytes(found.source)

    return Raw(re.sub(re.escape(_MARK_BYTES) + rb"\d+", find, bytes(raw)))


def _too_many() -> Rejected:
    return Rejected(
        f"the body has more than {MOST_VALUES:,} values", status=413, code="request_too_large"
    )
