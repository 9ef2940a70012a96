"""Replies of Chat Completions, as the server writes them, whole and in chunks.

Source: `types/chat/chat_completion.py` and `chat_completion_chunk.py` of openai 3.54.0.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.messages.canisters import InvocationCanister, StopReason, Usage
from vibe_llms.messages.events import (
    Event,
    InvocationChunk,
    MessageProgressEvent,
    MessageStartedEvent,
    ReasoningChunk,
    TextChunk,
)
from vibe_llms.messages.identities import produce_identity
from vibe_llms.providers.openai.chat_completions.chunks import (
    CallPiece,
    ChatDelta,
    ChatUsage,
    Choice,
    Chunk,
    CompletionDetails,
    FunctionDelta,
    PromptDetails,
)
from vibe_llms.server.chat_requests import ToolForms
from vibe_llms.server.custom_tools import read_text
from vibe_llms.server.failures import ClientFailure
from vibe_llms.server.stages import Stage, StageWriter, describe_stages
from vibe_llms.server.states import ReplyState, StateSigner
from vibe_llms.server.turns import BETWEEN, TurnOutcome, read_thoughts


class SentInput(Struct):
    """A call of a tool whose input is text."""

    name: str
    input: str


class SentCall(CallPiece, omit_defaults=True):
    """A call, or a piece of one, with members that only responses have."""

    type: str | None = None
    custom: SentInput | None = None


class SentAttachment(Struct, omit_defaults=True):
    """An image or a file that the agent produced, in base64."""

    index: int
    type: str
    title: str
    data: str


class SentCustomContent(Struct, omit_defaults=True):
    """DIAL's extension of a message, or a piece of it."""

    stages: Sequence[Stage] | None = None
    attachments: Sequence[SentAttachment] | None = None
    state: ReplyState | None = None


class SentChatMessage(ChatDelta, omit_defaults=True):
    """A message, or a piece of one."""

    role: str | None = None
    function_call: FunctionDelta | None = None
    custom_content: SentCustomContent | None = None


class SentReply(Chunk, omit_defaults=True):
    """A reply, or a chunk of one."""

    created: int | None = None
    model: str | None = None


_FINISH: Mapping[str, str] = {
    StopReason.INVOCATIONS: "tool_calls",
    StopReason.LENGTH: "length",
    StopReason.REFUSED: "content_filter",
}
DONE = b"data: [DONE]\n\n"
_ENCODER = msgspec.json.Encoder()


def encode_reply(
    model: str,
    outcome: TurnOutcome,
    custom: SentCustomContent | None = None,
    forms: ToolForms = ToolForms(),
) -> bytes:
    """Encode a reply that is not streamed."""
    turn, calls = outcome.turn, outcome.calls
    legacy = calls[0] if calls and forms.legacy else None
    message = SentChatMessage(
        role="assistant",
        content=outcome.text if outcome.text or not calls else None,
        reasoning_content=read_thoughts(turn) or None,
        custom_content=custom,
        function_call=FunctionDelta(legacy.name, legacy.arguments or "{}") if legacy else None,
        tool_calls=[_describe_call(call, forms) for call in calls] or None if not legacy else None,
    )
    reply = SentReply(
        id=_produce_id(),
        object="chat.completion",
        created=int(time.time()),
        model=model,
        choices=[Choice(index=0, message=message, finish_reason=_finish(turn.stop_reason, forms))],
        usage=_encode_usage(turn.usage),
    )
    return _ENCODER.encode(reply)


def _describe_call(
    call: InvocationCanister, forms: ToolForms, index: int | None = None
) -> SentCall:
    identity = name_call(call.identity)
    if call.name in forms.custom:
        custom = SentInput(call.name, read_text(call.arguments))
        return SentCall(index=index, id=identity, type="custom", custom=custom)
    function = FunctionDelta(call.name, call.arguments or "{}")
    return SentCall(index=index, id=identity, type="function", function=function)


def name_call(identity: str) -> str:
    """Return the identity of a call for the client."""
    return f"call_{identity}"


class ChunkWriter:
    """Writer of the chunks of one reply; their common parts are encoded once."""

    def __init__(
        self,
        model: str,
        tools: Collection[str],
        *,
        usage: bool,
        stages: bool = False,
        hidden: Collection[str] = (),
        signer: StateSigner | None = None,
        forms: ToolForms = ToolForms(),
    ) -> None:
        """Create a writer for a client that has tools with these names.

        With `stages`, the reply shows the calls of the agent's tools, but only the names of
        `hidden` ones. With a `signer`, it also has a state, and the images and files of the turn.
        """
        self._model = model
        self._tools = tools
        self._usage = usage
        self._hidden = hidden
        self._stages = StageWriter(hidden) if stages else None
        self._signer = signer
        self._forms = forms
        self._begun = False
        self._has_text = False
        #: Space between two messages, written before the next text.
        self._space = ""
        self._calls: dict[str, int] = {}
        #: The custom call being received, and its arguments so far.
        self._custom: MessageStartedEvent | None = None
        self._arguments: list[str] = []

    def encode(self, outcome: TurnOutcome) -> bytes:
        """Encode the whole reply, not streamed."""
        custom = self._conclude(outcome)
        if self._stages is not None:
            stages = [*describe_stages(outcome.turn.canisters, self._hidden)]
            custom = replace(custom or SentCustomContent(), stages=stages or None)
        return encode_reply(self._model, outcome, custom, self._forms)

    def write(self, event: Event) -> bytes:
        """Return the chunks for an event; empty for most events that are not text."""
        match event:
            case MessageProgressEvent(chunk=TextChunk(text)):
                if self._space:
                    text, self._space = self._space + text, ""
                self._has_text = True
                return self._begin() + self._text + _ENCODER.encode(text) + self._text_end
            case MessageProgressEvent(chunk=ReasoningChunk(text)):
                return self._begin() + self._write_delta(ChatDelta(reasoning_content=text))
            case MessageProgressEvent(chunk=InvocationChunk(text), message=message):
                if self._custom is not None and self._custom.message == message:
                    self._arguments.append(text)
                if message not in self._calls:
                    return b""
                more = FunctionDelta(arguments=text)
                if self._forms.legacy:
                    return self._write_delta(SentChatMessage(function_call=more))
                piece = CallPiece(index=self._calls[message], function=more)
                return self._write_delta(ChatDelta(tool_calls=[piece]))
            case MessageStartedEvent():
                return self._end_custom() + self._start(event)
        if self._stages is not None and (stages := self._stages.write(event)):
            return self._begin() + self._write_custom(SentCustomContent(stages=stages))
        return b""

    def fail(self, _: ClientFailure) -> bytes:
        """Return nothing, because the error event follows."""
        return b""

    def finish(self, outcome: TurnOutcome) -> bytes:
        """Return the chunks after the last event."""
        turn = outcome.turn
        finish = _ENCODER.encode(_finish(turn.stop_reason, self._forms))
        begun = self._begin()
        custom = self._end_custom()
        if (content := self._conclude(outcome)) is not None:
            custom += self._write_custom(content)
        end = self._choice + b'{},"finish_reason":' + finish + b"}]" + self._tail
        usage = b""
        if self._usage:
            counted = _ENCODER.encode(_encode_usage(turn.usage))
            usage = self._head + b',"choices":[],"usage":' + counted + b"}\n\n"
        return begun + custom + end + usage + DONE

    def _conclude(self, outcome: TurnOutcome) -> SentCustomContent | None:
        """Return DIAL's attachments and state, which follow the reply."""
        if self._signer is None:
            return None
        attachments = [
            SentAttachment(
                index,
                one.mimetype,
                getattr(one, "name", "") or "attachment",
                base64.b64encode(one.data).decode(),
            )
            for index, one in enumerate(outcome.media)
            if isinstance(one.data, bytes)
        ]
        state = self._signer.write(outcome.turn.canisters, outcome.visible)
        return SentCustomContent(attachments=attachments or None, state=state)

    def _write_custom(self, content: SentCustomContent) -> bytes:
        return self._write_delta(SentChatMessage(custom_content=content))

    def _start(self, event: MessageStartedEvent) -> bytes:
        if event.role == "assistant":
            # Nothing is sent before the first text, so that earlier failures get an HTTP error
            # status.
            self._space = BETWEEN if self._has_text else ""
        elif event.name in self._forms.custom:
            self._custom = event
        elif event.name in self._tools:
            if self._forms.legacy and self._calls:
                return b""
            self._calls[event.message] = index = len(self._calls)
            begun = FunctionDelta(event.name, "")
            if self._forms.legacy:
                return self._begin() + self._write_delta(SentChatMessage(function_call=begun))
            piece = SentCall(
                index=index, id=name_call(event.message), type="function", function=begun
            )
            return self._begin() + self._write_delta(ChatDelta(tool_calls=[piece]))
        return b""

    def _end_custom(self) -> bytes:
        """Write the received custom call, whose text is known only when complete."""
        if (event := self._custom) is None:
            return b""
        arguments, self._custom, self._arguments = "".join(self._arguments), None, []
        call = InvocationCanister(name=event.name, arguments=arguments, identity=event.message)
        self._calls[event.message] = index = len(self._calls)
        piece = _describe_call(call, self._forms, index)
        return self._begin() + self._write_delta(ChatDelta(tool_calls=[piece]))

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        self._encode_shared()
        return self._write_delta(SentChatMessage(role="assistant", content=""))

    def _encode_shared(self) -> None:
        shared = SentReply(
            id=_produce_id(),
            object="chat.completion.chunk",
            created=int(time.time()),
            model=self._model,
        )
        self._head = b"data: " + _ENCODER.encode(shared)[:-1]
        self._choice = self._head + b',"choices":[{"index":0,"delta":'
        self._text = self._choice + b'{"content":'
        self._tail = b',"usage":null}\n\n' if self._usage else b"}\n\n"
        self._end = b',"finish_reason":null}]' + self._tail
        self._text_end = b"}" + self._end

    def _write_delta(self, delta: ChatDelta) -> bytes:
        return self._choice + _ENCODER.encode(delta) + self._end


def _finish(reason: str, forms: ToolForms) -> str:
    if forms.legacy and reason == StopReason.INVOCATIONS:
        return "function_call"
    return _FINISH.get(reason, "stop")


def _encode_usage(usage: Usage) -> ChatUsage:
    completion = usage.output_tokens + usage.reasoning_tokens
    return ChatUsage(
        prompt_tokens=usage.input_tokens,
        completion_tokens=completion,
        total_tokens=usage.input_tokens + completion,
        prompt_tokens_details=PromptDetails(cached_tokens=usage.cache_read_tokens),
        completion_tokens_details=CompletionDetails(reasoning_tokens=usage.reasoning_tokens),
    )


def _produce_id() -> str:
    return f"chatcmpl-{produce_identity()}"
