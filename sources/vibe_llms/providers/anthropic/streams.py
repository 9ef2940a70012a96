"""Anthropic's replies, streamed and whole, translated to deltas.

Events are decoded by typed structs. A block of an unknown kind is kept as it came; an unknown event
and an unknown delta are passed over. Nothing of a reply is complete before `message_stop`.

Source: the event types of anthropic 2.12.0, `types/raw_message_stream_event.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.contents import Citation, NativeContent, ReasoningContent, repair_text
from vibe_llms.providers.anthropic.errors import ERRORS
from vibe_llms.providers.anthropic.events import (
    EVENT,
    EVENT_TYPE,
    HEAD,
    KIND,
    KINDS,
    MEMBERS,
    STEP_KINDS,
    UNDERSTOOD,
    WHOLE,
    BlockDelta,
    BlockHead,
    BlockStart,
    BlockStep,
    BlockStop,
    CitationStep,
    Ending,
    JsonStep,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    SignatureStep,
    StreamError,
    StreamEvent,
    TextStep,
    ThinkingStep,
)
from vibe_llms.providers.assimilators import StreamAssimilator
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
from vibe_llms.providers.pieces import compact, encode_json
from vibe_llms.providers.repairs import TextJoiner, escape
from vibe_llms.providers.stop_reasons import close_reply
from vibe_llms.providers.wire import DONE

T = TypeVar("T")


class AnthropicAssimilator(StreamAssimilator):
    """One reply of Anthropic's."""

    errors = ERRORS

    def __init__(self, provider: str, name_of: Callable[[str], str]) -> None:
        super().__init__(provider, name_of)
        self._usage = MessageUsage()
        self._ending = Ending()
        self._block: _Block | None = None
        # The open block of text, unless the half of a surrogate pair waits for its other half.
        self._plain: int | None = None
        self._joiner = TextJoiner()

    def read(self, events: Sequence[bytes]) -> Iterator[Delta]:
        """The deltas of some more events of the stream."""
        for data in events:
            try:
                event = EVENT.decode(data)
            except (ValueError, RecursionError) as error:
                if data == DONE:
                    continue
                newer = self._decode_leniently(data, error)
                if type(newer) is StreamError:
                    raise self.read_error(data) from None
                if newer is not None:
                    yield from self._advance(newer)
                continue
            if type(event) is BlockDelta and event.index == self._plain:
                delta = event.delta
                if type(delta) is TextStep:
                    yield TextDelta(delta.text)
                    continue
            if type(event) is StreamError:
                raise self.read_error(data)
            yield from self._advance(event)
            if self.closed:
                return

    def assimilate(self, body: bytes) -> Iterator[Delta]:
        """The deltas of a reply that was not streamed: each block in one step."""
        try:
            message = WHOLE.decode(body)
        except (ValueError, RecursionError) as error:
            message = self.convert(_escape_contents(self.parse(body, error)), Message)
        if message.type == "error":
            raise self.read_error(body)
        if message.stop_reason is None:
            raise self.malformed("a reply without a stop reason")
        yield from self._advance(MessageStart(message))
        for index, content in enumerate(message.content):
            yield from self._advance(BlockStart(index, content))
            yield from self._advance(BlockStop(index))
        yield from self._advance(MessageDelta(message, message.usage))
        yield from self._advance(MessageStop())

    def _advance(self, event: StreamEvent) -> Iterator[Delta]:
        match event:
            case MessageStart(message):
                yield ReplyOpened(repair_text(message.id))
                yield from self._count(message.usage)
            case BlockStart(index, content):
                if self._block is not None:
                    raise self.malformed(f"block {index} begins within block {self._block.index}")
                yield from self._open(self._produce_block(index, content))
            case BlockDelta(index, delta):
                yield from self._grow(self._open_block(index), delta)
            case BlockStop(index):
                yield from self._close(self._open_block(index))
            case MessageDelta(ending, usage):
                self._ending = ending
                yield from self._count(usage)
            case MessageStop():
                if self._block is not None:
                    raise self.malformed(f"the reply ends within block {self._block.index}")
                self.closed = True
                yield self._produce_ending()
            case StreamError():
                # It was raised with its data.
                pass

    def _open_block(self, index: int) -> _Block:
        block = self._block
        if block is None or block.index != index:
            raise self.malformed(f"something of block {index}, which is not open")
        return block

    def _open(self, block: _Block) -> Iterator[Delta]:
        self._block = block
        head = block.head
        match block.kind:
            case "text":
                self._plain = block.index
                yield ContentOpened("text")
                for citation in head.citations or ():
                    yield from self._cite(block, citation)
                if head.text:
                    yield from self._text(block, head.text)
            case "thinking":
                yield ContentOpened("reasoning")
                block.signature = head.signature
                if head.thinking:
                    yield from self._think(block, head.thinking)
            case "redacted_thinking":
                yield ContentReceived(ReasoningContent(), block.content)
            case "tool_use":
                yield InvocationOpened(self.name_of(repair_text(head.name)), repair_text(head.id))

    def _grow(self, block: _Block, delta: BlockStep) -> Iterator[Delta]:
        # What does not belong to the kind of its block is passed over, as the official client does.
        match delta:
            case TextStep(text) if block.kind == "text":
                yield from self._text(block, text)
            case ThinkingStep(thinking) if block.kind == "thinking":
                yield from self._think(block, thinking)
            case JsonStep(partial_json) if block.kind == "tool_use":
                if text := self._joiner.join(partial_json):
                    block.whole = True
                    yield ArgumentsDelta(text)
            case JsonStep(partial_json):
                block.arguments.append(partial_json)
            case SignatureStep(signature):
                block.signature = signature
            case CitationStep(citation) if block.kind == "text":
                yield from self._cite(block, citation)

    def _close(self, block: _Block) -> Iterator[Delta]:
        if self._joiner.waiting:
            yield _SPOKEN[block.kind](self._joiner.conclude())
            block.repaired = block.whole = True
        self._block = self._plain = None
        match block.kind:
            case "text":
                native = {"citations": block.citations} if block.citations else None
                yield ContentClosed(None if native is None else Raw(encode_json(native)))
            case "thinking":
                yield ContentClosed(block.thinking_payload())
            case "redacted_thinking":
                pass
            case "tool_use":
                if not block.whole:
                    yield ArgumentsDelta(compact(bytes(block.head.input)).decode())
                yield InvocationClosed(block.call_payload())
            case label:
                yield ContentReceived(NativeContent(label=label), block.whole_payload())

    def _text(self, block: _Block, text: str) -> Iterator[Delta]:
        text = self._joiner.join(text)
        self._plain = None if self._joiner.waiting else block.index
        if text:
            yield TextDelta(text)

    def _think(self, block: _Block, text: str) -> Iterator[Delta]:
        sent = text.count("\ufffd")
        text = self._joiner.join(text)
        # The signature covers the thinking as it was sent; a lone surrogate cannot be kept.
        block.repaired = block.repaired or text.count("\ufffd") != sent
        if text:
            yield ReasoningDelta(text)

    def _cite(self, block: _Block, citation: Raw) -> Iterator[Delta]:
        kept = bytes(self.keep(citation))
        try:
            read = read_citation(kept)
        except ValueError as error:
            raise self.malformed(f"{kept[:80]!r} is no citation ({error})") from error
        block.citations.append(Raw(kept))
        yield CitationDelta(read)

    def _count(self, usage: MessageUsage | None) -> Iterator[Delta]:
        # Counts are cumulative; what a later event leaves out keeps its earlier value.
        if usage is None:
            return
        for name in usage.__struct_fields__:
            value = getattr(usage, name)
            if value is not None:
                setattr(self._usage, name, value)
        total = self._usage
        details = total.output_tokens_details
        reasoning = (details.thinking_tokens or 0) if details else 0
        yield UsageDelta(
            Usage(
                uncached_input_tokens=total.input_tokens or 0,
                cache_read_tokens=total.cache_read_input_tokens or 0,
                cache_write_tokens=total.cache_creation_input_tokens or 0,
                output_tokens=max((total.output_tokens or 0) - reasoning, 0),
                reasoning_tokens=reasoning,
            )
        )

    def _produce_ending(self) -> ReplyClosed:
        native = repair_text(self._ending.stop_reason or "")
        details = self._ending.stop_details
        detail = self._ending.stop_sequence or ""
        if details is not None:
            detail = ": ".join(part for part in (details.category, details.explanation) if part)
        return close_reply(self.provider, native, detail=repair_text(detail))

    def _decode_leniently(self, data: bytes, error: Exception) -> StreamEvent | None:
        """An event that the typed decoder refuses: a newer kind, or text with lone surrogates."""
        event = self.parse(data, error)
        kind = event.get("type")
        delta = event.get("delta")
        if str(kind) not in KINDS:
            return None
        if kind == "content_block_delta" and isinstance(delta, dict):
            if str(delta.get("type")) not in STEP_KINDS:
                return None
            if "citation" in delta:
                delta["citation"] = escape(delta["citation"])
        if "content_block" in event:
            event["content_block"] = escape(event["content_block"])
        if isinstance(message := event.get("message"), dict):
            event["message"] = _escape_contents(message)
        decoded: StreamEvent = self.convert(event, EVENT_TYPE)
        return decoded

    def _produce_block(self, index: int, content: Raw) -> _Block:
        kept = self.keep(content)
        try:
            kind = repair_text(KIND.decode(kept).type)
            head = HEAD.decode(kept) if kind in UNDERSTOOD else BlockHead()
        except (ValueError, RecursionError) as error:
            raise self.malformed(f"block {index} is not what it says: {error}") from error
        return _Block(index, kind, kept, head)


_SPOKEN: dict[str, Callable[[str], Delta]] = {
    "text": TextDelta,
    "thinking": ReasoningDelta,
    "tool_use": ArgumentsDelta,
}


class _Block:
    """The block that is being received.

    `content` is the block as it began. `whole` says that arguments of a call came apart from it,
    `repaired` that its text is not quite what was sent.
    """

    def __init__(self, index: int, kind: str, content: Raw, head: BlockHead) -> None:
        self.index, self.kind, self.content, self.head = index, kind, content, head
        self.arguments: list[str] = []
        self.citations: list[Raw] = []
        self.signature = ""
        self.whole = False
        self.repaired = False

    def thinking_payload(self) -> Raw | None:
        """What Anthropic wants back with its thinking; nothing where it would not fit the text."""
        if not self.signature or self.repaired:
            return None
        return Raw(encode_json({"signature": repair_text(self.signature)}))

    def call_payload(self) -> Raw | None:
        """The members of a call that have no place in ours: who called, from which toolset."""
        members = MEMBERS.decode(self.content)
        for name in ("type", "id", "name", "input"):
            members.pop(name, None)
        return Raw(encode_json(members)) if members else None

    def whole_payload(self) -> Raw:
        """The block with the input that arrived for it, unless that was cut."""
        arguments = repair_text("".join(self.arguments)).encode()
        try:
            members = {**MEMBERS.decode(self.content), "input": Raw(compact(arguments))}
        except ValueError:
            return self.content
        return Raw(encode_json(members))


class _Source(Struct):
    cited_text: str | None = None
    document_title: str | None = None
    title: str | None = None
    url: str | None = None
    source: str | None = None
    start_char_index: int | None = None
    end_char_index: int | None = None
    start_page_number: int | None = None
    end_page_number: int | None = None
    start_block_index: int | None = None
    end_block_index: int | None = None


_SOURCE = msgspec.json.Decoder(_Source)


def read_citation(raw: bytes) -> Citation:
    """A citation in our terms; its units are those that Anthropic counts in.

    Source: the `citation_*_location.py` types of anthropic 2.12.0.
    """
    reported = _SOURCE.decode(raw)
    spans = (
        ("character", reported.start_char_index, reported.end_char_index),
        ("page", reported.start_page_number, reported.end_page_number),
        ("block", reported.start_block_index, reported.end_block_index),
    )
    unit, start, end = next((span for span in spans if span[1] is not None), ("", None, None))
    return Citation(
        quote=reported.cited_text or "",
        title=reported.document_title or reported.title or "",
        source=reported.url or reported.source or "",
        start=start,
        end=end,
        unit=unit,
    )


def _escape_contents(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [escape(item) for item in content]}
    return message
