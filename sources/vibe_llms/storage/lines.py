"""Lines of a conversation, read in parts, in linear time and bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from vibe_llms.base.exceptions import ArchiveDamaged, StorageError
from vibe_llms.base.files import describe_size
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.codecs import LineUnreadable, decode_canister, decode_plain, encode_canister
from vibe_llms.storage.interfaces import Gap


class Line(Struct, frozen=True):
    """A complete line with its number from 1, its offset, its size, and its bytes if kept.

    The bytes of a line that exceeds the limit are dropped. The newline is not included.
    """

    number: int
    offset: int
    size: int
    data: bytes | None

    def decode(self) -> Canister:
        """Return the canister, or raise `LineUnreadable`."""
        if self.data is None:
            raise LineUnreadable(f"its size, {describe_size(self.size)}, exceeds line-bytes")
        return decode_canister(self.data)


class LineReader:
    """Iterator over the complete lines of a file that is read in parts.

    `torn` is the size of the incomplete rest. A last line with NUL bytes counts as incomplete:
    a power failure leaves them for unwritten data.
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


def encode_line(canister: Canister, longest: int, path: str) -> bytes:
    """Return the line of a canister without its newline, or raise a `StorageError` if too long."""
    line = encode_canister(canister)
    if len(line) >= longest:
        raise StorageError(
            f"a message of {len(line)} bytes exceeds line-bytes ({longest})", path=path
        )
    return line


def decode_parts(parts: Iterable[bytes], longest: int) -> tuple[list[Canister], int] | None:
    """Return all canisters, and the size of the rest after the last complete line.

    Return `None` if a line is not in this version's own form or may be too long. The caller then
    reads each line separately.
    """
    canisters: list[Canister] = []
    pending: list[bytes] = []
    size = 0
    for part in parts:
        end = part.rfind(b"\n") + 1
        size += end or len(part)
        if size > longest:
            return None
        pending.append(part[:end] or part)
        if end:
            some = decode_plain(b"".join(pending))
            if some is None:
                return None
            canisters += some
            pending, size = [part[end:]], len(part) - end
    return canisters, size


def decode_each(lines: Iterable[Line]) -> tuple[list[Canister], list[Gap]]:
    """Return the canisters of lines, and the gaps: lines that cannot be read."""
    canisters: list[Canister] = []
    gaps: list[Gap] = []
    for line in lines:
        try:
            canisters.append(line.decode())
        except LineUnreadable as error:
            gaps.append(Gap(line.number, line.offset, line.size, str(error)))
    return canisters, gaps


def describe_damage(gap: Gap, identity: str, path: str) -> ArchiveDamaged:
    """Return the error for an unreadable line of a conversation."""
    return ArchiveDamaged(
        f"this line, at byte {gap.offset}, cannot be read ({gap.reason}). Show the rest: "
        f"vibe-llms show {identity} --lenient; repair it: vibe-llms doctor --repair",
        path=path,
        line=gap.line,
        offset=gap.offset,
    )
