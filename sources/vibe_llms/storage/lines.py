"""Reads the lines of a conversation's file in parts: in linear time and bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from vibe_llms.files import describe_size
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.codecs import LineUnreadable, decode_canister


class Line(Struct, frozen=True):
    """A whole line: its number from 1, its offset, its size, and its bytes if kept.

    The bytes of a line that is too long are dropped. The newline is never included.
    """

    number: int
    offset: int
    size: int
    data: bytes | None

    def decode(self) -> Canister:
        """Its canister; `LineUnreadable` if there is none."""
        if self.data is None:
            raise LineUnreadable(f"it has {describe_size(self.size)}, which exceeds line-bytes")
        return decode_canister(self.data)


class LineReader:
    """Iterates over the whole lines in parts of a file; `torn` is the size of what follows them.

    A last line with NUL bytes is incomplete: a power failure leaves them for unwritten data.
    """

    def __init__(self, parts: Iterable[bytes], longest: int) -> None:
        self._parts = parts
        self._longest = longest
        self.torn = 0

    def __iter__(self) -> Iterator[Line]:
        number = offset = size = 0
        pending: list[bytes] = []
        last: Line | None = None
        for part in self._parts:
            *ends, rest = part.split(b"\n")
            for end in ends:
                if last is not None:
                    yield last
                size += len(end)
                pending.append(end)
                data = b"".join(pending) if size <= self._longest else None
                number += 1
                last = Line(number, offset, size, data)
                offset += size + 1
                size = 0
                pending.clear()
            size += len(rest)
            if size <= self._longest:
                pending.append(rest)
            else:
                pending.clear()
        self.torn = size
        if last is not None and last.data is not None and b"\0" in last.data:
            self.torn += last.size + 1
        elif last is not None:
            yield last
