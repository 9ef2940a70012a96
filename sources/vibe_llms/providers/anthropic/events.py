"""What Anthropic's stream is made of: its events, and the steps that a block grows by, typed.

Source: the event types of anthropic 2.12.0, `types/raw_message_stream_event.py`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import Raw, Struct


class TextStep(Struct, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class JsonStep(Struct, tag_field="type", tag="input_json_delta"):
    """More of a call's arguments."""

    partial_json: str


class ThinkingStep(Struct, tag_field="type", tag="thinking_delta"):
    """More thinking."""

    thinking: str


class SignatureStep(Struct, tag_field="type", tag="signature_delta"):
    """The signature of the thinking."""

    signature: str


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
    """A whole message, or its beginning."""

    type: str = ""
    id: str = ""
    content: list[Raw] = []
    usage: MessageUsage | None = None


class MessageStart(Struct, tag_field="type", tag="message_start"):
    """The message begins."""

    message: Message


class BlockStart(Struct, tag_field="type", tag="content_block_start"):
    """A block begins; some carry content already."""

    index: int
    content_block: Raw


class BlockDelta(Struct, tag_field="type", tag="content_block_delta"):
    """A block grows."""

    index: int
    delta: BlockStep


class BlockStop(Struct, tag_field="type", tag="content_block_stop"):
    """A block is complete."""

    index: int


class MessageDelta(Struct, tag_field="type", tag="message_delta"):
    """How the message ends, and what it used."""

    delta: Ending
    usage: MessageUsage | None = None


class MessageStop(Struct, tag_field="type", tag="message_stop"):
    """The message is complete: the only mark of a whole reply."""


class Ping(Struct, tag_field="type", tag="ping"):
    """The server is still there."""


class StreamError(Struct, tag_field="type", tag="error"):
    """The reply failed after it had begun; see `find_error` for the forms of errors."""


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
EVENT_TYPE: Any = StreamEvent
WHOLE = msgspec.json.Decoder(Message)
KINDS = frozenset(event.__struct_config__.tag for event in StreamEvent.__args__)
STEP_KINDS = frozenset(delta.__struct_config__.tag for delta in BlockStep.__args__)


class BlockHead(Struct):
    """What a block may begin with."""

    text: str = ""
    thinking: str = ""
    signature: str = ""
    id: str = ""
    name: str = ""
    input: Raw = Raw(b"{}")
    citations: list[Raw] | None = None


class EventKind(Struct):
    """The type of an event or block, whatever it is."""

    type: str


HEAD = msgspec.json.Decoder(BlockHead)
KIND = msgspec.json.Decoder(EventKind)
MEMBERS = msgspec.json.Decoder(dict[str, Raw])
UNDERSTOOD = frozenset({"text", "thinking", "tool_use"})
