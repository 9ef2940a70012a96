"""Typed chunks of Chat Completions, and conversion of chunks from other servers.

Our own server writes replies with the same types; unset members are omitted.

Source: the chunk types of openai 3.54.0, `types/chat/chat_completion_chunk.py`.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.contents import Citation, repair_text
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.repairs import repair
from vibe_llms.providers.usages import subtract


class FunctionDelta(Struct, omit_defaults=True):
    """The function of a call, or more of its arguments."""

    name: str | None = None
    arguments: str | None = None


class CallPiece(Struct, omit_defaults=True):
    """A call, or a piece of one."""

    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None
    extra_content: Raw | UnsetType = UNSET


class UrlCitation(Struct):
    """A source on the web, and its place in the text."""

    url: str | None = None
    title: str | None = None
    start_index: int | None = None
    end_index: int | None = None


class Annotation(Struct):
    """An annotation of a text."""

    url_citation: UrlCitation | None = None


class ChatDelta(Struct, omit_defaults=True):
    """More of a message, or the whole of one."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[CallPiece] | None = None
    annotations: list[Annotation] | None = None


class Choice(Struct, omit_defaults=True):
    """One of several replies; only the first is requested."""

    index: int | None = None
    delta: ChatDelta | None = None
    message: ChatDelta | None = None
    finish_reason: str | None = None


class PromptDetails(Struct, omit_defaults=True):
    """Cached tokens of a prompt, read and written."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class CompletionDetails(Struct, omit_defaults=True):
    """Reasoning tokens of a completion."""

    reasoning_tokens: int | None = None


class ChatUsage(Struct, omit_defaults=True):
    """Token counts of a reply; the details are parts of the sums."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    # From DeepSeek, from Kimi, and from Mistral.
    prompt_cache_hit_tokens: int | None = None
    cached_tokens: int | None = None
    num_cached_tokens: int | None = None


class Chunk(Struct, omit_defaults=True):
    """A chunk of a stream, or a whole reply: they differ in `delta` and `message` only."""

    id: str | None = None
    choices: list[Choice] | None = None
    usage: ChatUsage | None = None
    error: Raw | UnsetType = UNSET
    object: str | None = None


class ReceivedFunction(FunctionDelta):
    """A function as any server sends it."""

    # Some servers put the index here.
    index: int | None = None


class ReceivedCall(Struct):
    """A call, or a piece of one, as any server sends it."""

    index: int | None = None
    id: str | None = None
    function: ReceivedFunction | None = None
    extra_content: Raw | UnsetType = UNSET
    # Some servers put these here.
    name: str | None = None
    arguments: str | None = None


class ReceivedDelta(Struct):
    """More of a message, or the whole of one, as any server sends it."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[ReceivedCall] | None = None
    annotations: list[Annotation] | None = None
    # The single call of older servers.
    function_call: ReceivedFunction | None = None
    reasoning_details: list[Raw] | None = None
    # Google's signature of the message.
    extra_content: Raw | UnsetType = UNSET
    # Names of other servers for `content` and `reasoning_content`.
    text: str | None = None
    reasoning_text: str | None = None
    thinking: str | None = None
    error: Raw | UnsetType = UNSET


class ReceivedChoice(Struct):
    """One of several replies, as any server sends it."""

    index: int | None = None
    delta: ReceivedDelta | None = None
    message: ReceivedDelta | None = None
    finish_reason: str | None = None
    # From OpenRouter: the reason as the server behind it names it.
    native_finish_reason: str | None = None
    text: str | None = None
    error: Raw | UnsetType = UNSET
    # From Azure; older versions use the singular.
    content_filter_results: Any = None
    content_filter_result: Any = None


class ReceivedChunk(Struct):
    """A chunk of a stream, or a whole reply, as any server sends it."""

    id: str | None = None
    choices: list[ReceivedChoice] | None = None
    usage: ChatUsage | None = None
    error: Raw | UnsetType = UNSET
    # From Azure; older versions call it `prompt_annotations`.
    prompt_filter_results: Any = None
    prompt_annotations: Any = None


NO_RESULTS = Raw()


class _PlainDelta(Struct, gc=False):
    content: str
    reasoning_content: Literal[""] | None = None
    reasoning: Literal[""] | None = None
    refusal: Literal[""] | None = None
    tool_calls: tuple[()] | None = None
    annotations: tuple[()] | None = None
    function_call: None = None
    reasoning_details: tuple[()] | None = None
    extra_content: None = None
    reasoning_text: Literal[""] | None = None
    thinking: Literal[""] | None = None
    error: None = None


class _PlainChoice(Struct, gc=False):
    delta: _PlainDelta
    index: Literal[0] | None = 0
    finish_reason: Literal[""] | None = None
    native_finish_reason: Literal[""] | None = None
    # Azure sends them with each piece of text.
    content_filter_results: Raw = NO_RESULTS
    content_filter_result: None = None
    error: None = None


class PlainChunk(Struct, gc=False):
    """A chunk with a piece of text, perhaps with results of content filters, and nothing else.

    The decoder refuses all others.
    """

    choices: tuple[_PlainChoice]
    usage: None = None
    error: None = None


CHUNK = msgspec.json.Decoder(ReceivedChunk)
PLAIN = msgspec.json.Decoder(PlainChunk)


def adapt(reported: dict[str, Any]) -> dict[str, Any]:
    """Convert a chunk of another server to OpenAI's form.

    Members of a wrong type are dropped if the reply loses nothing.
    """
    choices = reported.get("choices")
    if isinstance(choices, dict):
        choices = [choices]
    if isinstance(choices, list):
        choices = [_adapt_choice(one) for one in choices if one is not None]
    usage = _adapt_usage(reported.get("usage"))
    filters = {name: reported.get(name) for name in ("prompt_filter_results", "prompt_annotations")}
    return {"id": _word(reported.get("id")), "choices": choices, "usage": usage, **filters}


def _adapt_choice(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    adapted = {**choice, "index": _number(choice.get("index"))}
    for name in ("finish_reason", "native_finish_reason", "text"):
        adapted[name] = _word(choice.get(name))
    for name in ("delta", "message"):
        delta = choice.get(name)
        if isinstance(delta, str):
            delta = {"content": delta}
        adapted[name] = _adapt_delta(delta) if isinstance(delta, dict) else delta
    return _keep_raw(adapted, "error")


def _adapt_delta(delta: dict[str, Any]) -> dict[str, Any]:
    content = delta.get("content")
    adapted: dict[str, Any] = {
        name: _text_of(delta.get(name)) or None
        for name in ("reasoning_content", "reasoning", "reasoning_text", "thinking", "text")
    }
    adapted["refusal"] = _word(delta.get("refusal"))
    adapted["content"] = _text_of(content) or None
    if isinstance(content, list):
        # Mistral sends parts of text and of thinking.
        parts = [part for part in content if isinstance(part, dict)]
        thoughts = "".join(map(_thought_of, parts))
        adapted["content"] = "".join(_said_in(part) for part in content)
        adapted["reasoning_content"] = thoughts or adapted["reasoning_content"]
        refusals = "".join(_word(part.get("refusal")) or "" for part in parts)
        adapted["refusal"] = refusals or adapted["refusal"]
    calls = delta.get("tool_calls")
    if isinstance(calls, dict):
        calls = [calls] if "function" in calls or "name" in calls else [*calls.values()]
    if isinstance(calls, list):
        # Unreadable calls are kept and refused later, so that none is lost silently.
        adapted["tool_calls"] = [
            _adapt_call(one) if isinstance(one, dict) else one for one in calls if one is not None
        ]
    if isinstance(delta.get("function_call"), dict):
        adapted["function_call"] = _adapt_function(delta["function_call"])
    details = delta.get("reasoning_details")
    if isinstance(details, list):
        adapted["reasoning_details"] = [Raw(encode_json(repair(one))) for one in details]
    if isinstance(delta.get("annotations"), list):
        adapted["annotations"] = [_adapt_annotation(one) for one in delta["annotations"]]
    for name in ("extra_content", "error"):
        if name in delta:
            adapted[name] = delta[name]
    return _keep_raw(adapted, "extra_content", "error")


def _adapt_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    identity = call.get("id")
    adapted = {
        **_adapt_function(call),
        "index": _number(call.get("index")),
        "id": str(identity) if isinstance(identity, str | int) else None,
        "function": _adapt_function(function) if isinstance(function, dict) else None,
    }
    if "extra_content" in call:
        adapted["extra_content"] = call["extra_content"]
    return _keep_raw(adapted, "extra_content")


def _adapt_function(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    if isinstance(arguments, dict | list):
        arguments = encode_json(repair(arguments)).decode()
    return {
        "name": _word(function.get("name")),
        "arguments": arguments if isinstance(arguments, str) else None,
        "index": _number(function.get("index")),
    }


def _adapt_annotation(annotation: Any) -> dict[str, Any]:
    place = annotation.get("url_citation") if isinstance(annotation, dict) else None
    if not isinstance(place, dict):
        return {}
    words = {name: _word(place.get(name)) for name in ("url", "title")}
    numbers = {name: _number(place.get(name)) for name in ("start_index", "end_index")}
    return {"url_citation": {**words, **numbers}}


def _adapt_usage(usage: Any) -> Any:
    """Return the numbers of a usage and of its details."""
    if not isinstance(usage, dict):
        return None
    return {
        name: _adapt_usage(value) if isinstance(value, dict) else _number(value)
        for name, value in usage.items()
    }


def _keep_raw(members: dict[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        if name in members:
            members[name] = Raw(encode_json(repair(members[name])))
    return members


def _word(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> int | None:
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"[0-9]{1,15}", value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if value == value // 1 and abs(value) < 2**63 else None


def _thought_of(part: dict[str, Any]) -> str:
    if part.get("type") in ("reasoning", "reasoning_text", "summary_text"):
        return _text_of(part.get("text") or part.get("reasoning") or part.get("summary"))
    return _text_of(part.get("thinking"))


def _said_in(part: object) -> str:
    if isinstance(part, dict):
        thinks = str(part.get("type", "")).startswith(("reasoning", "summary"))
        return "" if thinks else _text_of(part.get("text"))
    return _text_of(part)


def _text_of(value: object) -> str:
    if isinstance(value, list):
        return "".join(_text_of(part) for part in value)
    if isinstance(value, dict):
        return _text_of(value.get("text") or value.get("content"))
    if isinstance(value, int | float) and not isinstance(value, bool):
        # Cloudflare sends tokens that are digits as numbers.
        return str(value)
    return value if isinstance(value, str) else ""


def read_usage(usage: ChatUsage) -> Usage:
    """Return the usage in classes that do not overlap.

    Prompt tokens include those of the cache. Completion tokens include reasoning, unless the total
    shows that they do not, as with xAI.
    """
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    details = usage.prompt_tokens_details or PromptDetails()
    elsewhere = usage.prompt_cache_hit_tokens or usage.cached_tokens or usage.num_cached_tokens
    read = details.cached_tokens or elsewhere or 0
    written = details.cache_write_tokens or 0
    spent = usage.completion_tokens_details or CompletionDetails()
    reasoning = spent.reasoning_tokens or 0
    apart = reasoning and usage.total_tokens == prompt + completion + reasoning
    return Usage(
        uncached_input_tokens=subtract(prompt, read, written),
        cache_read_tokens=read,
        cache_write_tokens=written,
        output_tokens=completion if apart else subtract(completion, reasoning),
        reasoning_tokens=reasoning,
    )


def read_citation(place: UrlCitation) -> Citation:
    """Return a source in our terms."""
    return Citation(
        title=repair_text(place.title or ""),
        source=repair_text(place.url or ""),
        start=place.start_index,
        end=place.end_index,
        unit="character" if place.start_index is not None else "",
    )
