"""Sending through httpx2: what goes out, what comes back, and every way in which it fails."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import httpx2
import pytest

from tests.fakes.server import Answer, FakeServer, Request
from tests.faults.leaks import nothing_left
from vibe_llms.exceptions import (
    ConfigurationError,
    ProviderUnreachable,
    ReplyCut,
    ReplyTimeout,
)
from vibe_llms.providers import transport as transports
from vibe_llms.providers.transport import HttpTransport, Incoming, Outgoing, Watch

BURST = 200


class EchoServer(FakeServer):
    """Answers with `answer`, or with the body of the request."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: Answer | None = None

    def respond(self, request: Request) -> Answer:
        return self.answer or Answer(chunks=[request.body])


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
    transport: HttpTransport, outgoing: Outgoing = Outgoing("GET", "/")
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
    contexts: list[int] = []
    produce = httpx2.create_ssl_context

    def produce_context() -> ssl.SSLContext:
        contexts.append(1)
        return produce()

    monkeypatch.setattr(httpx2, "create_ssl_context", produce_context)
    assert lookups == []
    await send(transport)
    await transport.close()
    await send(transport)
    await transport.close()
    await transport.close()
    # Each context reads all certificates of the system.
    assert (lookups, contexts) == ([1], [1])


@pytest.mark.parametrize(
    "value", [Outgoing("GET", "/"), Incoming(200, {}, hand_over(Outgoing("GET", "/")))]
)
def test_requests_and_replies_do_not_change(value: Any) -> None:
    with pytest.raises(AttributeError):
        value.headers = {"a": "b"}


async def test_a_body_that_is_compressed_all_the_same_is_read(server: EchoServer) -> None:
    server.answer = Answer(headers={"content-encoding": "gzip"}, chunks=[gzip.compress(b"hello")])
    transport = produce_transport(server.url)
    assert (await send(transport))[2] == b"hello"
    server.answer = Answer(headers={"content-encoding": "gzip"}, chunks=[b"not compressed"])
    with pytest.raises(ReplyCut):
        await send(transport)
    await transport.close()


async def test_a_redirect_is_not_followed(server: EchoServer) -> None:
    with EchoServer() as other:
        server.answer = Answer(302, {"location": other.url})
        transport = produce_transport(server.url)
        assert (await send(transport))[0] == 302
        await transport.close()
        assert other.connections == 0


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_connection_that_breaks_before_the_headers_is_unreachable(
    server: EchoServer, end: str
) -> None:
    server.answer = Answer(drop=end)  # type: ignore[arg-type]
    transport = produce_transport(server.url)
    with pytest.raises(ProviderUnreachable):
        await send(transport)
    await transport.close()


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_connection_that_breaks_within_the_body_is_a_cut(
    server: EchoServer, end: str
) -> None:
    server.answer = Answer(chunks=[b"x" * 100], cut=50, end=end)  # type: ignore[arg-type]
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
    server.answer = Answer(await_requests=BURST)
    await asyncio.gather(*(send(transport) for _ in range(BURST)))
    async with asyncio.timeout(10):
        while server.open_connections > transports.KEPT_CONNECTIONS:
            await asyncio.sleep(0.005)
    # By the transport alone.
    await server.settled()
    await transport.close()


async def check_burst(
    server: EchoServer, transport: HttpTransport, *, seconds: float = 30, idle_seconds: float = 30
) -> None:
    """Of many requests after some idle time none waits for another, nor for what others left."""
    for _ in range(2):
        server.requests.clear()
        # Answered only when all have come: a request that waits for another's end never does.
        server.answer = Answer(await_requests=BURST)
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


async def test_a_pool_with_a_bound_would_be_detected(
    server: EchoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending = httpx2.AsyncHTTPTransport

    def bounded(**options: object) -> httpx2.AsyncHTTPTransport:
        return sending(**{**options, "limits": httpx2.Limits(max_connections=100)})  # type: ignore[arg-type]

    monkeypatch.setattr(httpx2, "AsyncHTTPTransport", bounded)
    transport = produce_transport(server.url)
    with pytest.raises(AssertionError, match="only 100 of 200 came through"):
        await check_burst(server, transport, seconds=5)
    await transport.close()


async def test_leaving_stale_connections_to_the_next_request_would_be_detected(
    server: EchoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HttpTransport, "_release", lambda self: None)
    transport = produce_transport(server.url, kept_seconds=0.3)
    with pytest.raises(AssertionError, match="connections were left"):
        await check_burst(server, transport, idle_seconds=1)
    await transport.close()


async def wait(seconds: float, *limits: tuple[str, float], every: float = 10) -> None:
    """Expect something again and again, and never get it."""
    async with Watch("row", seconds) as watch:
        while True:
            for limit, allowed in limits:
                watch.expect(limit, allowed)
            await asyncio.sleep(every)


async def test_a_limit_ends_the_wait_that_it_is_for() -> None:
    with pytest.raises(ReplyTimeout) as caught:
        await wait(100, ("first-byte-seconds", 50), ("idle-seconds", 0.01))
    assert (caught.value.limit, caught.value.seconds) == ("idle-seconds", 0.01)
    assert "no answer within 0.01 s (idle-seconds)" in str(caught.value)


async def test_the_limit_of_the_whole_ends_everything() -> None:
    with pytest.raises(ReplyTimeout) as caught:
        await wait(0.05, ("idle-seconds", 10), every=0.01)
    assert caught.value.limit == "reply-seconds"
    assert "not complete within 0.05 s" in str(caught.value)


async def test_what_arrives_in_time_sets_the_limit_anew() -> None:
    async with Watch("row", 100) as watch:
        for _ in range(5):
            watch.expect("idle-seconds", 0.2)
            await asyncio.sleep(0.06)
        watch.rest()
        await asyncio.sleep(0.3)


async def be_flooded(seconds: float) -> None:
    """Work all the time: what comes at once never lets a timer run."""
    async with Watch("row", seconds) as watch:
        while True:
            watch.work()
            watch.expect("idle-seconds", 10)


async def test_what_leaves_no_time_for_a_timer_ends_too() -> None:
    with pytest.raises(ReplyTimeout) as caught:
        await be_flooded(0.05)
    assert caught.value.limit == "reply-seconds"


@pytest.mark.parametrize(("steps", "given_back"), [(1, True), (5, True), (10, False)])
async def test_what_a_handler_takes_is_given_back(steps: int, given_back: bool) -> None:
    async with Watch("row", 0.3) as watch:
        watch.expect("idle-seconds", 0.1)
        watch.work()
        time.sleep(0.4)
        with nullcontext() if given_back else pytest.raises(ReplyTimeout):
            watch.expect("idle-seconds", 0.1, steps)


async def tidy_up_slowly() -> None:
    """Wait for something more while the first wait is being ended."""
    async with Watch("row", 60) as watch:
        watch.expect("idle-seconds", 0.01)
        try:
            await asyncio.sleep(10)
        finally:
            watch.expect("idle-seconds", 0.01)
            await asyncio.sleep(0.1)


async def test_a_watch_that_has_ended_a_wait_does_so_once() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    with pytest.raises(ReplyTimeout):
        await tidy_up_slowly()
    assert not reported


async def test_own_work_counts_for_no_limit() -> None:
    async with Watch("row", 0.2) as watch:
        watch.expect("idle-seconds", 0.1)
        watch.rest()
        await asyncio.sleep(0.3)
        watch.rest()
        watch.expect("idle-seconds", 0.1)
        watch.rest()
        time.sleep(0.15)
        watch.expect("idle-seconds", 0.15)
        await asyncio.sleep(0.05)


async def rest_and_wait(limit: str, seconds: float) -> None:
    async with Watch("row", 0.1) as watch:
        watch.rest()
        await asyncio.sleep(0.15)
        watch.expect(limit, seconds)
        await asyncio.sleep(10)


@pytest.mark.parametrize(("limit", "seconds"), [("idle-seconds", 0.02), ("reply-seconds", 10)])
async def test_after_own_work_the_limits_run_again(limit: str, seconds: float) -> None:
    with pytest.raises(ReplyTimeout) as caught:
        await rest_and_wait(limit, seconds)
    assert caught.value.limit == limit


async def test_a_loop_that_was_held_up_does_not_blame_the_provider(server: EchoServer) -> None:
    transport = produce_transport(server.url)
    await send(transport)
    server.answer = Answer(chunks=[b"in time"], delay=0.1)
    async with Watch("row", 60) as watch:
        asyncio.get_running_loop().call_later(0.05, time.sleep, 0.6)
        watch.expect("idle-seconds", 0.3)
        assert (await send(transport))[2] == b"in time"
    await transport.close()


async def test_after_a_loop_was_held_up_the_limits_run_again() -> None:
    asyncio.get_running_loop().call_later(0.01, time.sleep, 0.3)
    with pytest.raises(ReplyTimeout):
        await wait(60, ("idle-seconds", 0.1))


async def test_a_watch_lets_other_errors_and_cancels_through() -> None:
    with pytest.raises(ZeroDivisionError):
        async with Watch("row", 10):
            raise ZeroDivisionError

    task = asyncio.create_task(wait(10))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_descriptors_can_be_counted_here() -> None:
    assert len(os.listdir("/proc/self/fd")) > 2
