"""Replies that break the rules of HTTP/1.1 (RFC 9112), or come in odd pieces, on both paths."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from msgspec import Struct

from tests.fakes.raw_server import Peer, RawServer, Then, say
from tests.providers.test_http_transport import produce_transport, send
from vibe_llms.base.exceptions import ProviderUnreachable, ReplyCut, ReplyTimeout
from vibe_llms.base.network import guard
from vibe_llms.providers import direct_transport
from vibe_llms.providers.http_transport import HttpTransport
from vibe_llms.providers.transport import Outgoing
from vibe_llms.providers.watch import Watch

pytestmark = pytest.mark.usefixtures("path")

OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = b"Content-Length: 5\r\n"
HELLO = OK + LENGTH + b"\r\nhello"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"
#: The answer to the request after the one that is tested.
NEXT = OK + b"Content-Length: 4\r\n\r\nnext"
#: A response that was not asked for.
EVIL = OK + b"Content-Length: 4\r\n\r\nevil"
POST = Outgoing("POST", "/", [b"{}"])

#: What a reply leads to: its body, its status and body, or an error.
Result = bytes | tuple[int, bytes] | type[Exception]


class Case(Struct, frozen=True):
    """What the server sends and does, and what a request then leads to on either path."""

    reply: bytes
    then: Then
    direct: Result
    httpx2: Result


def case(reply: bytes, direct: Result, httpx2: Result | None = None, then: Then = "close") -> Case:
    """A case; without `httpx2` the paths agree."""
    return Case(reply, then, direct, direct if httpx2 is None else httpx2)


@asynccontextmanager
async def opened(url: str, *, idle_seconds: float = 60) -> AsyncIterator[HttpTransport]:
    """A transport, closed at the end whatever happens."""
    transport = produce_transport(url, idle_seconds=idle_seconds)
    try:
        yield transport
    finally:
        await transport.close()


async def exchange(transport: HttpTransport) -> tuple[int, bytes]:
    async with asyncio.timeout(20):
        status, _, body = await send(transport, POST)
    return status, body


async def check(server: RawServer, expected: Result, *, settled: bool = True) -> None:
    """A request has this result, and the one after it the answer that is meant for it."""
    async with opened(server.url) as transport:
        await check_both(server, transport, expected, settled=settled)


async def check_both(
    server: RawServer, transport: HttpTransport, expected: Result, *, settled: bool
) -> None:
    if isinstance(expected, type):
        with pytest.raises(expected):
            await exchange(transport)
    else:
        result = await exchange(transport)
        assert result == ((200, expected) if isinstance(expected, bytes) else expected)
    if settled:
        await server.settle()
    try:
        answer = await exchange(transport)
    except ProviderUnreachable:
        # The end of the connection arrived only after the request was sent.
        answer = await exchange(transport)
    assert answer == (200, b"next")


def head(*lines: bytes) -> bytes:
    return OK + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def chunks(*lines: bytes) -> bytes:
    return CHUNKED + b"\r\n".join(lines)


FRAMES = {
    "length": case(HELLO, b"hello", then="keep"),
    "length-with-zeros": case(head(b"Content-Length: 00005") + b"hello", b"hello"),
    "length-too-short": case(head(b"Content-Length: 9") + b"hello", ReplyCut),
    "length-then-reset": case(head(b"Content-Length: 9") + b"hello", ReplyCut, then="reset"),
    "equal-lengths": case(
        head(b"Content-Length: 5", b"Content-Length: 5") + b"hello", ProviderUnreachable, b"hello"
    ),
    "equal-lengths-in-a-list": case(
        head(b"Content-Length: 5, 5") + b"hello", ProviderUnreachable, b"hello"
    ),
    "other-lengths": case(
        head(b"Content-Length: 5", b"Content-Length: 6") + b"hello!", ProviderUnreachable
    ),
    "other-lengths-in-a-list": case(head(b"Content-Length: 5, 6") + b"hello!", ProviderUnreachable),
    **{
        f"length-{value.decode() or 'empty'}": case(
            head(b"Content-Length: " + value) + b"hello", ProviderUnreachable
        )
        for value in (b"", b"+5", b"-5", b"0x5", b"5 5", b"5a", b"5.0", b"9" * 23)
    },
    "chunks": case(chunks(b"5", b"hello", b"0", b"", b""), b"hello", then="keep"),
    "chunks-and-a-length": case(
        head(b"Transfer-Encoding: chunked", b"Content-Length: 3") + CHUNKS,
        ProviderUnreachable,
        b"hello",
    ),
    "a-length-and-chunks": case(
        head(b"Content-Length: 3", b"Transfer-Encoding: chunked") + CHUNKS,
        ProviderUnreachable,
        b"hello",
    ),
    "chunked-in-capitals": case(head(b"Transfer-Encoding: CHUNKED") + CHUNKS, b"hello"),
    "chunked-in-http-1.0": case(
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS, b"hello"
    ),
    **{
        f"encoded-as-{value.decode()}": case(
            head(b"Transfer-Encoding: " + value) + CHUNKS, ProviderUnreachable
        )
        for value in (b"gzip, chunked", b"chunked, gzip", b"identity", b"xchunked")
    },
    "chunked-twice": case(
        head(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked") + CHUNKS,
        ProviderUnreachable,
    ),
    **{
        f"chunk-size-{size.decode() or 'empty'}": case(
            chunks(size, b"hello", b"0", b"", b""), ReplyCut
        )
        for size in (b"", b"g", b"-5", b"+5", b"0x5", b" 5", b"F" * 23)
    },
    "chunk-size-and-a-space": case(chunks(b"5 ", b"hello", b"0", b"", b""), ReplyCut, b"hello"),
    "chunk-size-with-zeros": case(
        chunks(b"0" * 23 + b"5", b"hello", b"0", b"", b""), b"hello", ReplyCut
    ),
    "chunk-size-overflow": case(chunks(b"F" * 17, b"hello"), ReplyCut),
    "chunk-size-huge": case(chunks(b"7FFFFFFFFFFFFFFF", b"hello"), ReplyCut),
    "chunk-longer-than-its-size": case(chunks(b"5", b"helloX", b"0", b"", b""), ReplyCut),
    "chunk-without-end-of-line": case(chunks(b"5", b"hello0", b"", b""), ReplyCut),
    "chunks-with-bare-lf": case(CHUNKED + b"5\nhello\n0\n\n", ReplyCut),
    "last-chunk-of-two-zeros": case(chunks(b"5", b"hello", b"00", b"", b""), b"hello"),
    "chunk-cut": case(chunks(b"9", b"hello"), ReplyCut),
    "chunk-reset": case(chunks(b"9", b"hello"), ReplyCut, then="reset"),
    "no-last-chunk": case(chunks(b"5", b"hello", b""), ReplyCut),
    "last-chunk-cut": case(chunks(b"5", b"hello", b"0", b""), ReplyCut),
    "trailer-cut": case(chunks(b"5", b"hello", b"0", b"X: y", b""), ReplyCut),
    "extensions": case(chunks(b'5;a=b;c="d;\\"e"', b"hello", b"0;x", b"", b""), b"hello"),
    "extension-of-20000": case(chunks(b"5;" + b"x" * 20_000, b"hello", b"0", b"", b""), b"hello"),
    "extension-with-bare-lf": case(chunks(b"5;a\nb", b"hello", b"0", b"", b""), ReplyCut),
    "trailers": case(
        chunks(b"5", b"hello", b"0", b"X: y", b"Z: 1", b"", b""), b"hello", then="keep"
    ),
    "trailer-that-is-a-length": case(
        chunks(b"5", b"hello", b"0", b"Content-Length: 7", b"", b""), ReplyCut, b"hello"
    ),
    "trailer-without-colon": case(chunks(b"5", b"hello", b"0", b"bad", b"", b""), ReplyCut),
    "until-close": case(OK + b"\r\nhello", b"hello"),
    "until-close-and-said-so": case(head(b"Connection: close") + b"hello", b"hello"),
    "until-close-and-empty": case(OK + b"\r\n", b""),
    "until-reset": case(OK + b"\r\nhello", ReplyCut, then="reset"),
}

HEADS = {
    "bare-lf": case(HELLO.replace(b"\r\n", b"\n"), ProviderUnreachable, b"hello"),
    "bare-cr": case(HELLO.replace(b"\r\n", b"\r"), ProviderUnreachable),
    "lf-after-the-status-line": case(
        b"HTTP/1.1 200 OK\n" + LENGTH + b"\r\nhello", ProviderUnreachable, b"hello"
    ),
    "empty-line-first": case(b"\r\n" + HELLO, b"hello", ProviderUnreachable),
    "status-100": case(b"HTTP/1.1 100 Continue\r\n\r\n" + HELLO, b"hello", then="keep"),
    "status-103": case(
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nContent-Length: 3\r\n\r\n" + HELLO,
        b"hello",
        then="keep",
    ),
    "some-interim-replies": case(b"HTTP/1.1 100 Go\r\nX: y\r\n\r\n" * 50 + HELLO, b"hello"),
    "status-100-and-no-more": case(b"HTTP/1.1 100 Continue\r\n\r\n", ProviderUnreachable),
    "status-150": case(b"HTTP/1.1 150 X\r\n\r\n" + HELLO, ProviderUnreachable, b"hello"),
    "status-100-with-chunks": case(
        b"HTTP/1.1 100 X\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" + HELLO,
        ProviderUnreachable,
    ),
    "status-150-with-chunks": case(
        b"HTTP/1.1 150 X\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" + HELLO,
        ProviderUnreachable,
    ),
    "status-101": case(
        b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + HELLO,
        ProviderUnreachable,
    ),
    "status-101-alone": case(b"HTTP/1.1 101 X\r\n\r\n" + HELLO, ProviderUnreachable),
    "another-protocol-offered": case(
        head(b"Upgrade: h2c", b"Connection: upgrade", b"Content-Length: 5") + b"hello", b"hello"
    ),
    "status-204": case(b"HTTP/1.1 204 No\r\n\r\n", (204, b""), then="keep"),
    "status-204-with-bytes": case(b"HTTP/1.1 204 No\r\n" + LENGTH + b"\r\nhello", (204, b"")),
    "status-304-with-bytes": case(b"HTTP/1.1 304 No\r\n" + LENGTH + b"\r\nhello", (304, b"")),
    "status-204-with-chunks": case(
        b"HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS, (204, b"")
    ),
    "status-600": case(b"HTTP/1.1 600 X\r\n" + LENGTH + b"\r\nhello", (600, b"hello")),
    **{
        f"status-{status.decode()}": case(
            b"HTTP/1.1 " + status + b" X\r\n" + LENGTH + b"\r\nhello", ProviderUnreachable
        )
        for status in (b"000", b"099", b"20", b"1000", b"2x0", b"-20", b" 200")
    },
    "no-reason": case(b"HTTP/1.1 200\r\n" + LENGTH + b"\r\nhello", b"hello"),
    "reason-beyond-ascii": case(b"HTTP/1.1 200 \xc3\x96\r\n" + LENGTH + b"\r\nhello", b"hello"),
    "http-1.0": case(b"HTTP/1.0 200 OK\r\n" + LENGTH + b"\r\nhello", b"hello", then="keep"),
    "http-1.0-kept": case(
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + LENGTH + b"\r\nhello",
        b"hello",
        then="keep",
    ),
    "http-1.0-until-close": case(b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello"),
    "connection-close": case(
        head(b"Connection: close", b"Content-Length: 5") + b"hello", b"hello", then="keep"
    ),
    "headers-5000": case(
        head(*(b"X%d: y" % number for number in range(5000)), b"Content-Length: 5") + b"hello",
        b"hello",
    ),
    "headers-20000": case(
        head(*(b"X%d: y" % number for number in range(20000))), ProviderUnreachable
    ),
    "header-of-90000": case(
        head(b"X: " + b"y" * 90_000, b"Content-Length: 5") + b"hello", b"hello"
    ),
    "header-of-200000": case(head(b"X: " + b"y" * 200_000), ProviderUnreachable),
    **{
        f"header-{name}": case(
            head(line, b"Content-Length: 5") + b"hello", ProviderUnreachable, tolerated
        )
        for name, line, tolerated in (
            ("nul", b"X: a\0b", None),
            ("nul-in-name", b"X\0: a", None),
            ("cr", b"X: a\rb", None),
            ("lf", b"X: a\nb: c", b"hello"),
            ("control", b"X: a\x01b", b"hello"),
            ("delete", b"X: a\x7fb", b"hello"),
            ("space-in-name", b"X y: a", None),
            ("space-before-colon", b"X : a", None),
            ("space-first", b" X: a", None),
            ("no-name", b": a", None),
            ("no-colon", b"X", None),
            ("beyond-ascii-in-name", b"X\xff: a", None),
            ("folded", b"X: a\r\n fold", b"hello"),
            ("folded-length", b"X: a\r\n\tContent-Length: 9", b"hello"),
        )
    },
    "header-beyond-ascii": case(head(b"X: \xff\xfe", b"Content-Length: 5") + b"hello", b"hello"),
    "header-without-space": case(head(b"X:", b"Content-Length:5") + b"hello", b"hello"),
    "header-among-tabs": case(head(b"Content-Length:\t 5 \t") + b"hello", b"hello"),
    **{
        f"start-{name}": case(start, ProviderUnreachable)
        for name, start in (
            ("nothing", b""),
            ("part", b"HTTP/1.1 2"),
            ("head-cut", OK + b"X: y\r\n"),
            ("cr-missing", OK + b"X: y\r\n\r"),
            ("tls", b"\x16\x03\x01\x02\x00\x01\r\n\r\n"),
            ("html", b"<html>hello</html>\r\n\r\n"),
            ("http-0.9", b"hello"),
            ("lower-case", b"http" + HELLO[4:]),
            ("icy", b"ICY 200 OK\r\n\r\nhello"),
            ("ssh", b"SSH-2.0-OpenSSH_9.6\r\n"),
            ("smtp", b"220 mail ready\r\n"),
            ("request", b"POST / HTTP/1.1\r\n" + LENGTH + b"\r\nhello"),
            ("http-2", b"\0\0\x12\4\0\0\0\0\0\0\3\0\0\0d\0\4\0\x10\0\0"),
        )
    },
    "head-reset": case(OK + b"X: y\r\n", ProviderUnreachable, then="reset"),
    "reset": case(b"", ProviderUnreachable, then="reset"),
}
CASES = FRAMES | HEADS


@pytest.mark.parametrize("name", CASES)
async def test_a_reply_is_read_or_refused_and_the_next_is_its_own(name: str, path: str) -> None:
    one = CASES[name]
    async with RawServer(say(one.reply, then=one.then), say(NEXT)) as server:
        await check(server, one.direct if path == "direct" else one.httpx2)


SPLIT: dict[str, tuple[bytes, Then, Result]] = {
    "length": (HELLO, "keep", b"hello"),
    "empty": (head(b"Content-Length: 0"), "keep", b""),
    "chunks": (
        chunks(b"3;a=b", b"hel", b"2", b"lo", b"0", b"X: y", b"", b""),
        "keep",
        b"hello",
    ),
    "interim": (b"HTTP/1.1 100 Go\r\nX: y\r\n\r\n" + HELLO, "keep", b"hello"),
    "nothing": (b"HTTP/1.1 204 No\r\n\r\n", "keep", (204, b"")),
    "until-close": (OK + b"\r\nhello", "close", b"hello"),
    "gzip": (
        head(b"Content-Encoding: gzip", b"Content-Length: 25") + gzip.compress(b"hello", mtime=0),
        "keep",
        b"hello",
    ),
    "refused": (head(b"Content-Length: 5", b"Content-Length: 6"), "close", ProviderUnreachable),
    "cut": (chunks(b"5", b"hello", b"g", b""), "close", ReplyCut),
}


@pytest.mark.parametrize("name", SPLIT)
async def test_a_reply_is_the_same_however_it_is_split(name: str) -> None:
    data, then, expected = SPLIT[name]
    splits: list[Sequence[bytes]] = [(data[:at], data[at:]) for at in range(1, len(data))]
    splits.append([bytes([byte]) for byte in data])
    replies = [say(*pieces, then=then) for pieces in splits]
    async with RawServer(*replies) as server, opened(server.url) as transport:
        for _ in splits:
            if isinstance(expected, type):
                with pytest.raises(expected):
                    await exchange(transport)
            else:
                whole = (200, expected) if isinstance(expected, bytes) else expected
                assert await exchange(transport) == whole
            await server.settle()
        assert len(server.peers) == (1 if then == "keep" else len(splits))


ENDLESS: dict[str, tuple[bytes, bytes, type[Exception]]] = {
    "extension": (CHUNKED + b"5;", b"x" * 1000, ReplyCut),
    "chunk-size": (CHUNKED, b"0" * 1000, ReplyCut),
    "trailers": (chunks(b"5", b"hello", b"0", b""), b"X: y\r\n" * 100, ReplyCut),
    "trailer": (chunks(b"5", b"hello", b"0", b"X: "), b"y" * 1000, ReplyCut),
    "headers": (OK, b"X: y\r\n" * 100, ProviderUnreachable),
    "header": (OK + b"X: ", b"y" * 1000, ProviderUnreachable),
    "reason": (b"HTTP/1.1 200 ", b"y" * 1000, ProviderUnreachable),
    "empty-lines": (b"", b"\r\n" * 500, ProviderUnreachable),
}


@pytest.mark.parametrize("name", ENDLESS)
async def test_what_frames_a_body_has_an_end(name: str) -> None:
    first, more, error = ENDLESS[name]

    async def flood(peer: Peer) -> None:
        await peer.send(first)
        await peer.flood(more)

    async with RawServer(flood, say(NEXT)) as server:
        await check(server, error, settled=False)
        assert server.peers[0].sent < 150_000


async def test_endless_interim_replies_have_an_end(path: str) -> None:
    async def flood(peer: Peer) -> None:
        await peer.flood(b"HTTP/1.1 100 Continue\r\n\r\n", 1 << 40)

    async def exchange_with_limit() -> None:
        async with Watch("row", 60) as watch:
            # httpcore2 reads on, so the limit of the first byte has to end it.
            watch.expect("first-byte-seconds", 20 if path == "direct" else 0.2)
            await exchange(transport)

    async with RawServer(flood, say(NEXT)) as server, opened(server.url) as transport:
        with pytest.raises(ProviderUnreachable if path == "direct" else ReplyTimeout):
            await exchange_with_limit()
        assert await exchange(transport) == (200, b"next")


BEHIND = {
    "response": EVIL,
    "interim": b"HTTP/1.1 100 Go\r\n\r\n" + EVIL,
    "byte": b"H",
    "garbage": b"\0\0\r\n\r\n",
    "end-of-line-and-response": b"\r\n" + EVIL,
    "large": OK + b"Content-Length: 100000\r\n\r\n" + b"e" * 100_000,
}
FIRST = {"length": HELLO, "chunks": CHUNKED + CHUNKS, "204": b"HTTP/1.1 204 No\r\n\r\n"}


async def check_behind(first: bytes, behind: bytes, *, packets: int = 1, when: str = "") -> None:
    """What follows a reply is no part of it, and not the answer to the next request."""
    reply = say(first + behind) if packets == 1 else say(first, behind)
    async with (
        RawServer(say(first) if when else reply, say(NEXT)) as server,
        opened(server.url) as transport,
    ):
        expected = (204, b"") if b" 204 " in first else (200, b"hello")
        async with asyncio.timeout(20):
            async with transport.open(POST, hand_over()) as incoming:
                if packets == 2:
                    await server.settle()
                body = b"".join([chunk async for chunk in incoming.chunks])
                assert (incoming.status, body) == expected
            await server.settle()
            if when:
                server.peers[0].deliver(behind)
            if when == "read":
                for _ in range(5):
                    await asyncio.sleep(0)
        assert await exchange(transport) == (200, b"next"), "another answer was served"
        assert len(server.peers) == 2


async def hand_over() -> AsyncIterator[bytes]:
    yield b"{}"


@pytest.mark.parametrize("packets", [1, 2])
@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("first", FIRST)
async def test_what_follows_a_reply_is_not_the_next_one(
    first: str, behind: str, packets: int
) -> None:
    await check_behind(FIRST[first], BEHIND[behind], packets=packets)


@pytest.mark.parametrize("when", ["read", "unread"])
@pytest.mark.parametrize("behind", [name for name in BEHIND if name != "large"])
async def test_what_comes_while_a_connection_is_idle_is_not_the_next_reply(
    behind: str, when: str
) -> None:
    await check_behind(HELLO, BEHIND[behind], when=when)


@pytest.mark.parametrize("size", [65536, 65536 * 4])
async def test_what_follows_a_reply_that_fills_the_buffers_is_not_the_next_one(size: int) -> None:
    start = OK + b"Content-Length: %d\r\n\r\n"
    length = size - len(start % size)
    reply = start % length + b"x" * length
    async with RawServer(say(reply + EVIL), say(NEXT)) as server:
        await check(server, b"x" * length)


async def test_reading_what_follows_as_the_next_reply_would_be_detected(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path == "httpx2":
        monkeypatch.setattr(guard, "_is_alone", lambda *_: True)
    else:
        monkeypatch.setattr(direct_transport._Connection, "on_message_begin", lambda self: None)
    with pytest.raises(AssertionError):
        await check_behind(HELLO, EVIL)


async def test_reading_what_came_while_idle_would_be_detected(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path == "httpx2":
        monkeypatch.setattr("httpcore2._backends.anyio.is_socket_readable", lambda _: False)
    else:
        monkeypatch.setattr(direct_transport._Connection, "is_quiet", lambda self: True)
    with pytest.raises(AssertionError, match="another answer was served"):
        await check_behind(HELLO, EVIL, when="unread")


async def test_a_connection_of_which_nothing_is_known_serves_once(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Renamed(httpx2.AsyncByteStream):
        def __init__(self, stream: Any) -> None:
            self.renamed = stream

        def __aiter__(self) -> AsyncIterator[bytes]:
            iterator: AsyncIterator[bytes] = self.renamed.__aiter__()
            return iterator

        async def aclose(self) -> None:
            await self.renamed.aclose()

    monkeypatch.setattr("httpx2._transports.default.AsyncResponseStream", Renamed)
    async with RawServer(say(HELLO), say(NEXT)) as server:
        await check(server, b"hello")
        assert len(server.peers) == (1 if path == "direct" else 2)


def compress(data: bytes, bits: int) -> bytes:
    packer = zlib.compressobj(wbits=bits)
    return packer.compress(data) + packer.flush()


TEXT = b"hello " * 1000
GZIP, DEFLATE = compress(TEXT, 31), compress(TEXT, 15)
ENCODED: dict[str, tuple[bytes, bytes, Result]] = {
    "gzip": (b"gzip", GZIP, TEXT),
    "gzip-in-capitals": (b"GZIP", GZIP, TEXT),
    "x-gzip": (b"x-gzip", GZIP, TEXT),
    "deflate": (b"deflate", DEFLATE, TEXT),
    "identity": (b"identity", TEXT, TEXT),
    "gzip-cut": (b"gzip", GZIP[:-1], ReplyCut),
    "gzip-cut-in-its-head": (b"gzip", GZIP[:5], ReplyCut),
    "gzip-cut-in-its-middle": (b"gzip", GZIP[: len(GZIP) // 2], ReplyCut),
    "gzip-with-a-wrong-sum": (b"gzip", GZIP[:-8] + b"\0" * 8, ReplyCut),
    "deflate-cut": (b"deflate", DEFLATE[:-1], ReplyCut),
    "deflate-without-a-head": (b"deflate", compress(TEXT, -15), ReplyCut),
    "bytes-behind": (b"gzip", GZIP + b"x", ReplyCut),
    "empty": (b"gzip", b"", b""),
    "unknown": (b"br", b"hello", ReplyCut),
    "twice": (b"gzip, gzip", compress(GZIP, 31), ReplyCut),
    "not-compressed": (b"gzip", b"hello", ReplyCut),
}


@pytest.mark.parametrize("framing", ["length", "chunks", "until-close"])
@pytest.mark.parametrize("name", ENCODED)
async def test_a_compressed_body_is_whole_or_cut(name: str, framing: str) -> None:
    encoding, body, expected = ENCODED[name]
    line = b"Content-Encoding: " + encoding
    if framing == "length":
        reply = head(line, b"Content-Length: %d" % len(body)) + body
    elif framing == "chunks":
        parts = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        reply = head(line, b"Transfer-Encoding: chunked") + parts + b"0\r\n\r\n"
    else:
        reply = head(line) + body
    then: Then = "close" if framing == "until-close" else "keep"
    async with RawServer(say(reply, then=then), say(NEXT)) as server:
        await check(server, expected)
