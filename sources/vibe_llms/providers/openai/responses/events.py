"""The events, responses and items that Responses sends, as types, and how they are read.

Source: the event types of openai 3.54.0, `types/responses/response_stream_event.py`.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Raw, Struct

from vibe_llms.providers.assimilators import WireReader
from vibe_llms.providers.pieces import encode_json
from vibe_llms.providers.repairs import (
    convert_members,
    escape,
    parse_object,
    repair,
)
from vibe_llms.redaction import quote

T = TypeVar("T")


class TextGrown(Struct, tag_field="type", tag="response.output_text.delta"):
    """More of a part of text."""

    delta: str | None
    output_index: int | None = None
    content_index: int | None = None


class RefusalGrown(Struct, tag_field="type", tag="response.refusal.delta"):
    """More of a part in which the model refuses."""

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
    """A part of text is whole."""

    text: str | None = None
    output_index: int | None = None
    content_index: int | None = None


class RefusalDone(Struct, tag_field="type", tag="response.refusal.done"):
    """A part in which the model refuses is whole."""

    refusal: str | None = None
    output_index: int | None = None
    content_index: int | None = None


class SummaryDone(Struct, tag_field="type", tag="response.reasoning_summary_text.done"):
    """A summary of reasoning is whole."""

    text: str | None = None
    output_index: int | None = None
    summary_index: int | None = None


class ThoughtDone(Struct, tag_field="type", tag="response.reasoning_text.done"):
    """A part of the reasoning itself is whole."""

    text: str | None = None
    output_index: int | None = None
    content_index: int | None = None


class ArgumentsDone(Struct, tag_field="type", tag="response.function_call_arguments.done"):
    """The arguments of a call are whole."""

    arguments: str | None = None
    name: str | None = None
    output_index: int | None = None


class AnnotationAdded(Struct, tag_field="type", tag="response.output_text.annotation.added"):
    """A part of text has a source."""

    annotation: Raw
    output_index: int | None = None
    content_index: int | None = None


class PartAdded(Struct, tag_field="type", tag="response.content_part.added"):
    """A part of a message begins."""

    output_index: int | None = None


class SummaryAdded(Struct, tag_field="type", tag="response.reasoning_summary_part.added"):
    """A summary of reasoning begins."""

    output_index: int | None = None


class PartDone(Struct, tag_field="type", tag="response.content_part.done"):
    """A part of a message is whole."""

    part: Raw = Raw(b"null")
    output_index: int | None = None
    content_index: int | None = None


class ItemAdded(Struct, tag_field="type", tag="response.output_item.added"):
    """An item begins."""

    item: Raw
    output_index: int | None = None


class ItemDone(Struct, tag_field="type", tag="response.output_item.done"):
    """An item is whole."""

    item: Raw
    output_index: int | None = None


class ResponseCreated(Struct, tag_field="type", tag="response.created"):
    """The reply begins."""

    response: Raw = Raw(b"null")


class ResponseCompleted(Struct, tag_field="type", tag="response.completed"):
    """The reply is whole."""

    response: Raw = Raw(b"null")


class ResponseDone(Struct, tag_field="type", tag="response.done"):
    """The reply is whole, in the words of the Realtime interface."""

    response: Raw = Raw(b"null")


class ResponseIncomplete(Struct, tag_field="type", tag="response.incomplete"):
    """The reply is whole as far as a limit let it come."""

    response: Raw = Raw(b"null")


class ResponseFailed(Struct, tag_field="type", tag="response.failed"):
    """The reply failed."""


class ResponseCancelled(Struct, tag_field="type", tag="response.cancelled"):
    """The reply was given up."""


class ErrorTold(Struct, tag_field="type", tag="error"):
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
    | ErrorTold
)
EVENT: msgspec.json.Decoder[ResponseEvent] = msgspec.json.Decoder(ResponseEvent)
BY_KIND: dict[str, type[Struct]] = {
    event.__struct_config__.tag: event for event in ResponseEvent.__args__
}


class Place(Struct):
    """The identity of the item that an event belongs to."""

    item_id: str | None = None


class InputDetails(Struct):
    """What of the input came from a cache, or went into it."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class OutputDetails(Struct):
    """What of the output was reasoning."""

    reasoning_tokens: int | None = None


class NativeUsage(Struct):
    """The tokens of a reply; the details are parts of the sums."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: InputDetails | None = None
    output_tokens_details: OutputDetails | None = None


class IncompleteDetails(Struct):
    """Why a reply is not complete."""

    reason: str | None = None


class NativeResponse(Struct):
    """A response object; its items are read one by one."""

    id: str = ""
    status: str | None = None
    output: list[Raw] | None = None
    usage: NativeUsage | None = None
    incomplete_details: IncompleteDetails | None = None
    error: Raw = Raw(b"null")


class Part(Struct):
    """A part of a message, or a summary of reasoning."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None
    annotations: list[Raw] | None = None


class Item(Struct):
    """What is read of an item, whatever kind it is."""

    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    content: list[Raw] | None = None
    summary: list[Part] | None = None
    result: str | None = None
    output_format: str | None = None


RESPONSE = msgspec.json.Decoder(NativeResponse)
PLACE = msgspec.json.Decoder(Place)
ITEM = msgspec.json.Decoder(Item)
PART = msgspec.json.Decoder(Part)
MEMBERS = msgspec.json.Decoder(dict[str, Raw])


def adapt(value: dict[str, Any]) -> dict[str, Any]:
    """Return an event, item, or part with what other servers write otherwise in OpenAI's form."""
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
    if kind is Part and not isinstance(value.get("text"), str | None):
        raise ValueError("its text is no text")
    return convert_members(adapt(value), kind)


class Reader(WireReader):
    """Reads the items and parts of a response."""

    def read(self, decoder: msgspec.json.Decoder[T], raw: Raw) -> T:
        """A part of what was sent, by its type, leniently where it is not quite of that type."""
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
            raise self.malformed(f"{quote(bytes(raw))} is not what it says: {error}") from error
        return read

    def members(self, raw: Raw) -> dict[str, Raw]:
        """The members of an object, as they were sent."""
        return self.read(MEMBERS, self.keep(raw))
