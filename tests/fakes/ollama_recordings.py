"""Recorded streams of Ollama's, what the official package reads in them, and what we do.

Both readings are plain data, so that they can be compared: the blocks in order, and the ending.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ollama import ChatResponse

from tests.fakes.ollama import MODEL, gather
from vibe_llms.events import Event
from vibe_llms.messages.canisters import InvocationCanister, Provenance, ReplyCanister
from vibe_llms.messages.contents import ReasoningContent, TextualContent
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.ollama.messages import MODULE
from vibe_llms.providers.ollama.streams import OllamaAssimilator

FOLDER = Path(__file__).parent.parent / "data" / "ollama"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.ndjson")))
PROVENANCE = Provenance(MODULE, "ollama", MODEL)


@cache
def load(name: str) -> bytes:
    """The bytes of a recorded stream."""
    return (FOLDER / f"{name}.ndjson").read_bytes()


@cache
def read_lines(name: str) -> Sequence[dict[str, Any]]:
    """The lines of a recorded stream, by a reader of our own that wants all of it at once."""
    return [json.loads(line) for line in load(name).decode().split("\n") if line.strip()]


def read_whole(name: str) -> dict[str, Any]:
    """The reply that the server gives where it is not asked to stream."""
    return gather(read_lines(name))


def find_end(name: str) -> int:
    """The number of bytes of a recorded stream with which its reply is complete."""
    return len(load(name).rstrip(b"\r\n"))


def assimilate(
    chunks: Iterable[bytes], *, whole: bool = False
) -> tuple[tuple[ReplyCanister, ...], list[Event]]:
    """The canisters and the events of a stream in chunks, or of a whole body."""
    events: list[Event] = []
    assimilator = OllamaAssimilator("ollama", str)
    accumulator = Accumulator(PROVENANCE, events.append)
    with accumulator:
        for chunk in chunks:
            deltas = assimilator.assimilate(chunk) if whole else assimilator.feed(chunk)
            for delta in deltas:
                accumulator.accept(delta)
        if not whole:
            for delta in assimilator.conclude():
                accumulator.accept(delta)
    return accumulator.canisters, events


def read_officially(lines: Iterable[dict[str, Any]]) -> list[Any]:
    """The lines of a stream, or the only one of a whole reply, as the official package reads them.

    Its decoder keeps no identity of a call.
    """
    blocks: list[Any] = []
    ending: Any = None
    for line in lines:
        response = ChatResponse(**line)
        message = response.message
        for kind, text in (("thinking", message.thinking), ("text", message.content)):
            if text and blocks and blocks[-1][0] == kind:
                blocks[-1] = (kind, blocks[-1][1] + text)
            elif text:
                blocks.append((kind, text))
        for call in message.tool_calls or ():
            blocks.append(("call", call.function.name, dict(call.function.arguments)))
        if response.done:
            tokens = (response.prompt_eval_count or 0, response.eval_count or 0)
            ending = (response.done_reason or "", tokens)
    return [blocks, ending]


def read_canisters(canisters: Sequence[ReplyCanister]) -> list[Any]:
    """A reply of ours as plain data."""
    blocks: list[Any] = []
    for canister in canisters:
        if isinstance(canister, InvocationCanister):
            blocks.append(("call", canister.name, canister.parsed))
            continue
        for content in canister.contents:
            match content:
                case TextualContent(text=text):
                    blocks.append(("text", text))
                case ReasoningContent(text=text):
                    blocks.append(("thinking", text))
    ending = canisters[-1].ending
    assert ending is not None
    assert ending.usage is not None
    tokens = (ending.usage.input_tokens, ending.usage.output_tokens)
    return [blocks, (ending.native_reason, tokens)]
