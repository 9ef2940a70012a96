"""What the translators of all streams share: bytes cut into events, and how a reply can be wrong.

An assimilator is made anew for every attempt at a reply, and keeps the state of that one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec

from vibe_llms.exceptions import ProviderError, ReplyCut, ReplyMalformed
from vibe_llms.providers.calls import CallQueue
from vibe_llms.providers.deltas import (
    ArgumentsDelta,
    Delta,
    InvocationClosed,
    InvocationOpened,
    ReasoningDelta,
    ReplyClosed,
    ReplyOpened,
    TextDelta,
    UsageDelta,
)
from vibe_llms.providers.http_errors import ErrorMap, ErrorObject
from vibe_llms.providers.repairs import keep_json, parse_object
from vibe_llms.providers.wire import EventSplitter, EventTooLarge, LineSplitter, unify
from vibe_llms.redaction import quote

T = TypeVar("T")
#: What may come while a call is open, and does not end it.
_WITHIN_CALLS = (InvocationOpened, ArgumentsDelta, InvocationClosed, ReplyOpened, UsageDelta)


class WireReader:
    """Reads what a server sent; what is not as promised is a `ReplyMalformed` of its row."""

    def __init__(self, provider: str) -> None:
        self.provider = provider

    def keep(self, raw: msgspec.Raw) -> msgspec.Raw:
        """JSON that can be kept and sent back: compact, in UTF-8, without lone surrogates."""
        try:
            return keep_json(bytes(raw))
        except ValueError as error:
            raise self.malformed(f"{quote(bytes(raw))} is not JSON ({error})") from error

    def malformed(self, what: str) -> ReplyMalformed:
        """The error of what the interface does not promise."""
        return ReplyMalformed(
            f"the server sent what the interface does not promise: {what}", provider=self.provider
        )


class StreamAssimilator(WireReader, ABC):
    """Translates the bytes of one reply to deltas.

    `name_of` gives the canonical name of a tool's name on the wire. A subclass reads events, and
    sets `closed` where it has seen the end of the reply. `errors` are those of its model.
    """

    splitter: ClassVar[type[EventSplitter | LineSplitter]] = EventSplitter
    errors = ErrorMap()

    def __init__(self, provider: str, name_of: Callable[[str], str]) -> None:
        super().__init__(provider)
        self.name_of = name_of
        self.closed = False
        self._splitter = self.splitter()

    @abstractmethod
    def read(self, events: Sequence[bytes]) -> Iterator[Delta]:
        """The deltas of some more events of the stream."""

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        """The deltas that some more bytes of the stream make, wherever the network cut them."""
        return self.read(self.split(chunk))

    def conclude(self) -> Iterator[Delta]:
        """The deltas that the end of the bytes makes; `ReplyCut` where the reply has no end."""
        if not self.closed and (rest := self._splitter.conclude()):
            yield from self.read(self.refine(rest))
        if not self.closed:
            raise self.fail()

    def fail(self) -> ProviderError:
        """The error of a stream that ended too early: in its own words, if it left some."""
        if words := self._splitter.words:
            return self.errors.produce(self.provider, ErrorObject(words))
        return ReplyCut("the stream ended before the reply was complete", provider=self.provider)

    def assimilate(self, body: bytes) -> Iterator[Delta]:
        """The deltas of a reply that came whole; by itself, a stream in one piece."""
        yield from self.feed(body)
        yield from self.conclude()

    def split(self, chunk: bytes) -> Sequence[bytes]:
        """The events that some more bytes complete: JSON objects, and `DONE`."""
        try:
            return self.refine(self._splitter.feed(chunk))
        except EventTooLarge as error:
            raise self.malformed(str(error)) from error

    def refine(self, events: Sequence[bytes]) -> Sequence[bytes]:
        """Events as JSON objects, and `DONE`."""
        if not self._splitter.odd:
            return events
        self._splitter.odd = False
        return list(unify(events))

    def decode(self, decoder: msgspec.json.Decoder[T], data: bytes) -> T:
        """What the data of an event say."""
        try:
            return decoder.decode(data)
        except (ValueError, RecursionError) as error:
            raise self.malformed(f"{quote(data)} ({error})") from error

    def parse(self, data: bytes, error: Exception) -> dict[str, Any]:
        """An object as Python reads it; `error` is why it could not be decoded by its type."""
        try:
            return parse_object(data)
        except ValueError:
            raise self.malformed(f"{quote(data)} is not JSON of an event ({error})") from error

    def convert(self, value: object, kind: Any) -> Any:
        """What Python has read, as a type of the interface's."""
        try:
            return msgspec.convert(value, kind)
        except (ValueError, TypeError) as error:
            raise self.malformed(f"an event has not its promised form: {error}") from error

    def read_error(self, data: bytes) -> ProviderError:
        """The error that an event reports, as `errors` reads the body of an error response."""
        return self.errors.produce(self.provider, self.errors.parse(data))


class EventAssimilator(StreamAssimilator):
    """Translates server-sent events, each by itself; a `ReplyClosed` is the end of the reply.

    Each reply has its own assimilator, so that it may keep what it needs between events.
    """

    def __init__(self, provider: str, name_of: Callable[[str], str]) -> None:
        super().__init__(provider, name_of)
        self._calls = CallQueue(provider, name_of)

    @abstractmethod
    def advance(self, data: bytes) -> Iterator[Delta]:
        """The deltas of one event: its data, or one line."""

    def call(
        self, name: str, arguments: str, identity: str = "", *, index: int | str | None = None
    ) -> Iterator[Delta]:
        """The deltas of a tool call, or of a piece of one; `name` is that on the wire.

        Pieces with the same `index` are one call, however those of several calls are mixed. It
        ends where anything else begins, or the reply ends. Without an index the call is whole.
        """
        if index is not None:
            yield from self._calls.accept(index, identity, name, arguments)
            return
        yield from self._calls.close()
        yield InvocationOpened(self.name_of(name), identity)
        yield ArgumentsDelta(arguments)
        yield InvocationClosed()

    def refine(self, events: Sequence[bytes]) -> Sequence[bytes]:
        """Events as they came: they need not be JSON."""
        return events

    def read(self, events: Sequence[bytes]) -> Iterator[Delta]:
        """The deltas of some more events of the stream."""
        for data in events:
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
    """Translates JSON lines, each by itself; a `ReplyClosed` is the end of the reply."""

    splitter = LineSplitter
