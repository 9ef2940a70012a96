"""Sending on both paths: what goes out, what comes back, and every way in which it fails."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.fakes.server import FakeServer, HttpAnswer, ReceivedRequest
from tests.faults.leaks import nothing_left
from vibe_llms.base.exceptions import (
    ConfigurationError,
    ProviderUnreachable,
    ReplyCut,
    ReplyTimeout,
)
from vibe_llms.providers.http_transport import HttpTransport
from vibe_llms.providers.transport import KEPT_CONNECTIONS, Incoming, Outgoing, Transport
from vibe_llms.providers.watch import Watch

pytestmark = pytest.mark.usefixtures("path")

BURST = 200


class EchoServer(FakeServer):
    """Answers with `answer`, or with the body of the request."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: HttpAnswer | None = None

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        return self.answer or HttpAnswer(chunks=[request.body])


@pytest.fixture
def server() -> Iterator[EchoServer]:
    with EchoServer() as server:
        yield server


def produce_transport(
    url: str,
    *,
    authorize: Callable[[], Mapping[str, str]] = dict,
    connect_seconds: float = 10,
    idle_seconds: float = 60,
    kept_seconds: float = 30,
) -> HttpTransport:
    return HttpTransport(
        "row",
        url,
        authorize,
        connect_seconds=connect_seconds,
        idle_seconds=idle_seconds,
        kept_seconds=kept_seconds,
    )


async def hand_over(outgoing: Outgoing) -> AsyncIterator[bytes]:
    for part in outgoing.body:
        yield part


async def send(
    transport: Transport, outgoing: Outgoing = Outgoing("GET", "/")
) -> tuple[int, Mapping[str, str], bytes]:
    async with transport.open(outgoing, hand_over(outgoing)) as incoming:
        chunks = [chunk async for chunk in incoming.chunks]
        return incoming.status, incoming.headers, b"".join(chunks)


async def test_a_body_in_parts_arrives_with_its_length_and_the_headers(server: EchoServer) -> None:
    transport = produce_transport(server.url, authorize=lambda: {"authorization": "Bearer key"})
    outgoing = Outgoing("POST", "/v1/x", [b"ab", b"c" * 100_000, b"d"], {"x-mine": "1"})
    status, headers, body = await send(transport, outgoing)
    await transport.close()
    assert (status, body) == (200, b"".join(outgoing.body))
    assert headers["transfer-encoding"] == "chunked"
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/v1/x")
    assert request.headers["content-length"] == str(outgoing.size) == "100003"
    assert request.headers["authorization"] == "Bearer key"
    assert request.headers["x-mine"] == "1"
    assert request.headers["user-agent"].startswith("vibe-llms/")
    assert request.headers["accept-encoding"] == "identity"


async def test_the_key_is_looked_up_for_the_first_request_and_once(
    server: EchoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups: list[int] = []

    def authorize() -> Mapping[str, str]:
        lookups.append(1)
        return {}

    transport = produce_transport(server.url, authorize=authorize)
    assert lookups == []
    await send(transport)
    await transport.close()
    await send(transport)
    await transport.close()
    await transport.close()
    assert lookups == [1]


@pytest.mark.parametrize(
    "value", [Outgoing("GET", "/"), Incoming(200, {}, hand_over(Outgoing("GET", "/")))]
)
def test_requests_and_replies_do_not_change(value: Any) -> None:
    with pytest.raises(AttributeError):
        value.headers = {"a": "b"}


async def test_a_body_that_is_compressed_all_the_same_is_read(server: EchoServer) -> None:
    server.answer = HttpAnswer(
        headers={"content-encoding": "gzip"}, chunks=[gzip.compress(b"hello")]
    )
    transport = produce_transport(server.url)
    assert (await send(transport))[2] == b"hello"
    server.answer = HttpAnswer(headers={"content-encoding": "gzip"}, chunks=[b"not compressed"])
    with pytest.raises(ReplyCut):
        await send(transport)
    await transport.close()


async def test_a_redirect_is_not_followed(server: EchoServer) -> None:
    with EchoServer() as other:
        server.answer = HttpAnswer(302, {"location": other.url})
        transport = produce_transport(server.url)
        assert (await send(transport))[0] == 302
        await transport.close()
        assert other.connections == 0


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_connection_that_breaks_before_the_headers_is_unreachable(
    server: EchoServer, end: str
) -> None:
    server.answer = HttpAnswer(drop=end)  # type: ignore[arg-type]
    transport = produce_transport(server.url)
    with pytest.raises(ProviderUnreachable):
        await send(transport)
    await transport.close()


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_connection_that_breaks_within_the_body_is_a_cut(
    server: EchoServer, end: str
) -> None:
    server.answer = HttpAnswer(chunks=[b"x" * 100], cut=50, end=end)  # type: ignore[arg-type]
    transport = produce_transport(server.url)
    with pytest.raises(ReplyCut, match="connection lost during the reply"):
        await send(transport)
    await transport.close()


async def test_a_refused_connection_names_the_address() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        transport = produce_transport(url)
        with pytest.raises(ProviderUnreachable, match=f"{url}: connection refused; is the server"):
            await send(transport)
        await transport.close()


async def test_an_unknown_host_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    transport = produce_transport("https://nowhere.invalid")
    with pytest.raises(ProviderUnreachable, match="Name or service not known"):
        await send(transport)
    await transport.close()


async def test_a_server_without_tls_is_unreachable_by_it(server: EchoServer) -> None:
    transport = produce_transport(server.url.replace("http:", "https:"))
    with pytest.raises(ProviderUnreachable):
        await send(transport)
    await transport.close()
    assert server.requests == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.org",
        "ftp://example.org",
        "http://",
        "http://[::1",
        "http://host:port",
        "http://\ud800",
        "http://a..b",
        f"http://{'a' * 64}.b",
        "http://a b",
        "http://a\0b",
        "http://a\x7fb",
        "http://b\u00adb",
    ],
)
async def test_what_is_no_address_is_an_error_of_the_configuration(url: str) -> None:
    transport = produce_transport(url)
    with pytest.raises(ConfigurationError) as caught:
        await send(transport)
    assert (caught.value.table, caught.value.key) == ("providers.row", "base-url")
    await transport.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [("HTTPS_PROXY", "foo://x"), ("ALL_PROXY", "::::"), ("SSL_CERT_FILE", "/nowhere")],
)
async def test_a_wrong_environment_is_an_error_that_names_it(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    transport = produce_transport("https://example.org")
    with pytest.raises(ConfigurationError, match="the environment"):
        await send(transport)
    await transport.close()


@contextmanager
def full_port() -> Iterator[str]:
    """An address where waiting connections are not accepted."""
    with socket.socket() as listener, many_sockets() as others:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for other in others:
            other.setblocking(False)
            other.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def many_sockets() -> Iterator[list[socket.socket]]:
    sockets = [socket.socket() for _ in range(8)]
    try:
        yield sockets
    finally:
        for one in sockets:
            one.close()


async def test_connecting_has_a_limit_of_its_own() -> None:
    with full_port() as url:
        transport = produce_transport(url, connect_seconds=0.1)
        async with asyncio.timeout(10):
            with pytest.raises(ReplyTimeout) as caught:
                await send(transport)
        await transport.close()
    assert (caught.value.limit, caught.value.seconds) == ("connect-seconds", 0.1)


async def test_a_server_that_takes_no_bytes_runs_into_the_idle_limit(server: EchoServer) -> None:
    server.upload_pause = 1000
    transport = produce_transport(server.url, idle_seconds=0.2)
    outgoing = Outgoing("POST", "/", [b"x" * 65536] * 1200)
    async with asyncio.timeout(20):
        with pytest.raises(ReplyTimeout) as caught:
            await send(transport, outgoing)
    await transport.close()
    assert caught.value.limit == "idle-seconds"


async def test_nothing_is_left_when_a_transport_is_closed(server: EchoServer) -> None:
    async with nothing_left():
        transport = produce_transport(server.url)
        await asyncio.gather(*(send(transport) for _ in range(20)))
        await transport.close()


async def test_idle_connections_are_few_and_closed_after_a_while(server: EchoServer) -> None:
    transport = produce_transport(server.url, kept_seconds=0.3)
    server.answer = HttpAnswer(await_requests=BURST)
    await asyncio.gather(*(send(transport) for _ in range(BURST)))
    async with asyncio.timeout(10):
        while server.open_connections > KEPT_CONNECTIONS:
            await asyncio.sleep(0.005)
    await server.settled()
    await transport.close()


async def check_burst(
    server: EchoServer, transport: Transport, *, seconds: float = 30, idle_seconds: float = 30
) -> None:
    """Of many requests after some idle time none waits for another, nor for what others left."""
    for _ in range(2):
        server.requests.clear()
        # Answered only when all have come: a request that waits for another's end never does.
        server.answer = HttpAnswer(await_requests=BURST)
        requests = [Outgoing("GET", "/")] * BURST
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(send(transport, outgoing) for outgoing in requests))
        except TimeoutError:
            raise AssertionError(f"only {len(server.requests)} of {BURST} came through") from None
        # Else the first of the next burst would have to close them all before it is sent.
        try:
            async with asyncio.timeout(idle_seconds):
                while server.open_connections:
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"{server.open_connections} connections were left") from None


async def test_a_burst_after_some_idle_time_leaves_none_waiting(server: EchoServer) -> None:
    async with nothing_left():
        transport = produce_transport(server.url, kept_seconds=0.3)
        await check_burst(server, transport)
        await transport.close()


async def test_a_loop_that_was_held_up_does_not_blame_the_provider(server: EchoServer) -> None:
    transport = produce_transport(server.url)
    await send(transport)
    server.answer = HttpAnswer(chunks=[b"in time"], delay=0.1)
    async with Watch("row", 60) as watch:
        asyncio.get_running_loop().call_later(0.05, time.sleep, 0.6)
        watch.expect("idle-seconds", 0.3)
        assert (await send(transport))[2] == b"in time"
    await transport.close()


def test_descriptors_can_be_counted_here() -> None:
    assert len(os.listdir("/proc/self/fd")) > 2
