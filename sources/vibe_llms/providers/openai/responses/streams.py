"""Replies of Responses, streamed and whole, translated to deltas.

The type of an event decides; those that are not known are passed over, items that are not
known are kept as they came. Nothing of a reply is complete before `response.completed` or
`response.incomplete`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec import Raw

from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.assimilators import StreamAssimilator
from vibe_llms.providers.deltas import Delta, ReplyOpened, TextDelta, UsageDelta
from vibe_llms.providers.http_errors import find_error, read_object
from vibe_llms.providers.openai.errors import ERRORS
from vibe_llms.providers.openai.responses.events import (
    EVENT,
    EVENT_TYPE,
    KINDS,
    RESPONSE,
    ErrorTold,
    InputDetails,
    NativeResponse,
    NativeUsage,
    OutputDetails,
    Reader,
    ResponseCompleted,
    ResponseCreated,
    ResponseEvent,
    ResponseFailed,
    ResponseIncomplete,
    TextGrown,
)
from vibe_llms.providers.openai.responses.items import ItemQueue
from vibe_llms.providers.repairs import escape
from vibe_llms.providers.stop_reasons import close_reply
from vibe_llms.providers.wire import DONE

_NULL = b"null"


class ResponsesAssimilator(StreamAssimilator):
    """One reply of Responses."""

    errors = ERRORS

    def __init__(self, provider: str, name_of: Callable[[str], str]) -> None:
        super().__init__(provider, name_of)
        self._reader = Reader(provider)
        self._items = ItemQueue(self._reader, name_of)

    def read(self, events: Sequence[bytes]) -> Iterator[Delta]:
        """The deltas of some more events of the stream."""
        for data in events:
            newer: ResponseEvent | None = None
            try:
                event = EVENT.decode(data)
            except (ValueError, RecursionError) as error:
                if data == DONE:
                    continue
                newer = self._decode_leniently(data, error)
                if newer is None:
                    continue
                event = newer
            if type(event) is TextGrown and (item := self._items.open) is not None:
                # Nearly every event is the next piece of the open text.
                part = event.content_index
                if item.index == event.output_index and item.part == part and part in item.said:
                    text = event.delta
                    if item.joiner.waiting or newer is not None:
                        text = item.joiner.join(text)
                    if text:
                        item.said[part].append(text)
                        yield TextDelta(text)
                    continue
            yield from self._advance(event, data)
            if self.closed:
                return

    def assimilate(self, body: bytes) -> Iterator[Delta]:
        """The deltas of a reply that was not streamed: each item in one step."""
        try:
            status = RESPONSE.decode(body).status
            raw = Raw(body)
        except (ValueError, RecursionError) as error:
            members = self.parse(body, error)
            for index, item in enumerate(members.get("output") or ()):
                self._items.note_repair(index, item)
            raw = escape(members)
            status = self._reader.read(RESPONSE, raw).status
        if status is None:
            error_object = find_error(self.parse(body, ValueError("no status")))
            if error_object is not None:
                raise ERRORS.produce(self.provider, error_object)
            raise self.malformed(f"a reply without a status: {body[:80]!r}")
        yield from self._advance(ResponseCreated(raw), body)
        match status:
            case "completed":
                yield from self._advance(ResponseCompleted(raw), body)
            case "incomplete":
                yield from self._advance(ResponseIncomplete(raw), body)
            case "failed":
                yield from self._advance(ResponseFailed(raw), body)
            case _:
                raise self.malformed(f"a reply whose status is {status!r}")

    def _advance(self, event: ResponseEvent, data: bytes) -> Iterator[Delta]:
        match event:
            case ResponseCreated(response):
                yield ReplyOpened(repair_text(self._reader.read(RESPONSE, response).id))
            case ResponseCompleted(response):
                yield from self._end(self._reader.read(RESPONSE, response), "completed")
            case ResponseIncomplete(response):
                yield from self._end(self._reader.read(RESPONSE, response), "incomplete")
            case ResponseFailed(response):
                reported = bytes(self._reader.read(RESPONSE, response).error)
                error = read_object(
                    None if reported == _NULL else self.parse(reported, ValueError())
                )
                raise ERRORS.produce(self.provider, error)
            case ErrorTold():
                error_object = find_error(self.parse(data, ValueError()))
                raise ERRORS.produce(self.provider, error_object or read_object(""))
            case _:
                yield from self._items.accept(event)

    def _end(self, response: NativeResponse, status: str) -> Iterator[Delta]:
        whole = status == "completed"
        items = self._items
        for index, raw in enumerate(response.output or ()):
            yield from items.accept_rest(index, raw)
        if whole and items.waiting:
            raise self.malformed("the reply ends within an item")
        yield from items.conclude()
        if response.usage is not None:
            yield UsageDelta(_read_usage(response.usage))
        native = status
        if not whole:
            reported = response.incomplete_details
            native = repair_text((reported.reason if reported is not None else None) or status)
        self.closed = True
        yield close_reply(
            self.provider, native, called=items.called and not items.refused, refused=items.refused
        )

    def _decode_leniently(self, data: bytes, error: Exception) -> ResponseEvent | None:
        """An event that the typed decoder refuses: a newer kind, or text with lone surrogates."""
        event = self.parse(data, error)
        kind = event.get("type")
        if kind is None and (reported := find_error(event)) is not None:
            raise ERRORS.produce(self.provider, reported)
        if str(kind) not in KINDS:
            return None
        if kind == "response.output_item.done":
            self._items.note_repair(event.get("output_index"), event.get("item"))
        for name in ("item", "part", "response", "annotation"):
            if name in event:
                event[name] = escape(event[name])
        try:
            decoded: ResponseEvent = msgspec.convert(event, EVENT_TYPE)
        except (ValueError, TypeError) as other:
            raise self.malformed(f"an event has not its promised form: {other}") from other
        return decoded


def _read_usage(usage: NativeUsage) -> Usage:
    """The usage in classes that do not overlap: those of the details are parts of the sums."""
    details = usage.input_tokens_details or InputDetails()
    read, written = details.cached_tokens or 0, details.cache_write_tokens or 0
    spent = usage.output_tokens_details or OutputDetails()
    reasoning = spent.reasoning_tokens or 0
    return Usage(
        uncached_input_tokens=max((usage.input_tokens or 0) - read - written, 0),
        cache_read_tokens=read,
        cache_write_tokens=written,
        output_tokens=max((usage.output_tokens or 0) - reasoning, 0),
        reasoning_tokens=reasoning,
    )
