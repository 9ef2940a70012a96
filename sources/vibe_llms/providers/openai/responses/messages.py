"""Canisters to pieces of Responses, and pieces to the items of a request.

What a model has sent itself goes back to it word for word, in order: reasoning with its encrypted
content, messages with their identity and phase, items of tools that OpenAI runs. Reasoning is only
accepted together with what followed it.

Source: the item types of openai 3.54.0, `types/responses/response_input_item_param.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from vibe_llms.events import Notice
from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    Content,
    FileContent,
    ImageContent,
    Location,
    NativeContent,
    NativePayload,
    ReasoningContent,
    TextualContent,
    Upload,
    repair_text,
)
from vibe_llms.providers.conversions import Conversion, name_content, name_document
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.openai.contents import (
    check_contents,
    describe_left_out,
    encode_slot,
    is_textual,
    name_sent,
    unsupported,
)
from vibe_llms.providers.openai.controls import read_native
from vibe_llms.providers.openai.framing import CONTINUE, History, Nativize, Open
from vibe_llms.providers.openai.invocations import OpenAIInvocationsProcessor
from vibe_llms.providers.pieces import Block, Slot, encode_json, interleave

MODULE = "vibe_llms.providers.openai.responses"
#: Where data may lie, besides in the request itself.
PLACES: Mapping[str, tuple[str, ...]] = {
    "image": ("url", "upload"),
    "file": ("url", "upload"),
}
#: Calls of tools that the client has to carry out; without a result they are not accepted.
_CLIENT_RUN = frozenset(
    {
        "apply_patch_call",
        "computer_call",
        "custom_tool_call",
        "local_shell_call",
        "shell_call",
    }
)
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])


class Item(Struct, frozen=True):
    """One item of the request; one that `leads` is only accepted together with the next."""

    block: Block
    leads: bool = False


class Piece(Struct, frozen=True):
    """A canister, encoded: its items."""

    items: tuple[Item, ...] = ()


class _Spoken(Struct):
    """The payload of a text that a model said: of its part, and of the message around it."""

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


class ResponsesMessagesProcessor:
    """Canisters to pieces, each encoded once."""

    def __init__(self, invocations: OpenAIInvocationsProcessor) -> None:
        self._invocations = invocations

    def nativize(
        self, canister: Canister, model: Model, texts: Mapping[str, bytes], *, call: str = ""
    ) -> tuple[Piece, Sequence[Notice]]:
        """The piece of a canister, and what of it this model cannot be sent.

        `texts` are the bytes of texts that the canister has by reference, `call` is the identity on
        the wire of a call, for the canister of the call and for its result.
        """
        work = Conversion(canister, model, MODULE, texts)
        match canister:
            case AssistantCanister():
                piece = _nativize_reply(work, canister)
            case InvocationCanister():
                piece = self._nativize_call(work, canister, call)
            case ResultCanister():
                piece = _nativize_result(work, canister, call)
            case DocumentCanister():
                piece = _frame("user", _nativize_document(work, canister))
            case SupervisorCanister():
                role = read_native(model).system_role
                piece = _frame(role, _nativize_instructions(work, canister))
            case UserCanister():
                piece = _frame("user", _nativize_contents(work, canister.contents))
            case _:
                work.leave_out(f"a message of the unknown role {canister.label!r}")
                piece = Piece()
        return piece, work.notices

    def check(self, canister: Canister, model: Model) -> None:
        """`ContentUnsupported` where the model cannot take a content of this canister as it is."""
        check_contents(canister, model, PLACES)

    def _nativize_call(self, work: Conversion, canister: InvocationCanister, call: str) -> Piece:
        extra: Mapping[str, Raw] = {}
        if canister.native is not None:
            if work.issued(canister.native):
                # Arguments that are no JSON go back in other words, so it is not the same item.
                extra = _MEMBERS.decode(canister.native.data) if canister.parsed is not None else {}
            else:
                work.leave_out_members(canister.native)
        arguments = (
            repair_text(canister.arguments or "{}")
            if canister.parsed is not None
            else encode_json({"arguments": repair_text(canister.arguments)}).decode()
        )
        item = {
            "type": "function_call",
            "call_id": call,
            "name": self._invocations.nativize_name(canister.name),
            "arguments": arguments,
            **extra,
        }
        return Piece((Item((encode_json(item),)),))


class ResponsesFramer:
    """Pieces to items: results after their calls, reasoning only with what followed it."""

    def is_empty(self, piece: Piece) -> bool:
        """Whether nothing of a canister is sent."""
        return not piece.items

    def frame(self, state: Open[Piece], *, first: bool, last: bool) -> Iterator[Block]:
        """The items of what is open."""
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


class ResponsesHistory(History[Piece]):
    """The items of one conversation; with `stateful` the server keeps what it has answered."""

    def __init__(self, model: Model, nativize: Nativize[Piece], *, stateful: bool) -> None:
        super().__init__(b'{"input":[', model, nativize, ResponsesFramer())
        self._stateful = stateful

    def add(self, canister: Canister, texts: Mapping[str, bytes]) -> Sequence[Notice]:
        """Take the next canister; the notices tell what of it is not sent as it is."""
        notices = super().add(canister, texts)
        if self._stateful and (response := self._find_kept(canister)):
            self.keep(response)
        return notices

    def _find_kept(self, canister: Canister) -> str:
        """The identity of the reply that ends here, if the server has it."""
        if not isinstance(canister, AssistantCanister | InvocationCanister):
            return ""
        ending, origin = canister.ending, canister.provenance
        if ending is None or origin is None or ending.interrupted:
            return ""
        if ending.reason not in (StopReason.FINISHED, StopReason.INVOCATIONS):
            return ""
        ours = (MODULE, self._model.provider, self._model.name)
        return origin.response if (origin.module, origin.row, origin.model) == ours else ""


def _nativize_reply(work: Conversion, canister: AssistantCanister) -> Piece:
    items: list[Item] = []
    answered = _answered_calls(canister.contents)
    said: list[tuple[_Spoken, str]] = []
    plain: list[str] = []

    def flush() -> None:
        if said:
            items.append(_frame_message(said))
            said.clear()
        if (text := "".join(plain)).strip():
            item = {"type": "message", "role": "assistant", "content": text}
            items.append(Item((encode_json(item),)))
        plain.clear()

    for content in canister.contents:
        match content:
            case TextualContent(data=data, native=native):
                text = work.text(data)
                spoken = _read_spoken(native) if native and work.issued(native) else None
                if spoken is None:
                    work.leave_out_sources(content)
                    if said:
                        flush()
                    plain.append(text)
                    continue
                if plain or (said and said[-1][0].place != spoken.place):
                    flush()
                said.append((spoken, text))
            case ReasoningContent(native=native):
                flush()
                if (block := _nativize_reasoning(work, native)) is not None:
                    items.append(Item(block, leads=True))
                elif native is not None and not work.issued(native):
                    work.leave_out("the reasoning of another model")
                elif content.data:
                    work.leave_out("reasoning that came without its encrypted form")
            case NativeContent(native=native):
                flush()
                if native is None or not work.issued(native):
                    work.leave_out(f"an item {content.label!r} that only its model understands")
                elif (
                    content.label in _CLIENT_RUN
                    and _NATIVE.decode(native.data).call_id not in answered
                ):
                    work.leave_out(f"a call {content.label!r} that nobody carried out")
                else:
                    items.append(Item((bytes(native.data),)))
            case ImageContent(native=native) if native is not None and work.issued(native):
                flush()
                items.append(Item(_nativize_generated(work, content, native)))
            case _:
                # A model's own picture or sound cannot be given back as its words.
                plain.append(work.describe(content))
    flush()
    return Piece(tuple(items))


def _answered_calls(contents: Sequence[Content]) -> frozenset[str]:
    """The calls that OpenAI itself carried out: their results stand among the contents."""
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


def _frame_message(said: Sequence[tuple[_Spoken, str]]) -> Item:
    """The parts of one message, as it came; in our words where its end was not seen."""
    last = said[-1][0]
    if last.item is None:
        text = "".join(text for _, text in said)
        return Item((encode_json({"type": "message", "role": "assistant", "content": text}),))
    content = []
    for spoken, text in said:
        member = "refusal" if bytes(spoken.part.get("type", Raw())) == b'"refusal"' else "text"
        content.append({**spoken.part, member: text})
    return Item((encode_json({**last.item, "content": content}),))


def _nativize_reasoning(work: Conversion, native: NativePayload | None) -> Block | None:
    if native is None or not work.issued(native):
        return None
    told = _NATIVE.decode(native.data)
    # Without either the server would look for an item that it never kept.
    if not told.encrypted_content and bytes(told.content) == b"null":
        return None
    return (bytes(native.data),)


def _nativize_generated(work: Conversion, content: ImageContent, native: NativePayload) -> Block:
    """A picture that the model has made, in the item in which it came."""
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


def _nativize_result(work: Conversion, canister: ResultCanister, call: str) -> Piece:
    blocks = _nativize_contents(work, canister.contents)
    if canister.failed:
        blocks.insert(0, _encode_text("(The call failed.)"))
    before = encode_json({"type": "function_call_output", "call_id": call})[:-1] + b',"output":'
    if not blocks:
        return Piece((Item((before + b'""}',)),))
    return Piece((Item((before + b"[", *interleave(blocks), b"]}")),))


def _nativize_document(work: Conversion, canister: DocumentCanister) -> list[Block]:
    blocks = _nativize_contents(work, canister.contents)
    if not blocks:
        return []
    name = ", ".join(filter(None, name_document(canister)))
    return [_encode_text(f"Document: {name}" if name else "Document:"), *blocks]


def _nativize_instructions(work: Conversion, canister: SupervisorCanister) -> list[Block]:
    blocks: list[Block] = []
    for content in canister.contents:
        if not isinstance(content, TextualContent):
            blocks.append(_encode_text(work.describe(content)))
        elif (text := work.text(content.data)).strip():
            blocks.append(_encode_text(text))
    return blocks


def _nativize_contents(work: Conversion, contents: Sequence[Content]) -> list[Block]:
    blocks: list[Block] = []
    for content in contents:
        match content:
            case TextualContent(data=data):
                if (text := work.text(data)).strip():
                    blocks.append(_encode_text(text))
            case ImageContent() | FileContent():
                if reason := unsupported(content, work.model, PLACES):
                    blocks.append(_encode_text(work.describe(content, reason)))
                else:
                    blocks.append(_nativize_media(work, content))
            case ReasoningContent() | NativeContent():
                work.leave_out("a part that only a model's own reply can hold")
            case _:
                blocks.append(_encode_text(work.describe(content)))
    return blocks


def _nativize_media(work: Conversion, content: ImageContent | FileContent) -> Block:
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
        return encode_slot(content, before, b"}", instead, work.origin)
    if not picture:
        head["filename"] = name_sent(content)
    member = b',"image_url":' if picture else b',"file_data":'
    before = encode_json(head)[:-1] + member
    return encode_slot(content, before, b"}", instead, work.origin, uri=True)


def _frame(role: str, blocks: Sequence[Block]) -> Piece:
    if not blocks:
        return Piece()
    start = encode_json({"type": "message", "role": role})[:-1] + b',"content":['
    return Piece((Item((start, *interleave(blocks), b"]}")),))


def _interrupted(call: str) -> Block:
    item = {"type": "function_call_output", "call_id": call, "output": INTERRUPTED}
    return (encode_json(item),)


def _encode_text(text: str) -> Block:
    return (encode_json({"type": "input_text", "text": repair_text(text)}),)
