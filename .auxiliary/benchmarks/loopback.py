"""A server on loopback that sends a pre-encoded stream and costs next to nothing itself.

`stream N` sends N chunks of text, each event as an HTTP chunk of its own, as the real server does;
`packed N` the same bytes in HTTP chunks of 16 KiB; `short` a reply of one word. The third argument
is the interface: `anthropic`, `chat`, `responses`, `ollama`, `gemini`, `bedrock`, or Azure's
`azure-chat` and `azure`; the fourth is the number of tokens that the reply says were read.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Iterable, Mapping
from typing import Any
from zlib import crc32

import msgspec

from vibe_llms.messages.canisters import Usage
from vibe_llms.testing.wires.anthropic import AnthropicWire
from vibe_llms.testing.wires.chat_completions import ChatCompletionsWire
from vibe_llms.testing.wires.core import AskedReply, Narrator, Wire
from vibe_llms.testing.wires.gemini import GeminiWire
from vibe_llms.testing.wires.ollama import OllamaWire
from vibe_llms.testing.wires.responses import ResponsesWire

SHOWN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
WIRES: dict[str, Wire] = {
    "anthropic": AnthropicWire(),
    "chat": ChatCompletionsWire(),
    "responses": ResponsesWire(),
    "ollama": OllamaWire(),
    "gemini": GeminiWire(),
}
#: Interfaces of OpenAI's on Azure.
AZURE = {"azure": "responses", "azure-chat": "chat"}
MIMETYPES = {
    "ollama": b"application/x-ndjson",
    "bedrock": b"application/vnd.amazon.eventstream",
}
#: What Azure's filters say of each text, and the padding against guesses of its words.
SAFE = {
    name: {"filtered": False, "severity": "safe"}
    for name in ("hate", "self_harm", "sexual", "violence")
}
PADDING = "abcdefghijk"
#: What a reply says was read: less than what is counted before it is sent.
READ_TOKENS = 30_000


def produce_events(interface: str, chunks: int, read: int) -> list[bytes]:
    """The events of a reply of so many chunks of text, as the fake server sends it."""
    if interface == "bedrock":
        return [*_encode_converse(chunks, read)]
    if interface in AZURE:
        return [*_add_filters(_narrate(AZURE[interface], chunks, read)[0])]
    return _narrate(interface, chunks, read)[0]


def produce_whole(interface: str, chunks: int, read: int) -> bytes:
    """The same reply as one object."""
    narrator = _narrate(interface, chunks, read)[1]
    return msgspec.json.encode(narrator.whole("finished"))


def _narrate(interface: str, chunks: int, read: int) -> tuple[list[bytes], Narrator]:
    asked = AskedReply(
        interface=interface,
        model="m",
        canisters=(),
        invokers=(),
        streaming=True,
        body={"stream_options": {"include_usage": True}, "store": False},
        label="1",
    )
    narrator = WIRES[interface].narrate(asked, Usage(read, output_tokens=chunks))
    words = [f"word{number} " for number in range(chunks)]
    # In this order: a narrator may begin with what was said before.
    begun = [*narrator.begin()]
    said = narrator.say(words, reasoning=False)
    return [*begun, *said, *narrator.end("finished")], narrator


def _encode_converse(chunks: int, read: int) -> Iterable[bytes]:
    """The messages of Bedrock's event stream, which the fake server does not speak."""
    yield _frame("messageStart", {"role": "assistant"})
    for number in range(chunks):
        yield _frame(
            "contentBlockDelta",
            {"contentBlockIndex": 0, "delta": {"text": f"word{number} "}, "p": PADDING},
        )
    yield _frame("contentBlockStop", {"contentBlockIndex": 0})
    yield _frame("messageStop", {"stopReason": "end_turn"})
    usage = {"inputTokens": read, "outputTokens": chunks, "totalTokens": read + chunks}
    yield _frame("metadata", {"usage": usage, "metrics": {"latencyMs": 7}})


def _frame(kind: str, body: Mapping[str, Any]) -> bytes:
    headers = {
        ":event-type": kind,
        ":content-type": "application/json",
        ":message-type": "event",
    }
    head = b"".join(
        bytes([len(name)]) + name.encode() + struct.pack("!BH", 7, len(value)) + value.encode()
        for name, value in headers.items()
    )
    payload = msgspec.json.encode(body)
    start = struct.pack("!II", len(head) + len(payload) + 16, len(head))
    data = start + struct.pack("!I", crc32(start)) + head + payload
    return data + struct.pack("!I", crc32(data))


def _add_filters(events: Iterable[bytes]) -> Iterable[bytes]:
    """The events of OpenAI's interfaces as Azure sends them."""
    for event in events:
        head, _, data = event.partition(b"data: ")
        if data[:1] != b"{":
            yield event
            continue
        body = msgspec.json.decode(data)
        for choice in body.get("choices", ()):
            choice["content_filter_results"] = SAFE if choice["delta"].get("content") else {}
        if "choices" in body or body["type"].endswith(".delta"):
            body["obfuscation"] = PADDING
        yield head + b"data: " + msgspec.json.encode(body) + b"\n\n"


def produce_answer(kind: str, chunks: int, interface: str, read: int) -> bytes:
    events = produce_events(interface, chunks, read)
    if kind == "packed":
        whole = b"".join(events)
        events = [whole[start : start + 16384] for start in range(0, len(whole), 16384)]
    mimetype = MIMETYPES.get(interface, b"text/event-stream")
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n" % mimetype
    return head + b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in events) + b"0\r\n\r\n"


async def serve(answer: bytes) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = 0
                for line in head.split(b"\r\n"):
                    name, _, value = line.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                await reader.readexactly(length)
                writer.write(SHOWN if head.startswith(b"POST /api/show") else answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=2**26)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    defaults = ("", "1", "anthropic", str(READ_TOKENS))
    kind, number, interface, read = [*sys.argv[1:], *defaults[len(sys.argv) - 1 :]]
    asyncio.run(serve(produce_answer(kind, int(number), interface, int(read))))
