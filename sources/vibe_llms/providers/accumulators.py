"""Assembly of replies: deltas in, events and finished canisters out.

An accumulator belongs to one round trip; providers, models, and conversations keep no stream state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import msgspec

from vibe_llms.base.exceptions import (
    ContextOverflow,
    ProviderError,
    ReplyCut,
    ReplyMalformed,
    TurnInterrupted,
)
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Ending,
    InvocationCanister,
    Provenance,
    ReplyCanister,
    StopReason,
    Usage,
)
from vibe_llms.messages.contents import (
    Citation,
    Content,
    Issuer,
    NativePayload,
    ReasoningContent,
    TextualContent,
)
from vibe_llms.messages.events import (
    EventHandler,
    InvocationChunk,
    MessageCompletedEvent,
    MessageFailedEvent,
    MessageProgressEvent,
    MessageStartedEvent,
    MessageUpdatedEvent,
    Notice,
    NoticeEvent,
    ReasoningChunk,
    TextChunk,
)
from vibe_llms.messages.identities import produce_identity
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
    RemarkDelta,
    ReplyClosed,
    ReplyOpened,
    TextDelta,
    UsageDelta,
)
from vibe_llms.providers.repairs import unwrap_arguments
from vibe_llms.providers.stop_reasons import is_overflow, normalize_stop
from vibe_llms.providers.usages import check_usage

#: Error code of an empty reply.
EMPTY_REPLY = "empty_reply"
#: Stop reasons that allow an empty reply: hidden reasoning may reach the output limit.
_MAY_BE_EMPTY = (StopReason.LENGTH, StopReason.REFUSED, StopReason.PAUSED)


class _Draft:
    """Message that is arriving; handlers see it from its first chunk on."""

    def __init__(self, role: str, name: str = "", call: str = "") -> None:
        self.identity = produce_identity()
        self.role, self.name, self.call = role, name, call
        self.started = False
        self.contents: list[Content] = []
        self.kind = ""
        self.pieces: list[str] = []
        self.citations: list[Citation] = []
        self.native: NativePayload | None = None
        self.whole = False

    @property
    def severed(self) -> tuple[str, ...]:
        """Tool name of a call that did not arrive completely; otherwise an empty tuple."""
        return (self.name,) if self.role == "invocation" and not self.whole else ()

    @property
    def text(self) -> str:
        """Text received so far of the open content or arguments."""
        return "".join(self.pieces)

    def close_content(self, native: NativePayload | None = None) -> None:
        text = self.text
        if self.kind == "reasoning" and (text or native):
            self.contents.append(ReasoningContent(text, native=native))
        elif self.kind == "text" and (text or native):
            self.contents.append(
                TextualContent(text, citations=tuple(self.citations), native=native)
            )
        self.kind = ""
        self.pieces = []
        self.citations = []


class Accumulator:
    """Builder of a reply's canisters that reports each step as an event.

    As a context manager, it ensures that the open message fails exactly once if the round trip ends
    early, even if it is cancelled or a handler raises.
    """

    def __init__(
        self, provenance: Provenance, event_handler: EventHandler, conversation: str = ""
    ) -> None:
        self.reply = produce_identity()
        self.visible = False
        #: True if an empty reply is an error.
        self.refuses_empty = False
        #: True if the request has stop sequences, so that a good reply may be empty.
        self.may_stop_at_once = False
        self._provenance = provenance
        self._issuer = Issuer(provenance.module, provenance.row, provenance.model)
        self._emit = event_handler
        self.conversation = conversation
        self._finished: list[ReplyCanister] = []
        self._draft: _Draft | None = None
        self._usage: Usage | None = None
        self._doubted = False
        self._ended = False
        self._message = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, ProviderError):
            error.model = self._provenance.model
        if error is not None and not self._ended:
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
                error = TurnInterrupted("the turn was cancelled")
            self._fail(error)

    @property
    def canisters(self) -> tuple[ReplyCanister, ...]:
        """Finished canisters of the reply."""
        return tuple(self._finished)

    @property
    def ended(self) -> bool:
        """True if the reply has ended or failed."""
        return self._ended

    @property
    def usage(self) -> Usage | None:
        """Usage that the provider has reported so far."""
        return self._usage

    def reset(self) -> bool:
        """Discard an attempt so that another can be made; return False if any of it was shown."""
        if self.visible:
            return False
        self._provenance = msgspec.structs.replace(self._provenance, response="")
        self._draft = None
        self._usage = None
        return True

    def take_over(
        self, contents: Sequence[Content], provenance: Provenance | None, usage: Usage | None
    ) -> None:
        """Take over what another accumulator made of the same reply, without an event.

        The contents replace those that the deltas made in the open message; the caller ensures that
        both say the same.
        """
        if provenance is not None:
            self._provenance = provenance
            self._issuer = Issuer(provenance.module, provenance.row, provenance.model)
        self._usage = usage
        if contents:
            draft = self._assistant()
            draft.close_content()
            draft.contents = list(contents)

    def pass_on(self, notice: NoticeEvent) -> None:
        """Report a notice of another accumulator for the same reply."""
        self._emit(notice)

    def accept(self, delta: Delta) -> None:
        """Process one step of the reply; exceptions of the event handler propagate."""
        if type(delta) is TextDelta:
            text, draft = delta.text, self._draft
            if draft is None or draft.kind != "text" or not draft.started or not text:
                self._open_content("text")
                self._progress(text, TextChunk(text))
                return
            # Fast path: most steps are more of the open text.
            draft.pieces.append(text)
            self._emit(
                MessageProgressEvent(
                    TextChunk(text),
                    message=self._message,
                    reply=self.reply,
                    conversation=self.conversation,
                )
            )
            return
        match delta:
            case ReasoningDelta(text):
                self._open_content("reasoning")
                self._progress(text, ReasoningChunk(text))
            case ArgumentsDelta(text):
                if self._draft is not None and self._draft.role == "invocation":
                    self._progress(text, InvocationChunk(text))
            case ReplyOpened(response):
                self._provenance = msgspec.structs.replace(self._provenance, response=response)
            case ContentOpened(kind):
                self._assistant().close_content()
                self._assistant().kind = kind
            case CitationDelta(citation):
                self._assistant().citations.append(citation)
                self._updated("citations", citation=citation)
            case ContentClosed(native):
                self._assistant().close_content(self._payload(native))
            case ContentReceived(content, native):
                draft = self._assistant()
                draft.close_content()
                draft.contents.append(
                    msgspec.structs.replace(content, native=self._payload(native))
                    if native is not None
                    else content
                )
            case InvocationOpened(name, call):
                self._complete()
                self._draft = _Draft("invocation", name, call)
            case InvocationClosed(native):
                if self._draft is not None and self._draft.role == "invocation":
                    self._draft.whole = True
                    self._draft.native = self._payload(native)
            case UsageDelta(usage):
                self._count(usage)
            case RemarkDelta(text):
                self._notify("reply", text)
            case ReplyClosed():
                self._close(delta)

    def _count(self, reported: Usage) -> None:
        self._usage, wrong = check_usage(reported)
        if wrong and not self._doubted:
            self._doubted = True
            self._notify("model", wrong)
        self._updated("usage", usage=self._usage)

    def _notify(self, subject: str, text: str) -> None:
        notice = Notice(subject, f"{self._provenance.row}: {text}")
        self._emit(NoticeEvent(notice=notice, conversation=self.conversation))

    def _open_content(self, kind: str) -> None:
        draft = self._draft
        if draft is None or draft.kind != kind:
            draft = self._assistant()
            draft.close_content()
            draft.kind = kind

    def _assistant(self) -> _Draft:
        if self._draft is None or self._draft.role != "assistant":
            self._complete()
            self._draft = _Draft("assistant")
        return self._draft

    def _progress(self, text: str, chunk: TextChunk | ReasoningChunk | InvocationChunk) -> None:
        draft = self._draft
        if draft is None or not text:
            return
        draft.pieces.append(text)
        if not draft.started:
            self._start(draft)
        self._emit(
            MessageProgressEvent(
                chunk, message=self._message, reply=self.reply, conversation=self.conversation
            )
        )

    def _start(self, draft: _Draft) -> None:
        draft.started = True
        self.visible = True
        self._message = draft.identity
        self._emit(
            MessageStartedEvent(
                draft.role,
                draft.name,
                message=draft.identity,
                reply=self.reply,
                conversation=self.conversation,
            )
        )

    def _updated(
        self, subject: str, *, citation: Citation | None = None, usage: Usage | None = None
    ) -> None:
        if self._draft is not None and self._draft.started:
            self._emit(
                MessageUpdatedEvent(
                    subject,
                    citation,
                    usage,
                    message=self._message,
                    reply=self.reply,
                    conversation=self.conversation,
                )
            )

    def _payload(self, native: msgspec.Raw | None) -> NativePayload | None:
        return None if native is None else NativePayload(self._issuer, native)

    def _complete(self, ending: Ending | None = None) -> None:
        """Keep the complete message, then report it."""
        draft = self._draft
        if draft is None:
            return
        if ending is None and draft.severed:
            raise ReplyMalformed(
                f"the call of {draft.name!r} was not complete when the next content started",
                provider=self._provenance.row,
            )
        self._draft = None
        canister = self._finish(draft, ending)
        if not draft.started:
            if ending is None and draft.role == "assistant" and not draft.contents:
                # An empty block before a call is not a message.
                return
            self._draft = draft
            self._start(draft)
            self._draft = None
        self._finished.append(canister)
        self._ended = ending is not None
        self._emit(
            MessageCompletedEvent(
                canister,
                message=draft.identity,
                reply=self.reply,
                conversation=self.conversation,
            )
        )

    def _close(self, delta: ReplyClosed) -> None:
        draft = self._draft = self._draft or _Draft("assistant")
        if self.refuses_empty:
            self._check_end(delta, draft)
        if delta.cut:
            draft.whole = False
        self._complete(
            Ending(
                delta.reason,
                usage=self._usage,
                native_reason=delta.native_reason,
                detail=delta.detail,
                severed=draft.severed,
            )
        )

    def _check_end(self, delta: ReplyClosed, draft: _Draft) -> None:
        """Raise an error if the reply claims success but is empty."""
        row = self._provenance.row
        last = draft.contents or draft.pieces or draft.role == "invocation"
        said = bool(self._finished or last)
        if is_overflow(delta.native_reason) and not said:
            raise ContextOverflow(
                f"the history is too long for this model ({delta.native_reason}); compact the "
                "conversation, or continue with a model that has a larger context",
                provider=row,
                code="context_overflow",
            )
        if delta.reason == StopReason.INVOCATIONS:
            calls = any(isinstance(one, InvocationCanister) for one in self._finished)
            if not calls and draft.role != "invocation":
                raise ReplyCut(
                    f"the reply announces tool calls ({delta.native_reason}) but contains none",
                    provider=row,
                    code=EMPTY_REPLY,
                )
        elif not said and delta.reason not in _MAY_BE_EMPTY and not self._stops_at_once(delta):
            raise ReplyCut("the reply is empty", provider=row, code=EMPTY_REPLY)

    def _stops_at_once(self, delta: ReplyClosed) -> bool:
        """Return True if the reply may have begun with a stop sequence."""
        return normalize_stop(delta.native_reason) == "stop_sequence" or (
            self.may_stop_at_once and delta.reason == StopReason.FINISHED
        )

    def _fail(self, error: BaseException) -> None:
        """Report the open message as failed; keep what arrived of it."""
        self._ended = True
        draft = self._draft or _Draft("assistant")
        self._draft = None
        if draft.whole and InvocationCanister(name="", arguments=draft.text).parsed is None:
            # Its block had ended, but the sign that it was cut off did not arrive.
            draft.whole = False
        interrupted = isinstance(error, TurnInterrupted)
        ending = Ending(
            StopReason.INTERRUPTED if interrupted else StopReason.FAILED,
            usage=self._usage,
            interrupted=True,
            detail="" if interrupted else str(error),
            severed=draft.severed,
        )
        partial = self._finish(draft, ending)
        if not draft.started:
            self._start(draft)
        self._finished.append(partial)
        self._emit(
            MessageFailedEvent(
                error,
                partial,
                message=draft.identity,
                reply=self.reply,
                conversation=self.conversation,
            )
        )

    def _finish(self, draft: _Draft, ending: Ending | None) -> ReplyCanister:
        if draft.role == "invocation" and draft.whole:
            return InvocationCanister(
                name=draft.name,
                arguments=unwrap_arguments(draft.text),
                call=draft.call,
                reply=self.reply,
                provenance=self._provenance,
                ending=ending,
                native=draft.native,
                identity=draft.identity,
            )
        if draft.role == "assistant":
            draft.close_content()
        return AssistantCanister(
            tuple(draft.contents),
            reply=self.reply,
            provenance=self._provenance,
            ending=ending,
            identity=draft.identity,
        )
