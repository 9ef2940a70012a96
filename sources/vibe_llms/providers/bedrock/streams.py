"""Replies of Converse and ConverseStream, translated to deltas.

A block belongs to its index, and passes on when the blocks before it have ended. Only calls have a
beginning; text and reasoning begin with their first step. A reply is complete with its usage, which
follows the end of the message, or with the end of the message if the stream ends cleanly.

Source: the shapes of `bedrock-runtime` (2023-09-30) in botocore 1.44.
"""

from __future__ import annotations

import base64
import binascii
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from vibe_llms.base.exceptions import ReplyCut
from vibe_llms.base.redaction import quote
from vibe_llms.messages.contents import (
    ImageContent,
    NativeContent,
    ReasoningContent,
    repair_text,
)
from vibe_llms.providers.assimilators import StreamAssimilator
from vibe_llms.providers.bedrock.blocks import ReplyBlock, kind_of
from vibe_llms.providers.bedrock.errors import ERRORS
from vibe_llms.providers.bedrock.events import (
    BLOCK,
    EVENT,
    IMAGE,
    WHOLE,
    ConverseBlockDelta,
    ConverseBlockHead,
    ConverseBlockStep,
    ConverseEvent,
    ConverseMessageStop,
    ConverseMetadata,
    ConverseReply,
    ReasoningBlock,
    ReasoningStep,
    ToolStep,
    WholeBlock,
)
from vibe_llms.providers.bedrock.eventstream import EventStreamSplitter
from vibe_llms.providers.bedrock.readings import (
    describe_findings,
    read_citation,
    read_stop,
    read_usage,
)
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
    TextDelta,
    UsageDelta,
)
from vibe_llms.providers.pieces import compact, encode_json
from vibe_llms.providers.repairs import (
    TextJoiner,
    convert_members,
    is_object,
    says_something,
)
from vibe_llms.providers.stop_reasons import close_reply


class BedrockAssimilator(StreamAssimilator):
    """Reader of one reply from Bedrock."""

    splitter = EventStreamSplitter
    errors = ERRORS
    #: See `read_usage`.
    inclusive = False
    _splitter: EventStreamSplitter

    def __init__(self, provider: str, name_of: Callable[[str], str]) -> None:
        super().__init__(provider, name_of)
        # Blocks not passed on yet; the first is the open one.
        self._queue: deque[ReplyBlock] = deque()
        self._last = -1
        self._called = False
        self._ending: ConverseMessageStop | None = None
        self._counted = False
        self._findings = ""
        # Index of the open text block, unless half of a surrogate pair waits for its other half.
        self._plain: int | None = None
        self._joiner = TextJoiner()

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        """Yield the deltas of more bytes of the stream; chunks may end anywhere."""
        return self.read(self._splitter.feed(chunk))

    def read(self, events: Sequence[bytes]) -> Iterator[Delta]:
        """Yield the deltas of the next events of the stream."""
        if self.closed:
            return
        for data in events:
            try:
                event = EVENT.decode(data)
            except (ValueError, RecursionError) as error:
                event = self._decode_leniently(data, error)
            delta = event.content_block_delta
            if delta is not None:
                step = delta.delta
                if (
                    delta.content_block_index == self._plain
                    and self._plain is not None
                    and step is not None
                    and step.text
                    and step.citation is UNSET
                ):
                    yield TextDelta(step.text)
                    continue
            yield from self._advance(event, data)
            if self.closed:
                return
        self._check_damage()

    def conclude(self) -> Iterator[Delta]:
        """Yield the end of the reply, or raise `ReplyCut` if no stop reason was seen."""
        if not self.closed:
            self._check_damage()
            if self._ending is None:
                raise self.fail()
            yield from self._end(self._ending)

    def assimilate(self, body: bytes) -> Iterator[Delta]:
        """Yield the deltas of an unstreamed reply, each block in one step."""
        try:
            reply = WHOLE.decode(body)
        except (ValueError, RecursionError) as error:
            reply = self._convert(self.parse(body, error), ConverseReply)
        message = None if reply.output is None else reply.output.message
        if message is None and reply.stop_reason is None:
            if self.errors.parse(body).message:
                raise self.read_error(body)
            raise self.malformed(f"{quote(body)} is not a reply")
        for index, raw in enumerate((message and message.content) or ()):
            self._begin(self._read_block(index, raw))
        yield from self._pass_on()
        yield from self._count(ConverseMetadata(reply.usage, reply.trace))
        ending = ConverseMessageStop(reply.stop_reason, reply.additional_model_response_fields)
        yield from self._end(ending)

    def _check_damage(self) -> None:
        if not self.closed and self._splitter.damage:
            raise self.malformed(self._splitter.damage)

    def _advance(self, event: ConverseEvent, data: bytes) -> Iterator[Delta]:
        if says_something(event.failure):
            raise self.read_error(data)
        if (delta := event.content_block_delta) is not None:
            self._grow(delta)
        if (start := event.content_block_start) is not None:
            self._begin(self._produce_block(start.content_block_index, start.start))
        if (stop := event.content_block_stop) is not None:
            index = stop.content_block_index
            here = (one for one in reversed(self._queue) if index in (None, one.index))
            if (block := next(here, None)) is not None:
                block.ended = block.whole = True
        yield from self._pass_on()
        if event.message_stop is not None:
            self._ending = self._ending or event.message_stop
        if event.metadata is not None:
            yield from self._count(event.metadata)
        if self._ending is not None and self._counted:
            yield from self._end(self._ending)

    def _begin(self, block: ReplyBlock) -> None:
        """Begin a block; an open one with its index has ended."""
        for one in self._queue:
            one.ended = one.ended or one.index == block.index
        self._last = block.index
        self._queue.append(block)

    def _grow(self, delta: ConverseBlockDelta) -> None:
        step, index = delta.delta, delta.content_block_index
        kind = "" if step is None else kind_of(step)
        if step is None or not kind:
            return
        index = max(self._last, 0) if index is None else index
        here = (one for one in reversed(self._queue) if one.index == index and not one.ended)
        block = next(here, None)
        if block is None or not block.takes(kind):
            if kind == "arguments":
                text = step.tool_use.input if step.tool_use is not None else ""
                raise self.malformed(f"arguments without a call: {quote(text or '')}")
            block = ReplyBlock(index, kind)
            self._begin(block)
        block.waiting.append(step)

    def _pass_on(self) -> Iterator[Delta]:
        """Yield the waiting deltas, up to the first block that has not ended."""
        while self._queue:
            block = self._queue[0]
            if not block.opened and block.kind:
                block.opened = True
                yield from self._open(block)
            waiting, block.waiting = block.waiting, []
            for step in waiting:
                yield from self._step(block, step)
            if not block.ended:
                return
            self._queue.popleft()
            yield from self._close(block)

    def _open(self, block: ReplyBlock) -> Iterator[Delta]:
        match block.kind:
            case "text":
                self._plain = block.index
                yield ContentOpened("text")
            case "reasoning":
                yield ContentOpened("reasoning")
            case "arguments":
                if not block.name:
                    raise self.malformed("a call without a tool name")
                self._called = True
                yield InvocationOpened(self.name_of(block.name), block.call)

    def _step(self, block: ReplyBlock, step: ConverseBlockStep) -> Iterator[Delta]:
        if step.text and block.kind == "text":
            yield from self._speak(block, step.text, TextDelta)
        if says_something(step.citation) and block.kind == "text":
            yield from self._cite(block, step.citation)
        if step.tool_use is not None and (text := step.tool_use.input):
            if block.kind == "arguments":
                text = self._joiner.join(text)
                block.arguments.append(text)
                if text:
                    yield ArgumentsDelta(text)
            else:
                block.arguments.append(repair_text(text))
        if step.reasoning_content is not None and block.kind == "reasoning":
            yield from self._reason(block, step.reasoning_content)
        if step.tool_result is not None:
            for part in step.tool_result:
                block.add_result(self.keep(part))
        if says_something(step.image):
            self._draw(block, step.image)

    def _speak(
        self, block: ReplyBlock, text: str, produce: type[TextDelta | ReasoningDelta]
    ) -> Iterator[Delta]:
        text = self._joiner.join(text)
        if block.kind == "text":
            self._plain = None if self._joiner.waiting else block.index
        if text:
            yield produce(text)

    def _reason(self, block: ReplyBlock, step: ReasoningStep) -> Iterator[Delta]:
        if step.text:
            sent = step.text.count("\ufffd")
            for delta in self._speak(block, step.text, ReasoningDelta):
                # The signature covers the text as it was sent; a lone surrogate cannot be kept.
                repaired = isinstance(delta, ReasoningDelta) and delta.text.count("\ufffd") != sent
                block.repaired = block.repaired or repaired
                yield delta
        if step.signature:
            block.signature += repair_text(step.signature)
        if step.redacted_content:
            block.redacted += self._decode_bytes(step.redacted_content)

    def _close(self, block: ReplyBlock) -> Iterator[Delta]:
        if self._joiner.waiting and block.kind in _SPOKEN:
            rest = self._joiner.conclude()
            block.arguments.append(rest)
            block.repaired = True
            yield _SPOKEN[block.kind](rest)
        self._plain = None
        match block.kind:
            case "text":
                native = {"citations": block.citations} if block.citations else None
                yield ContentClosed(None if native is None else Raw(encode_json(native)))
            case "reasoning" if block.redacted:
                redacted = base64.b64encode(block.redacted).decode()
                payload = Raw(encode_json({"redactedContent": redacted}))
                yield ContentClosed(block.sign())
                yield ContentReceived(ReasoningContent(), payload)
            case "reasoning":
                yield ContentClosed(block.sign())
            case "arguments":
                yield from self._close_call(block)
            case "image" if block.image:
                mimetype = f"image/{block.format or 'png'}"
                yield ContentReceived(ImageContent(bytes(block.image), mimetype))
            case "image" | "":
                pass
            case _:
                yield ContentReceived(NativeContent(label=block.label), block.keep_whole())

    def _close_call(self, block: ReplyBlock) -> Iterator[Delta]:
        text = "".join(block.arguments)
        if not block.whole and not is_object(text):
            raise ReplyCut(
                f"the arguments of the call of {block.name!r} did not arrive",
                provider=self.provider,
            )
        if not text.strip():
            # A tool without arguments: no step came.
            yield ArgumentsDelta("{}")
        yield InvocationClosed()

    def _cite(self, block: ReplyBlock, citation: Raw) -> Iterator[Delta]:
        kept = self.keep(citation)
        try:
            read = read_citation(bytes(kept))
        except ValueError as error:
            raise self.malformed(f"{quote(bytes(kept))} is not a citation ({error})") from error
        block.citations.append(kept)
        yield CitationDelta(read)

    def _draw(self, block: ReplyBlock, raw: Raw) -> None:
        """Add a part of an image; one that Bedrock could not make has no bytes."""
        part = self.decode(IMAGE, bytes(raw))
        block.format = part.format or block.format
        if part.source is not None and part.source.bytes:
            block.image += self._decode_bytes(part.source.bytes)

    def _decode_bytes(self, text: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error) as error:
            raise self.malformed(f"{quote(text)} is not base64") from error

    def _count(self, metadata: ConverseMetadata) -> Iterator[Delta]:
        if says_something(metadata.trace):
            self._findings = describe_findings(bytes(metadata.trace)) or self._findings
        if metadata.usage is not None:
            # A later event may have other figures, but no usage.
            self._counted = True
            yield UsageDelta(read_usage(metadata.usage, inclusive=self.inclusive))

    def _end(self, ending: ConverseMessageStop) -> Iterator[Delta]:
        """Complete the reply, and end all open blocks."""
        word = repair_text(ending.stop_reason or "")
        detail = self._findings or read_stop(ending.additional_model_response_fields)
        closed = close_reply(self.provider, word, detail=detail, called=self._called)
        cut = self._queue[-1] if self._queue and closed.cut else None
        for block in self._queue:
            # A call that a limit cuts off stays open.
            block.ended = block is not cut or block.kind != "arguments" or block.whole
        yield from self._pass_on()
        self.closed = True
        yield close_reply(self.provider, word, detail=detail, called=self._called)

    def _decode_leniently(self, data: bytes, error: Exception) -> ConverseEvent:
        """Decode an event that the typed decoder refuses; an unknown one has no members."""
        event = self.parse(data, error)
        if not event.keys() & _KNOWN:
            return ConverseEvent()
        decoded: ConverseEvent = self._convert(event, ConverseEvent)
        return decoded

    def _convert(self, value: dict[str, Any], kind: type[msgspec.Struct]) -> Any:
        try:
            return convert_members(value, kind)
        except (ValueError, TypeError) as error:
            raise self.malformed(f"an event does not have the expected form: {error}") from error

    def _produce_block(self, index: int | None, head: ConverseBlockHead | None) -> ReplyBlock:
        index = self._last + 1 if index is None else index
        if head is None:
            return ReplyBlock(index, "")
        if (tool := head.tool_use) is not None:
            block = ReplyBlock(index, "server" if tool.type else "arguments")
            block.take_tool(tool)
            return block
        if says_something(head.tool_result):
            block = ReplyBlock(index, "result")
            block.head = self.keep(head.tool_result)
            if bytes(block.head)[:1] != b"{":
                raise self.malformed(f"{quote(bytes(block.head))} is not a result")
            return block
        if says_something(head.image):
            block = ReplyBlock(index, "image")
            self._draw(block, head.image)
            return block
        return ReplyBlock(index, "")

    def _read_block(self, index: int, raw: Raw) -> ReplyBlock:
        """Return the block of a whole reply, with a single step."""
        data = bytes(raw)
        try:
            read = BLOCK.decode(data)
        except (ValueError, RecursionError) as error:
            read = self._convert(self.parse(data, error), WholeBlock)
        block = ReplyBlock(index, "opaque")
        block.head = self.keep(raw)
        if (tool := read.tool_use) is not None and not tool.type:
            block = ReplyBlock(index, "arguments")
            block.take_tool(tool)
            arguments = repair_text(compact(bytes(self.keep(tool.input))).decode())
            arguments = "{}" if arguments == "null" else arguments
            block.waiting.append(ConverseBlockStep(tool_use=ToolStep(arguments)))
        elif read.reasoning_content is not None:
            block = ReplyBlock(index, "reasoning")
            block.waiting += _split_reasoning(read.reasoning_content)
        elif (cited := read.citations_content) is not None:
            block = ReplyBlock(index, "text")
            text = "".join(one.text or "" for one in cited.content or ())
            block.waiting.append(ConverseBlockStep(text=text))
            block.waiting += [ConverseBlockStep(citation=one) for one in cited.citations or ()]
        elif says_something(read.image):
            block = ReplyBlock(index, "image")
            self._draw(block, read.image)
        elif read.text is not None:
            block = ReplyBlock(index, "text")
            block.waiting.append(ConverseBlockStep(text=read.text))
        block.ended = block.whole = True
        return block


_KNOWN = frozenset(ConverseEvent.__struct_encode_fields__)
_SPOKEN: Mapping[str, Callable[[str], Delta]] = {
    "text": TextDelta,
    "reasoning": ReasoningDelta,
    "arguments": ArgumentsDelta,
}


def _split_reasoning(block: ReasoningBlock) -> Iterator[ConverseBlockStep]:
    told = block.reasoning_text
    step = ReasoningStep(
        None if told is None else told.text,
        None if told is None else told.signature,
        block.redacted_content,
    )
    yield ConverseBlockStep(reasoning_content=step)
