"""What only connections of our own can get wrong."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pytest

from tests.providers.test_http_transport import EchoServer, check_burst
from vibe_llms import connections
from vibe_llms.providers import direct_transport
from vibe_llms.providers.direct_transport import DirectTransport
from vibe_llms.providers.transport import Endpoint


@pytest.fixture
def server() -> Iterator[EchoServer]:
    with EchoServer() as server:
        yield server


def produce(url: str) -> DirectTransport:
    endpoint = Endpoint(
        provider="row", base_url=url, connect_seconds=10, idle_seconds=60, kept_seconds=0.3
    )
    return DirectTransport(endpoint, {})


async def test_leaving_stale_connections_open_would_be_detected(
    server: EchoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DirectTransport, "_expire", lambda self: None)
    transport = produce(server.url)
    with pytest.raises(AssertionError, match="connections were left"):
        await check_burst(server, transport, idle_seconds=1)
    await transport.close()


async def test_certificates_are_read_once_and_only_for_https(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contexts: list[ssl.SSLContext] = []
    produce_context = connections.produce_tls_context

    def remember_context() -> ssl.SSLContext:
        contexts.append(produce_context())
        return contexts[-1]

    monkeypatch.setattr(direct_transport, "produce_tls_context", remember_context)
    for url, read in (("http://far.test", 0), ("https://far.test", 1)):
        transport = produce(url)
        for _ in range(2):
            transport.prepare()
            await transport.close()
        assert len(contexts) == read
