"""Typed events of Anthropic's stream, and the steps by which a block grows.

Source: the event types of anthropic 2.12.0, `types/raw_message_stream_event.py`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import Raw, Struct


class TextStep(Struct, tag_field="type", tag="text_delta"):
    """More text."""

    text: str | None


class JsonStep(Struct, tag_field="type", tag="input_json_delta"):
    """More of a call's arguments."""

    partial_json: str | None = None


class ThinkingStep(Struct, tag_field="type", tag="thinking_delta"):
    """More thinking."""

    thinking: str | None


class SignatureStep(Struct, tag_field="type", tag="signature_delta"):
    """The signature of the thinking."""

    signature: str | None = None


class CitationStep(Struct, tag_field="type", tag="citations_delta"):
    """A citation of the text so far."""

    citation: Raw


BlockStep: TypeAlias = TextStep | JsonStep | ThinkingStep | SignatureStep | CitationStep


class OutputTokens(Struct):
    """Breakdown of the output tokens."""

    thinking_tokens: int | None = None


class CacheCreation(Struct):
    """Tokens written to the cache for an hour."""

    ephemeral_1h_input_tokens: int | None = None


class IterationUsage(Struct):
    """Token counts of one step of a reply."""

    type: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation: CacheCreation | None = None


class MessageUsage(IterationUsage):
    """Token counts so far; they do not include `iterations` that summarize the conversation."""

    output_tokens_details: OutputTokens | None = None
    iterations: list[IterationUsage] | None = None


class StopDetails(Struct):
    """Reason for a refusal."""

    category: str | None = None
    explanation: str | None = None


class MessageEnding(Struct):
    """End of a message."""

    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: StopDetails | None = None


class Message(MessageEnding):
    """A whole message or its beginning; `error` is set instead if the request failed."""

    type: str | None = None
    id: str | None = None
    content: list[Raw] | None = None
    usage: MessageUsage | None = None
    error: Raw = Raw(b"null")


class MessageStart(Struct, tag_field="type", tag="message_start"):
    """Beginning of a message."""

    message: Message | None = None


class BlockStart(Struct, kw_only=True, tag_field="type", tag="content_block_start"):
    """Beginning of a block, sometimes with content."""

    index: int | None = None
    content_block: Raw


class BlockDelta(Struct, kw_only=True, tag_field="type", tag="content_block_delta"):
    """Step of a block."""

    index: int | None = None
    delta: BlockStep


class BlockStop(Struct, tag_field="type", tag="content_block_stop"):
    """End of a block."""

    index: int | None = None


class AnthropicDelta(Struct, tag_field="type", tag="message_delta"):
    """End of the message, and its usage."""

    delta: MessageEnding | None = None
    usage: MessageUsage | None = None
    # Some servers omit the delta and send the reason here.
    stop_reason: str | None = None


class MessageStop(Struct, tag_field="type", tag="message_stop"):
    """Last event of a complete reply."""


class Ping(Struct, tag_field="type", tag="ping"):
    """Sign that the connection is alive."""


class StreamError(Struct, tag_field="type", tag="error"):
    """Error after the beginning of the reply."""


StreamEvent: TypeAlias = (
    MessageStart
    | BlockStart
    | BlockDelta
    | BlockStop
    | AnthropicDelta
    | MessageStop
    | Ping
    | StreamError
)
EVENT: msgspec.json.Decoder[StreamEvent] = msgspec.json.Decoder(StreamEvent)
WHOLE = msgspec.json.Decoder(Message)
BY_KIND: dict[str, type[Struct]] = {
    event.__struct_config__.tag: event for event in StreamEvent.__args__
}
STEPS: dict[str, type[Struct]] = {step.__struct_config__.tag: step for step in BlockStep.__args__}


class BlockHead(Struct):
    """Members that a block may begin with."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: Raw = Raw(b"null")
    citations: list[Raw] | None = None


HEAD = msgspec.json.Decoder(BlockHead)
MEMBERS = msgspec.json.Decoder(dict[str, Raw])
