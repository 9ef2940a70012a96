"""The listener under all fakes: what it bears of clients, and how it ends."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import httpx2
import pytest

from vibe_llms.testing.listening import HttpAnswer, Listener, ReceivedRequest


class Echo(Listener):
    """Says what it was given."""

    def respond(self, request: ReceivedRequest) -> HttpAnswer:
        if request.path == "/fail":
            raise LookupError("a bug")
        if request.path == "/slow":
            return HttpAnswer(chunks=[b"a", b"b"], waits={0: 0.05, 1: 0.1})
        if request.path == "/for-ever":
            return HttpAnswer(chunks=[b"a"], stall=1)
        data = json.dumps([request.method, len(request.body)]).encode()
        return HttpAnswer(chunks=[data])


def send(server: Listener, data: bytes) -> bytes:
    """What comes back for some bytes, to the end of the connection."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while part := connection.recv(4096):
            received += part
    return received


def test_bodies_in_chunks_and_those_that_wait_to_be_wanted_are_read() -> None:
    with Echo() as server:
        answer = httpx2.post(server.url, content=iter([b"abc", b"", b"defg"]))
        assert (answer.json(), server.requests[0].headers["transfer-encoding"]) == (
            ["POST", 7],
            "chunked",
        )
        head = b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\nab"
        assert send(server, head).startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")
        trailing = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
        trailing += b"2;x=y\r\nab\r\n0\r\na: b\r\n\r\n"
        assert b'["POST", 2]' in send(server, trailing)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x16\x03\x01 as TLS begins",
        b"GET / HT",
        b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nab",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
        b"GET / HTTP/1.1\r\nlong: " + b"x" * 600_000,
    ],
)
def test_an_invalid_request_is_dropped(data: bytes) -> None:
    with Echo() as server:
        try:
            assert send(server, data) == b""
        except OSError:  # it has hung up while we were still sending
            assert len(data) > 500_000
        assert httpx2.get(server.url).json() == ["GET", 0]
    assert len(server.requests) == 1


def test_waits_are_between_the_chunks() -> None:
    with Echo() as server:
        begin = time.monotonic()
        assert httpx2.get(f"{server.url}/slow").text == "ab"
        assert time.monotonic() - begin >= 0.14


def test_a_client_that_disconnects_is_counted_and_does_not_block_the_server() -> None:
    with Echo() as server:
        with httpx2.stream("GET", f"{server.url}/for-ever") as answer:
            assert next(answer.iter_raw()) == b"a"
        deadline = time.monotonic() + 20
        while not server.closed_by_client and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (server.closed_by_client, server.open_connections) == (1, 0)


def test_an_open_stream_ends_with_the_server() -> None:
    with httpx2.Client() as client:
        with Echo() as server:
            stream = client.stream("GET", f"{server.url}/for-ever")
            chunks = stream.__enter__().iter_raw()
            assert next(chunks) == b"a"
        with pytest.raises(httpx2.RemoteProtocolError):
            next(chunks)
        stream.__exit__(None, None, None)
    assert not server._thread.is_alive()


def test_a_bug_of_the_answering_function_is_raised_at_the_end() -> None:
    with (
        pytest.raises(LookupError, match="a bug"),
        Echo() as server,
        pytest.raises(httpx2.RemoteProtocolError),
    ):
        httpx2.get(f"{server.url}/fail")


def test_a_port_may_be_chosen_and_may_be_taken() -> None:
    with Echo() as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(OSError), Echo(port=port):
            pass
    with Echo(port=port) as again:
        assert again.url == server.url


async def test_it_opens_and_closes_in_a_loop_without_holding_it_up() -> None:
    async def beat() -> int:
        count = 0
        while True:
            count += 1
            await asyncio.sleep(0)

    beating = asyncio.ensure_future(beat())
    async with Echo() as server, httpx2.AsyncClient() as client:
        assert (await client.get(server.url)).json() == ["GET", 0]
    beating.cancel()
    assert not server._thread.is_alive()


def test_a_listener_of_nothing_says_so() -> None:
    with (
        pytest.raises(NotImplementedError),
        Listener() as server,
        pytest.raises(httpx2.RemoteProtocolError),
    ):
        httpx2.get(server.url)
