"""Gemini's replies, streamed and whole, translated to deltas.

A chunk has whole parts. A part of text continues the one before it; every other part is complete.
A thought signature belongs to the part that it came on, also to an empty text at the end, and must
come back on it: a text keeps the spans of its signed parts, and other parts keep their members.

The end of a reply is a finish reason, usually with the usage. Gemini has no mark after it, and some
servers send `STOP` on every chunk, so whatever follows is read until the body ends.

Sources: https://ai.google.dev/gemini-api/docs/thought-signatures (2026-11); finish reasons on every
chunk: https://github.com/Chevey339/kelivo/issues/1003 (2026-09).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from vibe_llms.base.redaction import quote
from vibe_llms.messages.canisters import StopReason, Usage
from vibe_llms.messages.contents import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    NativeContent,
    VideoContent,
    repair_text,
)
from vibe_llms.providers.assimilators import StreamAssimilator
from vibe_llms.providers.conversions import SIGNATURES
from vibe_llms.providers.deltas import (
    ArgumentsDelta,
    CitationDelta,
    ContentClosed,
    ContentOpened,
    ContentReceived,
    Delta,
    InvocationClosed,
    InvocationOpened,
    ReasoningDelta,
    ReplyClosed,
    ReplyOpened,
    TextDelta,
    UsageDelta,
)
from vibe_llms.providers.gemini.chunks import (
    BLOB,
    CALL,
    CHUNK,
    MEMBERS,
    GeminiCandidate,
    GeminiChunk,
    Part,
    PromptFeedback,
    UsageMetadata,
    read_raw_parts,
)
from vibe_llms.providers.gemini.citations import read_grounding, read_recitation
from vibe_llms.providers.gemini.errors import ERRORS
from vibe_llms.providers.gemini.messages import METADATA, SIGNATURE
from vibe_llms.providers.http_errors import find_event_error
from vibe_llms.providers.pieces import compact, encode_json
from vibe_llms.providers.repairs import (
    TextJoiner,
    convert_members,
    escape,
    says_something,
)
from vibe_llms.providers.stop_reasons import close_reply, normalize_stop
from vibe_llms.providers.usages import subtract
from vibe_llms.providers.wire import DONE

_KINDS: dict[str, type[ImageContent | AudioContent | VideoContent]] = {
    "image": ImageContent,
    "audio": AudioContent,
    "video": VideoContent,
}
#: Members that any part may have, besides the one that says what it is.
_COMMON = frozenset({"thought", SIGNATURE, "partMetadata", "videoMetadata", "mediaResolution"})
_TEXT = msgspec.json.Decoder(str)


class GeminiAssimilator(StreamAssimilator):
    """Reader of one reply from Gemini; `ending` is True if the last chunk looked like the end."""

    errors = ERRORS

    def __init__(self, provider: str, name_of: Callable[[str], str]) -> None:
        super().__init__(provider, name_of)
        self.ending = False
        self._opened = False
        self._called = False
        self._said = False
        self._usage: UsageMetadata | None = None
        self._counted = False
        self._finish = ""
        self._detail = ""
        self._blocked: PromptFeedback | None = None
        self._metadata: dict[str, Raw] = {}
        # The open text or thought: its length so far, and the spans of its signed parts.
        self._kind: type[TextDelta | ReasoningDelta] | None = None
        self._length = 0
        self._spans: list[tuple[int, int, str]] = []
        self._joiner = TextJoiner()

    def read(self, events: Sequence[bytes]) -> Iterator[Delta]:
        """Yield the deltas of the next chunks."""
        for data in events:
            try:
                chunk = CHUNK.decode(data)
            except (ValueError, RecursionError) as error:
                if data != DONE:
                    yield from self._read_leniently(data, error)
                continue
            candidates = chunk.candidates
            if (
                candidates is not None
                and len(candidates) == 1
                and (content := candidates[0].content) is not None
                and (parts := content.parts) is not None
                and len(parts) == 1
                and (text := parts[0].text)
                and self._kind is TextDelta
                and not parts[0].thought
                and parts[0].thought_signature is None
                and candidates[0].finish_reason is None
                and candidates[0].grounding_metadata is UNSET
                and candidates[0].citation_metadata is UNSET
                and not self._joiner.waiting
            ):
                # Fast path for nearly every chunk; the decoder gives no surrogates.
                self.ending = False
                self._usage = chunk.usage_metadata or self._usage
                self._length += len(text)
                yield TextDelta(text)
                continue
            yield from self._advance(chunk, data)

    def conclude(self) -> Iterator[Delta]:
        """Yield the end of the reply, or raise `ReplyCut` if there was no finish reason."""
        if not self.closed and (rest := self._splitter.conclude()):
            yield from self.read(self.refine(rest))
        if not self.closed and (self._finish or self._blocked is not None):
            yield from self._end()
        yield from super().conclude()

    def assimilate(self, body: bytes) -> Iterator[Delta]:
        """Yield the deltas of an unstreamed reply, or of a stream in one piece."""
        start = body.lstrip()[:1]
        if start == b"{":
            yield from self.read([body])
        else:
            # A stream, or the list of chunks that the server sends without `alt=sse`.
            yield from self.feed(body)
        yield from self.conclude()

    def _advance(
        self, chunk: GeminiChunk, data: bytes, raw: Sequence[Raw] | None = None
    ) -> Iterator[Delta]:
        if chunk.error is not UNSET and says_something(chunk.error):
            raise self.read_error(data)
        if not self._opened and chunk.response_id:
            self._opened = True
            yield ReplyOpened(repair_text(chunk.response_id))
        if chunk.usage_metadata is not None:
            yield from self._count(chunk.usage_metadata)
        feedback = chunk.prompt_feedback
        if feedback is not None and normalize_stop(feedback.block_reason or ""):
            self._blocked = feedback
        candidate = chunk.candidates[0] if chunk.candidates else None
        if candidate is not None:
            # Requests ask for one candidate.
            yield from self._advance_candidate(candidate, data, raw)
        # Nothing should follow the usage that comes with the finish reason, or after it.
        last = candidate is None or bool(candidate.finish_reason)
        ended = bool(self._finish) and last and chunk.usage_metadata is not None
        self.ending = ended or self._blocked is not None

    def _advance_candidate(
        self, candidate: GeminiCandidate, data: bytes, raw: Sequence[Raw] | None
    ) -> Iterator[Delta]:
        parts = (candidate.content.parts if candidate.content is not None else None) or ()
        for index, part in enumerate(parts):
            if part.text is not None:
                yield from self._say(part)
                continue
            raw = read_raw_parts(data) if raw is None else raw
            yield from self._receive(part, self.keep(raw[index]))
        for name, found in zip(
            METADATA,
            (
                candidate.grounding_metadata,
                candidate.citation_metadata,
                candidate.url_context_metadata,
            ),
            strict=True,
        ):
            if says_something(found):
                self._metadata[name] = self.keep(found)
        if candidate.finish_reason and normalize_stop(candidate.finish_reason):
            self._finish = repair_text(candidate.finish_reason)
            self._detail = repair_text(candidate.finish_message or "")

    def _say(self, part: Part) -> Iterator[Delta]:
        kind: type[TextDelta | ReasoningDelta] = ReasoningDelta if part.thought else TextDelta
        signature = part.thought_signature
        if not part.text and not signature:
            return
        if kind is not self._kind:
            yield from self._close()
            self._kind = kind
            yield ContentOpened("reasoning" if part.thought else "text")
        start = self._length
        text = self._joiner.join(part.text or "")
        if signature:
            text += self._joiner.conclude()
        self._length += len(text)
        if text:
            self._said = True
            yield kind(text)
        if signature:
            self._spans.append((start, self._length, repair_text(signature)))

    def _receive(self, part: Part, raw: Raw) -> Iterator[Delta]:
        members = MEMBERS.decode(raw)
        named = [name for name in members if name not in _COMMON]
        if "functionCall" in members:
            yield from self._close()
            yield from self._call(members)
        elif not named:
            # A signature alone is that of an empty text.
            yield from self._say(Part("", part.thought, part.thought_signature))
        elif "inlineData" in members:
            self._said = True
            yield from self._close()
            content = self._read_blob(members.pop("inlineData"))
            yield ContentReceived(content, Raw(encode_json(members)) if members else None)
        else:
            self._said = True
            yield from self._close()
            yield ContentReceived(NativeContent(label=repair_text(named[0])), raw)

    def _call(self, members: dict[str, Raw]) -> Iterator[Delta]:
        made = members.pop("functionCall")
        try:
            call = CALL.decode(made)
            arguments = self._read_arguments(call.args)
        except (ValueError, RecursionError) as error:
            raise self.malformed(f"an invalid call: {quote(bytes(made))} ({error})") from error
        if not call.name:
            raise self.malformed("a call without a tool name")
        more = {
            name: value
            for name, value in MEMBERS.decode(made).items()
            if name not in ("id", "name", "args")
        }
        if more:
            members["functionCall"] = Raw(encode_json(more))
        self._called = True
        yield InvocationOpened(self.name_of(repair_text(call.name)), repair_text(call.id or ""))
        yield ArgumentsDelta(arguments)
        yield InvocationClosed(Raw(encode_json(members)) if members else None)

    def _read_arguments(self, raw: Raw) -> str:
        data = compact(bytes(raw))
        if data == b"null":
            return "{}"
        # Servers that imitate Gemini may send the arguments as text.
        return repair_text(_TEXT.decode(data)) if data[:1] == b'"' else data.decode()

    def _read_blob(self, raw: Raw) -> Content:
        try:
            blob = BLOB.decode(raw)
            # Google writes both alphabets of base64.
            text = blob.data.translate(_STANDARD)
            data = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except (ValueError, binascii.Error) as error:
            raise self.malformed(f"inline data that cannot be read ({error})") from error
        mimetype = repair_text(blob.mime_type or "")
        kind = _KINDS.get(mimetype.partition("/")[0], FileContent)
        return kind(data=data, mimetype=mimetype)

    def _close(self) -> Iterator[Delta]:
        """End the open text or thought."""
        if self._kind is None:
            return
        if rest := self._joiner.conclude():
            self._length += len(rest)
            yield self._kind(rest)
        native = {SIGNATURES: self._spans} if self._spans else None
        self._kind, self._length, self._spans = None, 0, []
        yield ContentClosed(None if native is None else Raw(encode_json(native)))

    def _count(self, usage: UsageMetadata) -> Iterator[Delta]:
        """Remember the usage; only the first is passed on before the end."""
        if self._usage is not None:
            # Some servers report the prompt only at the beginning.
            for name in usage.__struct_fields__:
                if getattr(usage, name) is None:
                    setattr(usage, name, getattr(self._usage, name))
        self._usage = usage
        if not self._counted:
            self._counted = True
            yield UsageDelta(_read_usage(usage))

    def _end(self) -> Iterator[Delta]:
        """Complete the reply."""
        if self._usage is not None:
            yield UsageDelta(_read_usage(self._usage))
        closed = self._produce_ending()
        if self._kind is TextDelta:
            for name, raw in self._metadata.items():
                read = read_grounding if name == METADATA[0] else read_recitation
                for citation in read(raw) if name != METADATA[2] else ():
                    yield CitationDelta(citation)
        if not (self._said or self._called) and closed.reason == StopReason.FINISHED:
            # A signature alone is not an answer, so that the reply counts as empty.
            self._spans = []
        yield from self._close()
        for name, raw in self._metadata.items():
            yield ContentReceived(NativeContent(label=name), Raw(encode_json({name: raw})))
        self.closed = True
        yield closed

    def _produce_ending(self) -> ReplyClosed:
        blocked = self._blocked
        if blocked is not None and not self._finish:
            word = repair_text(blocked.block_reason or "")
            detail = repair_text(blocked.block_reason_message or "")
            return ReplyClosed(
                StopReason.REFUSED, word, detail or f"the prompt is blocked ({word})"
            )
        closed = close_reply(self.provider, self._finish, detail=self._detail, called=self._called)
        if closed.reason == StopReason.REFUSED and not closed.detail:
            # Google's word says more than a refusal.
            return msgspec.structs.replace(closed, detail=self._finish)
        return closed

    def _read_leniently(self, data: bytes, error: Exception) -> Iterator[Delta]:
        """Read a chunk that the typed decoder refuses, such as one with lone surrogates."""
        value = self.parse(data, error)
        if find_event_error(value) is not None:
            raise self.read_error(data)
        parts = _find_parts(value)
        texts = [part.get("text") for part in parts if isinstance(part, dict)]
        if len(texts) != len(parts) or not all(isinstance(text, str | None) for text in texts):
            raise self.malformed(f"{quote(data)} is not a chunk of a reply ({error})")
        try:
            chunk = convert_members(value, GeminiChunk)
        except (ValueError, TypeError) as other:
            raise self.malformed(f"a chunk does not have the expected form: {other}") from other
        yield from self._advance(chunk, data, [escape(part) for part in parts])


#: The alphabet of base64 for addresses, to the standard one.
_STANDARD = str.maketrans("-_", "+/", "=")


def _find_parts(value: dict[str, Any]) -> list[Any]:
    """Return the parts of the first candidate of a chunk that Python has read."""
    found: Any = value
    for name in ("candidates", 0, "content", "parts"):
        if isinstance(name, int):
            found = found[0] if isinstance(found, list) and found else None
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, list) else []


def _read_usage(usage: UsageMetadata) -> Usage:
    cached = usage.cached_content_token_count or 0
    prompt = subtract(usage.prompt_token_count or 0, cached)
    return Usage(
        # Results of tools that the server ran are read as well.
        uncached_input_tokens=prompt + (usage.tool_use_prompt_token_count or 0),
        cache_read_tokens=cached,
        output_tokens=usage.candidates_token_count or 0,
        reasoning_tokens=usage.thoughts_token_count or 0,
    )
