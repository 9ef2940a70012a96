"""A provider on loopback for the server and for other proxies: Chat Completions, in one process.

The model of a request says how it is answered: `short` with one word, `late` with one word after
half a second, `long` with so many chunks of text, `paced` with the same chunks, one each tenth of
a second. In a stream, each chunk of text is an HTTP chunk.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec
from loopback import READ_TOKENS, produce_events, produce_whole
from msgspec import Struct

LATE_SECONDS = 0.5
PACE_SECONDS = 0.1
MODELS = ("short", "late", "long", "paced")
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n"


class Request(Struct):
    model: str
    stream: bool = False


class Reply:
    """A reply, encoded once: as a stream and whole."""

    def __init__(self, chunks: int) -> None:
        events = produce_events("chat", chunks, READ_TOKENS)
        parts = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
        self.head = _HEAD % b"text/event-stream" + b"transfer-encoding: chunked\r\n\r\n"
        self.parts = [*parts[:-1], parts[-1] + b"0\r\n\r\n"]
        self.stream = self.head + b"".join(self.parts)
        whole = produce_whole("chat", chunks, READ_TOKENS)
        length = b"content-length: %d\r\n\r\n" % len(whole)
        self.whole = _HEAD % b"application/json" + length + whole


class Upstream(asyncio.Protocol):
    """One connection; the next request on it comes after the reply."""

    def __init__(self, short: Reply, long: Reply) -> None:
        self._short = short
        self._long = long
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, blank, body = self._read.partition(b"\r\n\r\n")
        _, _, length = head.lower().partition(b"content-length:")
        if not blank or len(body) < int(length.split(b"\r\n", 1)[0] or 0):
            return
        self._read = b""
        if not head.startswith(b"POST"):
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        request = msgspec.json.decode(body, type=Request)
        if request.model == "paced":
            self._transport.write(self._long.head)
            self._pace(0)
            return
        reply = self._long if request.model == "long" else self._short
        answer = reply.stream if request.stream else reply.whole
        if request.model == "late":
            asyncio.get_running_loop().call_later(LATE_SECONDS, self._transport.write, answer)
        else:
            self._transport.write(answer)

    def _pace(self, number: int) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(self._long.parts[number])
        if number + 1 < len(self._long.parts):
            asyncio.get_running_loop().call_later(PACE_SECONDS, self._pace, number + 1)


async def serve(chunks: int) -> None:
    short, long = Reply(1), Reply(chunks)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Upstream(short, long), "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
