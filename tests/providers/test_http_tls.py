"""TLS and proxies on both paths, with certificates of the tests' own."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import json
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509

from tests.fakes.raw_server import Peer, RawServer, Reply, Then, say
from tests.providers.test_http_faults import (
    CHUNKED,
    CHUNKS,
    EVIL,
    HELLO,
    NEXT,
    OK,
    POST,
    Result,
    check,
    exchange,
    head,
    opened,
)
from tests.providers.test_http_transport import produce_transport
from vibe_llms.base.exceptions import ConfigurationError, ProviderUnreachable, ReplyCut
from vibe_llms.base.network import guard
from vibe_llms.providers import direct_transport
from vibe_llms.providers.http_transport import HttpTransport
from vibe_llms.providers.httpx2_transport import Httpx2Transport
from vibe_llms.testing import fake_server

KEY = "sk-canary-0123456789"
HOSTS = ("127.0.0.1", "far.test")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def tls(authority: trustme.CA) -> ssl.SSLContext:
    """The server's side, with a certificate that is good."""
    return serve_with(authority.issue_cert(*HOSTS))


@pytest.fixture
def trusted(
    authority: trustme.CA, tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The authority is the only one that is trusted; all go through `path`."""
    file = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(file))
    monkeypatch.setenv("SSL_CERT_FILE", str(file))


def serve_with(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


@pytest.mark.usefixtures("trusted")
async def test_a_certificate_of_the_file_in_the_environment_is_trusted(tls: ssl.SSLContext) -> None:
    async with RawServer(say(HELLO), say(NEXT), tls=tls) as server:
        await check(server, b"hello")
        assert len(server.peers) == 1


def name_of_hash(authority: trustme.CA) -> str:
    """Under which name OpenSSL looks for a certificate in a folder."""
    subject = x509.load_pem_x509_certificate(authority.cert_pem.bytes()).subject
    lower = x509.Name(
        [x509.NameAttribute(one.oid, str(one.value).lower()) for one in subject]
    ).public_bytes()
    # Its first two bytes say that it is a sequence, and how long.
    digest = hashlib.sha1(lower[2:]).digest()
    return f"{int.from_bytes(digest[:4], 'little'):08x}.0"


@pytest.mark.usefixtures("path")
async def test_a_certificate_of_the_folder_in_the_environment_is_trusted(
    authority: trustme.CA, tls: ssl.SSLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "certificates"
    folder.mkdir()
    authority.cert_pem.write_to_path(str(folder / name_of_hash(authority)))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(folder))
    async with RawServer(say(HELLO), say(NEXT), tls=tls) as server:
        await check(server, b"hello")


async def check_refused(tls: ssl.SSLContext, words: str) -> None:
    async with RawServer(say(HELLO), tls=tls) as server, opened(server.url) as transport:
        with pytest.raises(ProviderUnreachable, match=words) as caught:
            await exchange(transport)
        assert not caught.value.connected
        assert server.requests == []


@pytest.mark.usefixtures("trusted")
async def test_a_certificate_for_another_host_is_refused(authority: trustme.CA) -> None:
    await check_refused(serve_with(authority.issue_cert("other.test")), "IP address mismatch")


@pytest.mark.usefixtures("trusted")
async def test_a_certificate_that_expired_is_refused(authority: trustme.CA) -> None:
    then = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    expired = authority.issue_cert(*HOSTS, not_before=then, not_after=then)
    await check_refused(serve_with(expired), "certificate has expired")


@pytest.mark.usefixtures("path")
async def test_a_certificate_of_an_unknown_authority_is_refused(tls: ssl.SSLContext) -> None:
    await check_refused(tls, "SSL_CERT_FILE can name a file")


@pytest.mark.usefixtures("path")
async def test_a_file_that_is_no_certificate_is_an_error_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "authority.pem"
    file.write_text("nonsense")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    async with opened("https://127.0.0.1:9") as transport:
        with pytest.raises(ConfigurationError, match="SSL_CERT_FILE"):
            await exchange(transport)


ENDS: dict[str, tuple[bytes, Then, Result]] = {
    "until-close": (OK + b"\r\nhello", "close", b"hello"),
    "until-close-and-empty": (OK + b"\r\n", "close", b""),
    "until-close-cut": (OK + b"\r\nhello", "truncate", ReplyCut),
    "until-close-cut-and-empty": (OK + b"\r\n", "truncate", ReplyCut),
    "until-close-reset": (OK + b"\r\nhello", "reset", ReplyCut),
    "nothing": (b"HTTP/1.1 204 No\r\n\r\n", "keep", (204, b"")),
    "length-and-no-end": (HELLO, "truncate", b"hello"),
    "length-cut": (head(b"Content-Length: 9") + b"hello", "truncate", ReplyCut),
    "length-ended-early": (head(b"Content-Length: 9") + b"hello", "close", ReplyCut),
    "chunks-and-no-end": (CHUNKED + CHUNKS, "truncate", b"hello"),
    "chunks-cut": (CHUNKED + b"5\r\nhello\r\n", "truncate", ReplyCut),
    "head-cut": (OK, "truncate", ProviderUnreachable),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.usefixtures("trusted")
async def test_a_connection_that_is_cut_off_is_no_end_of_a_body(
    end: str, tls: ssl.SSLContext
) -> None:
    reply, then, expected = ENDS[end]
    async with RawServer(say(reply, then=then), say(NEXT), tls=tls) as server:
        await check(server, expected)


@pytest.mark.usefixtures("trusted")
async def test_taking_a_cut_for_the_end_would_be_detected(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_properly(self: Any) -> None:
        self._ended_cleanly = True

    monkeypatch.setattr(direct_transport._Connection, "eof_received", end_properly)
    monkeypatch.setattr(guard, "_ended_properly", lambda _, response: response.stream)
    reply = say(OK + b"\r\nhello", then="truncate")
    async with RawServer(reply, say(NEXT), tls=tls) as server:
        with pytest.raises(pytest.fail.Exception):
            await check(server, ReplyCut)


def say_at_once(*records: bytes) -> Reply:
    """A reply in TLS records that arrive together."""

    async def reply(peer: Peer) -> None:
        for record in records:
            peer.writer.write(record)
        await peer.send()

    return reply


BEHIND = {"in-one-record": (HELLO + EVIL,), "in-another-record": (HELLO, EVIL)}


async def check_behind(records: tuple[bytes, ...], tls: ssl.SSLContext) -> None:
    async with RawServer(say_at_once(*records), say(NEXT), tls=tls) as server:
        await check(server, b"hello")
        assert len(server.peers) == 2


@pytest.mark.parametrize("records", BEHIND)
@pytest.mark.usefixtures("trusted")
async def test_what_follows_a_reply_is_not_the_next_one(records: str, tls: ssl.SSLContext) -> None:
    await check_behind(BEHIND[records], tls)


@pytest.mark.usefixtures("trusted")
async def test_what_comes_while_a_connection_is_idle_is_not_the_next_reply(
    tls: ssl.SSLContext,
) -> None:
    async with RawServer(say(HELLO), say(NEXT), tls=tls) as server, opened(server.url) as transport:
        assert await exchange(transport) == (200, b"hello")
        await server.settle()
        server.peers[0].deliver(EVIL)
        assert await exchange(transport) == (200, b"next")
        assert len(server.peers) == 2


@pytest.mark.usefixtures("trusted")
async def test_a_slow_reader_gets_all_of_it(tls: ssl.SSLContext) -> None:
    pieces = [b"%07d\n" % number * 10_000 for number in range(100)]

    async def send_much(peer: Peer) -> None:
        await peer.send(OK + b"\r\n", *pieces)
        await peer.finish("close")

    async with RawServer(send_much, tls=tls) as server, opened(server.url) as transport:
        parts: list[bytes] = []
        async with transport.open(POST, hand_over()) as incoming:
            async for chunk in incoming.chunks:
                parts.append(chunk)
                for _ in range(5):
                    await asyncio.sleep(0)
        assert b"".join(parts) == b"".join(pieces)


async def hand_over() -> AsyncIterator[bytes]:
    yield b"{}"


class Proxy(RawServer):
    """Passes tunnels and requests on to one port of this machine, and keeps what it sees."""

    def __init__(self, target: RawServer, *, refusal: bytes = b"") -> None:
        super().__init__()
        self.target = target
        self.refusal = refusal
        self.heads: list[bytes] = []
        self.seen = bytearray()

    async def serve(self, peer: Peer) -> None:
        """Serve one connection of a client."""
        first = await peer.read_request()
        self.heads.append(first)
        if self.refusal:
            await peer.send(self.refusal)
            await peer.hold()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.target.port)
        if first.startswith(b"CONNECT "):
            await peer.send(b"HTTP/1.1 200 Connected\r\n\r\n")
        else:
            writer.write(first)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(peer.reader, writer))
                group.create_task(self._pass_on(reader, peer.writer))
        finally:
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                self.seen += data
                writer.write(data)
                await writer.drain()
            writer.close()


def produce_far(scheme: str, environment: Callable[[str, str], None], proxy: str) -> HttpTransport:
    environment(f"{scheme.upper()}_PROXY", proxy)
    return produce_transport(
        f"{scheme}://far.test", authorize=lambda: {"authorization": f"Bearer {KEY}"}
    )


@pytest.mark.usefixtures("trusted")
async def test_a_tunnel_through_a_proxy_hides_the_key(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with RawServer(say(HELLO), say(NEXT), tls=tls) as server, Proxy(server) as proxy:
        transport = produce_far(
            "https", monkeypatch.setenv, f"http://u:secret@127.0.0.1:{proxy.port}"
        )
        assert await exchange(transport) == (200, b"hello")
        assert await exchange(transport) == (200, b"next")
        assert isinstance(transport._sender, Httpx2Transport)
        await transport.close()
        (connect,) = proxy.heads
        assert connect.startswith(b"CONNECT far.test:443 HTTP/1.1\r\n")
        assert b"proxy-authorization: basic " in connect.lower()
        assert KEY.encode() not in connect + bytes(proxy.seen)
        assert all(f"Bearer {KEY}".encode() in request for request in server.requests)
        assert not any(b"proxy-" in request.lower() for request in server.requests)


@pytest.mark.usefixtures("trusted")
async def test_what_follows_a_reply_in_a_tunnel_is_not_the_next_one(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    for records in BEHIND.values():
        reply = say_at_once(*records)
        async with RawServer(reply, say(NEXT), tls=tls) as server, Proxy(server) as proxy:
            transport = produce_far("https", monkeypatch.setenv, f"http://127.0.0.1:{proxy.port}")
            assert await exchange(transport) == (200, b"hello")
            assert await exchange(transport) == (200, b"next")
            await transport.close()
            assert len(proxy.heads) == 2


@pytest.mark.usefixtures("trusted")
async def test_a_proxy_cannot_put_itself_in_the_place_of_a_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = serve_with(trustme.CA().issue_cert(*HOSTS))
    async with RawServer(say(HELLO), tls=mine) as server, Proxy(server) as proxy:
        transport = produce_far("https", monkeypatch.setenv, f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(ProviderUnreachable, match="certificate verify failed"):
            await exchange(transport)
        await transport.close()
        assert server.requests == []


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.usefixtures("trusted")
async def test_a_proxy_that_refuses_is_reported(
    scheme: str, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
    async with RawServer(tls=tls) as server, Proxy(server, refusal=refusal) as proxy:
        transport = produce_far(
            scheme, monkeypatch.setenv, f"http://u:secret@127.0.0.1:{proxy.port}"
        )
        if scheme == "http":
            assert await exchange(transport) == (407, b"")
        else:
            with pytest.raises(ProviderUnreachable, match="the proxy answered: 407") as caught:
                await exchange(transport)
            assert "secret" not in str(caught.value)
            assert KEY.encode() not in proxy.heads[0]
        await transport.close()


@pytest.mark.usefixtures("path")
async def test_a_proxy_without_tunnel_is_given_the_whole_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with RawServer(say(HELLO), say(NEXT)) as server, Proxy(server) as proxy:
        transport = produce_far("http", monkeypatch.setenv, f"http://127.0.0.1:{proxy.port}")
        assert await exchange(transport) == (200, b"hello")
        assert await exchange(transport) == (200, b"next")
        assert isinstance(transport._sender, Httpx2Transport)
        await transport.close()
        assert [request.split(b"\r\n")[0] for request in server.requests] == [
            b"POST http://far.test/ HTTP/1.1"
        ] * 2


TURN = """
import asyncio, json, sys
from vibe_llms.opening import open_session

async def main() -> None:
    configuration, keys, model = json.loads(sys.argv[1])
    async with open_session(home=sys.argv[2], configuration=configuration, keys=keys) as session:
        conversation = await session.begin(model)
        assert (await conversation.converse("Hello!")).text == "Hi"

asyncio.run(main())
heavy = ("httpx2", "httpcore2", "h11", "h2", "anyio", "httpx", "idna", "truststore")
print(json.dumps([name for name in heavy if name in sys.modules]))
"""


@pytest.mark.parametrize("model", ["anthropic/claude-sonnet-5-5", "ollama/qwen3:8b"])
async def test_a_turn_imports_no_other_way_to_send(model: str, tmp_path: Path) -> None:
    async with fake_server(["Hi"]) as server:
        row = [server.configuration, dict(server.keys), model]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "error", "-c", TURN, json.dumps(row), str(tmp_path / "home")),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, failed = await process.communicate()
    assert process.returncode == 0, failed.decode()
    assert json.loads(said) == []
