"""Streams of bytes cut into events, incrementally: server-sent events, and JSON lines.

Nothing is decoded here: a piece ends where the format says, wherever the network cut it. Time and
memory grow with the bytes that came, not with how they were cut.
"""

from __future__ import annotations

from collections.abc import Sequence

LIMIT_BYTES = 64 * 1024 * 1024
_MARK = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """One event of a stream has more bytes than anybody may send us."""


class EventSplitter:
    """The data of server-sent events.

    Lines may end in LF, CRLF or CR, data may span several lines; comments, names and identities of
    events are passed over, since the providers repeat the name within the data.

    Source: https://html.spec.whatwg.org/multipage/server-sent-events.html, section 9.2.6.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._begun = False
        self._returned = False

    def feed(self, chunk: bytes) -> Sequence[bytes]:
        """The data of the events that this chunk completes."""
        if not self._begun:
            chunk = self._begin(chunk)
        if self._returned or b"\r" in chunk:
            chunk = self._unify(chunk)
        if not self._parts and chunk[-2:] == b"\n\n":
            # Servers send whole events, most often one at a time.
            blocks = chunk[:-2].split(b"\n\n")
            return [data for block in blocks if (data := _data_of(block)) is not None]
        if not chunk:
            return []
        joint = bool(self._parts) and chunk[:1] == b"\n" and self._parts[-1][-1:] == b"\n"
        self._parts.append(chunk)
        self._size += len(chunk)
        if not joint and b"\n\n" not in chunk:
            # Without this a long event, a picture say, would be searched again with every chunk.
            if self._size > LIMIT_BYTES:
                raise EventTooLarge(f"one event has more than {LIMIT_BYTES} bytes")
            return []
        text = b"".join(self._parts) if len(self._parts) > 1 else chunk
        *blocks, rest = text.split(b"\n\n")
        self._parts = [rest] if rest else []
        self._size = len(rest)
        return [data for block in blocks if (data := _data_of(block)) is not None]

    def conclude(self) -> Sequence[bytes]:
        """Nothing: an event without an empty line after it is not complete."""
        return ()

    def _begin(self, chunk: bytes) -> bytes:
        """The chunk without a byte order mark at its beginning."""
        chunk = b"".join([*self._parts, chunk])
        self._parts = []
        if len(chunk) < len(_MARK) and _MARK.startswith(chunk):
            self._parts = [chunk] if chunk else []
            return b""
        self._begun = True
        return chunk.removeprefix(_MARK)

    def _unify(self, chunk: bytes) -> bytes:
        """The chunk with LF for each end of a line; a CRLF may be cut between its halves."""
        if self._returned and chunk[:1] == b"\n":
            chunk = chunk[1:]
            if not chunk:
                self._returned = False
                return chunk
        if chunk:
            self._returned = chunk[-1:] == b"\r"
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _data_of(block: bytes) -> bytes | None:
    # Nearly every event is one line of data, perhaps after one line with its name.
    start = block.find(b"data:")
    if start > 0 and block[start - 1] != 10:
        start = block.find(b"\ndata:") + 1 or -1
    if start < 0:
        return None
    start += 5
    if block.find(b"\n", start) < 0:
        return block[start + 1 :] if block.startswith(b" ", start) else block[start:]
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line[:5] == b"data:"]
    return b"\n".join(lines)


class LineSplitter:
    """The lines of a stream of JSON lines; empty ones are passed over."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Sequence[bytes]:
        """The lines that this chunk completes, without their ends."""
        self._parts.append(chunk)
        self._size += len(chunk)
        if b"\n" not in chunk:
            if self._size > LIMIT_BYTES:
                raise EventTooLarge(f"one line has more than {LIMIT_BYTES} bytes")
            return []
        *lines, rest = b"".join(self._parts).split(b"\n")
        self._parts, self._size = [rest], len(rest)
        return [line for line in lines if line.strip()]

    def conclude(self) -> Sequence[bytes]:
        """What comes after the last newline, if anything."""
        rest = b"".join(self._parts)
        self._parts, self._size = [], 0
        return [rest] if rest.strip() else []
