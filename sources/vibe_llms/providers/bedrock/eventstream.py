"""Incremental decoder of `application/vnd.amazon.eventstream`, with its two checksums.

A message is a prelude (its length, the length of its headers, their CRC-32), headers, a payload,
and the CRC-32 of all that. Source: https://smithy.io/2.0/aws/amazon-eventstream.html (2026-11),
and the limits of `botocore/eventstream.py`.

Each message becomes one JSON object with the name of the event: `{"messageStop": {…}}`. An
exception or an error of the stream becomes `{"failure": {"type": …, "body": {…}}}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct, error
from zlib import crc32

from vibe_llms.base.redaction import quote
from vibe_llms.providers.pieces import encode_json

#: Maximum bytes of the headers and of the payload of a message.
_MOST_HEADERS, _MOST_PAYLOAD = 128 * 1024, 24 * 1024 * 1024
_PRELUDE, _CRC = Struct("!III"), Struct("!I")
#: Bytes of a prelude, and of a message without headers and payload.
_LEAST, _FRAME = _PRELUDE.size, _PRELUDE.size + _CRC.size
#: Sizes of the values of headers, by type; None if two bytes before the value say it.
_SIZES: Mapping[int, int | None] = {
    0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 6: None, 7: None, 8: 8, 9: 16,
}  # fmt: skip
_TEXT = 7
#: What comes before and after the payload in JSON, by the headers of ordinary messages: services
#: use about ten.
_FRAMES: dict[bytes, tuple[bytes, bytes]] = {}
_MOST_FRAMES, _LONGEST_FRAME = 64, 512


class EventStreamSplitter:
    """Splitter of an event stream into JSON objects; chunks may end anywhere.

    After bytes that are not such a stream, or whose checksum is wrong, `damage` explains that, and
    nothing more is read. The messages before them are returned.
    """

    words = ""

    def __init__(self) -> None:
        self.odd = False
        self.damage = ""
        self._parts: list[bytes] = []
        self._size = 0
        #: Bytes that the next message needs.
        self._needed = _LEAST

    def feed(self, chunk: bytes) -> Sequence[bytes]:
        """Return the messages that this chunk completes."""
        if self.damage:
            return []
        if self._parts or len(chunk) < self._needed:
            self._parts.append(chunk)
            self._size += len(chunk)
            if self._size < self._needed:
                return []
            chunk = b"".join(self._parts)
        events: list[bytes] = []
        place = self._read(chunk, events)
        rest = chunk[place:]
        self._parts, self._size = [rest] if rest else [], len(rest)
        return events

    def conclude(self) -> Sequence[bytes]:
        """Return nothing: a message that is not complete cannot be read."""
        self._parts, self._size = [], 0
        return []

    def _read(self, data: bytes, events: list[bytes]) -> int:
        """Append the complete messages in `data` to `events`; return where the rest begins."""
        place, end = 0, len(data)
        self._needed = _LEAST
        while end - place >= _LEAST:
            size, head, checksum = _PRELUDE.unpack_from(data, place)
            if crc32(data[place : place + 8]) != checksum:
                self.damage = f"{quote(data[place:])} is not a message of an event stream"
                return end
            if head > _MOST_HEADERS or not 0 <= size - head - _FRAME <= _MOST_PAYLOAD:
                self.damage = f"a message of {size} bytes with headers of {head}"
                return end
            if end - place < size:
                self._needed = size
                return place
            last = place + size - 4
            if crc32(data[place:last]) != _CRC.unpack_from(data, last)[0]:
                self.damage = "a message of the event stream whose checksum is wrong"
                return end
            middle = place + _LEAST + head
            headers = data[place + _LEAST : middle]
            frame = _FRAMES.get(headers)
            if frame is None:
                try:
                    frame = _find_frame(headers)
                except (ValueError, IndexError, error) as reason:
                    self.damage = f"{quote(headers)} are not headers of a message ({reason})"
                    return end
            before, after = frame
            events.append(before + (data[middle:last] or b"null") + after)
            place += size
        return place


def _find_frame(headers: bytes) -> tuple[bytes, bytes]:
    """Return the JSON before and after the payload of a message with these headers."""
    read = read_headers(headers)
    kind = read.get(":message-type", "event")
    if kind == "event":
        frame = b"{" + encode_json(read.get(":event-type", "")) + b":", b"}"
    elif kind == "exception":
        name = encode_json(read.get(":exception-type", ""))
        frame = b'{"failure":{"type":' + name + b',"body":', b"}}"
    else:
        # The message says it all; its payload is usually empty.
        told = {"type": read.get(":error-code", ""), "message": read.get(":error-message", "")}
        return b'{"failure":' + encode_json(told)[:-1] + b',"body":', b"}}"
    if len(_FRAMES) < _MOST_FRAMES and len(headers) <= _LONGEST_FRAME:
        _FRAMES[headers] = frame
    return frame


def read_headers(data: bytes) -> Mapping[str, str]:
    """Return the textual headers of a message; raise an error if they cannot be read."""
    found: dict[str, str] = {}
    seen: set[bytes] = set()
    place = 0
    while place < len(data):
        start = place + 1
        name, place = data[start : start + data[place]], start + data[place]
        kind = data[place]
        place += 1
        if kind not in _SIZES:
            raise ValueError(f"a header of the unknown type {kind}")
        size = _SIZES[kind]
        if size is None:
            size = int.from_bytes(data[place : place + 2], "big")
            place += 2
        value, place = data[place : place + size], place + size
        if place > len(data):
            raise ValueError("a header is longer than all of them")
        if name in seen:
            raise ValueError(f"the header {name!r} occurs twice")
        seen.add(name)
        if kind == _TEXT:
            found[name.decode()] = value.decode()
    return found
