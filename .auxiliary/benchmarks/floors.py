"""The floors: what httpx2 and msgspec cost alone, with typed events and nothing around them."""

from __future__ import annotations

import struct
from typing import Any

import httpx2
import msgspec
from msgspec import Struct

_SIZES = struct.Struct("!II")


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


class ChatDelta(Struct):
    content: str | None = None


class Choice(Struct):
    delta: ChatDelta
    finish_reason: str | None = None


class Chunk(Struct):
    choices: list[Choice]
    usage: dict[str, Any] | None = None


class ResponseDelta(Struct, tag_field="type", tag="response.output_text.delta"):
    output_index: int
    delta: str


class ResponseCompleted(Struct, tag_field="type", tag="response.completed"):
    response: dict[str, Any]


class Message(Struct):
    content: str


class Line(Struct):
    message: Message
    done: bool


class Part(Struct):
    text: str | None = None


class Content(Struct):
    parts: list[Part]


class Candidate(Struct):
    content: Content


class GeminiChunk(Struct):
    candidates: list[Candidate]


class ConverseDelta(Struct):
    text: str


class ContentDelta(Struct, rename="camel"):
    content_block_index: int
    delta: ConverseDelta


DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    "anthropic": msgspec.json.Decoder(Event),
    "chat": msgspec.json.Decoder(Chunk),
    "responses": msgspec.json.Decoder(ResponseDelta | ResponseCompleted),
    "ollama": msgspec.json.Decoder(Line),
    "gemini": msgspec.json.Decoder(GeminiChunk),
    "bedrock": msgspec.json.Decoder(ContentDelta),
}
DECODERS |= {"azure": DECODERS["responses"], "azure-chat": DECODERS["chat"]}


async def read_stream(
    client: httpx2.AsyncClient, url: str, body: bytes = b"{}", interface: str = "anthropic"
) -> int:
    """Send a body, decode every event of the reply; gives their number."""
    if interface == "bedrock":
        return await _read_messages(client, url, body)
    rest = b""
    count = 0
    decode = DECODERS[interface].decode
    separator = b"\n" if interface == "ollama" else b"\n\n"
    async with client.stream("POST", f"{url}/v1/messages", content=body) as response:
        async for chunk in response.aiter_raw():
            *events, rest = (rest + chunk).split(separator)
            for event in events:
                data = event if event[:1] == b"{" else event[event.index(b"data: ") + 6 :]
                try:
                    decode(data)
                except msgspec.DecodeError:
                    # An event of another kind, or `[DONE]`.
                    if data[:1] == b"{":
                        msgspec.json.decode(data)
                count += 1
    return count


async def _read_messages(client: httpx2.AsyncClient, url: str, body: bytes) -> int:
    """The same of a binary event stream, whose checksums are left."""
    rest = b""
    count = 0
    decode = DECODERS["bedrock"].decode
    async with client.stream("POST", f"{url}/model/m/converse-stream", content=body) as response:
        async for chunk in response.aiter_raw():
            rest += chunk
            place = 0
            while len(rest) - place >= 12:
                size, head = _SIZES.unpack_from(rest, place)
                if len(rest) - place < size:
                    break
                payload = rest[place + 12 + head : place + size - 4]
                try:
                    decode(payload)
                except msgspec.DecodeError:
                    msgspec.json.decode(payload)
                count += 1
                place += size
            rest = rest[place:]
    return count
