"""Anthropic's replies, streamed and whole, translated to deltas.

Events are decoded by typed structs. A block of an unknown kind is kept unchanged; unknown events
and deltas are skipped. A reply is complete with `message_stop`, or with a stop reason if the stream
ends cleanly after it.

Other servers with this interface omit the beginning, the index or the end of a block, or have
several blocks open at once. A step belongs to the open block of its index and kind, else to the
last open block of its kind, else to a new one. Blocks without an end of their own end with the
reply.

Source: the event types of anthropic 2.12.0, `types/raw_message_stream_event.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from vibe_llms.base.exceptions import ReplyCut
from vibe_llms.base.redaction import quote
from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.contents import Citation, NativeContent, ReasoningContent, repair_text
from vibe_llms.providers.anthropic.errors import ERRORS
from vibe_llms.providers.anthropic.events import (
    BY_KIND,
    EVENT,
    HEAD,
    MEMBERS,
    STEPS,
    WHOLE,
    AnthropicDelta,
    BlockDelta,
    BlockHead,
    BlockStart,
    BlockStep,
    BlockStop,
    CitationStep,
    IterationUsage,
    JsonStep,
    Message,
    MessageEnding,
    MessageStart,
    MessageStop,
    MessageUsage,
    SignatureStep,
    StreamError,
    StreamEvent,
    TextStep,
    ThinkingStep,
)
from vibe_llms.providers.anthropic.messages import COMPACTION
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
from vibe_llms.providers.http_errors import find_event_error
from vibe_llms.providers.pieces import compact, encode_json
from vibe_llms.providers.repairs import TextJoiner, convert_members, is_object, parse_object, repair
from vibe_llms.providers.stop_reasons import close_reply
from vibe_llms.providers.usages import subtract
from vibe_llms.providers.wire import DONE

T = TypeVar("T")

#: Members of a block that contain the model's words.
_WORDS = ("text", "thinking")
_KNOWN_KINDS = ("text", "thinking", "redacted_thinking", "tool_use")


class AnthropicAssimilator(StreamAssimilator):
    """Reader of one reply from Anthropic."""

    errors = ERRORS

    def __init__(self, provider: str, name_of: Callable[[str], str]) -> None:
        super().__init__(provider, name_of)
        self._usage = MessageUsage()
        self._ending = MessageEnding()
        # Blocks that some servers send with the beginning of the message.
        self._brought: Sequence[Raw] = ()
        # Blocks not passed on yet; the first is the open one.
        self._queue: deque[_Block] = deque()
        self._last = -1
        self._called = False
        # Index of the open text block, unless half of a surrogate pair waits for its other half.
        self._plain: int | None = None
        self._joiner = TextJoiner()

    def read(self, events: Sequence[bytes]) -> Iterator[Delta]:
        """Yield the deltas of the next events of the stream."""
        for data in events:
            try:
                event = EVENT.decode(data)
            except (ValueError, RecursionError) as error:
                if data == DONE:
                    continue
                newer = self._decode_leniently(data, error)
                if newer is not None:
                    yield from self._advance(newer, data)
                continue
            if type(event) is BlockDelta and event.index == self._plain:
                delta = event.delta
                if type(delta) is TextStep and delta.text and self._plain is not None:
                    yield TextDelta(delta.text)
                    continue
            yield from self._advance(event, data)
            if self.closed:
                return

    def conclude(self) -> Iterator[Delta]:
        """Yield the end of the reply, or raise `ReplyCut` if no stop reason was seen."""
        if not self.closed and (rest := self._splitter.conclude()):
            yield from self.read(self.refine(rest))
        if not self.closed and self._ending.stop_reason:
            yield from self._end()
        yield from super().conclude()

    def assimilate(self, body: bytes) -> Iterator[Delta]:
        """Yield the deltas of an unstreamed reply, each block in one step."""
        try:
            message = WHOLE.decode(body)
        except (ValueError, RecursionError) as error:
            message = self._convert(self.parse(body, error), Message)
        if message.type == "error" or bytes(message.error) != b"null":
            raise self.read_error(body)
        if message.stop_reason is None and not message.content:
            raise self.malformed("a reply without a stop reason")
        yield from self._advance(MessageStart(message), body)
        yield from self._end()

    def _advance(self, event: StreamEvent, data: bytes) -> Iterator[Delta]:
        match event:
            case MessageStart(message):
                message = message or Message()
                yield ReplyOpened(repair_text(message.id or ""))
                self._brought = message.content or ()
                self._note_ending(message)
                yield from self._count(message.usage)
            case BlockStart(content_block=content, index=index):
                self._begin(self._produce_block(index, content))
            case BlockDelta(delta=delta, index=index):
                if (block := self._find(index, delta)) is not None:
                    block.grown = True
                    block.waiting.append(delta)
            case BlockStop(index):
                unfinished = (one for one in reversed(self._queue) if not one.ended)
                here = (one for one in unfinished if index in (None, one.index))
                if (block := next(here, None)) is not None:
                    block.stopped = True
            case AnthropicDelta(ending, usage, reason):
                self._note_ending(ending or MessageEnding(reason))
                yield from self._count(usage)
            case MessageStop():
                yield from self._end()
            case StreamError():
                raise self.read_error(data)
        yield from self._pass_on()

    def _begin(self, block: _Block) -> None:
        """Begin a block, and end open ones that are implied or have its index."""
        for one in self._queue:
            if not one.ended and (one.implied or one.index == block.index):
                one.over = True
        self._last = block.index
        self._queue.append(block)

    def _find(self, index: int | None, step: BlockStep) -> _Block | None:
        """Return the block that a step extends, perhaps a new one, or None if it extends none."""
        unfinished = [one for one in reversed(self._queue) if one.takes(step) and not one.ended]
        for one in unfinished:
            if one.index == index:
                return one
        if index is not None and (fresh := next((one for one in unfinished if one.fresh), None)):
            # Some servers send steps with another index than the beginning of their block.
            fresh.index = index
            return fresh
        match step:
            case TextStep(text) if text and (index is not None or not unfinished):
                return self._imply("text", index)
            case ThinkingStep(text) if text and (index is not None or not unfinished):
                return self._imply("thinking", index)
            case JsonStep(text) if (text or "").strip() and not unfinished:
                raise self.malformed(f"arguments without a call: {quote(text or '')}")
        # A step without an index continues the last open block.
        return unfinished[0] if unfinished else None

    def _imply(self, kind: str, index: int | None) -> _Block:
        place = self._last + 1 if index is None else index
        block = _Block(place, kind, Raw(b"{}"), BlockHead())
        self._begin(block)
        block.implied = True
        return block

    def _pass_on(self, *, cut: bool = False) -> Iterator[Delta]:
        """Yield the waiting deltas, up to the first block that has not ended."""
        while self._queue:
            block = self._queue[0]
            if not block.opened:
                block.opened = True
                yield from self._open(block)
            waiting, block.waiting = block.waiting, []
            for step in waiting:
                yield from self._grow(block, step)
            last = len(self._queue) == 1
            if not block.ended or (cut and last and block.kind == "tool_use" and not block.stopped):
                return
            self._queue.popleft()
            yield from self._close(block)

    def _open(self, block: _Block) -> Iterator[Delta]:
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
                block.signature = head.signature or ""
                if head.thinking:
                    yield from self._think(block, head.thinking)
            case "redacted_thinking":
                yield ContentReceived(ReasoningContent(), block.content)
            case "tool_use":
                if not head.name:
                    raise self.malformed("a call without a tool name")
                self._called = True
                name = self.name_of(repair_text(head.name))
                yield InvocationOpened(name, repair_text(head.id or ""))

    def _grow(self, block: _Block, delta: BlockStep) -> Iterator[Delta]:
        match delta:
            case TextStep(text) if text and block.kind == "text":
                yield from self._text(block, text)
            case ThinkingStep(thinking) if thinking and block.kind == "thinking":
                yield from self._think(block, thinking)
            case JsonStep(partial_json) if partial_json is not None and block.kind == "tool_use":
                block.stated = True
                if text := self._joiner.join(partial_json):
                    block.arguments.append(text)
                    yield ArgumentsDelta(text)
            case JsonStep(partial_json) if partial_json:
                block.arguments.append(partial_json)
            case SignatureStep(signature) if signature:
                block.signature = signature
            case CitationStep(citation) if block.kind == "text":
                yield from self._cite(block, citation)

    def _close(self, block: _Block) -> Iterator[Delta]:
        if self._joiner.waiting:
            rest = self._joiner.conclude()
            block.arguments.append(rest)
            yield _SPOKEN[block.kind](rest)
            block.repaired = True
        self._plain = None
        match block.kind:
            case "text":
                native = {"citations": block.citations} if block.citations else None
                yield ContentClosed(None if native is None else Raw(encode_json(native)))
            case "thinking":
                yield ContentClosed(block.thinking_payload())
            case "redacted_thinking":
                pass
            case "tool_use":
                yield from self._close_call(block)
            case label:
                yield ContentReceived(NativeContent(label=label), block.whole_payload())

    def _close_call(self, block: _Block) -> Iterator[Delta]:
        text = "".join(block.arguments)
        if not text:
            # The whole input came with the beginning of the block; some servers send it as a text.
            text = block.read_input()
            yield ArgumentsDelta(text)
            arrived = block.stopped or text != "{}"
        else:
            arrived = block.stopped or is_object(text)
        if not arrived or not text:
            name = repair_text(block.head.name or "")
            raise ReplyCut(
                f"the arguments of the call of {name!r} did not arrive", provider=self.provider
            )
        yield InvocationClosed(block.call_payload())

    def _text(self, block: _Block, text: str) -> Iterator[Delta]:
        text = self._joiner.join(text)
        self._plain = None if self._joiner.waiting else block.index
        if text:
            yield TextDelta(text)

    def _think(self, block: _Block, text: str) -> Iterator[Delta]:
        sent = text.count("\ufffd")
        text = self._joiner.join(text)
        # The signature covers the thinking as it was sent, but a lone surrogate cannot be kept.
        block.repaired = block.repaired or text.count("\ufffd") != sent
        if text:
            yield ReasoningDelta(text)

    def _cite(self, block: _Block, citation: Raw) -> Iterator[Delta]:
        kept = bytes(self.keep(citation))
        try:
            read = read_citation(kept)
        except ValueError as error:
            raise self.malformed(f"{quote(kept)} is not a citation ({error})") from error
        block.citations.append(Raw(kept))
        yield CitationDelta(read)

    def _count(self, usage: MessageUsage | None) -> Iterator[Delta]:
        # Counts are cumulative; one that a later event omits keeps its earlier value.
        if usage is None:
            return
        for name in usage.__struct_fields__:
            value = getattr(usage, name)
            # Some servers count the input at the beginning and report none at the end.
            counted = name == "input_tokens" and value == 0 and self._usage.input_tokens
            if value is not None and not counted:
                setattr(self._usage, name, value)
        yield UsageDelta(_read_usage(self._usage))

    def _note_ending(self, ending: MessageEnding) -> None:
        """Update the ending with an event; members that it omits keep their earlier values."""
        for name in MessageEnding.__struct_fields__:
            if getattr(ending, name) is not None:
                setattr(self._ending, name, getattr(ending, name))

    def _end(self) -> Iterator[Delta]:
        """Complete the reply, and end all open blocks."""
        if self._last < 0:
            for index, content in enumerate(self._brought):
                block = self._produce_block(index, content)
                block.stopped = True
                self._begin(block)
        ending = self._produce_ending()
        for block in self._queue:
            block.over = True
        yield from self._pass_on(cut=ending.cut)
        if self._called:
            ending = self._produce_ending()
        self.closed = True
        yield ending

    def _produce_ending(self) -> ReplyClosed:
        native = repair_text(self._ending.stop_reason or "")
        details = self._ending.stop_details
        detail = self._ending.stop_sequence or ""
        if details is not None:
            detail = ": ".join(part for part in (details.category, details.explanation) if part)
        return close_reply(self.provider, native, detail=repair_text(detail), called=self._called)

    def _decode_leniently(self, data: bytes, error: Exception) -> StreamEvent | None:
        """Decode an event that the typed decoder refuses; return None for an unknown kind."""
        event = self.parse(data, error)
        kind = event.get("type")
        known = BY_KIND.get(kind) if isinstance(kind, str) else None
        if known is None:
            if find_event_error(event) is not None:
                raise self.read_error(data)
            return None
        if known is BlockDelta:
            delta = event.get("delta")
            step = _step_of(delta) if isinstance(delta, dict) else None
            if step is None:
                return None
            event["delta"] = self._convert(delta, step)
        decoded: StreamEvent = self._convert(event, known)
        return decoded

    def _convert(self, value: Any, kind: type[Struct]) -> Any:
        content = value.get("content")
        if isinstance(content, str):
            value["content"] = [{"type": "text", "text": content}]
        elif not isinstance(content, list | None):
            raise self.malformed(f"a message whose content is {content!r}")
        if isinstance(value.get("partial_json"), dict):
            value["partial_json"] = encode_json(repair(value["partial_json"])).decode()
        try:
            return convert_members(value, kind)
        except (ValueError, TypeError) as error:
            raise self.malformed(f"an event does not have the expected form: {error}") from error

    def _produce_block(self, index: int | None, content: Raw) -> _Block:
        kept = self.keep(content)
        try:
            head = HEAD.decode(kept)
        except (ValueError, RecursionError):
            try:
                head = _read_head(kept)
            except (ValueError, RecursionError) as error:
                raise self.malformed(f"block {index} does not match its type: {error}") from error
        kind = repair_text(head.type or "") or _kind_of(head)
        if not kind:
            raise self.malformed(f"block {index} has no type: {quote(bytes(kept))}")
        if index is None:
            index = self._last + 1
        return _Block(index, kind, kept, head)


_SPOKEN: dict[str, Callable[[str], Delta]] = {
    "text": TextDelta,
    "thinking": ReasoningDelta,
    "tool_use": ArgumentsDelta,
}


class _Block:
    """A block of the reply.

    `content` is the block as it began; `implied` means that it began with a step. `stopped` means
    that its last event has come, `over` that no such event will come. `waiting` holds the steps not
    passed on yet; `repaired` means that its text differs from what was sent.
    """

    def __init__(self, index: int, kind: str, content: Raw, head: BlockHead) -> None:
        self.index, self.kind, self.content, self.head = index, kind, content, head
        self.waiting: list[BlockStep] = []
        self.implied = self.grown = self.stopped = self.over = self.opened = False
        self.arguments: list[str] = []
        self.stated = False
        self.citations: list[Raw] = []
        self.signature = ""
        self.repaired = False

    @property
    def fresh(self) -> bool:
        """True if the block has begun and no step has come."""
        return not (self.implied or self.grown)

    @property
    def ended(self) -> bool:
        """True if the block gets no more steps."""
        return self.stopped or self.over

    def takes(self, step: BlockStep) -> bool:
        """Return True if a step belongs to this kind of block, or the kind is unknown."""
        match step:
            case _ if self.kind not in _KNOWN_KINDS:
                return True
            case TextStep() | CitationStep():
                return self.kind == "text"
            case ThinkingStep() | SignatureStep():
                return self.kind == "thinking"
            case _:
                return self.kind == "tool_use"

    def read_input(self) -> str:
        """Return the input that came with the beginning of a call, or an empty text."""
        raw = compact(bytes(self.head.input))
        if raw == b"null":
            return "{}" if self.stated else ""
        text = msgspec.json.decode(raw, type=str) if raw[:1] == b'"' else raw.decode()
        return text or "{}"

    def thinking_payload(self) -> Raw | None:
        """Return the signature to send back, or None if there is none or the text was repaired."""
        if not self.signature or self.repaired:
            return None
        return Raw(encode_json({"signature": repair_text(self.signature)}))

    def call_payload(self) -> Raw | None:
        """Return the members of a call that our canister lacks, such as its caller and toolset."""
        members = MEMBERS.decode(self.content)
        for name in ("type", "id", "name", "input"):
            members.pop(name, None)
        return Raw(encode_json(members)) if members else None

    def whole_payload(self) -> Raw:
        """Return the block with its received input, or without it if it was cut."""
        arguments = repair_text("".join(self.arguments)).encode()
        try:
            members = {**MEMBERS.decode(self.content), "input": Raw(compact(arguments))}
        except ValueError:
            return self.content
        return Raw(encode_json(members))


def _read_head(kept: Raw) -> BlockHead:
    members = parse_object(bytes(kept))
    if not all(isinstance(members.get(name), str | None) for name in _WORDS):
        raise ValueError("its text is not a string")
    return convert_members(members, BlockHead)


def _step_of(delta: dict[str, Any]) -> type[Struct] | None:
    """Return the kind of a step by its type, or by its first member."""
    kind = delta.get("type")
    if kind is not None:
        return STEPS.get(kind) if isinstance(kind, str) else None
    named = ((step, step.__struct_encode_fields__[0]) for step in STEPS.values())
    return next((step for step, member in named if member in delta), None)


def _kind_of(head: BlockHead) -> str:
    """Return the type of a block that does not name it."""
    if head.name:
        return "tool_use"
    return "text" if head.text is not None else "thinking" if head.thinking is not None else ""


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
    """Return a citation in our terms; its offsets are in Anthropic's units.

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


def _read_usage(usage: MessageUsage) -> Usage:
    details = usage.output_tokens_details
    reasoning = (details.thinking_tokens or 0) if details else 0
    summaries = [one for one in usage.iterations or () if one.type == COMPACTION]
    counted: list[IterationUsage] = [usage, *summaries]
    written = [one.cache_creation for one in counted if one.cache_creation is not None]
    return Usage(
        uncached_input_tokens=sum(one.input_tokens or 0 for one in counted),
        cache_read_tokens=sum(one.cache_read_input_tokens or 0 for one in counted),
        cache_write_tokens=sum(one.cache_creation_input_tokens or 0 for one in counted),
        output_tokens=subtract(sum(one.output_tokens or 0 for one in counted), reasoning),
        reasoning_tokens=reasoning,
        hour_write_tokens=sum(one.ephemeral_1h_input_tokens or 0 for one in written),
    )
