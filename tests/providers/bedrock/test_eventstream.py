"""The decoder of event streams, against that of `botocore`."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

import pytest
from botocore.eventstream import EventStreamBuffer, EventStreamHeaderParser, ParserError

from tests.fakes.bedrock import encode_event, encode_message
from tests.fakes.bedrock_replies import reply, text_block, tools_reply
from vibe_llms.providers.bedrock.eventstream import EventStreamSplitter, read_headers

EVENTS = (
    *tools_reply(("speak", '{"word":"é😀"}')),
    *reply(text_block(0, "a", "é\u2028" * 300)),
    {"throttlingException": {"message": "slow"}},
)
RAW = b"".join(map(encode_event, EVENTS))


def read_officially(raw: bytes) -> list[bytes]:
    """The messages of a stream by the package, in our form."""
    buffer = EventStreamBuffer()
    buffer.add_data(raw)
    found = []
    for message in buffer:
        told = message.headers
        body = message.payload.decode() or "null"
        if told[":message-type"] == "event":
            found.append(f"{{{json.dumps(told[':event-type'])}:{body}}}".encode())
        else:
            kind = json.dumps(told[":exception-type"])
            found.append(f'{{"failure":{{"type":{kind},"body":{body}}}}}'.encode())
    return found


def read(chunks: Iterable[bytes]) -> tuple[list[bytes], str]:
    """Our messages of a stream, and what is wrong with it."""
    splitter = EventStreamSplitter()
    found = [event for chunk in chunks for event in splitter.feed(chunk)]
    return [*found, *splitter.conclude()], splitter.damage


def test_messages_are_those_that_the_official_package_reads_split_at_any_byte() -> None:
    expected = read_officially(RAW)
    assert len(expected) == len(EVENTS)
    for cut in range(len(RAW) + 1):
        assert read([RAW[:cut], RAW[cut:]]) == (expected, "")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 11, 12, 13, 64, 5000])
def test_messages_are_the_same_in_chunks_of_any_size(size: int) -> None:
    chunks = [RAW[start : start + size] for start in range(0, len(RAW), size)]
    assert read(chunks) == (read_officially(RAW), "")


def test_a_stream_cut_at_any_byte_gives_the_messages_before_the_cut() -> None:
    for cut in range(len(RAW)):
        assert read([RAW[:cut]]) == (read_officially(RAW[:cut]), "")


def test_a_changed_byte_anywhere_is_noticed_as_the_official_package_notices_it() -> None:
    raw = b"".join(map(encode_event, EVENTS[:4]))
    for place in range(len(raw)):
        damaged = raw[:place] + bytes([raw[place] ^ 0x20]) + raw[place + 1 :]
        found, damage = read([damaged])
        with pytest.raises(ParserError):
            read_officially(damaged)
        assert damage, place
        # The messages before it are not lost, and none after it is read.
        assert found == read_officially(raw)[: len(found)]
        assert found != read_officially(raw)
        assert read([damaged[:place], damaged[place:]])[0] == found


def test_a_message_of_a_wrong_size_is_not_waited_for() -> None:
    for size, head in ((2**32 - 1, 10), (15, 0), (64, 60), (2**20, 2**19)):
        start = struct.pack("!II", size, head)
        _, damage = read([start + struct.pack("!I", crc32(start)) + b"x" * 100])
        assert "bytes with headers" in damage, (size, head)


@pytest.mark.parametrize("raw", [b"data: {}\n\n" * 3, b'{"message":"busy"}', b"<html></html>"])
def test_what_is_no_event_stream_is_quoted(raw: bytes) -> None:
    _, damage = read([raw])
    assert raw[:10].decode().strip() in damage
    assert "not a message of an event stream" in damage


def encode_headers(headers: Mapping[bytes, tuple[int, bytes]]) -> bytes:
    return b"".join(
        bytes([len(name)]) + name + bytes([kind]) + value for name, (kind, value) in headers.items()
    )


#: A header of each type, as its bytes.
TYPES: Mapping[bytes, tuple[int, bytes]] = {
    b"yes": (0, b""),
    b"no": (1, b""),
    b"byte": (2, b"\x01"),
    b"short": (3, b"\x00\x01"),
    b"integer": (4, b"\x00" * 4),
    b"long": (5, b"\x00" * 8),
    b"bytes": (6, b"\x00\x02ab"),
    b"text": (7, b"\x00\x03\xc3\xa9!"),
    b"time": (8, b"\x00" * 8),
    b"uuid": (9, b"\x00" * 16),
}


def test_headers_of_all_types_are_read_over() -> None:
    data = encode_headers(TYPES)
    official = EventStreamHeaderParser().parse(data)
    assert official.keys() == {name.decode() for name in TYPES}
    assert read_headers(data) == {"text": official["text"]} == {"text": "é!"}


def damaged_headers() -> Sequence[bytes]:
    whole = encode_headers({b":event-type": (7, b"\x00\x04ping")})
    return [
        whole + whole,
        *(whole[:cut] for cut in range(1, len(whole))),
        encode_headers({b"a": (10, b"x")}),
        encode_headers({b"a": (7, b"\x00\x01\xff")}),
        b"\x01\xff\x07\x00\x00",
    ]


@pytest.mark.parametrize("head", damaged_headers(), ids=lambda head: head.hex()[:40])
def test_headers_that_cannot_be_read_are_damage(head: bytes) -> None:
    start = struct.pack("!II", len(head) + 16, len(head))
    body = start + struct.pack("!I", crc32(start)) + head
    found, damage = read([body + struct.pack("!I", crc32(body))])
    assert found == []
    assert "not headers of a message" in damage


def test_errors_without_a_shape_are_failures_with_their_words() -> None:
    raw = encode_event({"error": {"code": "InternalError", "message": 'it "broke"'}})
    (event,), damage = read([raw])
    assert damage == ""
    failure = json.loads(event)["failure"]
    assert (failure["type"], failure["message"]) == ("InternalError", 'it "broke"')


def test_events_without_a_payload_or_a_name_do_no_harm() -> None:
    raw = encode_message({":message-type": "event", ":event-type": "ping"}, b"")
    assert read([raw, encode_message({}, b"{}")]) == ([b'{"ping":null}', b'{"":{}}'], "")


def test_random_bytes_end_as_damage_or_as_an_incomplete_message() -> None:
    noise = random.Random(5)
    for _ in range(2000):
        raw = noise.randbytes(noise.randrange(40))
        found, damage = read([raw])
        assert found == []
        assert bool(damage) == (len(raw) >= 12)


def test_a_large_message_in_small_chunks_takes_linear_time() -> None:
    raw = encode_event({"contentBlockDelta": {"delta": {"text": "x" * 2_000_000}}})
    splitter = EventStreamSplitter()
    joined: list[bytes] = []
    for start in range(0, len(raw), 100):
        joined += splitter.feed(raw[start : start + 100])
    assert len(joined) == 1
    assert splitter.damage == ""
