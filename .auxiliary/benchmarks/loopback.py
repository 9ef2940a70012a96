"""A server on loopback that sends a pre-encoded stream and costs next to nothing itself.

`stream N` sends N chunks of text, each event as an HTTP chunk of its own, as the real server does;
`packed N` the same bytes in HTTP chunks of 16 KiB; `short` a reply of one word. The third argument
is the interface: `anthropic`, `chat`, `responses` or `ollama`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

SHOWN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


def encode(event: Mapping[str, Any]) -> bytes:
    data = json.dumps(event, separators=(",", ":"))
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {data}\n\n".encode()


def produce_chat(chunks: int) -> list[bytes]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}

    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return encode({**head, "choices": [choice], "usage": None})

    usage = {"prompt_tokens": 20, "completion_tokens": chunks, "total_tokens": 20 + chunks}
    return [
        chunk({"role": "assistant", "content": "", "refusal": None}),
        *(chunk({"content": f"word{number} "}) for number in range(chunks)),
        chunk({}, "stop"),
        encode({**head, "choices": [], "usage": usage}),
        b"data: [DONE]\n\n",
    ]


def produce_response(chunks: int) -> list[bytes]:
    texts = [f"word{number} " for number in range(chunks)]
    part = {"type": "output_text", "text": "".join(texts), "annotations": [], "logprobs": []}
    item: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant"}
    item |= {"status": "completed", "content": [part]}
    details = {"cached_tokens": 0, "cache_write_tokens": 0}
    usage = {"input_tokens": 20, "input_tokens_details": details, "output_tokens": chunks}
    usage |= {"output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 20 + chunks}
    whole: dict[str, Any] = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m"}
    whole |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    begun = {**whole, "status": "in_progress", "output": []}
    ended = {**whole, "status": "completed", "output": [item], "usage": usage}
    added = {**item, "status": "in_progress", "content": []}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": added},
        {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
        *(
            {"type": "response.output_text.delta", **place, "delta": text, "logprobs": []}
            for text in texts
        ),
        {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": ended},
    ]
    return [encode({**event, "sequence_number": n}) for n, event in enumerate(events)]


def produce_anthropic(chunks: int) -> list[bytes]:
    usage = {"input_tokens": 20, "output_tokens": 1}
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    opened = {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    ended = {"stop_reason": "end_turn", "stop_sequence": None}
    events: list[Mapping[str, Any]] = [{"type": "message_start", "message": message}, opened]
    events += [
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": f"word{number} "},
        }
        for number in range(chunks)
    ]
    events += [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ended, "usage": {"output_tokens": chunks}},
        {"type": "message_stop"},
    ]
    return [encode(event) for event in events]


def produce_lines(chunks: int) -> list[bytes]:
    told = {"model": "m", "created_at": "2026-11-22T06:00:00.123456789Z"}
    lines: list[Mapping[str, Any]] = [
        {**told, "message": {"role": "assistant", "content": f"word{number} "}, "done": False}
        for number in range(chunks)
    ]
    ending = {"done": True, "done_reason": "stop", "prompt_eval_count": 30_000, "eval_count": 9}
    lines.append({**told, "message": {"role": "assistant", "content": ""}, **ending})
    return [json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines]


PRODUCERS = {
    "anthropic": produce_anthropic,
    "chat": produce_chat,
    "responses": produce_response,
    "ollama": produce_lines,
}


def produce_answer(kind: str, chunks: int, interface: str) -> bytes:
    events = PRODUCERS[interface](chunks)
    if kind == "packed":
        whole = b"".join(events)
        events = [whole[start : start + 16384] for start in range(0, len(whole), 16384)]
    mimetype = b"application/x-ndjson" if interface == "ollama" else b"text/event-stream"
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
    kind, number, interface = [*sys.argv[1:], *("", "1", "anthropic")[len(sys.argv) - 1 :]]
    asyncio.run(serve(produce_answer(kind, int(number), interface)))
