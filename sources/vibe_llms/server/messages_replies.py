"""Replies of Anthropic's Messages, as the server writes them, whole and as events.

Source: `types/message.py` and `types/raw_message_stream_event.py` of anthropic 2.12.0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from vibe_llms.messages.canisters import DigestCanister, StopReason, Turn, Usage, usage_of
from vibe_llms.messages.events import (
    Event,
    InvocationChunk,
    MessageProgressEvent,
    MessageStartedEvent,
    ReasoningChunk,
    TextChunk,
)
from vibe_llms.messages.identities import produce_identity
from vibe_llms.providers.anthropic.events import (
    AnthropicDelta,
    BlockDelta,
    BlockStart,
    BlockStep,
    BlockStop,
    IterationUsage,
    JsonStep,
    Message,
    MessageEnding,
    MessageStart,
    MessageStop,
    MessageUsage,
    OutputTokens,
    StreamEvent,
    TextStep,
    ThinkingStep,
)
from vibe_llms.server.failures import ClientFailure
from vibe_llms.server.turns import BETWEEN, TurnOutcome, read_thoughts


class SentMessage(Message, kw_only=True, omit_defaults=True):
    """A message, or its beginning, with members that only responses have."""

    role: str
    model: str
    # Clients expect these members even if they are null or empty.
    content: list[Raw]  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]
    stop_reason: str | None  # pyright: ignore[reportGeneralTypeIssues]
    stop_sequence: str | None  # pyright: ignore[reportGeneralTypeIssues]
    context_management: Mapping[str, Any] | None = None


class _SentUsage(MessageUsage, omit_defaults=True):
    """The usage without members that are not known."""


class _SentDelta(AnthropicDelta, kw_only=True, omit_defaults=True, tag="message_delta"):
    context_management: Mapping[str, Any] | None = None


class ContextReport(Protocol):
    """Changes of the request's context, known when the reply begins."""

    @property
    def edits(self) -> Mapping[str, Any] | None:
        """The member `context_management` of the message; None if there is none."""
        ...

    @property
    def block(self) -> Mapping[str, Any] | None:
        """The compaction, with which the message begins, or None."""
        ...

    @property
    def usage(self) -> Usage | None:
        """The usage of the compaction, or None."""
        ...

    @property
    def ends(self) -> bool:
        """True if the message is the compaction alone."""
        ...


_STOP_REASONS: Mapping[str, str] = {
    StopReason.INVOCATIONS: "tool_use",
    StopReason.LENGTH: "max_tokens",
    StopReason.REFUSED: "refusal",
    StopReason.PAUSED: "pause_turn",
}
_ENCODER = msgspec.json.Encoder()
_TEXT_END = b"}}\n\n"


class EventWriter:
    """Writer of one reply: its events with `write` and `finish`, or all of it with `encode`."""

    def __init__(
        self,
        model: str,
        tools: Collection[str],
        *,
        input_tokens: int = 0,
        thinking: bool = True,
        context: ContextReport | None = None,
    ) -> None:
        """Create a writer for a client that has tools with these names.

        `input_tokens` is an estimate for the start of a stream, because providers report the number
        at the end, if at all. `thinking` enables thinking blocks.
        """
        self._context = context
        self._model = model
        self._tools = tools
        self._input_tokens = input_tokens
        self._thinking = thinking
        self._begun = False
        self._has_text = False
        #: Space between two messages, written before the next text.
        self._space = ""
        self._blocks = 0
        #: Kind of the open block, and identity of its call.
        self._open = ""
        self._call = ""
        self._text = b""

    def encode(self, outcome: TurnOutcome) -> bytes:
        """Encode the whole message."""
        turn = outcome.turn
        blocks = [_block(**block)] if (block := self._compaction) else list[Raw]()
        if self._thinking and (thoughts := read_thoughts(turn)):
            blocks.append(_thinking(thoughts))
        if outcome.text:
            blocks.append(_block(type="text", text=outcome.text))
        for call in outcome.calls:
            # Clients expect an object, even if the model has written something else.
            arguments = "{}" if call.parsed is None else call.arguments or "{}"
            blocks.append(_use(call.identity, call.name, Raw(arguments.encode())))
        message = self._produce_message(blocks, self._count_all(turn), self._name_end(turn))
        message.context_management = self._edits
        return _ENCODER.encode(message)

    def write(self, event: Event) -> bytes:
        """Return the events for an event of the turn; empty for most that are not text."""
        match event:
            case MessageProgressEvent(chunk=TextChunk(text)):
                head = b""
                if self._open != "text":
                    head = self._start("text", _block(type="text", text=""))
                    self._text = self._encode_text_head()
                if self._space:
                    text, self._space = self._space + text, ""
                self._has_text = True
                return head + self._text + _ENCODER.encode(text) + _TEXT_END
            case MessageProgressEvent(chunk=ReasoningChunk(text)) if self._thinking:
                head = b""
                if self._open != "thinking":
                    head = self._start("thinking", _thinking(""))
                return head + self._extend_block(ThinkingStep(text))
            case MessageProgressEvent(chunk=InvocationChunk(text), message=message):
                return self._extend_block(JsonStep(text)) if message == self._call else b""
            case MessageStartedEvent(role="assistant"):
                # Nothing is sent before the first text, so that earlier failures get an HTTP error
                # status.
                self._space = BETWEEN if self._has_text else ""
            case MessageStartedEvent(name=name, message=message) if name in self._tools:
                started = self._start("tool_use", _use(message, name, Raw(b"{}")))
                self._call = message
                return started
        return b""

    def fail(self, _: ClientFailure) -> bytes:
        """Return nothing, because the error event follows."""
        return b""

    def finish(self, outcome: TurnOutcome) -> bytes:
        """Return the events after the last block."""
        turn = outcome.turn
        ending = _SentDelta(
            MessageEnding(stop_reason=self._name_end(turn)),
            self._count_all(turn),
            context_management=self._edits,
        )
        return self._begin() + self._stop() + _frame(ending) + _frame(MessageStop())

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        begun = _frame(MessageStart(self._produce_message([], self._count(Usage()), None)))
        if (block := self._compaction) is not None:
            started = self._start("compaction", _block(**{**block, "encrypted_content": None}))
            delta = {**block, "type": "compaction_delta"}
            step = {"index": self._blocks, "delta": delta}
            begun += started + _write("content_block_delta", step)
        return begun

    def _start(self, kind: str, block: Raw) -> bytes:
        before = self._begin() + self._stop()
        self._open = kind
        return before + _frame(BlockStart(index=self._blocks, content_block=block))

    def _stop(self) -> bytes:
        if not self._open:
            return b""
        stopped = _frame(BlockStop(self._blocks))
        self._blocks += 1
        self._open = self._call = ""
        return stopped

    def _extend_block(self, step: BlockStep) -> bytes:
        return _frame(BlockDelta(index=self._blocks, delta=step))

    def _encode_text_head(self) -> bytes:
        """Encode the part of a text delta before its text, which all deltas of a block share."""
        return self._extend_block(TextStep("")).removesuffix(b'""' + _TEXT_END)

    @property
    def _compaction(self) -> Mapping[str, Any] | None:
        return None if self._context is None else self._context.block

    @property
    def _edits(self) -> Mapping[str, Any] | None:
        return None if self._context is None else self._context.edits

    def _name_end(self, turn: Turn[None]) -> str:
        if self._context is not None and self._context.ends:
            return "compaction"
        return _STOP_REASONS.get(turn.stop_reason, "end_turn")

    def _count(self, usage: Usage) -> _SentUsage:
        known = usage.input_tokens > 0
        return _count(usage, usage.uncached_input_tokens if known else self._input_tokens)

    def _count_all(self, turn: Turn[None]) -> _SentUsage:
        """Return the usage of the reply, and of summaries, which it does not include.

        Clients take it for the size of their history.
        """
        context, summaries = self._context, list[Usage]()
        if context is not None and context.usage is not None:
            summaries.append(context.usage)
        digests = [one for one in turn.canisters if isinstance(one, DigestCanister)]
        summaries += [usage_of([one]) for one in digests if one.ending is not None]
        if not summaries:
            return self._count(turn.usage)
        usage = usage_of([one for one in turn.canisters if not isinstance(one, DigestCanister)])
        ends = context is not None and context.ends
        sampled = _count(usage, 0) if ends else self._count(usage)
        sampled.iterations = [_describe_step("compaction", _count(one)) for one in summaries]
        if not ends:
            sampled.iterations.append(_describe_step("message", sampled))
        return sampled

    def _produce_message(
        self, blocks: list[Raw], usage: MessageUsage, stop_reason: str | None
    ) -> SentMessage:
        return SentMessage(
            id=f"msg_{produce_identity()}",
            type="message",
            role="assistant",
            model=self._model,
            content=blocks,
            stop_reason=stop_reason,
            stop_sequence=None,
            usage=usage,
        )


def _frame(event: StreamEvent) -> bytes:
    kind = str(event.__struct_config__.tag).encode()
    return b"event: " + kind + b"\ndata: " + _ENCODER.encode(event) + b"\n\n"


def _write(kind: str, data: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _ENCODER.encode({"type": kind, **data}))


def _count(usage: Usage, uncached: int | None = None) -> _SentUsage:
    return _SentUsage(
        input_tokens=usage.uncached_input_tokens if uncached is None else uncached,
        output_tokens=usage.output_tokens + usage.reasoning_tokens,
        cache_creation_input_tokens=usage.cache_write_tokens,
        cache_read_input_tokens=usage.cache_read_tokens,
        output_tokens_details=OutputTokens(usage.reasoning_tokens),
    )


def _describe_step(kind: str, usage: MessageUsage) -> IterationUsage:
    return IterationUsage(
        kind,
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_creation_input_tokens,
        usage.cache_read_input_tokens,
    )


def _block(**members: object) -> Raw:
    return Raw(_ENCODER.encode(members))


def _thinking(text: str) -> Raw:
    # No signature is valid for all models; blocks that clients send back are ignored.
    return _block(type="thinking", thinking=text, signature="")


def _use(identity: str, name: str, arguments: Raw) -> Raw:
    return _block(type="tool_use", id=f"toolu_{identity}", name=name, input=arguments)
