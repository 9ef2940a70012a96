"""What the translators of plugins are told of each event: its data, and its name if it has one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vibe_llms.base.exceptions import ReplyCut
from vibe_llms.providers import (
    Delta,
    EventAssimilator,
    LineAssimilator,
    ReplyClosed,
    TextDelta,
)


class Names(EventAssimilator):
    """Repeats the names and the data of the events."""

    def advance(self, data: bytes) -> Iterator[Delta]:
        yield TextDelta(f"{self.event_name}={data.decode()} ")
        if self.event_name == "end":
            yield ReplyClosed("finished")


class Lines(LineAssimilator):
    """Repeats lines."""

    def advance(self, data: bytes) -> Iterator[Delta]:
        yield TextDelta(f"{self.event_name}={data.decode()} ")
        if data == b'{"end":1}':
            yield ReplyClosed("finished")


def read(kind: type[EventAssimilator], raw: bytes, size: int) -> str:
    assimilator = kind("tested", str)
    deltas: list[Delta] = []
    for start in range(0, len(raw), size):
        deltas += assimilator.feed(raw[start : start + size])
    deltas += assimilator.conclude()
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_an_event_has_its_own_name_and_no_other(size: int, ends: str) -> None:
    raw = (
        'event: begin\ndata: {"a":1}\n\n'
        'data: {"b":2}\n\n'
        ": a comment\n\n"
        "event: word\ndata: Hello\n\n"
        "event: ping\ndata: {}\n\n"
        'id: 7\nevent: begin\ndata: {"c":3}\n\n'
        "event: end\ndata: {}\n\n"
    )
    said = read(Names, raw.replace("\n", ends).encode(), size)
    assert said == 'begin={"a":1} ={"b":2} word=Hello begin={"c":3} end={} '


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_name_may_end_in_crlf_and_its_data_in_lf(size: int) -> None:
    # As in https://github.com/EventSource/eventsource/issues/326.
    raw = b'event: begin\r\ndata: {"a":1}\n\nevent: nothing\r\n\nevent: end\r\ndata: {}\r\n\n'
    assert read(Names, raw, size) == 'begin={"a":1} end={} '


def test_the_last_event_keeps_its_name_without_an_empty_line() -> None:
    assert read(Names, b"event: end\ndata: {}", 1000) == "end={} "
    with pytest.raises(ReplyCut):
        read(Names, b"event: end\ndata: {", 1000)


@pytest.mark.parametrize("size", [1, 1000])
def test_lines_have_no_names(size: int) -> None:
    assert read(Lines, b'{"a":1}\n{"end":1}\n', size) == '={"a":1} ={"end":1} '
