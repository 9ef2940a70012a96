"""Splitting streams of bytes: the same pieces wherever they are cut, in time that only grows with
the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vibe_llms.providers import wire
from vibe_llms.providers.wire import (
    EventData,
    EventSplitter,
    EventTooLarge,
    LineSplitter,
    NamedEventSplitter,
)


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
        if line == b"data" or line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line:
            # An event with empty data is dropped.
            events += [b"\n".join(data)] if any(data) else []
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
        (b"data:\n\ndata: \n\ndata\n\ndata: a\n\n", [b"a"]),
        (b"event: ping\ndata: {}\n\nevent: keepalive\ndata: 7\n\ndata: a\n\n", [b"a"]),
        (b': c\n{"a":1}\n\n{\n"b":\n2}\n\n', [b'{"a":1}', b'{\n"b":\n2}']),
        (b'data: {"a":1}\n{"error":2}\n\n', [b'{"a":1}', b'{"error":2}']),
        (b'data: {\n"a":1\n}\n\n', [b'{\n"a":1\n}']),
        (b'event: x\ndata: {"u":"data: y"}\n\n' * 2, [b'{"u":"data: y"}'] * 2),
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


@pytest.mark.parametrize(
    ("raw", "events", "words"),
    [
        (b'data: {"a":1}', [b'{"a":1}'], ""),
        (b'data: {"a":1}\n', [b'{"a":1}'], ""),
        (b'{"error":"no"}', [b'{"error":"no"}'], ""),
        (b"data: [DONE]", [b"[DONE]"], ""),
        (b'data: {"a":1', [], ""),
        (b"data: [DON", [], ""),
        (b"dat", [], ""),
        (b"data: Internal error", [], "Internal error"),
        (b"upstream connect error", [], "upstream connect error"),
        (b"event: error\ndata: no", [b"no"], ""),
    ],
)
def test_a_last_event_needs_no_end_if_it_is_whole(
    raw: bytes, events: list[bytes], words: str
) -> None:
    for cuts in (0, len(raw)):
        splitter = EventSplitter()
        assert split(raw, list(range(cuts)), splitter) == []
        assert list(splitter.conclude()) == events
        assert splitter.words == words


@pytest.mark.parametrize(
    ("raw", "events"),
    [
        (b"data: [DONE]\n\ndata: [done] \n\n", [b"[DONE]", b"[DONE]"]),
        (b'data: [{"a":1},{"error":2}]\n\n', [b'{"a":1}', b'{"error":2}']),
        (b"data: ping\n\ndata: null\n\n", []),
        (b'data: "keep-alive"\n\n', []),
        (b"data: [ERROR] no room\n\n", [b'{"type":"error","error":{"message":"no room"}}']),
        (b"data: error: no\n\n", [b'{"type":"error","error":{"message":"no"}}']),
        (b"error: no\n\n", [b'{"type":"error","error":{"message":"no"}}']),
        (b"data: Bad Gateway\n\n", [b'{"type":"error","error":{"message":"Bad Gateway"}}']),
        (
            b'event: error\ndata: {"message":"no","code":7}\n\n',
            [b'{"type":"error","error":{"message":"no","code":7}}'],
        ),
        (
            b'event: error\ndata: {"error":{"message":"no"},"request_id":"r"}\n\n',
            [b'{"request_id":"r","type":"error","error":{"message":"no"}}'],
        ),
        (b'data: [ERROR] {"code":400}\n\n', [b'{"type":"error","error":{"code":400}}']),
        (b"data: {cut\n\ndata: \xff\n\ndata: 7\n\n", [b"{cut", b"\xff", b"7"]),
    ],
)
def test_what_servers_send_in_place_of_events_becomes_events(
    raw: bytes, events: list[bytes]
) -> None:
    assert list(wire.unify(split(raw, []))) == events
    assert list(wire.unify(split(raw, range(len(raw))))) == events


def test_the_name_of_an_event_is_kept_where_it_is_wanted() -> None:
    raw = b"event: a\ndata: {}\n\n" * 3 + b'data: {"b":1}\n\n' + b"event: Error\ndata: {}\n\n"
    choices: list[Sequence[int]] = [[], range(len(raw))]
    for cuts in choices:
        found = split(raw, cuts, NamedEventSplitter())
        assert found == [b"{}"] * 3 + [b'{"b":1}', b"{}"]
        assert [getattr(data, "name", "") for data in found] == ["a", "a", "a", "", "error"]
    assert [type(data) for data in EventSplitter().feed(raw)] == [bytes] * 4 + [EventData]


@pytest.mark.parametrize("name", ["\u00fc.\u00fc", "a: b", "x" * 100, " spaced "])
def test_any_name_of_an_event_is_kept_however_often_it_comes(name: str) -> None:
    found = NamedEventSplitter().feed(f"event: {name}\ndata: {{}}\n\n".encode() * 3)
    assert [getattr(data, "name", "") for data in found] == [name.strip()] * 3


def test_a_named_event_may_be_a_space_or_a_line_end() -> None:
    raw = b"event: token\ndata:  \n\nevent: token\ndata:\ndata:\n\nevent: token\ndata:\n\n"
    assert split(raw, [], NamedEventSplitter()) == [b" ", b"\n"]
    assert split(raw, []) == []


def test_lines_of_text_around_json_are_one_event() -> None:
    raw = b"data: Here is JSON:\ndata: {}\ndata: done\n\n"
    assert split(raw, []) == [b"Here is JSON:\n{}\ndone"]
