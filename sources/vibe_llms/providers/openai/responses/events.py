"""Typed events, responses and items of Responses, and their readers.

Source: the event types of openai 3.54.0, `types/responses/response_stream_event.py`.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Raw, Struct

from vibe_llms.base.redaction import quote
from vibe_llms.providers.assimilators import WireReader
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.repairs import (
    convert_members,
    escape,
    parse_object,
    repair,
)

T = TypeVar("T")


class TextGrown(Struct, tag_field="type", tag="response.output_text.delta"):
    """More of a part of text."""

    delta: str | None
    output_index: int | None = None
    content_index: int | None = None


class RefusalGrown(Struct, tag_field="type", tag="response.refusal.delta"):
    """More of a refusal."""

    delta: str | None
    output_index: int | None = None
    content_index: int | None = None


class SummaryGrown(Struct, tag_field="type", tag="response.reasoning_summary_text.delta"):
    """More of a summary of reasoning."""

    delta: str | None
    output_index: int | None = None
    summary_index: int | None = None


class ThoughtGrown(Struct, tag_field="type", tag="response.reasoning_text.delta"):
    """More of the reasoning itself."""

    delta: str | None
    output_index: int | None = None
    content_index: int | None = None


class ArgumentsGrown(Struct, tag_field="type", tag="response.function_call_arguments.delta"):
    """More of the arguments of a call."""

    delta: str | None
    output_index: int | None = None


class TextDone(Struct, tag_field="type", tag="response.output_text.done"):
    """End of a part of text."""

    text: str | None = None
    output_index: int | None = None
    content_index: int | None = None


class RefusalDone(Struct, tag_field="type", tag="response.refusal.done"):
    """End of a refusal."""

    refusal: str | None = None
    output_index: int | None = None
    content_index: int | None = None


class SummaryDone(Struct, tag_field="type", tag="response.reasoning_summary_text.done"):
    """End of a summary of reasoning."""

    text: str | None = None
    output_index: int | None = None
    summary_index: int | None = None


class ThoughtDone(Struct, tag_field="type", tag="response.reasoning_text.done"):
    """End of a part of the reasoning itself."""

    text: str | None = None
    output_index: int | None = None
    content_index: int | None = None


class ArgumentsDone(Struct, tag_field="type", tag="response.function_call_arguments.done"):
    """End of the arguments of a call."""

    arguments: str | None = None
    name: str | None = None
    output_index: int | None = None


class AnnotationAdded(Struct, tag_field="type", tag="response.output_text.annotation.added"):
    """Source of a part of text."""

    annotation: Raw
    output_index: int | None = None
    content_index: int | None = None


class PartAdded(Struct, tag_field="type", tag="response.content_part.added"):
    """Beginning of a part of a message."""

    output_index: int | None = None


class SummaryAdded(Struct, tag_field="type", tag="response.reasoning_summary_part.added"):
    """Beginning of a summary of reasoning."""

    output_index: int | None = None


class PartDone(Struct, tag_field="type", tag="response.content_part.done"):
    """End of a part of a message."""

    part: Raw = Raw(b"null")
    output_index: int | None = None
    content_index: int | None = None


class ItemAdded(Struct, tag_field="type", tag="response.output_item.added"):
    """Beginning of an item."""

    item: Raw
    output_index: int | None = None


class ItemDone(Struct, tag_field="type", tag="response.output_item.done"):
    """End of an item."""

    item: Raw
    output_index: int | None = None


class ResponseCreated(Struct, tag_field="type", tag="response.created"):
    """Beginning of the reply."""

    response: Raw = Raw(b"null")


class ResponseCompleted(Struct, tag_field="type", tag="response.completed"):
    """End of a complete reply."""

    response: Raw = Raw(b"null")


class ResponseDone(Struct, tag_field="type", tag="response.done"):
    """End of a complete reply, as in the Realtime interface."""

    response: Raw = Raw(b"null")


class ResponseIncomplete(Struct, tag_field="type", tag="response.incomplete"):
    """End of a reply that a limit cut short."""

    response: Raw = Raw(b"null")


class ResponseFailed(Struct, tag_field="type", tag="response.failed"):
    """End of a reply that failed."""


class ResponseCancelled(Struct, tag_field="type", tag="response.cancelled"):
    """End of a reply that was cancelled."""


class ErrorReported(Struct, tag_field="type", tag="error"):
    """An error in the middle of the stream, in one of several forms."""


ItemEvent: TypeAlias = (
    TextGrown
    | RefusalGrown
    | SummaryGrown
    | ThoughtGrown
    | ArgumentsGrown
    | TextDone
    | RefusalDone
    | SummaryDone
    | ThoughtDone
    | ArgumentsDone
    | AnnotationAdded
    | PartAdded
    | SummaryAdded
    | PartDone
    | ItemAdded
    | ItemDone
)
ResponseEvent: TypeAlias = (
    ItemEvent
    | ResponseCreated
    | ResponseCompleted
    | ResponseDone
    | ResponseIncomplete
    | ResponseFailed
    | ResponseCancelled
    | ErrorReported
)
EVENT: msgspec.json.Decoder[ResponseEvent] = msgspec.json.Decoder(ResponseEvent)
BY_KIND: dict[str, type[Struct]] = {
    event.__struct_config__.tag: event for event in ResponseEvent.__args__
}


class ItemPlace(Struct):
    """The id of the item that an event belongs to."""

    item_id: str | None = None


class InputDetails(Struct):
    """Cached tokens of an input, read and written."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class OutputDetails(Struct):
    """Reasoning tokens of an output."""

    reasoning_tokens: int | None = None


class ResponseUsage(Struct):
    """Token counts of a reply; the details are parts of the sums."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: InputDetails | None = None
    output_tokens_details: OutputDetails | None = None


class IncompleteDetails(Struct):
    """Reason for an incomplete reply."""

    reason: str | None = None


class NativeResponse(Struct):
    """A response object; its items are read one by one."""

    id: str = ""
    status: str | None = None
    output: list[Raw] | None = None
    usage: ResponseUsage | None = None
    incomplete_details: IncompleteDetails | None = None
    error: Raw = Raw(b"null")
    # From Azure.
    content_filters: Any = None


class ItemPart(Struct):
    """A part of a message, or a summary of reasoning."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None
    annotations: list[Raw] | None = None


class Item(Struct):
    """The members that are read of items of all kinds."""

    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    content: list[Raw] | None = None
    summary: list[ItemPart] | None = None
    result: str | None = None
    output_format: str | None = None


RESPONSE = msgspec.json.Decoder(NativeResponse)
PLACE = msgspec.json.Decoder(ItemPlace)
ITEM = msgspec.json.Decoder(Item)
PART = msgspec.json.Decoder(ItemPart)
MEMBERS = msgspec.json.Decoder(dict[str, Raw])


def adapt(value: dict[str, Any]) -> dict[str, Any]:
    """Convert an event, item, or part of another server to OpenAI's form."""
    for name in ("arguments", "delta"):
        if isinstance(value.get(name), dict):
            value[name] = encode_json(repair(value[name])).decode()
    for name, kind in (("content", "output_text"), ("summary", "summary_text")):
        found = value.get(name)
        if isinstance(found, str | dict):
            found = [found]
        if isinstance(found, list):
            value[name] = [
                {"type": kind, "text": one} if isinstance(one, str) else one for one in found
            ]
    return value


def _read_members(value: dict[str, Any], kind: Any) -> Any:
    if kind is ItemPart and not isinstance(value.get("text"), str | None):
        raise ValueError("its text is not a string")
    return convert_members(adapt(value), kind)


class Reader(WireReader):
    """Reader of the items and parts of a response."""

    def read(self, decoder: msgspec.json.Decoder[T], raw: Raw) -> T:
        """Decode a part of an event by its type, leniently if it differs from that type."""
        try:
            return decoder.decode(raw)
        except (ValueError, RecursionError):
            pass
        try:
            value = parse_object(bytes(raw))
            if decoder is MEMBERS:
                return decoder.decode(escape(value))
            read: T = _read_members(value, decoder.type)
        except (ValueError, TypeError, RecursionError) as error:
            raise self.malformed(f"{quote(bytes(raw))} does not match its type: {error}") from error
        return read

    def members(self, raw: Raw) -> dict[str, Raw]:
        """Return the members of an object, as they were sent."""
        return self.read(MEMBERS, self.keep(raw))
