"""Replies of Chat Completions, streamed and whole, translated to deltas.

Nothing of a reply is complete before a finish reason or `[DONE]`. OpenAI sends both. A server that
sends only the reason and then ends the body as HTTP wants it has said all there is, so its reply is
complete; a connection that breaks there has cut it. A server that sends only `[DONE]` is believed
too, unless a call is not whole.

Servers differ, and what is harmless is borne: calls whole in one delta, all with one index,
without or with repeated identities; arguments as objects; missing usage; unknown members.

Source: the chunk types of openai 3.54.0, `types/chat/chat_completion_chunk.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from vibe_llms.exceptions import ReplyCut, ReplyMalformed
from vibe_llms.messages.canisters import StopReason, Usage
from vibe_llms.messages.contents import Citation, repair_text
from vibe_llms.providers.deltas import (
    CitationDelta,
    ContentClosed,
    ContentOpened,
    Delta,
    ReasoningDelta,
    ReplyClosed,
    ReplyOpened,
    TextDelta,
    UsageDelta,
)
from vibe_llms.providers.openai.chat_completions.calls import CallQueue
from vibe_llms.providers.openai.errors import find_error, produce_error
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.repairs import TextJoiner, keep_json, parse_object, repair
from vibe_llms.providers.wire import EventSplitter, EventTooLarge

STOP_REASONS = {
    "stop": StopReason.FINISHED,
    "eos": StopReason.FINISHED,
    "tool_calls": StopReason.INVOCATIONS,
    "function_call": StopReason.INVOCATIONS,
    "length": StopReason.LENGTH,
    "content_filter": StopReason.REFUSED,
}
_DONE = b"[DONE]"
_NULL = Raw(b"null")
_HEAD_BYTES = 64 * 1024


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: Raw = _NULL


class _Place(Struct):
    url: str | None = None
    title: str | None = None
    start_index: int | None = None
    end_index: int | None = None


class _Annotation(Struct):
    url_citation: _Place | None = None


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None
    annotations: list[_Annotation] | None = None


class _Choice(Struct):
    index: int | None = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _CompletionDetails(Struct):
    reasoning_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    # DeepSeek's.
    prompt_cache_hit_tokens: int | None = None


class _Chunk(Struct):
    id: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Raw = _NULL
    object: str | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class ChatCompletionsAssimilator:
    """One reply; `name_of` gives the canonical name of a tool's name on the wire."""

    def __init__(self, provider: str, name_of: Callable[[str], str]) -> None:
        self._provider = provider
        self._splitter = EventSplitter()
        self._joiner = TextJoiner()
        self._calls = CallQueue(provider, name_of)
        # What is open: text, refusal, or the member in which reasoning comes.
        self._open = ""
        self._opened = False
        self._refused = False
        self._called = False
        self._finish: str | None = None
        self._closed = False
        # The beginning of a body in which no event has been found.
        self._head: bytes | None = b""

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        """The deltas that some more bytes of the stream make."""
        try:
            payloads = self._splitter.feed(chunk)
        except EventTooLarge as error:
            raise self._malformed(str(error)) from error
        if self._head is not None:
            self._head = None if payloads else (self._head + chunk)[:_HEAD_BYTES]
        for data in payloads:
            if data[:1] == b"[" and data.strip().startswith(_DONE):
                yield from self._end()
                return
            try:
                decoded = _CHUNK.decode(data)
            except (ValueError, RecursionError) as error:
                decoded = self._decode_leniently(data, error)
            if self._open == "text" and (text := _plain_text(decoded)):
                # Nearly every chunk is the next piece of the open text.
                if text := self._joiner.join(text):
                    yield TextDelta(text)
                continue
            yield from self._advance(decoded, data)

    def conclude(self) -> Iterator[Delta]:
        """The end, where a finish reason was seen; else `ReplyCut`."""
        if self._closed:
            return
        if self._finish is not None:
            yield from self._end()
            return
        head = (self._head or b"").strip()
        if head and not head.startswith((b"data:", b"event:", b"id:", b":", b"retry:")):
            # Not a stream at all, though it was called one.
            yield from self.assimilate(head)
            return
        raise ReplyCut("the stream ended before the reply was complete", provider=self._provider)

    def assimilate(self, body: bytes) -> Iterator[Delta]:
        """The deltas of a reply that was not streamed: each block in one step."""
        try:
            whole = _CHUNK.decode(body)
        except (ValueError, RecursionError) as error:
            whole = self._decode_leniently(body, error)
        yield from self._advance(whole, body)
        if whole.choices is None:
            raise self._malformed(f"a reply without choices: {body[:80]!r}")
        if self._finish is None:
            raise self._malformed("a reply without a finish reason")
        yield from self._end()

    def _advance(self, chunk: _Chunk, data: bytes) -> Iterator[Delta]:
        if bytes(chunk.error) != b"null" or (chunk.choices is None and chunk.usage is None):
            self._raise_error(data)
        if not self._opened and chunk.choices:
            self._opened = True
            yield ReplyOpened(repair_text(chunk.id or ""))
        for choice in chunk.choices or ():
            if choice.index:
                continue
            delta = choice.delta or choice.message
            if delta is not None:
                yield from self._grow(delta)
            if choice.finish_reason:
                self._finish = choice.finish_reason
        if chunk.usage is not None:
            yield UsageDelta(_read_usage(chunk.usage))

    def _grow(self, delta: _Delta) -> Iterator[Delta]:
        if thought := delta.reasoning_content:
            yield from self._say("reasoning_content", thought)
        elif thought := delta.reasoning:
            yield from self._say("reasoning", thought)
        if delta.content:
            yield from self._say("text", delta.content)
        for annotation in delta.annotations or ():
            if annotation.url_citation is not None and self._open == "text":
                yield CitationDelta(_read_citation(annotation.url_citation))
        if delta.refusal:
            self._refused = True
            yield from self._say("text", delta.refusal)
        if delta.tool_calls:
            yield from self._close_content()
            for call in delta.tool_calls:
                self._called = True
                function = call.function or _Function()
                yield from self._calls.accept(
                    call.index,
                    call.id or "",
                    function.name or "",
                    function.arguments or "",
                    self._keep(call.extra_content),
                )

    def _say(self, member: str, text: str) -> Iterator[Delta]:
        if self._open != member:
            yield from self._close_content()
            yield from self._calls.close()
            self._open = member
            yield ContentOpened("text" if member == "text" else "reasoning")
        text = self._joiner.join(text)
        if text:
            yield TextDelta(text) if member == "text" else ReasoningDelta(text)

    def _close_content(self) -> Iterator[Delta]:
        member, self._open = self._open, ""
        if not member:
            return
        if rest := self._joiner.conclude():
            yield TextDelta(rest) if member == "text" else ReasoningDelta(rest)
        native = None if member == "text" else Raw(encode_json({"member": member}))
        yield ContentClosed(native)

    def _end(self) -> Iterator[Delta]:
        """The reply is complete, unless a call of it is not."""
        yield from self._close_content()
        native = repair_text(self._finish or "")
        reason = STOP_REASONS.get(native, native or StopReason.FINISHED)
        cut = reason in (StopReason.LENGTH, StopReason.REFUSED)
        if self._finish is None and not self._calls.whole:
            raise ReplyCut(
                "the stream ended within the arguments of a call", provider=self._provider
            )
        yield from self._calls.conclude(cut=cut)
        self._closed = True
        if self._called and reason == StopReason.FINISHED:
            reason = StopReason.INVOCATIONS
        if self._refused and reason == StopReason.FINISHED:
            reason = StopReason.REFUSED
        yield ReplyClosed(reason, native)

    def _raise_error(self, data: bytes) -> None:
        try:
            error = find_error(parse_object(data))
        except ValueError:
            error = None
        if error is not None:
            raise produce_error(self._provider, error)

    def _decode_leniently(self, data: bytes, error: Exception) -> _Chunk:
        """A chunk that the typed decoder refuses: lone surrogates, or a form of another server."""
        try:
            told = parse_object(data)
        except ValueError:
            raise self._malformed(f"{data[:80]!r} is not JSON of a chunk ({error})") from error
        self._raise_error(data)
        try:
            return msgspec.convert(_adapt(told), _Chunk, strict=False)
        except (ValueError, TypeError) as other:
            raise self._malformed(f"a chunk has not its promised form: {other}") from other

    def _keep(self, raw: Raw) -> Raw | None:
        if bytes(raw) == b"null":
            return None
        try:
            return Raw(b'{"extra_content":' + bytes(keep_json(bytes(raw))) + b"}")
        except ValueError as error:
            raise self._malformed(f"{bytes(raw)[:80]!r} is not JSON ({error})") from error

    def _malformed(self, what: str) -> ReplyMalformed:
        return ReplyMalformed(
            f"the server sent what the interface does not promise: {what}", provider=self._provider
        )


def _plain_text(chunk: _Chunk) -> str | None:
    """The text of a chunk that holds nothing else."""
    if chunk.usage is not None or chunk.choices is None or len(chunk.choices) != 1:
        return None
    choice = chunk.choices[0]
    delta = choice.delta
    if delta is None or choice.index or choice.finish_reason:
        return None
    if delta.tool_calls or delta.refusal or delta.annotations:
        return None
    if delta.reasoning_content or delta.reasoning or bytes(chunk.error) != b"null":
        return None
    return delta.content


def _adapt(told: dict[str, Any]) -> dict[str, Any]:
    """A chunk with what other servers write otherwise in the form of OpenAI's."""
    told.pop("error", None)
    for choice in told.get("choices") or ():
        for name in ("delta", "message"):
            delta = choice.get(name) if isinstance(choice, dict) else None
            if isinstance(delta, dict):
                choice[name] = _adapt_delta(delta)
    return told


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


def _read_usage(usage: _Usage) -> Usage:
    """The usage in classes that do not overlap.

    Prompt tokens include those of the cache. Completion tokens include reasoning, except where the
    total shows that they do not, as with xAI.
    """
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    details = usage.prompt_tokens_details or _PromptDetails()
    read = details.cached_tokens or usage.prompt_cache_hit_tokens or 0
    written = details.cache_write_tokens or 0
    spent = usage.completion_tokens_details or _CompletionDetails()
    reasoning = spent.reasoning_tokens or 0
    apart = reasoning and usage.total_tokens == prompt + completion + reasoning
    return Usage(
        uncached_input_tokens=max(prompt - read - written, 0),
        cache_read_tokens=read,
        cache_write_tokens=written,
        output_tokens=completion if apart else max(completion - reasoning, 0),
        reasoning_tokens=reasoning,
    )


def _read_citation(place: _Place) -> Citation:
    return Citation(
        title=repair_text(place.title or ""),
        source=repair_text(place.url or ""),
        start=place.start_index,
        end=place.end_index,
        unit="character" if place.start_index is not None else "",
    )
