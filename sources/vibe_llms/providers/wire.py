"""Incremental splitters of byte streams into events: server-sent events, and JSON lines.

Events end where the format says, not where network chunks end. Time and memory grow with the number
of bytes, not of chunks.

`EventSplitter` accepts these deviations: JSON in lines without `data:`, several events in one
block, `error: …` as a field, and a last event without an empty line after it. `unify` gives the
errors of all dialects one form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.repairs import parse_value, repair

LIMIT_BYTES = 64 * 1024 * 1024
#: Mark at the end of a stream, in the form that assimilators receive.
DONE = b"[DONE]"
_MARK = b"\xef\xbb\xbf"
#: Names of events, and texts in their place, that only keep a connection open.
_KEEP_ALIVE = frozenset({"ping", "pong", "keepalive", "keep-alive", "keep_alive", "heartbeat"})
_FIELDS = (b"data:", b"event:", b"id:", b"retry:")
_FIELD = re.compile(rb"[A-Za-z_][A-Za-z0-9_-]*")
_ERROR = re.compile(r"\A(?:\[error\]\s*:?|error\s*:)\s*", re.IGNORECASE)
#: Names by the lines before the data of ordinary events, of all streams; servers use about twenty.
_HEADS: dict[bytes, str] = {}
_MOST_HEADS, _LONGEST_HEAD = 64, 64
#: Maximum number of characters that are kept of text that is not an event.
_MOST_WORDS = 4_000
_RAW = msgspec.json.Decoder(msgspec.Raw)


class EventTooLarge(ValueError):
    """Error for an event of a stream that has more than `LIMIT_BYTES`."""


class EventData(bytes):
    """Data of an event that has a `name`."""

    name: str = ""


class Splitter(Protocol):
    """Splitter of a stream into events; `odd` and `words` are those of `EventSplitter`."""

    odd: bool
    words: str

    def feed(self, chunk: bytes) -> Sequence[bytes]:
        """Return the events that this chunk completes."""
        ...

    def conclude(self) -> Sequence[bytes]:
        """Return the events that only lack their end."""
        ...


class EventSplitter:
    """Splitter that returns the data of server-sent events.

    Lines may end in LF, CRLF, or CR, and data may span several lines. Comments, identities, events
    without data, and events that only keep the connection open are dropped. JSON in lines without
    `data:` is an event too. Other lines that are not fields are collected in `words`: they may be
    all that a gateway says about an error. The name `error` is kept, in an `EventData`, and other
    names by a `NamedEventSplitter`. `odd` is True after events that may not be JSON objects.

    Source: https://html.spec.whatwg.org/multipage/server-sent-events.html, section 9.2.6.
    """

    keeps_names = False

    def __init__(self) -> None:
        self.odd = False
        self.words = ""
        self._parts: list[bytes] = []
        self._size = 0
        self._begun = False
        self._returned = False

    def feed(self, chunk: bytes) -> Sequence[bytes]:
        """Return the data of the events that this chunk completes."""
        if not self._begun:
            chunk = self._begin(chunk)
        if self._returned or b"\r" in chunk:
            chunk = self._unify(chunk)
        if not self._parts and chunk[-2:] == b"\n\n":
            # Fast path: servers send whole events, most often one at a time.
            return self._read_all(chunk[:-2].split(b"\n\n"))
        if not chunk:
            return []
        joint = bool(self._parts) and chunk[:1] == b"\n" and self._parts[-1][-1:] == b"\n"
        self._parts.append(chunk)
        self._size += len(chunk)
        if not joint and b"\n\n" not in chunk:
            # Otherwise a long event, such as an image, would be searched again with every chunk.
            if self._size > LIMIT_BYTES:
                raise EventTooLarge(f"one event has more than {LIMIT_BYTES} bytes")
            return []
        text = b"".join(self._parts) if len(self._parts) > 1 else chunk
        *blocks, rest = text.split(b"\n\n")
        self._parts = [rest] if rest else []
        self._size = len(rest)
        return self._read_all(blocks)

    def conclude(self) -> Sequence[bytes]:
        """Return the events that lack only the empty line: complete JSON, or `[DONE]`."""
        rest = b"".join(self._parts)
        self._parts, self._size = [], 0
        if not self._begun:
            # Nothing arrived, or part of a byte order mark.
            return []
        *lines, last = rest.split(b"\n")
        if not any(field.startswith(last) for field in _FIELDS):
            lines.append(last)
        found = self._read_all([b"\n".join(lines)])
        for data in found:
            if type(data) is bytes and data[:1] not in (b"{", b"["):
                self._note(data)
        return [data for data in found if _is_error(data) or _is_whole(data)]

    def _read_all(self, blocks: Iterable[bytes]) -> list[bytes]:
        events: list[bytes] = []
        for block in blocks:
            # Fast path: most events are one line of data, perhaps after one line with a name.
            if block[:7] == b"data: {" and b"\n" not in block:
                events.append(block[6:])
                continue
            if not block or (block[:1] == b":" and b"\n" not in block):
                continue
            head, _, data = block.partition(b"\ndata: ")
            if head in _HEADS and data[:1] == b"{" and b"\n" not in data:
                events.append(data)
            else:
                self.odd = True
                events += self._read(block)
        return events

    def _read(self, block: bytes) -> Iterator[bytes]:
        """Yield the events of a block of lines, usually one."""
        name, data = "", list[bytes]()
        # The lines of data and those that are not fields, in order.
        lines: list[bytes] = []
        bare: list[list[bytes]] = [[]]
        head = b""
        for line in block.split(b"\n"):
            field, colon, value = line.partition(b":")
            if field == b"data":
                data.append(value.removeprefix(b" "))
                lines.append(data[-1])
                bare.append([])
            elif not line or line[:1] == b":" or field in (b"id", b"retry"):
                continue
            elif field == b"event":
                head = line
                name = value.strip().decode("utf-8", "replace")
            elif field.strip().lower() == b"error" and colon:
                yield _name(value.strip(), "error")
            elif not colon or not _FIELD.fullmatch(field):
                lines.append(line)
                bare[-1].append(line)
        if name.lower() in _KEEP_ALIVE:
            return
        loose = [run for run in bare if run]
        text = b"\n".join(lines) if loose else b"\n".join(data)
        if loose and not _is_whole(text):
            text = b"\n".join(data)
        else:
            loose = []
        json = all(line.lstrip()[:1] in (b"", b"{", b"[") for line in data)
        if len(data) > 1 and json and not _is_whole(text) and any(map(_is_whole, data)):
            # A second event began within the first, usually to report an error.
            yield from (one for one in data if _is_whole(one))
            data = [one for one in data if not _is_whole(one)]
            text = b"\n".join(data)
        if name.lower() == "error" and text.strip():
            yield _name(text, "error")
        elif text.strip() or (text and name and self.keeps_names):
            if len(_HEADS) < _MOST_HEADS and 0 < len(head) <= _LONGEST_HEAD:
                _HEADS[head] = repair_text(name)
            yield _name(text, name) if name and self.keeps_names else text
        for run in loose:
            yield from self._read_loose(run)

    def _read_loose(self, lines: Sequence[bytes]) -> Iterator[bytes]:
        """Yield the JSON in lines without a field; other text is noted."""
        text = b"\n".join(lines)
        if _is_whole(text):
            yield text
            return
        for line in lines:
            if _is_whole(line):
                yield line
            else:
                self._note(line)

    def _note(self, line: bytes) -> None:
        if len(self.words) < _MOST_WORDS:
            words = line[:_MOST_WORDS].decode("utf-8", "replace").strip()
            self.words = f"{self.words}\n{words}".strip()

    def _begin(self, chunk: bytes) -> bytes:
        """Return the chunk without a byte order mark at its beginning."""
        chunk = b"".join([*self._parts, chunk])
        self._parts = []
        if len(chunk) < len(_MARK) and _MARK.startswith(chunk):
            self._parts = [chunk] if chunk else []
            return b""
        self._begun = True
        return chunk.removeprefix(_MARK)

    def _unify(self, chunk: bytes) -> bytes:
        """Return the chunk with LF at the end of each line; a CRLF may be split between chunks."""
        if self._returned and chunk[:1] == b"\n":
            chunk = chunk[1:]
            if not chunk:
                self._returned = False
                return chunk
        if chunk:
            self._returned = chunk[-1:] == b"\r"
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


class NamedEventSplitter(EventSplitter):
    """Splitter that returns each event that has a name as an `EventData`."""

    keeps_names = True

    def _read_all(self, blocks: Iterable[bytes]) -> list[bytes]:
        events: list[bytes] = []
        for block in blocks:
            if block[:7] == b"data: {" and b"\n" not in block:
                events.append(block[6:])
                continue
            head, _, data = block.partition(b"\ndata: ")
            if (name := _HEADS.get(head)) and data[:1] == b"{" and b"\n" not in data:
                named = EventData(data)
                named.name = name
                events.append(named)
            else:
                events += self._read(block)
        return events


class LineSplitter:
    """Splitter of JSON lines; empty lines are dropped."""

    def __init__(self) -> None:
        self.odd = False
        self.words = ""
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Sequence[bytes]:
        """Return the lines that this chunk completes, without line ends."""
        self._parts.append(chunk)
        self._size += len(chunk)
        if b"\n" not in chunk:
            if self._size > LIMIT_BYTES:
                raise EventTooLarge(f"one line has more than {LIMIT_BYTES} bytes")
            return []
        *lines, rest = b"".join(self._parts).split(b"\n")
        self._parts, self._size = [rest], len(rest)
        found: list[bytes] = []
        for line in lines:
            if line[:1] == b"{":
                found.append(line)
            elif line.strip():
                self.odd = True
                found.append(line)
        return found

    def conclude(self) -> Sequence[bytes]:
        """Return the text after the last newline, if any."""
        rest = b"".join(self._parts)
        self._parts, self._size = [], 0
        self.odd = True
        return [rest] if rest.strip() else []


def unify(events: Iterable[bytes]) -> Iterator[bytes]:
    """Yield events as JSON objects, for dialects that send nothing else, and `DONE`.

    Objects in a list are separate events. An event whose name is `error`, and data that are text,
    become `{"type": "error", "error": {"message": …}}`, the form that all dialects know.
    """
    for data in events:
        if data[:1] == b"{" and type(data) is bytes:
            yield data
        else:
            yield from _unify_one(data)


def _unify_one(data: bytes) -> Iterator[bytes]:
    text = data.strip()
    named = _is_error(data)
    if text.upper() == DONE:
        yield DONE
        return
    try:
        value = parse_value(text)
    except ValueError:
        try:
            value = text.decode()
        except UnicodeDecodeError:
            value = ""
        if value[:1] in ("", "{", '"'):
            # For example JSON that was cut off: the decoder reports its error.
            yield bytes(data)
            return
    if isinstance(value, dict):
        yield _frame_error(value) if named else text
    elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        yield from (_frame_error(one) if named else encode_json(repair(one)) for one in value)
    elif isinstance(value, str):
        yield from _unify_text(value.strip())
    elif value is not None:
        yield bytes(data)


def _unify_text(text: str) -> Iterator[bytes]:
    """Yield the events of a text: a field in a line, a keep-alive, or an error."""
    if text.lower() in _KEEP_ALIVE or not text or text[:1] == ":":
        return
    for field in _FIELDS:
        if text.startswith(field.decode()):
            if field == b"data:":
                rest = text.removeprefix("data:").strip().encode()
                yield from unify([rest]) if rest else ()
            return
    words = _ERROR.sub("", text) or text
    try:
        value = parse_value(words.encode("utf-8", "replace"))
    except ValueError:
        value = None
    yield _frame_error(value if isinstance(value, dict) else {"message": words})


def _frame_error(value: dict[str, object]) -> bytes:
    """Return an error in the form that all dialects know."""
    told = value.get("error")
    error = told if isinstance(told, dict | str) and told else value
    inner = error if isinstance(error, dict) else {"message": str(error)}
    outer = {name: one for name, one in value.items() if name == "request_id"}
    return encode_json(repair({**outer, "type": "error", "error": inner}))


def _name(data: bytes, name: str) -> EventData:
    named = EventData(data)
    named.name = repair_text(name)
    return named


def _is_error(data: bytes) -> bool:
    return type(data) is EventData and data.name == "error"


def _is_whole(text: bytes) -> bool:
    """Return True for a complete JSON object or list, and for `[DONE]`."""
    text = text.strip()
    if text[:1] not in (b"{", b"["):
        return False
    if text.upper() == DONE:
        return True
    try:
        _RAW.decode(text)
    except (ValueError, RecursionError):
        # Python reads more, such as lone surrogates. Text that is cut off is not tried again.
        if text[-1:] not in (b"}", b"]"):
            return False
        try:
            parse_value(text)
        except ValueError:
            return False
    return True
