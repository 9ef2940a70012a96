"""What only the path through httpx2 can get wrong."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import httpx2
import pytest

from tests.providers.test_http_transport import EchoServer, check_burst
from vibe_llms.providers.httpx2_transport import Httpx2Transport
from vibe_llms.providers.transport import Endpoint


@pytest.fixture
def server() -> Iterator[EchoServer]:
    with EchoServer() as server:
        yield server


def produce(url: str) -> Httpx2Transport:
    endpoint = Endpoint(
        provider="row", base_url=url, connect_seconds=10, idle_seconds=60, kept_seconds=0.3
    )
    return Httpx2Transport(endpoint, {})


@pytest.mark.slow
async def test_a_pool_with_a_bound_would_be_detected(
    server: EchoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending = httpx2.AsyncHTTPTransport

    def bounded(**options: object) -> httpx2.AsyncHTTPTransport:
        return sending(**{**options, "limits": httpx2.Limits(max_connections=100)})  # type: ignore[arg-type]

    monkeypatch.setattr(httpx2, "AsyncHTTPTransport", bounded)
    transport = produce(server.url)
    with pytest.raises(AssertionError, match="only 100 of 200 came through"):
        await check_burst(server, transport, seconds=5)
    await transport.close()


@pytest.mark.slow
async def test_leaving_stale_connections_to_the_next_request_would_be_detected(
    server: EchoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Httpx2Transport, "_release", lambda self: None)
    transport = produce(server.url)
    with pytest.raises(AssertionError, match="connections were left"):
        await check_burst(server, transport, idle_seconds=1)
    await transport.close()


async def test_certificates_are_read_once_and_only_for_https(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contexts: list[ssl.SSLContext] = []
    produce_context = httpx2.create_ssl_context

    def remember_context() -> ssl.SSLContext:
        contexts.append(produce_context())
        return contexts[-1]

    monkeypatch.setattr(httpx2, "create_ssl_context", remember_context)
    for url, read in (("http://far.test", 0), ("HTTPS://far.test", 1)):
        transport = produce(url)
        for _ in range(2):
            transport.prepare()
            await transport.close()
        assert len(contexts) == read
