"""Parts that all stream translators share: bytes cut into events, and errors of malformed replies.

Every attempt at a reply has its own assimilator, with its own state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec

from vibe_llms.base.exceptions import ProviderError, ReplyCut, ReplyMalformed
from vibe_llms.base.redaction import quote
from vibe_llms.messages.canisters import StopReason
from vibe_llms.providers.calls import CallQueue
from vibe_llms.providers.deltas import (
    ArgumentsDelta,
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
from vibe_llms.providers.http_errors import ErrorMap, ErrorObject
from vibe_llms.providers.repairs import keep_json, parse_object
from vibe_llms.providers.wire import (
    EventData,
    EventSplitter,
    EventTooLarge,
    LineSplitter,
    NamedEventSplitter,
    Splitter,
    unify,
)

T = TypeVar("T")
#: Deltas that may arrive while a call is open, and do not end it.
_WITHIN_CALLS = (
    *(InvocationOpened, ArgumentsDelta, InvocationClosed, ReplyOpened, UsageDelta),
    RemarkDelta,
)


class WireReader:
    """Reader of a row's server data that raises `ReplyMalformed` for invalid data."""

    def __init__(self, provider: str) -> None:
        self.provider = provider

    def keep(self, raw: msgspec.Raw) -> msgspec.Raw:
        """Return JSON that can be stored and sent back: compact, UTF-8, without lone surrogates."""
        try:
            return keep_json(bytes(raw))
        except ValueError as error:
            raise self.malformed(f"{quote(bytes(raw))} is not JSON ({error})") from error

    def malformed(self, what: str) -> ReplyMalformed:
        """Return the error for data that the interface does not allow."""
        return ReplyMalformed(f"unexpected data from the server: {what}", provider=self.provider)


class StreamAssimilator(WireReader, ABC):
    """Translator of one reply's bytes to deltas.

    `name_of` returns the canonical name for a tool's name on the wire. A subclass reads events, and
    sets `closed` at the end of the reply. `errors` is the error map of its model.
    """

    splitter: ClassVar[type[Splitter]] = EventSplitter
    errors = ErrorMap()

    def __init__(self, provider: str, name_of: Callable[[str], str]) -> None:
        super().__init__(provider)
        self.name_of = name_of
        self.closed = False
        #: Categories that a content filter flagged, by part: `prompt` or `reply`.
        self.flagged: dict[str, list[str]] = {}
        self._splitter = self.splitter()

    @abstractmethod
    def read(self, events: Sequence[bytes]) -> Iterator[Delta]:
        """Yield the deltas of more events of the stream."""

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        """Yield the deltas of more bytes of the stream; chunks may end anywhere."""
        return self.read(self.split(chunk))

    def conclude(self) -> Iterator[Delta]:
        """Yield the deltas of the stream's end; raise an error if the reply is incomplete."""
        if not self.closed and (rest := self._splitter.conclude()):
            yield from self.read(self.refine(rest))
        if not self.closed:
            raise self.fail()

    def remark(self, flags: Iterable[tuple[str, str]]) -> Iterator[Delta]:
        """Yield a remark on what a content filter flagged, once for each part and category."""
        new: dict[str, list[str]] = {}
        for part, flag in flags:
            if flag not in self.flagged.setdefault(part, []):
                self.flagged[part].append(flag)
                new.setdefault(part, []).append(flag)
        for part, several in new.items():
            yield RemarkDelta(f"content filter, {part}: {', '.join(several)}")

    def explain(self, closed: ReplyClosed) -> ReplyClosed:
        """Return the end of a reply with what a content filter flagged, if it was refused."""
        flags = self.flagged.get("reply") if closed.reason == StopReason.REFUSED else None
        return msgspec.structs.replace(closed, detail=", ".join(flags)) if flags else closed

    def fail(self) -> ProviderError:
        """Return the error of a stream that ended too early, with its own words if it has any."""
        if words := self._splitter.words:
            return self.errors.produce(self.provider, ErrorObject(words))
        return ReplyCut("the stream ended before the reply was complete", provider=self.provider)

    def assimilate(self, body: bytes) -> Iterator[Delta]:
        """Yield the deltas of an unstreamed reply; by default, read it as a stream in one piece."""
        yield from self.feed(body)
        yield from self.conclude()

    def split(self, chunk: bytes) -> Sequence[bytes]:
        """Return the events that more bytes complete: JSON objects, and `DONE`."""
        try:
            return self.refine(self._splitter.feed(chunk))
        except EventTooLarge as error:
            raise self.malformed(str(error)) from error

    def refine(self, events: Sequence[bytes]) -> Sequence[bytes]:
        """Return the events as JSON objects, and `DONE`."""
        if not self._splitter.odd:
            return events
        self._splitter.odd = False
        return list(unify(events))

    def decode(self, decoder: msgspec.json.Decoder[T], data: bytes) -> T:
        """Decode the data of an event."""
        try:
            return decoder.decode(data)
        except (ValueError, RecursionError) as error:
            raise self.malformed(f"{quote(data)} ({error})") from error

    def parse(self, data: bytes, error: Exception) -> dict[str, Any]:
        """Parse an object without a type; `error` says why typed decoding failed."""
        try:
            return parse_object(data)
        except ValueError:
            raise self.malformed(f"{quote(data)} is not the JSON of an event ({error})") from error

    def convert(self, value: object, kind: Any) -> Any:
        """Convert a parsed value to a type of the interface."""
        try:
            return msgspec.convert(value, kind)
        except (ValueError, TypeError) as error:
            raise self.malformed(f"an event does not have the expected form: {error}") from error

    def read_error(self, data: bytes) -> ProviderError:
        """Read the error in an event as `errors` reads the body of an error response."""
        return self.errors.produce(self.provider, self.errors.parse(data))


class EventAssimilator(StreamAssimilator):
    """Translator of single server-sent events; a `ReplyClosed` is the end of the reply.

    Each reply has its own assimilator, which may keep state between events. While `advance` runs,
    `event_name` is the name of the event, from its line `event: …`, or empty.
    """

    splitter: ClassVar[type[Splitter]] = NamedEventSplitter
    event_name = ""

    def __init__(self, provider: str, name_of: Callable[[str], str]) -> None:
        super().__init__(provider, name_of)
        self._calls = CallQueue(provider, name_of)

    @abstractmethod
    def advance(self, data: bytes) -> Iterator[Delta]:
        """Yield the deltas of one event's data, or of one line."""

    def call(
        self, name: str, arguments: str, identity: str = "", *, index: int | str | None = None
    ) -> Iterator[Delta]:
        """Yield the deltas of a tool call, or of a piece of one; `name` is the name on the wire.

        Pieces with the same `index` form one call, even if several calls are mixed. A call ends
        when anything else begins, or the reply ends. Without an index the call is complete.
        """
        if index is not None:
            yield from self._calls.accept(index, identity, name, arguments)
            return
        yield from self._calls.close()
        yield InvocationOpened(self.name_of(name), identity)
        yield ArgumentsDelta(arguments)
        yield InvocationClosed()

    def refine(self, events: Sequence[bytes]) -> Sequence[bytes]:
        """Return the events unchanged; they need not be JSON."""
        return events

    def read(self, events: Sequence[bytes]) -> Iterator[Delta]:
        """Yield the deltas of more events of the stream."""
        for data in events:
            self.event_name = data.name if type(data) is EventData else ""
            for delta in self.advance(data):
                if self._calls.waiting and not isinstance(delta, _WITHIN_CALLS):
                    if isinstance(delta, TextDelta | ReasoningDelta) and not delta.text:
                        continue
                    if isinstance(delta, ReplyClosed):
                        yield from self._calls.conclude(cut=delta.cut)
                    else:
                        yield from self._calls.close()
                self.closed = self.closed or isinstance(delta, ReplyClosed)
                yield delta
            if self.closed:
                return


class LineAssimilator(EventAssimilator):
    """Translator of single JSON lines; a `ReplyClosed` is the end of the reply."""

    splitter: ClassVar[type[Splitter]] = LineSplitter
