"""Requests on both paths: what is sent, what a cancel leaves, and how much is held."""

from __future__ import annotations

import asyncio
import base64
import gc
import socket
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest

from tests.fakes.raw_server import NO_LINGER, Peer, RawServer, say
from tests.faults.leaks import count_descriptors
from tests.providers.test_http_faults import NEXT, OK, exchange, opened
from tests.providers.test_http_transport import full_port, hand_over, produce_transport, send
from vibe_llms.base.exceptions import ConfigurationError, ProviderUnreachable, ReplyTimeout
from vibe_llms.base.network import guard
from vibe_llms.providers import direct_transport
from vibe_llms.providers.direct_transport import DirectTransport
from vibe_llms.providers.http_transport import HttpTransport
from vibe_llms.providers.httpx2_transport import Httpx2Transport
from vibe_llms.providers.transport import Endpoint, Outgoing

POST = Outgoing("POST", "/", [b"{}"])
LARGE = Outgoing("POST", "/", [b"x" * 1_000_000] * 40)
#: Within so many seconds of a cancel nothing of a request is left.
CLOSED_SECONDS = 0.05


@asynccontextmanager
async def silent_server(*, reading: bool) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """The address of a server that says nothing, and what is set when a client has come."""
    come, over = asyncio.Event(), asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if reading:
            await reader.read(1)
        come.set()
        await over.wait()
        writer.transport.abort()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", come
    finally:
        over.set()
        server.close()
        await server.wait_closed()


async def hold_at(stage: str, stack: AsyncExitStack) -> tuple[asyncio.Task[Any], HttpTransport]:
    """A request that waits at this stage for a server that does nothing more."""
    task: asyncio.Task[Any]
    if stage == "connecting":
        transport = produce_transport(stack.enter_context(full_port()))
        task = asyncio.create_task(send(transport, POST))
        # Enough for the connection to be asked for; nothing answers.
        for _ in range(10):
            await asyncio.sleep(0)
        return task, transport
    if stage == "handshake":
        address, come = await stack.enter_async_context(silent_server(reading=True))
        transport = produce_transport(f"https://{address}")
        task = asyncio.create_task(send(transport, POST))
        await come.wait()
        return task, transport
    if stage == "writing":
        address, come = await stack.enter_async_context(silent_server(reading=False))
        transport = produce_transport(f"http://{address}")
        taken = 0

        async def hand_over_and_count() -> AsyncIterator[bytes]:
            nonlocal taken
            for part in LARGE.body:
                yield part
                taken += 1

        async def send_large() -> None:
            async with transport.open(LARGE, hand_over_and_count()):
                raise AssertionError("nothing was answered")

        task = asyncio.create_task(send_large())
        await come.wait()
        before, still = -1, 0
        while still < 20:
            still = still + 1 if taken == before else 0
            before = taken
            await asyncio.sleep(0)
        assert taken < len(LARGE.body)
        return task, transport
    heard = asyncio.Event()

    async def stop(peer: Peer) -> None:
        if stage == "body":
            await peer.send(OK + b"Content-Length: 9\r\n\r\nhello")
        heard.set()
        await asyncio.Event().wait()

    server = await stack.enter_async_context(RawServer(stop))
    transport = produce_transport(server.url)
    task = asyncio.create_task(send(transport, POST))
    await heard.wait()
    for _ in range(10):
        await asyncio.sleep(0)
    return task, transport


async def measure_cancel(stage: str) -> float:
    """How long after a cancel the socket of the request is closed."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        task, transport = await hold_at(stage, stack)
        assert not task.done()
        descriptors = count_descriptors()
        begun = loop.time()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
        while count_descriptors() >= descriptors and loop.time() < begun + 0.5:
            await asyncio.sleep(0)
        seconds = loop.time() - begun
        await transport.close()
    return seconds


async def check_cancel(stage: str, attempts: int = 10) -> None:
    # A machine that is busy with something else may delay some of them, but not all.
    measured: list[float] = []
    while len(measured) < attempts and min(measured, default=9) >= CLOSED_SECONDS:
        measured.append(await measure_cancel(stage))
    assert min(measured) < CLOSED_SECONDS, measured


STAGES = ["connecting", "handshake", "writing", "head", "body"]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.usefixtures("path")
async def test_a_cancel_closes_the_socket_at_once(stage: str) -> None:
    await check_cancel(stage)


async def test_a_socket_that_is_left_open_by_a_cancel_would_be_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def release(self: DirectTransport, connection: Any) -> None:
        asyncio.get_running_loop().call_later(CLOSED_SECONDS * 2, connection.abort)

    monkeypatch.setattr(DirectTransport, "release", release)
    with pytest.raises(AssertionError):
        await check_cancel("body", 3)


@pytest.mark.slow
async def test_a_handshake_that_is_left_by_a_cancel_would_be_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "httptools", None)
    monkeypatch.setattr(guard, "_close_if_cancelled", lambda request, send: send(request))
    gc.disable()
    try:
        # A cancel that is early enough finds no handshake to leave.
        assert max([await measure_cancel("handshake") for _ in range(5)]) >= CLOSED_SECONDS
        with pytest.warns(ResourceWarning):
            gc.collect()
    finally:
        gc.enable()


WHOLE = 50_000_000
PIECE = b"x" * 100_000


async def send_much(peer: Peer) -> None:
    await peer.send(OK + b"Content-Length: %d\r\n\r\n" % WHOLE)
    for _ in range(WHOLE // len(PIECE)):
        await peer.send(PIECE)


async def check_held(server: RawServer, transport: HttpTransport) -> None:
    """A reader that reads nothing holds little, and gets everything when it reads."""
    async with transport.open(POST, hand_over(POST)) as incoming:
        tracemalloc.start()
        before, still = -1, 0
        while still < 50:
            still = still + 1 if server.peers[0].sent == before else 0
            before = server.peers[0].sent
            await asyncio.sleep(0)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 3_000_000, f"{held:,} bytes are held"
        size = 0
        async for chunk in incoming.chunks:
            size += len(chunk)
        assert size == WHOLE


@pytest.mark.usefixtures("path")
async def test_a_slow_reader_holds_little() -> None:
    async with RawServer(send_much) as server, opened(server.url) as transport:
        await check_held(server, transport)


async def test_holding_all_for_a_slow_reader_would_be_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(direct_transport, "BUFFER_BYTES", WHOLE * 2)
    async with RawServer(send_much) as server, opened(server.url) as transport:
        with pytest.raises(AssertionError, match="bytes are held"):
            await check_held(server, transport)


REFUSAL = b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig"


class ImpatientServer(RawServer):
    """Answers when it has read some of a request, and then reads on, or holds still, or closes."""

    then = "read"

    async def serve(self, peer: Peer) -> None:
        """Refuse a request early."""
        await peer.reader.read(1000)
        if self.then != "read":
            transport = peer.writer.transport
            assert isinstance(transport, asyncio.Transport)
            transport.pause_reading()
            # The client sends on, until all buffers are full.
            for _ in range(200):
                await asyncio.sleep(0)
        await peer.send(REFUSAL)
        if self.then == "read":
            await peer.hold()
        elif self.then == "hold":
            await asyncio.Event().wait()
        await peer.finish("close")


@pytest.mark.parametrize("then", ["hold", "close"])
async def test_an_answer_before_the_request_is_sent_is_heard(then: str) -> None:
    # httpx2 reads nothing before it has sent everything.
    server = ImpatientServer()
    server.then = then
    async with server, opened(server.url) as transport:
        async with asyncio.timeout(20):
            status, _, body = await send(transport, LARGE)
        assert (status, body) == (413, b"big")


async def test_an_answer_that_waits_for_the_request_would_be_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stalled = property(lambda self: self._full and self.error is None)
    monkeypatch.setattr(direct_transport._Connection, "stalled", stalled)
    server = ImpatientServer()
    server.then = "hold"
    async with server, opened(server.url, idle_seconds=0.2) as transport:
        with pytest.raises(ReplyTimeout):
            await send(transport, LARGE)


@pytest.mark.usefixtures("path")
async def test_an_early_answer_of_a_server_that_reads_on_is_heard() -> None:
    async with ImpatientServer() as server, opened(server.url) as transport:
        async with asyncio.timeout(20):
            status, _, body = await send(transport, LARGE)
        assert (status, body) == (413, b"big")


@pytest.mark.parametrize(
    "value", ["secret\r\nx: y", "secret\n", "\rsecret", "sec\0ret", "secr\xe9t", "secret\x7f"]
)
@pytest.mark.usefixtures("path")
async def test_a_header_that_cannot_be_sent_is_named_without_its_value(value: str) -> None:
    async with RawServer(say(NEXT)) as server:
        for transport, outgoing in (
            (produce_transport(server.url, authorize=lambda: {"X-Mine": value}), POST),
            (produce_transport(server.url), Outgoing("GET", "/", headers={"X-Mine": value})),
        ):
            with pytest.raises(ConfigurationError, match=r"'X-Mine'.*line break") as caught:
                await send(transport, outgoing)
            assert "secr" not in str(caught.value)
            assert caught.value.table == "providers.row"
            await transport.close()
        assert server.peers == []


@pytest.mark.parametrize("name", ["", "x y", "x:", "x\r\ny", "é"])
@pytest.mark.usefixtures("path")
async def test_what_is_no_name_of_a_header_is_an_error_of_the_configuration(name: str) -> None:
    async with RawServer(say(NEXT)) as server:
        transport = produce_transport(server.url, authorize=lambda: {name: "secret"})
        with pytest.raises(ConfigurationError, match="not a header name") as caught:
            await send(transport, POST)
        assert "secret" not in str(caught.value)
        await transport.close()
        assert server.peers == []


Sender = Callable[[Endpoint, dict[str, str]], DirectTransport | Httpx2Transport]


async def record(
    sender: Sender, server: RawServer, base_url: str, request: Outgoing, headers: dict[str, str]
) -> tuple[bytes, dict[bytes, bytes]]:
    """The first line and some headers of a request as they are sent."""
    endpoint = Endpoint(provider="row", base_url=base_url, connect_seconds=10, idle_seconds=10)
    transport = sender(endpoint, headers)
    try:
        assert (await send(transport, request))[2] == b"next"
    finally:
        await transport.close()
    first, *lines = server.requests[-1].partition(b"\r\n\r\n")[0].split(b"\r\n")
    names = (b"host", b"authorization", b"content-length", b"accept", b"x-mine")
    pairs = dict(line.split(b": ", 1) for line in lines)
    found = {name.lower(): value for name, value in pairs.items() if name.lower() in names}
    return first, found


ADDRESSES = [
    "http://HOST",
    "http://HOST/",
    "http://HOST//",
    "http://HOST/v1",
    "http://HOST/a b/é/%20/%zz/%C3%a9/100%",
    "http://HOST/!$&'()*+,;=:@~-._",
    'http://HOST/[x]{y}|z^`\\<>"',
    "http://HOST/a/../b/./c/",
    "http://HOST/v1?api-version=1&x=a b",
    "http://HOST/v1?q={y}|`[]^'\"<>é%20%",
    "http://HOST/v1?",
    "http://HOST/v1#part",
    "http://HOST/v1?x=/?#part",
    "http://user:secret@HOST/v1",
    "http://user@HOST",
    "http://:secret@HOST",
    "http://@HOST",
    "http://us%40er:se%3Acr%2Fet@HOST",
    "http://us%C3%A9r:p%C3%A4ss@HOST",
    "HTTP://HOST/v1",
    "http://localhost:PORT/v1",
    "http://LocalHost:PORT",
    "http://bücher.example:PORT",
    "http://straße.example:PORT",
    "http://BÜCHER.example:PORT",
    "http://日本語.example:PORT/v1",
    "http://xn--bcher-kva.example:PORT",
    "http://under_score.example:PORT",
    "http://dot.example.:PORT",
]


@pytest.mark.parametrize("address", ADDRESSES)
async def test_both_paths_send_the_same(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(host: Any, port: Any, *_: object, **__: object) -> list[Any]:
        where = ("127.0.0.1", int(port))
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", where)]

    monkeypatch.setattr(socket, "getaddrinfo", find)
    async with RawServer(say(NEXT)) as server:
        base_url = address.replace("HOST", "127.0.0.1:PORT").replace("PORT", str(server.port))
        for request in (
            Outgoing("POST", "/chat completions?x=ä", [b"{}"]),
            Outgoing("GET", "/models", headers={"X-Mine": "  a b  "}),
            Outgoing("POST", "/empty"),
        ):
            headers = {"Authorization": "Bearer key"} if request.body else {}
            both = [
                await record(sender, server, base_url, request, headers)
                for sender in (DirectTransport, Httpx2Transport)
            ]
            assert both[0] == both[1]


@pytest.mark.usefixtures("path")
async def test_the_user_of_an_address_becomes_basic_authorization() -> None:
    async with RawServer(say(NEXT)) as server:
        address = server.url.replace("://", "://us%40er:p%C3%A4ss@")
        async with opened(address) as transport:
            await exchange(transport)
        expected = base64.b64encode("us@er:päss".encode())
        assert b"authorization: basic " + expected.lower() in server.requests[0].lower()


async def test_nothing_is_written_to_a_connection_that_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        async def hand_over_and_break() -> AsyncIterator[bytes]:
            yield b"x"
            connection, _ = listener.accept()
            with connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
            for _ in range(20):
                yield b"x"

        async with opened(f"http://127.0.0.1:{listener.getsockname()[1]}") as transport:
            with pytest.raises(ProviderUnreachable):
                async with transport.open(
                    Outgoing("POST", "/", [b"x"] * 21), hand_over_and_break()
                ):
                    pass
    # asyncio warns of writing to such a connection.
    assert caplog.records == []


class Speaker(RawServer):
    """Sends a response before there is a request."""

    async def serve(self, peer: Peer) -> None:
        """Speak first."""
        await peer.send(OK + b"Content-Length: 4\r\n\r\nevil")
        await peer.hold()


async def check_speaker() -> None:
    async def hand_over_slowly() -> AsyncIterator[bytes]:
        for _ in range(20):
            await asyncio.sleep(0)
        yield b"{}"

    async with Speaker() as server, opened(server.url) as transport:
        with pytest.raises(ProviderUnreachable, match="sent data before the request"):
            async with transport.open(POST, hand_over_slowly()):
                raise AssertionError("it is taken for the answer")


async def test_a_server_that_speaks_first_does_not_answer() -> None:
    await check_speaker()


async def test_a_reply_before_the_request_would_be_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection_made = direct_transport._Connection.connection_made

    def expect_at_once(self: Any, transport: asyncio.BaseTransport) -> None:
        connection_made(self, transport)
        self._begin()

    monkeypatch.setattr(direct_transport._Connection, "connection_made", expect_at_once)
    with pytest.raises(AssertionError, match="taken for the answer"):
        await check_speaker()


@pytest.mark.usefixtures("path")
async def test_a_handshake_that_is_not_answered_runs_into_the_limit() -> None:
    async with silent_server(reading=True) as (address, _):
        transport = produce_transport(f"https://{address}", connect_seconds=0.2)
        with pytest.raises(ReplyTimeout) as caught:
            await send(transport, POST)
        await transport.close()
    assert caught.value.limit == "connect-seconds"
