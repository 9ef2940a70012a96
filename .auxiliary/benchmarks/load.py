"""A client that costs little itself: requests over open connections, and what came back in time.

    python load.py ORDER      one JSON object, see `Order`; prints another, see `Load`

The text of every reply is compared with what the provider said.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_END = b"0\r\n\r\n"


class Order(Struct, kw_only=True, omit_defaults=True):
    """`body` is sent over each connection, again and again; `#` in it becomes a new number.

    `member` is where the text is, a piece or the whole. It ends after so many `requests` or
    `seconds`.
    """

    url: str
    path: str
    body: str
    member: str
    text: str
    connections: int
    requests: int = 10**9
    seconds: float = 10**9
    #: The connections begin one after the other within so many seconds.
    spread_seconds: float = 0


class Load(Struct, kw_only=True):
    """What came back: sorted seconds of whole replies, and until their first text."""

    seconds: float
    replies: int
    wrong: int
    taken: list[float]
    firsts: list[float]

    @property
    def rate(self) -> float:
        return self.replies / self.seconds


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, load: Loading) -> None:
        self._load = load
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def ask(self, request: bytes) -> asyncio.Future[None]:
        self._parts: list[bytes] = []
        self._read, self._whole, self._first = 0, -1, 0.0
        self._begun = time.perf_counter()
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._done

    def data_received(self, data: bytes) -> None:
        if not self._parts and (found := _LENGTH.search(data)):
            self._whole = data.index(b"\r\n\r\n") + 4 + int(found[1])
        self._parts.append(data)
        self._read += len(data)
        if not self._first and b"word0" in data:
            self._first = time.perf_counter()
        if self._read == self._whole or (self._whole < 0 and data.endswith(_END)):
            self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._load.wrong += 1
            self._done.set_result(None)

    def _finish(self) -> None:
        assert self._done is not None
        now = time.perf_counter()
        self._load.count(now - self._begun, self._first - self._begun, b"".join(self._parts))
        self._done.set_result(None)


class Loading:
    """The work of an order."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._text = order.text.encode()
        self._pieces = re.compile(rb'"%b": *"((?:word\d+ )+)"' % order.member.encode())
        before, _, after = order.body.encode().partition(b"#")
        host = urlsplit(order.url).netloc
        self._head = (
            f"POST {order.path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer k\r\ncontent-length: {len(before + after) + 9}\r\n\r\n"
        ).encode() + before
        self._tail = after
        self._number = 0
        self.wrong = 0
        self._taken: list[float] = []
        self._firsts: list[float] = []

    def count(self, taken: float, first: float, reply: bytes) -> None:
        self._taken.append(taken)
        self._firsts.append(first)
        if b"".join(self._pieces.findall(reply)) != self._text:
            self.wrong += 1
            if self.wrong == 1:
                print(reply[:4000].decode("utf-8", "replace"), file=sys.stderr)

    async def run(self) -> Load:
        address = urlsplit(self._order.url)
        host, port = address.hostname or "", address.port or 0
        loop = asyncio.get_running_loop()
        connections = [
            (await loop.create_connection(lambda: Connection(self), host, port))
            for _ in range(self._order.connections)
        ]
        begun = time.perf_counter()
        until = begun + self._order.seconds
        apart = self._order.spread_seconds / len(connections)
        await asyncio.gather(
            *(self._ask(one, until, number * apart) for number, (_, one) in enumerate(connections))
        )
        seconds = time.perf_counter() - begun
        for transport, _ in connections:
            transport.close()
        return Load(
            seconds=seconds,
            replies=len(self._taken),
            wrong=self.wrong,
            taken=sorted(self._taken),
            firsts=sorted(self._firsts),
        )

    async def _ask(self, connection: Connection, until: float, wait: float) -> None:
        await asyncio.sleep(wait)
        while self._number < self._order.requests and time.perf_counter() < until:
            self._number += 1
            await connection.ask(b"%b%09d%b" % (self._head, self._number, self._tail))
            if connection.transport.is_closing():
                return


def quantile(values: Sequence[float], share: float) -> float:
    """A value that such a share of some sorted values does not exceed."""
    return values[min(len(values) - 1, int(len(values) * share))]


if __name__ == "__main__":
    order = msgspec.json.decode(sys.argv[1], type=Order)
    print(msgspec.json.encode(asyncio.run(Loading(order).run())).decode())
