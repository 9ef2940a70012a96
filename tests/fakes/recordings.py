"""Recorded streams of Anthropic's, what the official package reads in them, and what we do.

Both readings are plain data, so that they can be compared: the blocks in order, and the ending.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from tests.fakes.anthropic import accumulate
from tests.fakes.server import End
from vibe_llms.events import Event
from vibe_llms.exceptions import ReplyCut
from vibe_llms.messages.canisters import (
    AssistantCanister,
    InvocationCanister,
    Provenance,
    ReplyCanister,
    StopReason,
)
from vibe_llms.messages.contents import (
    NativeContent,
    NativePayload,
    ReasoningContent,
    TextualContent,
    repair_text,
)
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.anthropic.messages import MODULE
from vibe_llms.providers.anthropic.streams import AnthropicAssimilator
from vibe_llms.providers.transport import Incoming, Outgoing

FOLDER = Path(__file__).parent.parent / "data" / "anthropic"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.sse")))
MODEL = "claude-opus-5"
PROVENANCE = Provenance(MODULE, "anthropic", MODEL)

#: Stop reasons that mean that the last block was cut.
_CUTTING = ("max_tokens", "refusal")


@cache
def load(name: str) -> bytes:
    """The bytes of a recorded stream."""
    return (FOLDER / f"{name}.sse").read_bytes()


@cache
def read_events(name: str) -> Sequence[dict[str, Any]]:
    """The events of a recorded stream, by a reader of our own that wants all of it at once."""
    text = load(name).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    events = []
    for block in text.split("\n\n"):
        data = [line[5:] for line in block.split("\n") if line.startswith("data:")]
        if data:
            events.append(json.loads("\n".join(data)))
    return events


@cache
def read_message(name: str) -> dict[str, Any]:
    """The message that the official package accumulates from a recorded stream."""
    return accumulate(read_events(name))


def find_end(name: str) -> int:
    """The number of bytes of a recorded stream with which its reply is complete."""
    raw = load(name)
    # The CR of the last CRLF ends the line already.
    return len(raw) - raw.endswith(b"\r\n")


class ReplayTransport:
    """Plays a stream back without a socket: in pieces of a size, and only so many bytes of it."""

    def __init__(
        self, raw: bytes, size: int, *, cut: int | None = None, end: End = "clean", kind: str = ""
    ) -> None:
        self.raw, self.size, self.cut, self.end = raw, size, cut, end
        self.kind = kind or "text/event-stream"

    def prepare(self) -> None:
        pass

    @asynccontextmanager
    async def open(self, outgoing: Outgoing, body: AsyncIterator[bytes]) -> AsyncIterator[Incoming]:
        async for _ in body:
            pass
        yield Incoming(200, {"content-type": self.kind}, self._play())

    async def close(self) -> None:
        pass

    async def _play(self) -> AsyncIterator[bytes]:
        raw = self.raw[: self.cut]
        for start in range(0, len(raw), self.size):
            yield raw[start : start + self.size]
        if self.end != "clean":
            raise ReplyCut("connection lost during the reply", provider="anthropic")


def assimilate(
    chunks: Iterable[bytes], *, whole: bool = False
) -> tuple[tuple[ReplyCanister, ...], list[Event]]:
    """The canisters and the events of a stream in chunks, or of a whole body."""
    events: list[Event] = []
    assimilator = AnthropicAssimilator("anthropic", lambda name: name)
    accumulator = Accumulator(PROVENANCE, events.append)
    with accumulator:
        for chunk in chunks:
            deltas = assimilator.assimilate(chunk) if whole else assimilator.feed(chunk)
            for delta in deltas:
                accumulator.accept(delta)
        if not whole:
            list(assimilator.conclude())
    return accumulator.canisters, events


def read_officially(message: dict[str, Any]) -> list[Any]:
    """A message of the official package's as plain data."""
    blocks: list[Any] = []
    for item in message["content"]:
        match item["type"]:
            case "text" if item["text"] or item.get("citations"):
                blocks.append(("text", repair_text(item["text"]), item.get("citations") or []))
            case "text":
                pass
            case "thinking":
                blocks.append(("thinking", repair_text(item["thinking"]), item["signature"]))
            case "tool_use":
                extra = {k: v for k, v in item.items() if k in ("caller", "toolset_name")}
                blocks.append(("call", item["id"], item["name"], item["input"], extra))
            case _:
                blocks.append(("native", item))
    severed: tuple[str, ...] = ()
    if message["stop_reason"] in _CUTTING and blocks and blocks[-1][0] == "call":
        severed = (blocks.pop()[2],)
    usage = message["usage"]
    thought = (usage.get("output_tokens_details") or {}).get("thinking_tokens", 0)
    tokens = (
        usage["input_tokens"],
        usage["cache_read_input_tokens"],
        usage["cache_creation_input_tokens"],
        usage["output_tokens"] - thought,
        thought,
    )
    details = message.get("stop_details") or {}
    said = ": ".join(details[name] for name in ("category", "explanation") if details.get(name))
    detail = said or message["stop_sequence"] or ""
    return [message["id"], blocks, message["stop_reason"], severed, detail, tokens]


def read_canisters(canisters: Sequence[ReplyCanister]) -> list[Any]:
    """A reply of ours as plain data."""
    blocks: list[Any] = []
    for canister in canisters:
        if isinstance(canister, InvocationCanister):
            native = _decode(canister.native)
            blocks.append(("call", canister.call, canister.name, canister.parsed, native))
            continue
        for content in canister.contents:
            native = _decode(content.native)
            match content:
                case TextualContent(text=text):
                    blocks.append(("text", text, native.get("citations", [])))
                case ReasoningContent(text=text) if "type" not in native:
                    blocks.append(("thinking", text, native["signature"]))
                case ReasoningContent() | NativeContent():
                    blocks.append(("native", native))
    last = canisters[-1]
    assert last.provenance is not None
    assert last.ending is not None
    assert last.ending.usage is not None
    usage = last.ending.usage
    tokens = (
        usage.uncached_input_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
    )
    ending = last.ending
    return [
        last.provenance.response,
        blocks,
        ending.native_reason,
        ending.severed,
        ending.detail,
        tokens,
    ]


def _decode(native: NativePayload | None) -> dict[str, Any]:
    members: dict[str, Any] = json.loads(bytes(native.data)) if native else {}
    return members


def strip(canisters: Iterable[ReplyCanister], *, parsed: bool = False) -> list[Any]:
    """Canisters without what may differ between two of the same reply: identities and times.

    Native payloads count as they are read. With `parsed` the arguments do so too.
    """
    stripped: list[Any] = []
    for canister in canisters:
        where = (canister.reply != "", canister.provenance, canister.ending)
        if isinstance(canister, AssistantCanister):
            contents = [
                (msgspec.structs.replace(content, native=None), _decode(content.native))
                for content in canister.contents
            ]
            stripped.append((contents, *where))
        else:
            arguments = canister.parsed if parsed else canister.arguments
            native = _decode(canister.native)
            stripped.append((canister.name, canister.call, arguments, native, *where))
    return stripped


def is_cut(canister: ReplyCanister) -> bool:
    """Whether a canister is marked as what arrived of a reply that was cut."""
    ending = canister.ending
    return ending is not None and ending.interrupted and ending.reason == StopReason.FAILED
