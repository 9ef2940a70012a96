"""The chunks that Chat Completions sends, as types, and what other servers write otherwise.

Our own server writes replies of the same types; members that are not set are left out.

Source: the chunk types of openai 3.54.0, `types/chat/chat_completion_chunk.py`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.contents import Citation, repair_text
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.repairs import repair


class Function(Struct, omit_defaults=True):
    """A function that is called, or more of its arguments."""

    name: str | None = None
    arguments: str | None = None


class CallPiece(Struct, omit_defaults=True):
    """A call, or a piece of one."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None
    extra_content: Raw | UnsetType = UNSET


class UrlCitation(Struct):
    """A source on the web, and the place in the text that it is for."""

    url: str | None = None
    title: str | None = None
    start_index: int | None = None
    end_index: int | None = None


class Annotation(Struct):
    """A remark on a text."""

    url_citation: UrlCitation | None = None


class MessageDelta(Struct, omit_defaults=True):
    """More of a message, or the whole of one."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[CallPiece] | None = None
    annotations: list[Annotation] | None = None


class Choice(Struct, omit_defaults=True):
    """One of several replies; only the first is asked for."""

    index: int | None = None
    delta: MessageDelta | None = None
    message: MessageDelta | None = None
    finish_reason: str | None = None
    # OpenRouter's: the word of the server behind it.
    native_finish_reason: str | None = None


class PromptDetails(Struct, omit_defaults=True):
    """What of the prompt came from a cache, or went into it."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class CompletionDetails(Struct, omit_defaults=True):
    """What of the completion was reasoning."""

    reasoning_tokens: int | None = None


class NativeUsage(Struct, omit_defaults=True):
    """The tokens of a reply; the details are parts of the sums."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    # DeepSeek's.
    prompt_cache_hit_tokens: int | None = None


class Chunk(Struct, omit_defaults=True):
    """A chunk of a stream, or a whole reply: they differ in `delta` and `message` only."""

    id: str | None = None
    choices: list[Choice] | None = None
    usage: NativeUsage | None = None
    error: Raw | UnsetType = UNSET
    object: str | None = None


class _PlainDelta(Struct, gc=False):
    content: str
    reasoning_content: Literal[""] | None = None
    reasoning: Literal[""] | None = None
    refusal: Literal[""] | None = None
    tool_calls: tuple[()] | None = None
    annotations: tuple[()] | None = None


class _PlainChoice(Struct, gc=False):
    delta: _PlainDelta
    index: Literal[0] | None = 0
    finish_reason: Literal[""] | None = None


class PlainChunk(Struct, gc=False):
    """A chunk that holds a piece of text and nothing else; the decoder refuses all others."""

    choices: tuple[_PlainChoice]
    usage: None = None
    error: None = None


CHUNK = msgspec.json.Decoder(Chunk)
PLAIN = msgspec.json.Decoder(PlainChunk)


def adapt(reported: dict[str, Any]) -> dict[str, Any]:
    """A chunk with what other servers write otherwise in the form of OpenAI's."""
    reported.pop("error", None)
    for choice in reported.get("choices") or ():
        for name in ("delta", "message"):
            delta = choice.get(name) if isinstance(choice, dict) else None
            if isinstance(delta, dict):
                choice[name] = _adapt_delta(delta)
    return reported


def _adapt_delta(delta: dict[str, Any]) -> dict[str, Any]:
    content = delta.get("content")
    if isinstance(content, list):
        # Mistral's: parts of text and of thinking.
        parts = [part for part in content if isinstance(part, dict)]
        thoughts = [_text_of(part.get("thinking")) for part in parts]
        delta["content"] = "".join(_text_of(part.get("text")) for part in parts)
        delta["reasoning_content"] = "".join(thoughts) or delta.get("reasoning_content")
    for call in delta.get("tool_calls") or ():
        if not isinstance(call, dict):
            continue
        function = call.get("function")
        if isinstance(function, dict) and isinstance(function.get("arguments"), dict):
            function["arguments"] = encode_json(repair(function["arguments"])).decode()
        if call.get("id") is not None:
            call["id"] = str(call["id"])
        if "extra_content" in call:
            call["extra_content"] = Raw(encode_json(repair(call["extra_content"])))
    return delta


def _text_of(value: object) -> str:
    if isinstance(value, list):
        return "".join(_text_of(part) for part in value)
    if isinstance(value, dict):
        return _text_of(value.get("text"))
    return value if isinstance(value, str) else ""


def read_usage(usage: NativeUsage) -> Usage:
    """The usage in classes that do not overlap.

    Prompt tokens include those of the cache. Completion tokens include reasoning, except where the
    total shows that they do not, as with xAI.
    """
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    details = usage.prompt_tokens_details or PromptDetails()
    read = details.cached_tokens or usage.prompt_cache_hit_tokens or 0
    written = details.cache_write_tokens or 0
    spent = usage.completion_tokens_details or CompletionDetails()
    reasoning = spent.reasoning_tokens or 0
    apart = reasoning and usage.total_tokens == prompt + completion + reasoning
    return Usage(
        uncached_input_tokens=max(prompt - read - written, 0),
        cache_read_tokens=read,
        cache_write_tokens=written,
        output_tokens=completion if apart else max(completion - reasoning, 0),
        reasoning_tokens=reasoning,
    )


def read_citation(place: UrlCitation) -> Citation:
    """A source in our terms."""
    return Citation(
        title=repair_text(place.title or ""),
        source=repair_text(place.url or ""),
        start=place.start_index,
        end=place.end_index,
        unit="character" if place.start_index is not None else "",
    )
