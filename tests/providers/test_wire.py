"""Splitting streams of bytes: the same pieces wherever they are cut, in time that only grows with
the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vibe_llms.providers import wire
from vibe_llms.providers.wire import EventSplitter, EventTooLarge, LineSplitter


def split(raw: bytes, cuts: Sequence[int], splitter: EventSplitter | None = None) -> list[bytes]:
    splitter = splitter or EventSplitter()
    edges = [0, *sorted(cuts), len(raw)]
    found: list[bytes] = []
    for start, end in pairwise(edges):
        found += splitter.feed(raw[start:end])
    return found


def read_all(raw: bytes) -> list[bytes]:
    """What the standard demands, read from all of the bytes at once."""
    text = raw.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    events: list[bytes] = []
    data: list[bytes] = []
    # What follows the last end of a line is no line yet.
    for line in text.split(b"\n")[:-1]:
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line:
            events += [b"\n".join(data)] if data else []
            data = []
    return events


LINES = st.lists(
    st.sampled_from(
        [
            *(b"data: a", b"data:b", b"data:  c", b"data:", "data: ü😀".encode(), b"data"),
            *(b"event: x", b": data: no", b"id: data:5", b"metadata: x", b"", b"", b""),
        ]
    ),
    max_size=12,
)


@settings(deadline=None)
@given(
    lines=LINES,
    ends=st.lists(st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=12, max_size=12),
    cuts=st.lists(st.integers(0, 200), max_size=6),
    mark=st.booleans(),
)
def test_any_cut_gives_the_events_of_the_standard(
    lines: list[bytes], ends: list[bytes], cuts: list[int], mark: bool
) -> None:
    raw = b"".join(a + b for a, b in zip(lines, ends, strict=False))
    # A CR and an LF of two different ends would be one end.
    raw = (b"\xef\xbb\xbf" if mark else b"") + raw
    expected = read_all(raw)
    assert split(raw, [min(cut, len(raw)) for cut in cuts]) == expected
    assert split(raw, range(len(raw))) == expected


@pytest.mark.parametrize(
    ("raw", "events"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"event: e\ndata: a\ndata: b\n\n: c\n\ndata: d\n\n", [b"a\nb", b"d"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: a\r\n\r\n", [b"a"]),
        (b"\n\n\ndata: a\n\n\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\n", []),
        (b"\xef\xbb", []),
    ],
)
def test_events_end_where_the_format_says(raw: bytes, events: list[bytes]) -> None:
    assert split(raw, []) == events
    assert split(raw, range(len(raw))) == events


def test_an_event_is_complete_with_the_first_half_of_a_crlf() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: a\r\n\r") == [b"a"]
    assert splitter.feed(b"\n") == []
    assert splitter.feed(b"data: b\n\n") == [b"b"]
    assert splitter.feed(b"data: c\r") == []
    assert splitter.feed(b"") == []
    assert splitter.feed(b"\n\r\n") == [b"c"]


def feed_for_ever(splitter: EventSplitter | LineSplitter, piece: bytes) -> None:
    for _ in range(wire.LIMIT_BYTES // len(piece) + 2):
        assert not splitter.feed(piece)


@pytest.mark.parametrize("piece", [b"x" * 2**20, b"data: xxxxxxxx\n" * 2**16])
def test_an_endless_event_is_refused(piece: bytes) -> None:
    with pytest.raises(EventTooLarge):
        feed_for_ever(EventSplitter(), piece)


def test_an_endless_line_is_refused() -> None:
    with pytest.raises(EventTooLarge):
        feed_for_ever(LineSplitter(), b"x" * 2**20)


def check_linear(splitter: EventSplitter | LineSplitter, end: bytes) -> None:
    """A piece that comes in many chunks is put together once, not once for every chunk."""
    joined: list[int] = []
    parts = _Parts(joined)
    splitter._parts = parts
    if isinstance(splitter, EventSplitter):
        splitter._begun = True
    for _ in range(200):
        splitter.feed(b"data: x\n" if isinstance(splitter, EventSplitter) else b"x" * 8)
    splitter.feed(end)
    assert sum(joined) <= 2 * (200 * 8 + len(end)), sum(joined)


class _Parts(list[bytes]):
    """Parts that record how many bytes are read whenever they are put together."""

    def __init__(self, joined: list[int]) -> None:
        super().__init__()
        self._joined = joined

    def __iter__(self):  # type: ignore[no-untyped-def]
        self._joined.append(sum(map(len, list.__iter__(self))))
        return super().__iter__()


@pytest.mark.parametrize(("splitter", "end"), [(EventSplitter, b"\n"), (LineSplitter, b"\n")])
def test_a_long_piece_costs_what_its_bytes_cost(
    splitter: type[EventSplitter | LineSplitter], end: bytes
) -> None:
    check_linear(splitter(), end)


def test_a_splitter_that_searches_again_with_every_chunk_would_be_detected() -> None:
    class Searching(LineSplitter):
        def feed(self, chunk: bytes) -> Sequence[bytes]:
            self._parts.append(chunk)
            *lines, rest = b"".join(self._parts).split(b"\n")
            self._parts[:] = [rest]
            return lines

    with pytest.raises(AssertionError):
        check_linear(Searching(), b"\n")


@settings(deadline=None)
@given(st.lists(st.binary(max_size=5), max_size=8), st.integers(1, 4))
def test_lines_are_the_same_wherever_they_are_cut(parts: list[bytes], size: int) -> None:
    raw = b"\n".join(parts)
    splitter = LineSplitter()
    lines = [
        line
        for start in range(0, len(raw), size)
        for line in splitter.feed(raw[start : start + size])
    ]
    lines += splitter.conclude()
    assert lines == [line for line in raw.split(b"\n") if line.strip()]
    assert splitter.conclude() == []
