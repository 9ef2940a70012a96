"""What `Guard` checks of a connection, and when it uses one again."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest
import trustme

from tests.fakes.raw_server import RawServer, say
from vibe_llms.base.network import guard as module
from vibe_llms.base.network.guard import AddressGuard

OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = b"content-length: 5\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"


def find(*addresses: str) -> Any:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    return resolve


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def serve_with(authority: trustme.CA, *hosts: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*hosts).configure_cert(context)
    return context


@pytest.mark.parametrize(("host", "fits"), [("auth.test", True), ("other.test", False)])
async def test_a_certificate_is_checked_for_the_name_and_not_for_the_address(
    authority: trustme.CA, host: str, fits: bool
) -> None:
    verify = ssl.create_default_context()
    authority.configure_trust(verify)
    guard = AddressGuard("a request", kinds={"loopback"}, resolver=find("127.0.0.1"), verify=verify)
    tls = serve_with(authority, host, "127.0.0.1")
    asked: list[str | None] = []
    tls.sni_callback = lambda _, name, __: asked.append(name)
    async with (
        RawServer(say(OK + LENGTH + b"\r\nhello"), tls=tls) as server,
        httpx2.AsyncClient(transport=guard) as client,
    ):
        url = f"https://auth.test:{server.port}/"
        if fits:
            assert (await client.get(url)).text == "hello"
        else:
            with pytest.raises(httpx2.ConnectError, match="certificate"):
                await client.get(url)
    assert asked == ["auth.test"]


@pytest.mark.parametrize(
    ("method", "reply", "connections"),
    [
        ("GET", OK + LENGTH + b"\r\nhello", 1),
        ("GET", OK + CHUNKED + b"\r\n5\r\nhello\r\n0\r\n\r\n", 1),
        # Two framings are doubtful, and none is the end of the connection.
        ("GET", OK + CHUNKED + LENGTH + b"\r\n5\r\nhello\r\n0\r\n\r\n", 2),
        ("HEAD", OK + b"\r\n", 1),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", 1),
        ("GET", b"HTTP/1.1 304 Not Modified\r\n\r\n", 1),
        ("GET", OK + LENGTH + b"\r\nhello" + OK + LENGTH + b"\r\nworse", 2),
    ],
)
async def test_a_connection_is_used_again_if_the_end_of_its_reply_is_certain(
    method: str, reply: bytes, connections: int
) -> None:
    async with (
        RawServer(say(reply), say(OK + LENGTH + b"\r\nthere")) as server,
        httpx2.AsyncClient(transport=AddressGuard("a request")) as client,
    ):
        assert (await client.request(method, server.url)).status_code < 400
        assert (await client.get(server.url)).text == "there"
        assert len(server.peers) == connections


@pytest.mark.parametrize("cut", [False, True])
async def test_a_body_without_a_length_is_whole_if_tls_ends_properly(
    authority: trustme.CA, cut: bool
) -> None:
    verify = ssl.create_default_context()
    verify.options |= ssl.OP_IGNORE_UNEXPECTED_EOF  # as Python 3.11.2 does
    authority.configure_trust(verify)
    tls = serve_with(authority, "127.0.0.1")
    then: Any = "truncate" if cut else "close"
    async with (
        RawServer(say(OK + b"\r\nhello", then=then), tls=tls) as server,
        httpx2.AsyncClient(transport=AddressGuard("a request", verify=verify)) as client,
    ):
        if cut:
            with pytest.raises(httpx2.ReadError, match="the connection was cut off"):
                await client.get(server.url)
        else:
            assert (await client.get(server.url)).text == "hello"


@pytest.mark.parametrize("error", [httpx2.ConnectError, httpx2.ConnectTimeout])
async def test_an_address_that_does_not_connect_is_followed_by_the_next(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    tried: list[str] = []

    class Transport:
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            tried.append(request.url.host)
            if len(tried) < good:
                raise error(request.url.host)
            return httpx2.Response(200, content=b"")

    monkeypatch.setattr(AddressGuard, "_produce_transport", lambda *_: Transport())
    guard = AddressGuard("a request", kinds=(), resolver=find("9.9.9.9", "8.8.8.8"))
    request = httpx2.Request("GET", "http://far.test/")
    for good in (2, 3):
        tried.clear()
        if good == 2:
            assert (await guard.handle_async_request(request)).status_code == 200
        else:
            with pytest.raises(error, match=r"8\.8\.8\.8"):
                await guard.handle_async_request(request)
        assert tried == ["9.9.9.9", "8.8.8.8"]


async def test_a_host_without_an_address_is_not_connected() -> None:
    guard = AddressGuard("a request", kinds=(), resolver=find())
    async with httpx2.AsyncClient(transport=guard) as client:
        with pytest.raises(httpx2.ConnectError, match="no address"):
            await client.get("http://far.test/")


def test_a_connection_of_which_nothing_is_known_is_not_used_again() -> None:
    assert not module._is_alone(object(), object())
