"""The floors: what httpx2 and msgspec cost alone, with typed events and nothing around them."""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec
from msgspec import Struct


class TextDelta(Struct, tag_field="type", tag="text_delta"):
    text: str


class BlockDelta(Struct, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta


class MessageStart(Struct, tag_field="type", tag="message_start"):
    message: dict[str, Any]


class BlockStart(Struct, tag_field="type", tag="content_block_start"):
    index: int


class BlockStop(Struct, tag_field="type", tag="content_block_stop"):
    index: int


class MessageDelta(Struct, tag_field="type", tag="message_delta"):
    usage: dict[str, Any]


class MessageStop(Struct, tag_field="type", tag="message_stop"):
    pass


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


async def read_stream(client: httpx2.AsyncClient, url: str, body: bytes = b"{}") -> int:
    """Send a body, decode every event of the reply; gives their number."""
    rest = b""
    count = 0
    async with client.stream("POST", f"{url}/v1/messages", content=body) as response:
        async for chunk in response.aiter_raw():
            *events, rest = (rest + chunk).split(b"\n\n")
            for event in events:
                DECODER.decode(event[event.index(b"data: ") + 6 :])
                count += 1
    return count


class Message(Struct):
    content: str


class Line(Struct):
    message: Message
    done: bool


LINES = msgspec.json.Decoder(Line)


async def read_lines(client: httpx2.AsyncClient, url: str, body: bytes = b"{}") -> int:
    """The same for a stream of Ollama's."""
    rest = b""
    count = 0
    async with client.stream("POST", f"{url}/api/chat", content=body) as response:
        async for chunk in response.aiter_raw():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                LINES.decode(line)
                count += 1
    return count
