"""The events, responses and items that Responses sends, as types, and how they are read.

Source: the event types of openai 3.54.0, `types/responses/response_stream_event.py`.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Raw, Struct

from vibe_llms.exceptions import ReplyMalformed
from vibe_llms.providers.repairs import escape, keep_json, parse_object

T = TypeVar("T")


class TextGrown(Struct, tag_field="type", tag="response.output_text.delta"):
    """More of a part of text."""

    output_index: int
    delta: str
    content_index: int = 0


class RefusalGrown(Struct, tag_field="type", tag="response.refusal.delta"):
    """More of a part in which the model refuses."""

    output_index: int
    delta: str
    content_index: int = 0


class SummaryGrown(Struct, tag_field="type", tag="response.reasoning_summary_text.delta"):
    """More of a summary of reasoning."""

    output_index: int
    delta: str
    summary_index: int = 0


class ThoughtGrown(Struct, tag_field="type", tag="response.reasoning_text.delta"):
    """More of the reasoning itself."""

    output_index: int
    delta: str
    content_index: int = 0


class ArgumentsGrown(Struct, tag_field="type", tag="response.function_call_arguments.delta"):
    """More of the arguments of a call."""

    output_index: int
    delta: str


class AnnotationAdded(Struct, tag_field="type", tag="response.output_text.annotation.added"):
    """A part of text has a source."""

    output_index: int
    annotation: Raw
    content_index: int = 0


class PartDone(Struct, tag_field="type", tag="response.content_part.done"):
    """A part of a message is whole."""

    output_index: int
    part: Raw
    content_index: int = 0


class ItemAdded(Struct, tag_field="type", tag="response.output_item.added"):
    """An item begins."""

    output_index: int
    item: Raw


class ItemDone(Struct, tag_field="type", tag="response.output_item.done"):
    """An item is whole."""

    output_index: int
    item: Raw


class ResponseCreated(Struct, tag_field="type", tag="response.created"):
    """The reply begins."""

    response: Raw


class ResponseCompleted(Struct, tag_field="type", tag="response.completed"):
    """The reply is whole."""

    response: Raw


class ResponseIncomplete(Struct, tag_field="type", tag="response.incomplete"):
    """The reply is whole as far as a limit let it come."""

    response: Raw


class ResponseFailed(Struct, tag_field="type", tag="response.failed"):
    """The reply failed."""

    response: Raw


class ErrorTold(Struct, tag_field="type", tag="error"):
    """An error in the middle of the stream, in one of several forms."""


ItemEvent: TypeAlias = (
    TextGrown
    | RefusalGrown
    | SummaryGrown
    | ThoughtGrown
    | ArgumentsGrown
    | AnnotationAdded
    | PartDone
    | ItemAdded
    | ItemDone
)
ResponseEvent: TypeAlias = (
    ItemEvent
    | ResponseCreated
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ErrorTold
)
EVENT: msgspec.json.Decoder[ResponseEvent] = msgspec.json.Decoder(ResponseEvent)
EVENT_TYPE: Any = ResponseEvent
KINDS = frozenset(event.__struct_config__.tag for event in ResponseEvent.__args__)


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
ITEM = msgspec.json.Decoder(Item)
PART = msgspec.json.Decoder(Part)
MEMBERS = msgspec.json.Decoder(dict[str, Raw])


class Reader:
    """Reads what a server sent; what is not as promised is a `ReplyMalformed` of its row."""

    def __init__(self, provider: str) -> None:
        self.provider = provider

    def read(self, decoder: msgspec.json.Decoder[T], raw: Raw) -> T:
        """A part of what was sent, by its type; lone surrogates are replaced."""
        try:
            return decoder.decode(raw)
        except (ValueError, RecursionError):
            pass
        try:
            return decoder.decode(escape(parse_object(bytes(raw))))
        except (ValueError, RecursionError) as error:
            raise self.malformed(f"{bytes(raw)[:80]!r} is not what it says: {error}") from error

    def members(self, raw: Raw) -> dict[str, Raw]:
        """The members of an object, as they were sent."""
        return self.read(MEMBERS, self.keep(raw))

    def keep(self, raw: Raw) -> Raw:
        """JSON that can be kept and sent back."""
        try:
            return keep_json(bytes(raw))
        except ValueError as error:
            raise self.malformed(f"{bytes(raw)[:80]!r} is not JSON ({error})") from error

    def parse(self, data: bytes, error: Exception) -> dict[str, Any]:
        """An object as Python reads it; `error` is why it could not be read by its type."""
        try:
            return parse_object(data)
        except ValueError:
            raise self.malformed(f"{data[:80]!r} is not JSON of an event ({error})") from error

    def malformed(self, what: str) -> ReplyMalformed:
        """The error of what the interface does not promise."""
        return ReplyMalformed(
            f"the server sent what the interface does not promise: {what}", provider=self.provider
        )
