"""Converts canisters to pieces of Responses, and pieces to the items of a request.

The model's own items are sent back unchanged and in order: reasoning with its encrypted content,
messages with their identity and phase, items of tools that OpenAI runs. Reasoning is accepted only
with the item that followed it.

Source: the item types of openai 3.54.0, `types/responses/response_input_item_param.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    StopReason,
)
from vibe_llms.messages.contents import (
    Content,
    FileContent,
    ImageContent,
    Location,
    MediaContent,
    NativeContent,
    NativePayload,
    ReasoningContent,
    TextualContent,
    Upload,
    repair_text,
)
from vibe_llms.messages.events import Notice
from vibe_llms.providers.conversions import (
    Conversion,
    Writer,
    head_document,
    name_content,
    nativize_arguments,
)
from vibe_llms.providers.histories import CONTINUE, FAILED, Exchange
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.openai.contents import (
    describe_left_out,
    encode_slot,
    is_textual,
    name_sent,
    unsupported,
)
from vibe_llms.providers.openai.controls import read_native
from vibe_llms.providers.openai.history import OpenAIHistory
from vibe_llms.providers.pieces import Block, Slot, encode_json, interleave
from vibe_llms.providers.tool_names import nativize_name

MODULE = "vibe_llms.providers.openai.responses"
#: Accepted forms of data other than bytes in the request, by kind of content.
PLACES: Mapping[str, tuple[str, ...]] = {
    "image": ("url", "upload"),
    "file": ("url", "upload"),
}
#: Calls of tools that the client runs; they are refused without a result.
_CLIENT_RUN = frozenset(
    {
        "apply_patch_call",
        "computer_call",
        "custom_tool_call",
        "local_shell_call",
        "shell_call",
    }
)


class RequestItem(Struct, frozen=True):
    """One item of the request; one that `leads` is accepted only with the next."""

    block: Block
    leads: bool = False


class ResponsesPiece(Struct, frozen=True):
    """An encoded canister: its items."""

    items: tuple[RequestItem, ...] = ()


class _Spoken(Struct):
    """Payload of a model's text: its part, and the message around it."""

    place: int
    part: dict[str, Raw]
    item: dict[str, Raw] | None = None


class _Native(Struct):
    type: str = ""
    call_id: str = ""
    encrypted_content: str | None = None
    content: Raw = Raw(b"null")


_SPOKEN = msgspec.json.Decoder(_Spoken)
_NATIVE = msgspec.json.Decoder(_Native)


class _Work(Writer[ResponsesPiece, Block]):
    """Writer of one canister."""

    def write_reply(self, canister: AssistantCanister) -> ResponsesPiece:
        items: list[RequestItem] = []
        answered = _answered_calls(canister.contents)
        said: list[tuple[_Spoken, str]] = []
        plain: list[str] = []

        def flush() -> None:
            if said:
                items.append(_frame_message(said))
                said.clear()
            if (text := "".join(plain)).strip():
                item = {"type": "message", "role": "assistant", "content": text}
                items.append(RequestItem((encode_json(item),)))
            plain.clear()

        for content in canister.contents:
            match content:
                case TextualContent(data=data, native=native):
                    text = self.text(data)
                    spoken = _read_spoken(native) if native and self.issued(native) else None
                    if spoken is None:
                        self.leave_out_additions(content)
                        if said:
                            flush()
                        plain.append(text)
                        continue
                    if plain or (said and said[-1][0].place != spoken.place):
                        flush()
                    said.append((spoken, text))
                case ReasoningContent(native=native):
                    flush()
                    if (block := _nativize_reasoning(self, native)) is not None:
                        items.append(RequestItem(block, leads=True))
                    elif native is not None and not self.issued(native):
                        self.leave_out("the reasoning of another model")
                    elif content.data:
                        self.leave_out("reasoning without its encrypted form")
                case NativeContent(native=native):
                    flush()
                    if native is None or not self.issued(native):
                        self.leave_out(f"an item {content.label!r} that only its model understands")
                    elif (
                        content.label in _CLIENT_RUN
                        and _NATIVE.decode(native.data).call_id not in answered
                    ):
                        self.leave_out(f"a call {content.label!r} that was not run")
                    else:
                        items.append(RequestItem((bytes(native.data),)))
                case ImageContent(native=native) if native is not None and self.issued(native):
                    flush()
                    items.append(RequestItem(_nativize_generated(self, content, native)))
                case _:
                    # The interface takes no pictures or sound in an assistant's message.
                    plain.append(self.describe(content))
        flush()
        return ResponsesPiece(tuple(items))

    def write_call(self, canister: InvocationCanister) -> ResponsesPiece:
        extra = self.members(canister)
        arguments = repair_text(canister.arguments or "{}")
        if canister.parsed is None:
            # The arguments are changed, so it is not the same item.
            arguments, extra = bytes(nativize_arguments(canister)).decode(), {}
        item = {
            "type": "function_call",
            "call_id": self.call,
            "name": nativize_name(canister.name),
            "arguments": arguments,
            **extra,
        }
        return ResponsesPiece((RequestItem((encode_json(item),)),))

    def write_result(self, canister: ResultCanister) -> ResponsesPiece:
        blocks = self.encode(canister.contents)
        if canister.failed:
            blocks.insert(0, self.encode_text(FAILED))
        head = encode_json({"type": "function_call_output", "call_id": self.call})[:-1]
        before = head + b',"output":'
        if not blocks:
            return ResponsesPiece((RequestItem((before + b'""}',)),))
        return ResponsesPiece((RequestItem((before + b"[", *interleave(blocks), b"]}")),))

    def write_document(self, canister: DocumentCanister) -> ResponsesPiece:
        blocks = self.encode(canister.contents)
        heading = self.encode_text(head_document(canister) or "Document:")
        return _frame("user", [heading, *blocks] if blocks else [])

    def frame(self, role: Literal["user", "system"], blocks: Sequence[Block]) -> ResponsesPiece:
        return _frame(role if role == "user" else read_native(self.model).system_role, blocks)

    def encode_text(self, text: str) -> Block:
        return _encode_text(text)

    def unsupported(self, content: MediaContent) -> str:
        return unsupported(content, self.model, PLACES)

    def encode_media(self, content: MediaContent) -> Block:
        assert isinstance(content, ImageContent | FileContent)
        picture = isinstance(content, ImageContent)
        head: dict[str, Any] = {"type": "input_image" if picture else "input_file"}
        if picture:
            head["detail"] = "auto"
        match content.data:
            case Location(url):
                return (
                    encode_json({**head, "image_url" if picture else "file_url": repair_text(url)}),
                )
            case Upload(identity):
                return (encode_json({**head, "file_id": repair_text(identity)}),)
            case _:
                pass
        instead = {"type": "input_text", "text": describe_left_out(content)}
        if is_textual(content):
            before = b'{"type":"input_text","text":'
            return encode_slot(content, before, b"}", instead, self.origin)
        if not picture:
            head["filename"] = name_sent(content)
        member = b',"image_url":' if picture else b',"file_data":'
        before = encode_json(head)[:-1] + member
        return encode_slot(content, before, b"}", instead, self.origin, uri=True)


class ResponsesHistory(OpenAIHistory[ResponsesPiece]):
    """The items of one conversation; if `stateful`, the server keeps completed replies."""

    def __init__(self, model: Model, *, stateful: bool) -> None:
        super().__init__(b'{"input":[', model)
        self._stateful = stateful

    def nativize(
        self, canister: Canister, texts: Mapping[str, bytes], call: str
    ) -> tuple[ResponsesPiece, Sequence[Notice]]:
        """Return the piece of a canister."""
        work = _Work(canister, self.model, MODULE, texts, call)
        return work.write(), work.notices

    def is_empty(self, piece: ResponsesPiece) -> bool:
        """Return True if the piece has no items to send."""
        return not piece.items

    def add(self, canister: Canister, texts: Mapping[str, bytes]) -> Sequence[Notice]:
        """Add the next canister; return notices about contents that are changed or not sent."""
        notices = super().add(canister, texts)
        if self._stateful and (response := self._find_kept(canister)):
            self.keep(response)
        return notices

    def frame(self, state: Exchange[ResponsesPiece], *, first: bool, last: bool) -> Iterator[Block]:
        """Yield the items of an exchange: results after calls, no reasoning at the end."""
        items = [item for piece in state.spoken for item in piece.items]
        while items and items[-1].leads:
            items.pop()
        yield from (item.block for item in items)
        for call in state.calls:
            answer = state.answers.get(call)
            yield _interrupted(call) if answer is None else answer.items[0].block
        for piece in state.others:
            yield from (item.block for item in piece.items)
        if last and not state.others and not state.calls:
            yield _frame("user", [_encode_text(CONTINUE)]).items[0].block

    def _find_kept(self, canister: Canister) -> str:
        """Return the id of the reply that ends here, or an empty text if the server lacks it."""
        if not isinstance(canister, AssistantCanister | InvocationCanister):
            return ""
        ending, origin = canister.ending, canister.provenance
        if ending is None or origin is None or ending.interrupted:
            return ""
        if ending.reason not in (StopReason.FINISHED, StopReason.INVOCATIONS):
            return ""
        ours = (MODULE, self.model.provider, self.model.name)
        return origin.response if (origin.module, origin.row, origin.model) == ours else ""


def _answered_calls(contents: Sequence[Content]) -> frozenset[str]:
    """Return the calls that OpenAI itself ran: their results are among the contents."""
    return frozenset(
        _call_of(content.native)
        for content in contents
        if isinstance(content, NativeContent)
        and content.native is not None
        and content.label.endswith("_call_output")
    )


def _call_of(native: NativePayload) -> str:
    return _NATIVE.decode(native.data).call_id


def _read_spoken(native: NativePayload) -> _Spoken | None:
    try:
        return _SPOKEN.decode(native.data)
    except ValueError:
        return None


def _frame_message(said: Sequence[tuple[_Spoken, str]]) -> RequestItem:
    """Return the parts of one message as they came, or a plain message if its end was not seen."""
    last = said[-1][0]
    if last.item is None:
        text = "".join(text for _, text in said)
        return RequestItem(
            (encode_json({"type": "message", "role": "assistant", "content": text}),)
        )
    content = []
    for spoken, text in said:
        member = "refusal" if bytes(spoken.part.get("type", Raw())) == b'"refusal"' else "text"
        content.append({**spoken.part, member: text})
    return RequestItem((encode_json({**last.item, "content": content}),))


def _nativize_reasoning(work: Conversion, native: NativePayload | None) -> Block | None:
    if native is None or not work.issued(native):
        return None
    reported = _NATIVE.decode(native.data)
    # Without either, the server would look for an item that it never kept.
    if not reported.encrypted_content and bytes(reported.content) == b"null":
        return None
    return (bytes(native.data),)


def _nativize_generated(work: Conversion, content: ImageContent, native: NativePayload) -> Block:
    """Return a picture that the model made, in the item in which it came."""
    if isinstance(content.data, Location | Upload):
        work.leave_out(name_content(content))
        return (bytes(native.data),)
    before = bytes(native.data)[:-1] + b',"result":'
    text = {"type": "message", "role": "assistant", "content": describe_left_out(content)}
    return (
        Slot(
            content.data,
            "base64",
            before,
            b"}",
            encode_json(text),
            name_content(content),
            work.origin,
        ),
    )


def _frame(role: str, blocks: Sequence[Block]) -> ResponsesPiece:
    if not blocks:
        return ResponsesPiece()
    start = encode_json({"type": "message", "role": role})[:-1] + b',"content":['
    return ResponsesPiece((RequestItem((start, *interleave(blocks), b"]}")),))


def _interrupted(call: str) -> Block:
    item = {"type": "function_call_output", "call_id": call, "output": INTERRUPTED}
    return (encode_json(item),)


def _encode_text(text: str) -> Block:
    return (encode_json({"type": "input_text", "text": repair_text(text)}),)
