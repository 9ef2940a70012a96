"""Typed events of ConverseStream, the reply of Converse, and their blocks.

Source: the shapes of `bedrock-runtime` (2023-09-30) in botocore 1.44. Members of a block or a delta
form a union: one of them is set.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType


class ReasoningStep(Struct, rename="camel"):
    """More reasoning: its text, its signature, or encrypted reasoning in base64."""

    text: str | None = None
    signature: str | None = None
    redacted_content: str | None = None


class ToolStep(Struct):
    """More of a call's arguments."""

    input: str | None = None


class ConverseBlockStep(Struct, rename="camel"):
    """Step of a block."""

    text: str | None = None
    tool_use: ToolStep | None = None
    reasoning_content: ReasoningStep | None = None
    citation: Raw | UnsetType = UNSET
    tool_result: list[Raw] | None = None
    image: Raw | UnsetType = UNSET


class ConverseBlockDelta(Struct, rename="camel"):
    """Step of the block at an index."""

    delta: ConverseBlockStep | None = None
    content_block_index: int | None = None


class ToolStart(Struct, rename="camel"):
    """Beginning of a call, or of a call that the server carries out."""

    tool_use_id: str | None = None
    name: str | None = None
    type: str | None = None


class ConverseBlockHead(Struct, rename="camel"):
    """Beginning of a block; text and reasoning have none."""

    tool_use: ToolStart | None = None
    tool_result: Raw | UnsetType = UNSET
    image: Raw | UnsetType = UNSET


class ConverseBlockStart(Struct, rename="camel"):
    """Beginning of the block at an index."""

    start: ConverseBlockHead | None = None
    content_block_index: int | None = None


class ConverseBlockStop(Struct, rename="camel"):
    """End of the block at an index."""

    content_block_index: int | None = None


class ConverseMessageStop(Struct, rename="camel"):
    """End of the message."""

    stop_reason: str | None = None
    additional_model_response_fields: Raw | UnsetType = UNSET


class CacheDetail(Struct, rename="camel"):
    """Tokens written to the cache for a duration."""

    ttl: str | None = None
    input_tokens: int | None = None


class TokenUsage(Struct, rename="camel"):
    """Token counts of a reply."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_write_input_tokens: int | None = None
    cache_details: list[CacheDetail] | None = None


class ConverseMetadata(Struct):
    """Usage of a reply, and the findings of a guardrail; it follows the end of the message."""

    usage: TokenUsage | None = None
    trace: Raw | UnsetType = UNSET


class ConverseEvent(Struct, rename="camel"):
    """Event of a stream; one of its members is set."""

    content_block_delta: ConverseBlockDelta | None = None
    content_block_start: ConverseBlockStart | None = None
    content_block_stop: ConverseBlockStop | None = None
    message_start: Raw | UnsetType = UNSET
    message_stop: ConverseMessageStop | None = None
    metadata: ConverseMetadata | None = None
    failure: Raw | UnsetType = UNSET


EVENT = msgspec.json.Decoder(ConverseEvent)


class ConverseMessage(Struct):
    """Message of a whole reply; the blocks are read one by one."""

    content: list[Raw] | None = None


class ConverseOutput(Struct):
    """Output of a whole reply."""

    message: ConverseMessage | None = None


class ConverseReply(ConverseMessageStop, rename="camel"):
    """Whole reply."""

    output: ConverseOutput | None = None
    usage: TokenUsage | None = None
    trace: Raw | UnsetType = UNSET


WHOLE = msgspec.json.Decoder(ConverseReply)


class ReasoningText(Struct):
    """Reasoning and its signature."""

    text: str | None = None
    signature: str | None = None


class ReasoningBlock(Struct, rename="camel"):
    """Reasoning of a whole reply."""

    reasoning_text: ReasoningText | None = None
    redacted_content: str | None = None


class ToolBlock(ToolStart):
    """Call of a whole reply."""

    input: Raw = Raw(b"null")


class CitedText(Struct):
    """Part of a cited text."""

    text: str | None = None


class CitedBlock(Struct):
    """Text with its sources."""

    content: list[CitedText] | None = None
    citations: list[Raw] | None = None


class WholeBlock(Struct, rename="camel"):
    """Block of a whole reply; other members are kept as they are."""

    text: str | None = None
    tool_use: ToolBlock | None = None
    reasoning_content: ReasoningBlock | None = None
    citations_content: CitedBlock | None = None
    image: Raw | UnsetType = UNSET


BLOCK = msgspec.json.Decoder(WholeBlock)
MEMBERS = msgspec.json.Decoder(dict[str, Raw])


class CitedPlace(Struct, rename="camel"):
    """Part of a document, or a web page, that a citation points at."""

    url: str | None = None
    domain: str | None = None
    start: int | None = None
    end: int | None = None


class SourceText(Struct):
    """Words of a source."""

    text: str | None = None


class ConverseCitation(Struct, rename="camel"):
    """Citation; its location has one member, named by its kind."""

    title: str | None = None
    source: str | None = None
    source_content: list[SourceText] | None = None
    location: dict[str, CitedPlace] | None = None


CITATION = msgspec.json.Decoder(ConverseCitation)


class ConverseImageSource(Struct):
    """Bytes of an image in base64."""

    bytes: str | None = None


class ConverseImage(Struct):
    """Format and bytes of an image, or a part of them."""

    format: str | None = None
    source: ConverseImageSource | None = None


IMAGE = msgspec.json.Decoder(ConverseImage)
