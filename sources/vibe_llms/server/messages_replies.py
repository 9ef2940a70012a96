"""Replies of Anthropic's Messages, as a server writes them, whole and as events.

Source: `types/message.py` and `types/raw_message_stream_event.py` of anthropic 2.12.0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
from msgspec import Raw

from vibe_llms.events import (
    Event,
    InvocationChunk,
    MessageProgressEvent,
    MessageStartedEvent,
    ReasoningChunk,
    TextChunk,
)
from vibe_llms.messages.canisters import StopReason, Turn, Usage
from vibe_llms.messages.identities import produce_identity
from vibe_llms.providers.anthropic.events import (
    BlockDelta,
    BlockStart,
    BlockStep,
    BlockStop,
    Ending,
    JsonStep,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    OutputDetails,
    StreamEvent,
    TextStep,
    ThinkingStep,
)
from vibe_llms.server.failures import Failure
from vibe_llms.server.turns import BETWEEN, Outcome, read_thoughts


class SentMessage(Message, kw_only=True, omit_defaults=True):
    """A message, or its beginning, with what only its sender needs."""

    role: str
    model: str
    # Clients expect these members whatever their values are.
    content: list[Raw]  # pyright: ignore[reportGeneralTypeIssues, reportIncompatibleVariableOverride]
    stop_reason: str | None  # pyright: ignore[reportGeneralTypeIssues]
    stop_sequence: str | None  # pyright: ignore[reportGeneralTypeIssues]


_STOP_REASONS: Mapping[str, str] = {
    StopReason.INVOCATIONS: "tool_use",
    StopReason.LENGTH: "max_tokens",
    StopReason.REFUSED: "refusal",
    StopReason.PAUSED: "pause_turn",
}
_ENCODER = msgspec.json.Encoder()
_TEXT_END = b"}}\n\n"


class EventWriter:
    """Writes one reply: `write` and `finish` its events, or `encode` all of it at once."""

    def __init__(
        self, model: str, tools: Collection[str], *, input_tokens: int = 0, thinking: bool = True
    ) -> None:
        """A writer for a client whose own tools have these names.

        `input_tokens` are an estimate: a stream begins with it, since the provider tells them at
        the end, if at all. `thinking` says whether it is shown.
        """
        self._model = model
        self._tools = tools
        self._input_tokens = input_tokens
        self._thinking = thinking
        self._begun = False
        self._said = False
        #: What stands before the next text: the space between two messages.
        self._space = ""
        self._blocks = 0
        #: The kind of the block that is open, and the call that it is.
        self._open = ""
        self._call = ""
        self._text = b""

    def encode(self, outcome: Outcome) -> bytes:
        """The whole message."""
        turn = outcome.turn
        blocks: list[Raw] = []
        if self._thinking and (thoughts := read_thoughts(turn)):
            blocks.append(_thinking(thoughts))
        if outcome.text:
            blocks.append(_block(type="text", text=outcome.text))
        for call in outcome.calls:
            # Clients expect an object, whatever the model has written.
            arguments = "{}" if call.parsed is None else call.arguments or "{}"
            blocks.append(_use(call.identity, call.name, Raw(arguments.encode())))
        message = self._produce_message(blocks, self._count(turn.usage), _name_end(turn))
        return _ENCODER.encode(message)

    def write(self, event: Event) -> bytes:
        """What an event becomes; empty for most events that are not text."""
        match event:
            case MessageProgressEvent(chunk=TextChunk(text)):
                head = b""
                if self._open != "text":
                    head = self._start("text", _block(type="text", text=""))
                    self._text = self._head_text()
                if self._space:
                    text, self._space = self._space + text, ""
                self._said = True
                return head + self._text + _ENCODER.encode(text) + _TEXT_END
            case MessageProgressEvent(chunk=ReasoningChunk(text)) if self._thinking:
                head = b""
                if self._open != "thinking":
                    head = self._start("thinking", _thinking(""))
                return head + self._grow(ThinkingStep(text))
            case MessageProgressEvent(chunk=InvocationChunk(text), message=message):
                return self._grow(JsonStep(text)) if message == self._call else b""
            case MessageStartedEvent(role="assistant"):
                # Nothing is sent before its first text: until then a failure has its own status.
                self._space = BETWEEN if self._said else ""
            case MessageStartedEvent(name=name, message=message) if name in self._tools:
                started = self._start("tool_use", _use(message, name, Raw(b"{}")))
                self._call = message
                return started
        return b""

    def fail(self, _: Failure) -> bytes:
        """Nothing: an error follows."""
        return b""

    def finish(self, outcome: Outcome) -> bytes:
        """The events after the last block."""
        turn = outcome.turn
        ending = MessageDelta(Ending(stop_reason=_name_end(turn)), self._count(turn.usage))
        return self._begin() + self._stop() + _frame(ending) + _frame(MessageStop())

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        return _frame(MessageStart(self._produce_message([], self._count(Usage()), None)))

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

    def _grow(self, step: BlockStep) -> bytes:
        return _frame(BlockDelta(index=self._blocks, delta=step))

    def _head_text(self) -> bytes:
        """A delta of the open text up to its text; only that differs from one to the next."""
        return self._grow(TextStep("")).removesuffix(b'""' + _TEXT_END)

    def _count(self, usage: Usage) -> MessageUsage:
        known = usage.input_tokens > 0
        return MessageUsage(
            input_tokens=usage.uncached_input_tokens if known else self._input_tokens,
            output_tokens=usage.output_tokens + usage.reasoning_tokens,
            cache_creation_input_tokens=usage.cache_write_tokens,
            cache_read_input_tokens=usage.cache_read_tokens,
            output_tokens_details=OutputDetails(usage.reasoning_tokens),
        )

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


def _block(**members: object) -> Raw:
    return Raw(_ENCODER.encode(members))


def _thinking(text: str) -> Raw:
    # No signature is valid for all models; what clients send back of it is passed over.
    return _block(type="thinking", thinking=text, signature="")


def _use(identity: str, name: str, arguments: Raw) -> Raw:
    return _block(type="tool_use", id=f"toolu_{identity}", name=name, input=arguments)


def _name_end(turn: Turn[None]) -> str:
    return _STOP_REASONS.get(turn.stop_reason, "end_turn")
