"""Replies of Responses, streamed and whole, translated to deltas.

Events are told apart by their type; those that are not known are passed over, items that are not
known are kept as they came. Nothing of a reply is complete before `response.completed` or
`response.incomplete`. An item is read from its `done` event, since what came before may be partial;
what a server did not stream of it is taken from there too, so that an unstreamed reply is the same
path without deltas.

Source: the event types of openai 3.54.0, `types/responses/response_stream_event.py`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Raw, Struct

from vibe_llms.exceptions import ReplyCut, ReplyMalformed
from vibe_llms.messages.canisters import StopReason, Usage
from vibe_llms.messages.contents import Citation, ImageContent, NativeContent, repair_text
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
    ReplyClosed,
    ReplyOpened,
    TextDelta,
    UsageDelta,
)
from vibe_llms.providers.openai.errors import find_error, produce_error, read_object
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.repairs import TextJoiner, escape, keep_json, parse_object, repair
from vibe_llms.providers.wire import EventSplitter, EventTooLarge

T = TypeVar("T")

INCOMPLETE_REASONS = {
    "max_output_tokens": StopReason.LENGTH,
    "max_messages": StopReason.LENGTH,
    "content_filter": StopReason.REFUSED,
}
_NULL = b"null"
_BETWEEN_SUMMARIES = "\n\n"


class _TextDelta(Struct, tag_field="type", tag="response.output_text.delta"):
    output_index: int
    delta: str
    content_index: int = 0


class _RefusalDelta(Struct, tag_field="type", tag="response.refusal.delta"):
    output_index: int
    delta: str
    content_index: int = 0


class _SummaryDelta(Struct, tag_field="type", tag="response.reasoning_summary_text.delta"):
    output_index: int
    delta: str
    summary_index: int = 0


class _ThoughtDelta(Struct, tag_field="type", tag="response.reasoning_text.delta"):
    output_index: int
    delta: str
    content_index: int = 0


class _ArgumentsDelta(Struct, tag_field="type", tag="response.function_call_arguments.delta"):
    output_index: int
    delta: str


class _AnnotationAdded(Struct, tag_field="type", tag="response.output_text.annotation.added"):
    output_index: int
    annotation: Raw
    content_index: int = 0


class _PartDone(Struct, tag_field="type", tag="response.content_part.done"):
    output_index: int
    part: Raw
    content_index: int = 0


class _ItemAdded(Struct, tag_field="type", tag="response.output_item.added"):
    output_index: int
    item: Raw


class _ItemDone(Struct, tag_field="type", tag="response.output_item.done"):
    output_index: int
    item: Raw


class _Created(Struct, tag_field="type", tag="response.created"):
    response: Raw


class _Completed(Struct, tag_field="type", tag="response.completed"):
    response: Raw


class _Incomplete(Struct, tag_field="type", tag="response.incomplete"):
    response: Raw


class _Failed(Struct, tag_field="type", tag="response.failed"):
    response: Raw


class _Error(Struct, tag_field="type", tag="error"):
    pass


_ItemEvent: TypeAlias = (
    _TextDelta
    | _RefusalDelta
    | _SummaryDelta
    | _ThoughtDelta
    | _ArgumentsDelta
    | _AnnotationAdded
    | _PartDone
    | _ItemAdded
    | _ItemDone
)
_Event: TypeAlias = _ItemEvent | _Created | _Completed | _Incomplete | _Failed | _Error
_EVENT: msgspec.json.Decoder[_Event] = msgspec.json.Decoder(_Event)
_EVENT_TYPE: Any = _Event
_KINDS = frozenset(event.__struct_config__.tag for event in _Event.__args__)


class _InputDetails(Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(Struct):
    reasoning_tokens: int | None = None


class _Usage(Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class _Details(Struct):
    reason: str | None = None


class _Response(Struct):
    id: str = ""
    status: str | None = None
    output: list[Raw] | None = None
    usage: _Usage | None = None
    incomplete_details: _Details | None = None
    error: Raw = Raw(b"null")


class _Part(Struct):
    type: str = ""
    text: str | None = None
    refusal: str | None = None
    annotations: list[Raw] | None = None


class _Item(Struct):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    content: list[Raw] | None = None
    summary: list[_Part] | None = None
    result: str | None = None
    output_format: str | None = None


_RESPONSE = msgspec.json.Decoder(_Response)
_ITEM = msgspec.json.Decoder(_Item)
_PART = msgspec.json.Decoder(_Part)
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])


class _Open:
    """The item that is being received.

    `said` is what was told of its parts so far, of reasoning and arguments in `said[0]`. `told` are
    the citations of its parts that were told, `parts` the payloads of those that are closed.
    """

    def __init__(self, index: int, kind: str) -> None:
        self.index, self.kind = index, kind
        self.said: dict[int, list[str]] = {}
        self.told: dict[int, int] = {}
        self.ended: dict[int, dict[str, Raw]] = {}
        self.part: int | None = None
        self.place: tuple[str, int] | None = None
        self.joiner = TextJoiner()


class ResponsesAssimilator:
    """One reply; `name_of` gives the canonical name of a tool's name on the wire."""

    def __init__(self, provider: str, name_of: Callable[[str], str]) -> None:
        self._provider = provider
        self._name_of = name_of
        self._splitter = EventSplitter()
        self._item: _Open | None = None
        # Events of items that began while another one was open.
        self._waiting: dict[int, list[_ItemEvent]] = {}
        self._done: set[int] = set()
        # Items whose text is not quite what was sent: a lone surrogate cannot be kept.
        self._repaired: set[int] = set()
        self._called = False
        self._refused = False
        self._closed = False

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        """The deltas that some more bytes of the stream make."""
        try:
            payloads = self._splitter.feed(chunk)
        except EventTooLarge as error:
            raise self._malformed(str(error)) from error
        for data in payloads:
            if data.strip() == b"[DONE]":
                continue
            try:
                event = _EVENT.decode(data)
            except (ValueError, RecursionError) as error:
                newer = self._decode_leniently(data, error)
                if newer is None:
                    continue
                event = newer
            if type(event) is _TextDelta and (item := self._item) is not None:
                # Nearly every event is the next piece of the open text.
                part = event.content_index
                if item.index == event.output_index and item.part == part and part in item.said:
                    if text := item.joiner.join(event.delta):
                        item.said[part].append(text)
                        yield TextDelta(text)
                    continue
            yield from self._advance(event, data)
            if self._closed:
                return

    def conclude(self) -> Iterable[Delta]:
        """Nothing, or `ReplyCut` where the end of the response has not been seen."""
        if not self._closed:
            raise ReplyCut(
                "the stream ended before the reply was complete", provider=self._provider
            )
        return ()

    def assimilate(self, body: bytes) -> Iterator[Delta]:
        """The deltas of a reply that was not streamed: each item in one step."""
        try:
            status = _RESPONSE.decode(body).status
            raw = Raw(body)
        except (ValueError, RecursionError) as error:
            members = self._parse(body, error)
            for index, item in enumerate(members.get("output") or ()):
                self._note_repair(index, item)
            raw = escape(members)
            status = self._read_response(raw).status
        if status is None:
            error_object = find_error(self._parse(body, ValueError("no status")))
            if error_object is not None:
                raise produce_error(self._provider, error_object)
            raise self._malformed(f"a reply without a status: {body[:80]!r}")
        yield from self._advance(_Created(raw), body)
        match status:
            case "completed":
                yield from self._advance(_Completed(raw), body)
            case "incomplete":
                yield from self._advance(_Incomplete(raw), body)
            case "failed":
                yield from self._advance(_Failed(raw), body)
            case _:
                raise self._malformed(f"a reply whose status is {status!r}")

    def _advance(self, event: _Event, data: bytes) -> Iterator[Delta]:
        match event:
            case _Created(response):
                yield ReplyOpened(repair_text(self._read_response(response).id))
            case _Completed(response):
                yield from self._end(self._read_response(response), "completed")
            case _Incomplete(response):
                yield from self._end(self._read_response(response), "incomplete")
            case _Failed(response):
                told = bytes(self._read_response(response).error)
                error = read_object(None if told == _NULL else self._parse(told, ValueError()))
                raise produce_error(self._provider, error)
            case _Error():
                raise produce_error(
                    self._provider, find_error(self._parse(data, ValueError())) or read_object("")
                )
            case _:
                yield from self._receive(event)

    def _receive(self, event: _ItemEvent) -> Iterator[Delta]:
        """An event of the open item; those of others wait, since a reply is told in order."""
        item = self._item
        if item is not None and event.output_index != item.index:
            self._waiting.setdefault(event.output_index, []).append(event)
            return
        if event.output_index in self._done:
            return
        yield from self._grow(item, event)
        while self._item is None and self._waiting:
            for one in self._waiting.pop(min(self._waiting)):
                yield from self._grow(self._item, one)

    def _grow(self, item: _Open | None, event: _ItemEvent) -> Iterator[Delta]:
        match event:
            case _TextDelta(index, delta, part) | _RefusalDelta(index, delta, part):
                item = item or self._begin(index, "message")
                yield from self._say(item, part, delta, refused=type(event) is _RefusalDelta)
            case _SummaryDelta(index, delta, part):
                item = item or self._begin(index, "reasoning")
                yield from self._think(item, ("summary", part), delta)
            case _ThoughtDelta(index, delta, part):
                item = item or self._begin(index, "reasoning")
                yield from self._think(item, ("content", part), delta)
            case _ArgumentsDelta(_, delta):
                if item is not None and item.kind == "function_call":
                    yield from self._argue(item, delta)
            case _AnnotationAdded(_, annotation, part):
                if item is not None and item.part == part:
                    yield from self._cite(item, part, annotation)
            case _PartDone(_, raw, part):
                if item is not None and item.kind == "message":
                    item.ended[part] = self._read_members(raw)
            case _ItemAdded(index, raw):
                if item is None:
                    yield from self._open(index, self._read_item(raw))
            case _ItemDone(index, raw):
                kept = self._keep(raw)
                head = self._read_item(kept)
                if item is None:
                    yield from self._open(index, head)
                assert self._item is not None
                yield from self._close(self._item, head, kept)

    def _begin(self, index: int, kind: str) -> _Open:
        self._item = _Open(index, kind)
        return self._item

    def _open(self, index: int, head: _Item) -> Iterator[Delta]:
        self._begin(index, repair_text(head.type))
        if head.type == "function_call":
            self._called = True
            name = self._name_of(repair_text(head.name or ""))
            yield InvocationOpened(name, repair_text(head.call_id or ""))

    def _say(self, item: _Open, part: int, text: str, *, refused: bool = False) -> Iterator[Delta]:
        if item.part != part:
            yield from self._close_part(item)
            item.part = part
            yield ContentOpened("text")
        self._refused = self._refused or refused
        if text := item.joiner.join(text):
            item.said.setdefault(part, []).append(text)
            yield TextDelta(text)

    def _think(self, item: _Open, place: tuple[str, int], text: str) -> Iterator[Delta]:
        if item.place is None:
            yield ContentOpened("reasoning")
        elif item.place != place:
            text = _BETWEEN_SUMMARIES + text
        item.place = place
        if text := item.joiner.join(text):
            item.said.setdefault(0, []).append(text)
            yield ReasoningDelta(text)

    def _argue(self, item: _Open, text: str) -> Iterator[Delta]:
        if text := item.joiner.join(text):
            item.said.setdefault(0, []).append(text)
            yield ArgumentsDelta(text)

    def _cite(self, item: _Open, part: int, annotation: Raw) -> Iterator[Delta]:
        item.told[part] = item.told.get(part, 0) + 1
        if (citation := read_citation(self._keep(annotation))) is not None:
            yield CitationDelta(citation)

    def _close_part(self, item: _Open, whole: Mapping[str, Raw] | None = None) -> Iterator[Delta]:
        """The open part of a message ends; `whole` are the members of the message, if it does too.

        The identity of the message is known only where it has come to its end.
        """
        part = item.part
        if part is None:
            return
        if rest := item.joiner.conclude():
            item.said.setdefault(part, []).append(rest)
            yield TextDelta(rest)
        item.part = None
        ended = item.ended.get(part)
        native = None
        if ended is not None:
            members = {k: v for k, v in ended.items() if k not in ("text", "refusal")}
            payload: dict[str, Any] = {"place": item.index, "part": members}
            if whole is not None:
                payload["item"] = whole
            native = Raw(encode_json(payload))
        yield ContentClosed(native)

    def _close(self, item: _Open, head: _Item, kept: Raw) -> Iterator[Delta]:
        self._done.add(item.index)
        match item.kind:
            case "message":
                yield from self._close_message(item, head, kept)
            case "reasoning":
                yield from self._close_reasoning(item, head, kept)
            case "function_call":
                told = "".join(item.said.get(0, ()))
                arguments = repair_text(head.arguments or "")
                if arguments.startswith(told):
                    yield from self._argue(item, arguments[len(told) :])
                if rest := item.joiner.conclude():
                    yield ArgumentsDelta(rest)
                members = self._read_members(kept)
                for name in ("type", "call_id", "name", "arguments"):
                    members.pop(name, None)
                kept_as_sent = members and item.index not in self._repaired
                yield InvocationClosed(Raw(encode_json(members)) if kept_as_sent else None)
            case "image_generation_call" if head.result:
                yield self._receive_image(head, kept)
            case label:
                yield ContentReceived(NativeContent(label=label), kept)
        self._item = None

    def _close_message(self, item: _Open, head: _Item, kept: Raw) -> Iterator[Delta]:
        members = self._read_members(kept)
        members.pop("content", None)
        parts = head.content or []
        for number, raw in enumerate(parts):
            part = self._read_part(raw)
            refused = part.type == "refusal"
            text = repair_text((part.refusal if refused else part.text) or "")
            told = "".join(item.said.get(number, ()))
            item.ended[number] = self._read_members(raw)
            if number < (item.part or 0):
                continue
            if text.startswith(told):
                yield from self._say(item, number, text[len(told) :], refused=refused)
            for annotation in (part.annotations or [])[item.told.get(number, 0) :]:
                yield from self._cite(item, number, annotation)
            last = number == len(parts) - 1 and item.index not in self._repaired
            yield from self._close_part(item, members if last else None)
        yield from self._close_part(item)

    def _close_reasoning(self, item: _Open, head: _Item, kept: Raw) -> Iterator[Delta]:
        if item.place is None:
            places = [("summary", part.text) for part in head.summary or ()]
            places += [("content", self._read_part(raw).text) for raw in head.content or ()]
            for number, (place, text) in enumerate(places):
                if text:
                    yield from self._think(item, (place, number), text)
        if item.place is None:
            yield ContentOpened("reasoning")
        if rest := item.joiner.conclude():
            yield ReasoningDelta(rest)
        yield ContentClosed(kept)

    def _receive_image(self, head: _Item, kept: Raw) -> ContentReceived:
        """A picture that the model made: its bytes are kept once, apart from the rest."""
        try:
            data = base64.b64decode(head.result or "", validate=True)
        except binascii.Error as error:
            raise self._malformed(f"a picture is not in base64 ({error})") from error
        members = self._read_members(kept)
        members.pop("result", None)
        mimetype = f"image/{repair_text(head.output_format or 'png')}"
        return ContentReceived(ImageContent(data, mimetype), Raw(encode_json(members)))

    def _end(self, response: _Response, status: str) -> Iterator[Delta]:
        whole = status == "completed"
        for index, raw in enumerate(response.output or ()):
            if index not in self._done and (self._item is None or self._item.index == index):
                yield from self._receive(_ItemDone(index, raw))
        item = self._item
        if whole and (item is not None or self._waiting):
            raise self._malformed("the reply ends within an item")
        if item is not None:
            yield from self._leave(item)
        yield from self._count(response.usage)
        native = status
        reason: str = StopReason.FINISHED
        if not whole:
            told = response.incomplete_details
            native = repair_text((told.reason if told is not None else None) or status)
            reason = INCOMPLETE_REASONS.get(native, native)
        elif self._refused:
            reason = StopReason.REFUSED
        elif self._called:
            reason = StopReason.INVOCATIONS
        self._closed = True
        yield ReplyClosed(reason, native)

    def _leave(self, item: _Open) -> Iterator[Delta]:
        """An item that a limit cut: what came of it stays, a call as a mark only."""
        if item.kind == "message":
            yield from self._close_part(item)
        elif item.kind == "reasoning" and item.place is not None:
            yield ContentClosed()

    def _count(self, usage: _Usage | None) -> Iterator[Delta]:
        if usage is None:
            return
        details = usage.input_tokens_details or _InputDetails()
        read, written = details.cached_tokens or 0, details.cache_write_tokens or 0
        spent = usage.output_tokens_details or _OutputDetails()
        reasoning = spent.reasoning_tokens or 0
        yield UsageDelta(
            Usage(
                uncached_input_tokens=max((usage.input_tokens or 0) - read - written, 0),
                cache_read_tokens=read,
                cache_write_tokens=written,
                output_tokens=max((usage.output_tokens or 0) - reasoning, 0),
                reasoning_tokens=reasoning,
            )
        )

    def _decode_leniently(self, data: bytes, error: Exception) -> _Event | None:
        """An event that the typed decoder refuses: a newer kind, or text with lone surrogates."""
        event = self._parse(data, error)
        kind = event.get("type")
        if kind is None and (told := find_error(event)) is not None:
            raise produce_error(self._provider, told)
        if str(kind) not in _KINDS:
            return None
        if kind == "response.output_item.done":
            self._note_repair(event.get("output_index"), event.get("item"))
        for name in ("item", "part", "response", "annotation"):
            if name in event:
                event[name] = escape(event[name])
        try:
            decoded: _Event = msgspec.convert(event, _EVENT_TYPE)
        except (ValueError, TypeError) as other:
            raise self._malformed(f"an event has not its promised form: {other}") from other
        return decoded

    def _note_repair(self, index: object, item: object) -> None:
        if isinstance(index, int) and repair(item) != item:
            self._repaired.add(index)

    def _read_response(self, raw: Raw) -> _Response:
        return self._read(_RESPONSE, raw)

    def _read_item(self, raw: Raw) -> _Item:
        return self._read(_ITEM, raw)

    def _read_part(self, raw: Raw) -> _Part:
        return self._read(_PART, raw)

    def _read_members(self, raw: Raw) -> dict[str, Raw]:
        return self._read(_MEMBERS, self._keep(raw))

    def _read(self, decoder: msgspec.json.Decoder[T], raw: Raw) -> T:
        try:
            return decoder.decode(raw)
        except (ValueError, RecursionError):
            pass
        try:
            return decoder.decode(escape(parse_object(bytes(raw))))
        except (ValueError, RecursionError) as error:
            raise self._malformed(f"{bytes(raw)[:80]!r} is not what it says: {error}") from error

    def _keep(self, raw: Raw) -> Raw:
        """JSON that can be kept and sent back."""
        try:
            return keep_json(bytes(raw))
        except ValueError as error:
            raise self._malformed(f"{bytes(raw)[:80]!r} is not JSON ({error})") from error

    def _parse(self, data: bytes, error: Exception) -> dict[str, Any]:
        try:
            return parse_object(data)
        except ValueError:
            raise self._malformed(f"{data[:80]!r} is not JSON of an event ({error})") from error

    def _malformed(self, what: str) -> ReplyMalformed:
        return ReplyMalformed(
            f"the server sent what the interface does not promise: {what}", provider=self._provider
        )


class _Annotation(Struct):
    type: str = ""
    url: str | None = None
    title: str | None = None
    filename: str | None = None
    file_id: str | None = None
    start_index: int | None = None
    end_index: int | None = None


_ANNOTATION = msgspec.json.Decoder(_Annotation)


def read_citation(raw: Raw) -> Citation | None:
    """An annotation in our terms, where it says where the text was taken from.

    Source: the annotations in `types/responses/response_output_text.py` of openai 3.54.0. Their
    places are those in the reply, which have no member here.
    """
    try:
        told = _ANNOTATION.decode(raw)
    except ValueError:
        return None
    if not told.type.endswith("citation"):
        return None
    return Citation(
        title=repair_text(told.title or told.filename or ""),
        source=repair_text(told.url or told.file_id or ""),
    )
