"""Replies of Responses, streamed and whole, translated to deltas.

Events are told apart by type; unknown events are skipped, unknown items are kept unchanged. A reply
is complete only with `response.completed` or `response.incomplete`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Raw

from vibe_llms.base.exceptions import ProviderError, ReplyCut
from vibe_llms.base.redaction import quote
from vibe_llms.messages.canisters import Usage
from vibe_llms.messages.contents import repair_text
from vibe_llms.providers.assimilators import StreamAssimilator
from vibe_llms.providers.content_filters import read_filters
from vibe_llms.providers.deltas import Delta, ReplyOpened, TextDelta, UsageDelta
from vibe_llms.providers.http_errors import ErrorObject, find_error, find_event_error
from vibe_llms.providers.openai.errors import ERRORS
from vibe_llms.providers.openai.responses.events import (
    BY_KIND,
    EVENT,
    RESPONSE,
    ErrorReported,
    InputDetails,
    NativeResponse,
    OutputDetails,
    Reader,
    ResponseCancelled,
    ResponseCompleted,
    ResponseCreated,
    ResponseDone,
    ResponseEvent,
    ResponseFailed,
    ResponseIncomplete,
    ResponseUsage,
    TextGrown,
    adapt,
)
from vibe_llms.providers.openai.responses.items import ItemQueue
from vibe_llms.providers.repairs import convert_members, escape
from vibe_llms.providers.stop_reasons import close_reply
from vibe_llms.providers.usages import subtract
from vibe_llms.providers.wire import DONE

_NULL = b"null"
_ENDS = ("completed", "incomplete", "failed", "cancelled")


class ResponsesAssimilator(StreamAssimilator):
    """Reader of one reply of Responses."""

    errors = ERRORS

    def __init__(self, provider: str, name_of: Callable[[str], str]) -> None:
        super().__init__(provider, name_of)
        self._reader = Reader(provider)
        self._items = ItemQueue(self._reader, name_of)
        self._begun = False

    def read(self, events: Sequence[bytes]) -> Iterator[Delta]:
        """Yield the deltas of the next events of the stream."""
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
                # Fast path: nearly every event is the next piece of the open text.
                part, index = item.part, event.output_index
                if (
                    part is not None
                    and index is not None
                    and item.index == index
                    and part.index == event.content_index
                ):
                    text = event.delta or ""
                    if item.joiner.waiting or newer is not None:
                        text = item.joiner.join(text)
                    if text:
                        part.pieces.append(text)
                        yield TextDelta(text)
                    continue
            yield from self._advance(event, data)
            if self.closed:
                return

    def assimilate(self, body: bytes) -> Iterator[Delta]:
        """Yield the deltas of an unstreamed reply, each item in one step."""
        try:
            status = RESPONSE.decode(body).status
            raw = Raw(body)
        except (ValueError, RecursionError) as error:
            members = self.parse(body, error)
            output = members.get("output")
            for index, item in enumerate(output if isinstance(output, list) else ()):
                self._items.note_repair(index, item)
            raw = escape(members)
            status = self._reader.read(RESPONSE, raw).status
        if status is None:
            members = self.parse(body, ValueError("no status"))
            if (error_object := find_error(members)) is not None:
                raise ERRORS.produce(self.provider, error_object)
            # The end of the body is an end too.
            status = "completed" if members.get("output") else None
        if status not in _ENDS:
            words = "without a status" if status is None else f"whose status is {status!r}"
            raise self.malformed(f"a reply {words}: {quote(body)}")
        yield from self._advance(ResponseDone(raw), body)

    def _advance(self, event: ResponseEvent, data: bytes) -> Iterator[Delta]:
        match event:
            case ResponseCreated(response):
                begun = self._read(response)
                self._check(begun, begun.status)
                yield from self._begin(begun)
            case ResponseCompleted(response) | ResponseDone(response):
                yield from self._end(self._read(response), "completed")
            case ResponseIncomplete(response):
                yield from self._end(self._read(response), "incomplete")
            case ResponseFailed() | ErrorReported():
                raise self._read_failure(self.parse(data, ValueError()))
            case ResponseCancelled():
                raise ReplyCut("the server cancelled the reply", provider=self.provider)
            case _:
                yield from self._items.accept(event, data)

    def _read(self, response: Raw) -> NativeResponse:
        if bytes(response) == _NULL:
            return NativeResponse()
        return self._reader.read(RESPONSE, response)

    def _read_failure(self, event: Mapping[str, Any]) -> ProviderError:
        """Return the error of an event, from its response or the event itself."""
        response = event.get("response")
        inner = find_error(response) if isinstance(response, dict) else None
        return ERRORS.produce(self.provider, inner or find_error(event) or ErrorObject())

    def _begin(self, response: NativeResponse) -> Iterator[Delta]:
        if response.id and not self._begun:
            self._begun = True
            yield ReplyOpened(repair_text(response.id))

    def _check(self, response: NativeResponse, status: str | None) -> None:
        """Raise the error of a failed response, even if its event has another type."""
        if status == "failed" or bytes(response.error) not in (_NULL, b"{}", b'""'):
            data = b'{"error":' + bytes(response.error) + b"}"
            raise self._read_failure(self.parse(data, ValueError()))
        if status == "cancelled":
            raise ReplyCut("the server cancelled the reply", provider=self.provider)

    def _end(self, response: NativeResponse, status: str) -> Iterator[Delta]:
        yield from self._begin(response)
        # The event may call a response complete that is not.
        status = response.status if response.status in _ENDS else status
        self._check(response, status)
        yield from self.remark(read_filters(response.content_filters))
        whole = status == "completed"
        items = self._items
        yield from items.accept_rest(response.output or ())
        yield from items.conclude(cut=not whole)
        if response.usage is not None:
            yield UsageDelta(_read_usage(response.usage))
        native = status
        if not whole:
            reported = response.incomplete_details
            native = repair_text((reported.reason if reported is not None else None) or status)
        self.closed = True
        closed = close_reply(
            self.provider, native, called=items.called and not items.refused, refused=items.refused
        )
        yield self.explain(closed)

    def _decode_leniently(self, data: bytes, error: Exception) -> ResponseEvent | None:
        """Decode an event that the typed decoder refuses; return None for an unknown kind."""
        event = self.parse(data, error)
        kind = event.get("type")
        known = BY_KIND.get(kind) if isinstance(kind, str) else None
        if kind is None and event.get("object") == "response" and event.get("status") in _ENDS:
            return ResponseDone(escape(event))
        if known is None:
            if (reported := find_event_error(event)) is not None:
                raise ERRORS.produce(self.provider, reported)
            return None
        if kind == "response.output_item.done":
            self._items.note_repair(event.get("output_index"), event.get("item"))
        try:
            decoded: Any = convert_members(adapt(event), known)
        except (ValueError, TypeError) as other:
            raise self.malformed(f"an event does not have the expected form: {other}") from other
        event_read: ResponseEvent = decoded
        return event_read


def _read_usage(usage: ResponseUsage) -> Usage:
    """Return the usage in classes that do not overlap; the details are parts of the sums."""
    details = usage.input_tokens_details or InputDetails()
    read, written = details.cached_tokens or 0, details.cache_write_tokens or 0
    spent = usage.output_tokens_details or OutputDetails()
    reasoning = spent.reasoning_tokens or 0
    return Usage(
        uncached_input_tokens=subtract(usage.input_tokens or 0, read, written),
        cache_read_tokens=read,
        cache_write_tokens=written,
        output_tokens=subtract(usage.output_tokens or 0, reasoning),
        reasoning_tokens=reasoning,
    )
