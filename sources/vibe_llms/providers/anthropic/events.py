"""What Anthropic's stream is made of: its events, and the steps that a block grows by, typed.

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


class OutputDetails(Struct):
    """What the output tokens were spent on."""

    thinking_tokens: int | None = None


class MessageUsage(Struct):
    """Tokens, as far as they are counted yet."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens_details: OutputDetails | None = None


class StopDetails(Struct):
    """Why the model refused."""

    category: str | None = None
    explanation: str | None = None


class Ending(Struct):
    """How the message ended."""

    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: StopDetails | None = None


class Message(Ending):
    """A whole message, or its beginning; `error` instead where the request failed."""

    type: str | None = None
    id: str | None = None
    content: list[Raw] | None = None
    usage: MessageUsage | None = None
    error: Raw = Raw(b"null")


class MessageStart(Struct, tag_field="type", tag="message_start"):
    """The message begins."""

    message: Message | None = None


class BlockStart(Struct, kw_only=True, tag_field="type", tag="content_block_start"):
    """A block begins; some carry content already."""

    index: int | None = None
    content_block: Raw


class BlockDelta(Struct, kw_only=True, tag_field="type", tag="content_block_delta"):
    """A block grows."""

    index: int | None = None
    delta: BlockStep


class BlockStop(Struct, tag_field="type", tag="content_block_stop"):
    """A block is complete."""

    index: int | None = None


class MessageDelta(Struct, tag_field="type", tag="message_delta"):
    """How the message ends, and what it used."""

    delta: Ending | None = None
    usage: MessageUsage | None = None
    # Where a server leaves the delta out.
    stop_reason: str | None = None


class MessageStop(Struct, tag_field="type", tag="message_stop"):
    """The message is complete: the only mark of a whole reply."""


class Ping(Struct, tag_field="type", tag="ping"):
    """The server is still there."""


class StreamError(Struct, tag_field="type", tag="error"):
    """The reply failed after it had begun."""


StreamEvent: TypeAlias = (
    MessageStart
    | BlockStart
    | BlockDelta
    | BlockStop
    | MessageDelta
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
    """What a block may begin with."""

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
