"""Typed chunks of Gemini's replies; each is a whole `GenerateContentResponse`.

Source: `GenerateContentResponse` and its parts in `types.py` of the package google-genai 3.6.1.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType


class UsageMetadata(Struct, rename="camel", gc=False):
    """Token counts so far. The cached tokens are part of the prompt's, thoughts are not output."""

    prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None


class Part(Struct, rename="camel", gc=False):
    """Members of a part that are read while it arrives; other kinds of parts have no text."""

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None


class GeminiContent(Struct):
    """Parts of a reply."""

    parts: list[Part] | None = None


class GeminiCandidate(Struct, rename="camel"):
    """One reply of several; only the first is requested."""

    content: GeminiContent | None = None
    finish_reason: str | None = None
    finish_message: str | None = None
    grounding_metadata: Raw | UnsetType = UNSET
    citation_metadata: Raw | UnsetType = UNSET
    url_context_metadata: Raw | UnsetType = UNSET
    index: int | None = None


class PromptFeedback(Struct, rename="camel", gc=False):
    """Verdict on the prompt; with a reason, there is no reply."""

    block_reason: str | None = None
    block_reason_message: str | None = None


class GeminiChunk(Struct, rename="camel"):
    """Piece of a streamed reply, or a whole one."""

    candidates: list[GeminiCandidate] | None = None
    usage_metadata: UsageMetadata | None = None
    prompt_feedback: PromptFeedback | None = None
    response_id: str | None = None
    error: Raw | UnsetType = UNSET


class _RawContent(Struct):
    parts: list[Raw] | None = None


class _RawCandidate(Struct):
    content: _RawContent | None = None


class _RawChunk(Struct):
    candidates: list[_RawCandidate] | None = None


class FunctionCall(Struct):
    """Members of a call that our canister has."""

    name: str | None = None
    args: Raw = Raw(b"null")
    id: str | None = None


class Blob(Struct, rename="camel"):
    """Bytes of a picture or another medium, as base64."""

    data: str
    mime_type: str | None = None


CHUNK = msgspec.json.Decoder(GeminiChunk)
MEMBERS = msgspec.json.Decoder(dict[str, Raw])
CALL = msgspec.json.Decoder(FunctionCall)
BLOB = msgspec.json.Decoder(Blob)
_RAW_CHUNK = msgspec.json.Decoder(_RawChunk)


def read_raw_parts(data: bytes) -> list[Raw]:
    """Return the parts of a chunk's first candidate as they were sent."""
    (first, *_) = _RAW_CHUNK.decode(data).candidates or [_RawCandidate()]
    return (first.content or _RawContent()).parts or []
