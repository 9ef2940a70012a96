"""Filter that reads the wrapped model's replies and passes them on through one accumulator."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import msgspec

from vibe_llms.base.exceptions import ProviderError
from vibe_llms.messages.canisters import (
    Ending,
    InvocationCanister,
    ReplyCanister,
    StopReason,
    Usage,
)
from vibe_llms.messages.contents import Content, ReasoningContent, TextualContent
from vibe_llms.messages.events import (
    Event,
    MessageCompletedEvent,
    MessageFailedEvent,
    MessageProgressEvent,
    NoticeEvent,
    ReasoningChunk,
    TextChunk,
)
from vibe_llms.providers.accumulators import Accumulator
from vibe_llms.providers.contract.markers import IsKnown
from vibe_llms.providers.contract.parser import ReplyOutcome, ReplyReading
from vibe_llms.providers.deltas import (
    ArgumentsDelta,
    InvocationClosed,
    InvocationOpened,
    ReasoningDelta,
    ReplyClosed,
    TextDelta,
    UsageDelta,
)
from vibe_llms.providers.reasoning_tags import TagSplitter


class ReplyFilter:
    """Event handler of the wrapped model that passes on all attempts at a reply as one reply.

    If `patient`, no text is shown before the end, because the reply may still be rejected. The text
    ends before the first of the `stop` sequences.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        is_known: IsKnown,
        *,
        stop: Sequence[str] = (),
        patient: bool = False,
    ) -> None:
        self.shown = False
        self._accumulator = accumulator
        self._knows = is_known
        self._stop = stop
        self._patient = patient
        self._begun = False
        self._ending = False
        self._thought: list[Content] = []
        self._spent: Usage | None = None
        #: Splitter of reasoning at the beginning of the text; None once that has ended.
        self._tags: TagSplitter | None = None
        self._renew()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A request that was refused before it was sent has emitted no events.
        if error is None or not self._begun:
            return
        if not self._ending:
            self._take_over(self._received, prose=False)
            ours = isinstance(error, ProviderError | asyncio.CancelledError | KeyboardInterrupt)
            if ours and (name := self._reading.severed) is not None:
                self._accumulator.accept(InvocationOpened(name))
        self._accumulator.__exit__(kind, error, trace)

    def __call__(self, event: Event) -> None:
        """Handle an event of the wrapped model."""
        self._begun = True
        if type(event) is MessageProgressEvent and type(event.chunk) is TextChunk:
            # Fast path: most events are text chunks.
            text = event.chunk.text
            self._read(text if self._tags is None else self._split(self._tags, text))
            return
        match event:
            case MessageProgressEvent(chunk=ReasoningChunk(text)):
                self._accumulator.accept(ReasoningDelta(text))
            case MessageCompletedEvent(canister=canister) | MessageFailedEvent(partial=canister):
                self._received.append(canister)
            case NoticeEvent():
                self._accumulator.pass_on(event)

    def conclude(self) -> ReplyOutcome:
        """Return the outcome of the attempt that has just ended."""
        if self._tags is not None:
            thought, text = self._tags.conclude()
            self._think(thought)
            self._read(text)
        return self._reading.conclude()

    def _split(self, tags: TagSplitter, text: str) -> str:
        """Pass on reasoning that the model writes into its text; return the text after it."""
        thought, text = tags.feed(text)
        self._think(thought)
        if tags.done and text:
            self._tags = None
        return text

    def _think(self, thought: str) -> None:
        if thought:
            self._inline.append(thought)
            self._accumulator.accept(ReasoningDelta(thought))

    def _read(self, text: str) -> None:
        said = self._reading.feed(text)
        if self._patient:
            self._waiting.append(said)
        else:
            self._show(self._cutter.feed(said) if self._stop else said)

    def abandon(self, reply: Sequence[ReplyCanister]) -> None:
        """Discard the attempt in favor of another; keep its reasoning, which was already shown."""
        self._spent = _add(self._spent, reply)
        self._thought += [
            msgspec.structs.replace(content, native=None)
            for content in [*self._read_inline(), *_contents_of(reply)]
            if isinstance(content, ReasoningContent) and content.data
        ]
        self._renew()

    def finish(self, reply: Sequence[ReplyCanister], outcome: ReplyOutcome) -> None:
        """Report the rest of the text, the calls, and the ending of the reply."""
        ending = reply[-1].ending or Ending(StopReason.FINISHED)
        cut = ending.reason in (StopReason.LENGTH, StopReason.REFUSED)
        severed = self._reading.severed if cut and not outcome.calls else None
        rest = "" if cut and outcome.problem else outcome.text
        words = "".join([*self._waiting, rest])
        self._show(self._cutter.feed(words) + self._cutter.conclude())
        stopped = self._cutter.found
        self._take_over(reply, prose=outcome.prose and not stopped)
        self._ending = True
        calls: list[InvocationCanister] = []
        if not stopped:
            calls += [InvocationCanister(name=one.name, arguments=one.arguments)
                      for one in outcome.calls]  # fmt: skip
            calls += [one for one in reply if isinstance(one, InvocationCanister)]
        accept = self._accumulator.accept
        for call in calls:
            accept(InvocationOpened(call.name, call.call))
            accept(ArgumentsDelta(call.arguments))
            accept(InvocationClosed())
        if severed is not None:
            accept(InvocationOpened(severed))
        if (usage := _add(self._spent, reply)) is not None:
            accept(UsageDelta(usage))
        reason = ending.reason
        if calls and reason == StopReason.FINISHED:
            reason = StopReason.INVOCATIONS
        accept(ReplyClosed(reason, ending.native_reason, stopped or ending.detail))

    def _renew(self) -> None:
        self._received: list[ReplyCanister] = []
        self._reading = ReplyReading(self._knows)
        self._cutter = Cutter(self._stop)
        self._tags = TagSplitter()
        self._inline: list[str] = []
        self._waiting: list[str] = []
        self._said: list[str] = []

    def _show(self, text: str) -> None:
        if text:
            self.shown = True
            self._said.append(text)
            self._accumulator.accept(TextDelta(text))

    def _take_over(self, reply: Sequence[ReplyCanister], *, prose: bool) -> None:
        """Take over the wrapped model's contents; unless `prose`, replace their text by ours."""
        contents = _contents_of(reply)
        if not prose or self._inline:
            contents = _replace_words(contents, "".join(self._said))
        made_by = next((one.provenance for one in reply if one.provenance is not None), None)
        contents = [*self._thought, *self._read_inline(), *contents]
        self._accumulator.take_over(contents, made_by, _add(self._spent, reply))

    def _read_inline(self) -> Sequence[ReasoningContent]:
        return (ReasoningContent("".join(self._inline)),) if self._inline else ()


class Cutter:
    """Filter that ends text before the first stop sequence.

    Stop sequences are not sent to the wrapped model because they would look different within JSON.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self.found = ""
        self._stop = [text for text in stop if text]
        self._held = ""

    def feed(self, text: str) -> str:
        """Add text and return the part that can be shown now."""
        if not self._stop:
            return text
        if self.found:
            return ""
        text, self._held = self._held + text, ""
        places = [(place, one) for one in self._stop if (place := text.find(one)) >= 0]
        if places:
            place, self.found = min(places)
            return text[:place]
        longest = max(map(len, self._stop)) - 1
        for start in range(max(0, len(text) - longest), len(text)):
            if any(one.startswith(text[start:]) for one in self._stop):
                text, self._held = text[:start], text[start:]
                break
        return text

    def conclude(self) -> str:
        """Return the text that was held back."""
        held, self._held = self._held, ""
        return held


def _contents_of(reply: Sequence[ReplyCanister]) -> list[Content]:
    return [content for canister in reply for content in canister.contents]


def _replace_words(contents: Sequence[Content], words: str) -> list[Content]:
    """Replace all text in the contents by `words`, keeping its citations."""
    texts = [content for content in contents if isinstance(content, TextualContent)]
    citations = tuple(citation for text in texts for citation in text.citations)
    replaced: list[Content] = []
    for content in contents:
        if not isinstance(content, TextualContent):
            replaced.append(content)
        elif content is texts[0] and words:
            replaced.append(TextualContent(words, citations=citations))
    if words and not texts:
        replaced.append(TextualContent(words))
    return replaced


def _add(spent: Usage | None, reply: Sequence[ReplyCanister]) -> Usage | None:
    """Return the usage of the earlier attempts plus this one."""
    ending = reply[-1].ending if reply else None
    usage = ending.usage if ending is not None else None
    if spent is None or usage is None:
        return usage if spent is None else spent
    return spent + usage
