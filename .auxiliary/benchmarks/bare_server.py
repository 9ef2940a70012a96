"""The floor of a served request: uvicorn, msgspec, and a connection that stays open to a provider.

    python bare_server.py PORT URL      Chat Completions before a provider at this address

It gives whole replies alone: it decodes, asks, decodes and encodes, and checks nothing.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any
from urllib.parse import urlsplit

import msgspec
import uvicorn


class Upstream(asyncio.Protocol):
    """A connection to the provider; one request at a time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self, request: bytes) -> asyncio.Future[bytes]:
        self._read = b""
        self._done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._done

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, blank, body = self._read.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]
        if blank and len(body) >= int(length):
            self._done.set_result(body)


class BareServer:
    """An ASGI application."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._idle: list[Upstream] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message["body"]
            if not message["more_body"]:
                break
        answer = await self._answer(body) if scope["method"] == "POST" else b"ready"
        head = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(answer)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": answer})

    async def _answer(self, body: bytes) -> bytes:
        asked = msgspec.json.decode(body)
        model = asked["model"]
        said = msgspec.json.encode({"model": model, "messages": asked["messages"], "stream": False})
        upstream = self._idle.pop() if self._idle else await self._connect()
        reply = await upstream.ask(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(said), said)
        )
        self._idle.append(upstream)
        text = msgspec.json.decode(reply)["choices"][0]["message"]["content"]
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return msgspec.json.encode(
            {"id": "1", "object": "chat.completion", "model": model, "choices": [choice]}
        )

    async def _connect(self) -> Upstream:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(Upstream, self._host, self._port))[1]


if __name__ == "__main__":
    uvicorn.run(
        BareServer(sys.argv[2]),
        port=int(sys.argv[1]),
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="critical",
    )
