"""What only connections of our own can get wrong."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from tests.fakes.raw_server import RawServer, Then, say
from tests.providers.test_http_transport import EchoServer, check_burst, send
from vibe_llms.base.exceptions import ProviderUnreachable
from vibe_llms.base.network import connections
from vibe_llms.base.network.connections import AddressKind
from vibe_llms.providers import direct_transport
from vibe_llms.providers.direct_transport import DirectTransport
from vibe_llms.providers.transport import KEPT_CONNECTIONS, Endpoint


@pytest.fixture
def server() -> Iterator[EchoServer]:
    with EchoServer() as server:
        yield server


def produce(
    url: str, kinds: Collection[AddressKind] | None = None, *, connect_seconds: float = 10
) -> DirectTransport:
    endpoint = Endpoint(
        provider="row",
        base_url=url,
        connect_seconds=connect_seconds,
        idle_seconds=60,
        kept_seconds=0.3,
        kinds=kinds,
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


async def test_of_several_permitted_addresses_the_next_is_tried(
    server: EchoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(host: str, port: int, *_: object, **__: object) -> list[Any]:
        stream = (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [
            (socket.AF_INET6, *stream, ("::1", port, 0, 0)),
            (socket.AF_INET, *stream, ("127.0.0.1", port)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", find)
    port = server.url.rpartition(":")[2]
    transport = produce(f"http://twice.test:{port}", kinds={"loopback"})
    assert (await send(transport))[0] == 200
    await transport.close()


@pytest.mark.parametrize(
    ("then", "words"),
    [("reset", "reset by peer"), ("close", "the server closed the connection")],
)
async def test_why_a_connection_was_lost_is_reported(then: Then, words: str) -> None:
    async with RawServer(say(b"", then=then)) as server:
        transport = produce(server.url)
        with pytest.raises(ProviderUnreachable, match=words):
            await send(transport)
        await transport.close()


async def test_only_so_many_idle_connections_are_kept(
    server: EchoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_transport, "KEPT_CONNECTIONS", 1)
    monkeypatch.setattr(direct_transport, "limit_descriptors", lambda: 24)
    transport = produce(server.url)
    await asyncio.gather(*(send(transport) for _ in range(6)))
    async with asyncio.timeout(30):
        while len(transport._connections) > 3:
            await asyncio.sleep(0)
    assert len(transport._connections) == len(transport._idle) == 3
    await transport.close()
    assert not transport._connections
    assert server.connections == 6


@pytest.mark.parametrize(
    ("descriptors", "kept"), [(100_000, 1024), (800, 100), (8, KEPT_CONNECTIONS)]
)
def test_idle_connections_leave_most_descriptors_to_others(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, kept: int
) -> None:
    monkeypatch.setattr(direct_transport, "limit_descriptors", lambda: descriptors)
    assert produce("http://far.test")._most_kept == kept


async def test_the_addresses_of_a_host_share_the_time_for_connecting(
    server: EchoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find(*_: object) -> list[str]:
        return ["127.0.0.9", "127.0.0.1"]

    dial = DirectTransport._dial

    async def stall_at_first(self: DirectTransport, host: str) -> Any:
        if host == "127.0.0.9":
            await asyncio.Event().wait()
        return await dial(self, host)

    monkeypatch.setattr(direct_transport, "find_permitted", find)
    monkeypatch.setattr(DirectTransport, "_dial", stall_at_first)
    port = server.url.rpartition(":")[2]
    transport = produce(f"http://twice.test:{port}", kinds={"loopback"}, connect_seconds=0.6)
    assert (await send(transport))[0] == 200
    await transport.close()
