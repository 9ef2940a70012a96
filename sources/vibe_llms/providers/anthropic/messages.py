"""Canisters to pieces of Anthropic's requests: encoded blocks, each with its role on the wire.

How pieces are put together, grouped and repaired is `framing.py`'s affair.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import Raw, Struct

from vibe_llms.events import Notice
from vibe_llms.exceptions import ContentUnsupported
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    Content,
    FileContent,
    ImageContent,
    Location,
    MediaContent,
    NativeContent,
    ReasoningContent,
    Reference,
    TextualContent,
    Upload,
    repair_text,
)
from vibe_llms.providers.anthropic.invocations import AnthropicInvocationsProcessor
from vibe_llms.providers.conversions import (
    Conversion,
    name_content,
    name_document,
    name_file,
)
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.pieces import Block, Slot, compact, encode_json, interleave

MODULE = "vibe_llms.providers.anthropic"
PDF = "application/pdf"
_LONGEST_TITLE = 500
_CALL = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])


class _Cited(Struct):
    citations: list[dict[str, Raw]]


_CITATIONS = msgspec.json.Decoder(_Cited)


class Piece(Struct, frozen=True):
    """A canister, encoded: its blocks and the role of the message that they belong to.

    `thinking` counts the blocks at the end that must not stand last in a message, `thinks` tells
    whether the first one is of that kind. `running` are the places of the calls that the server
    carries out itself, by their identities; `returned` are those that have a result here, or that
    wait for ours.
    """

    role: Literal["user", "assistant", "system"]
    blocks: tuple[Block, ...]
    thinking: int = 0
    thinks: bool = False
    running: Mapping[str, int] = {}
    returned: tuple[str, ...] = ()


class _ServerTool(Struct):
    """What the blocks of tools that the server runs have in common."""

    type: str = ""
    id: str = ""
    tool_use_id: str = ""
    tool_id: str = ""


_SERVER_TOOL = msgspec.json.Decoder(_ServerTool)


class AnthropicMessagesProcessor:
    """Canisters to pieces, each encoded once."""

    def __init__(self, invocations: AnthropicInvocationsProcessor) -> None:
        self._invocations = invocations

    def nativize(
        self,
        canister: Canister,
        model: Model,
        texts: Mapping[str, bytes],
        *,
        call: str = "",
        citing: bool = True,
    ) -> tuple[Piece, Sequence[Notice]]:
        """The piece of a canister, and what of it this model cannot be sent.

        `texts` are the bytes of texts that the canister has by reference, `call` is the identity on
        the wire of a call, for the canister of the call and for its result; `citing` tells whether
        documents are sent so that they can be cited, all of a request or none.
        """
        work = _Work(canister, model, texts, citing=citing)
        match canister:
            case AssistantCanister():
                piece = self._nativize_reply(work, canister)
            case InvocationCanister():
                piece = self._nativize_call(work, canister, call)
            case ResultCanister():
                piece = Piece("user", (self._nativize_result(work, canister, call),))
            case DocumentCanister():
                piece = Piece("user", tuple(self._nativize_document(work, canister)))
            case SupervisorCanister():
                piece = Piece("system", tuple(self._nativize_instructions(work, canister)))
            case UserCanister():
                piece = Piece("user", tuple(self._nativize_contents(work, canister.contents)))
            case _:
                work.leave_out(f"a message of the unknown role {canister.label!r}")
                piece = Piece("user", ())
        return piece, work.notices

    def check(self, canister: Canister, model: Model) -> None:
        """`ContentUnsupported` where the model cannot take a content of this canister as it is."""
        for content in getattr(canister, "contents", ()):
            if isinstance(content, MediaContent) and (reason := unsupported(content, model)):
                address = f"{model.provider}/{model.name}"
                raise ContentUnsupported(f"{address} cannot take {repair_text(reason)}")

    def _nativize_reply(self, work: _Work, canister: AssistantCanister) -> Piece:
        blocks: list[Block] = []
        thinking = 0
        thinks = False
        running: dict[str, int] = {}
        returned: list[str] = []
        for content in canister.contents:
            match content:
                case ReasoningContent():
                    if (block := self._nativize_thinking(work, content)) is not None:
                        thinks = thinks or not blocks
                        blocks.append(block)
                        thinking += 1
                    continue
                case NativeContent(native=native):
                    members = work.read(native, _MEMBERS)
                    if native is None or members is None or "type" not in members:
                        work.leave_out(f"a block {content.label!r} that only its model understands")
                        continue
                    told = _read_server_tool(native.data)
                    if told.type.endswith("tool_use"):
                        running[told.id] = len(blocks)
                    returned.append(told.tool_use_id)
                    blocks.append((bytes(native.data),))
                case TextualContent():
                    if not (text := work.text(content.data)).strip():
                        continue
                    blocks.append(self._nativize_cited(work, content, text))
                case _:
                    # A model's own picture or sound cannot be given back as its words.
                    blocks.append(work.say(content))
            thinking = 0
        return Piece("assistant", tuple(blocks), thinking, thinks, running, tuple(returned))

    def _nativize_thinking(self, work: _Work, content: ReasoningContent) -> Block | None:
        native = content.native
        members = work.read(native, _MEMBERS)
        if native is not None and members is not None:
            if "type" in members:
                return (bytes(native.data),)
            if "signature" in members:
                thinking = {"type": "thinking", "thinking": work.text(content.data), **members}
                return (encode_json(thinking),)
        # Without its signature no thinking is accepted: that of an interrupted reply, say.
        if native is not None:
            work.leave_out("the reasoning of another model")
        elif content.data:
            work.leave_out("reasoning that its model did not sign")
        return None

    def _nativize_cited(self, work: _Work, content: TextualContent, text: str) -> Block:
        cited = work.read(content.native, _CITATIONS)
        if cited is None:
            work.leave_out_sources(content)
            return _encode_text(text)
        for citation in cited.citations:
            # The interface sends this member and does not take it back.
            citation.pop("file_id", None)
        return (encode_json({"type": "text", "text": text, "citations": cited.citations}),)

    def _nativize_call(self, work: _Work, canister: InvocationCanister, call: str) -> Piece:
        extra = work.read(canister.native, _MEMBERS)
        if extra is None:
            extra = {}
            if canister.native is not None:
                work.leave_out_members(canister.native)
        arguments: object = (
            Raw(compact((canister.arguments.strip() or "{}").encode()))
            if canister.parsed is not None
            else {"arguments": repair_text(canister.arguments)}
        )
        block = {
            "type": "tool_use",
            "id": call,
            "name": self._invocations.nativize_name(canister.name),
            "input": arguments,
            **extra,
        }
        # Code that the server runs may have made the call; it goes on when the result has come.
        caller = _read_server_tool(extra.get("caller", Raw(b"{}")))
        return Piece("assistant", ((encode_json(block),),), returned=(caller.tool_id,))

    def _nativize_result(self, work: _Work, canister: ResultCanister, call: str) -> Block:
        blocks = self._nativize_contents(work, canister.contents)
        head: dict[str, object] = {"type": "tool_result", "tool_use_id": call}
        if canister.failed:
            head["is_error"] = True
        before = encode_json(head)[:-1]
        if not blocks:
            return (before + b"}",)
        return (before + b',"content":[', *interleave(blocks), b"]}")

    def _nativize_document(self, work: _Work, canister: DocumentCanister) -> Sequence[Block]:
        about = _describe_document(work, *name_document(canister))
        match canister.contents:
            case (TextualContent() as content,):
                text = work.text(content.data)
                if not text.strip():
                    return []
                source = {"type": "text", "media_type": "text/plain", "data": text}
                return [(encode_json({"type": "document", "source": source, **about}),)]
            case (ImageContent() | FileContent() as content,) if not (
                _is_picture(content) or unsupported(content, work.model)
            ):
                return [self._nativize_media(work, content, about)]
            case contents if any(_is_file(content) for content in contents):
                # A document of blocks takes text and images only, so files stand for themselves.
                name = ", ".join(filter(None, name_document(canister)))
                heading = [_encode_text(f"Document: {name}")] if name else []
                return [*heading, *self._nativize_contents(work, contents)]
            case contents:
                blocks = self._nativize_contents(work, contents)
                if not blocks:
                    return []
                start = b'{"type":"document","source":{"type":"content","content":['
                after = b"]}," + encode_json(about)[1:] if about else b"]}}"
                return [(start, *interleave(blocks), after)]

    def _nativize_instructions(self, work: _Work, canister: SupervisorCanister) -> list[Block]:
        # The interface takes text blocks only.
        blocks: list[Block] = []
        for content in canister.contents:
            if not isinstance(content, TextualContent):
                blocks.append(work.say(content))
            elif (text := work.text(content.data)).strip():
                blocks.append(_encode_text(text))
        return blocks

    def _nativize_contents(self, work: _Work, contents: Sequence[Content]) -> Sequence[Block]:
        blocks: list[Block] = []
        for content in contents:
            match content:
                case TextualContent(data=data):
                    if (text := work.text(data)).strip():
                        blocks.append(_encode_text(text))
                case ImageContent() | FileContent():
                    if reason := unsupported(content, work.model):
                        blocks.append(work.say(content, reason))
                    else:
                        about = _describe_document(work, name_file(content))
                        blocks.append(self._nativize_media(work, content, about))
                case ReasoningContent() | NativeContent():
                    work.leave_out("a part that only a model's own reply can hold")
                case _:
                    blocks.append(work.say(content))
        return blocks

    def _nativize_media(
        self, work: _Work, content: ImageContent | FileContent, about: Mapping[str, object]
    ) -> Block:
        head: dict[str, object] = {"type": "image"}
        if not _is_picture(content):
            head = {"type": "document", **about}
        match content.data:
            case Location(url):
                source = {"type": "url", "url": repair_text(url)}
                return (encode_json({**head, "source": source}),)
            case Upload(identity):
                source = {"type": "file", "file_id": repair_text(identity)}
                return (encode_json({**head, "source": source}),)
            case data:
                textual = content.mimetype.startswith("text/")
                source = {
                    "type": "text" if textual else "base64",
                    "media_type": "text/plain" if textual else content.mimetype,
                }
                before = encode_json(head)[:-1] + b',"source":' + encode_json(source)[:-1]
                instead = _encode_text(f"[{name_content(content)}, left out to save room]")
                return (
                    Slot(
                        data,
                        "text" if textual else "base64",
                        before + b',"data":',
                        b"}}",
                        b"".join(part for part in instead if isinstance(part, bytes)),
                        name_content(content),
                        work.origin,
                    ),
                )


class _Work(Conversion):
    """One canister on its way to the wire."""

    def __init__(
        self, canister: Canister, model: Model, texts: Mapping[str, bytes], *, citing: bool
    ) -> None:
        super().__init__(canister, model, MODULE, texts)
        self.citing = citing

    def say(self, content: Content, what: str = "") -> Block:
        """A content in words, for a model that cannot be sent it; tells that it is so."""
        return _encode_text(self.describe(content, what))


def is_call_identity(call: str) -> bool:
    """Whether Anthropic accepts this identity of a call."""
    return bool(_CALL.fullmatch(call))


def unsupported(content: MediaContent, model: Model) -> str:
    """Why a model cannot take a content, in words; empty where it can."""
    name = name_content(content)
    attributes = model.attributes
    if not isinstance(content, ImageContent | FileContent):
        return name
    picture = _is_picture(content)
    textual = content.mimetype.startswith("text/")
    match content.data:
        case Upload(row=row):
            if row != model.provider:
                return f"{name} that was uploaded to {row!r}"
            known = "image" if picture else PDF
            taken = textual or known in attributes.accepts
        case Location(url):
            if not url.startswith(("http://", "https://")):
                return f"{name} at {url!r}, which is no http(s) address"
            known = "image" if picture else PDF
            taken = known in attributes.accepts and (picture or content.mimetype in ("", PDF))
        case data:
            if not (data.size if isinstance(data, Reference) else len(data)):
                return f"{name} without any bytes"
            taken = textual or attributes.accept("", content.mimetype)
    return "" if taken else name


def _is_file(content: Content) -> bool:
    return isinstance(content, ImageContent | FileContent) and not _is_picture(content)


def _is_picture(content: ImageContent | FileContent) -> bool:
    """Whether it is sent as a picture: what it is follows its MIME type, where that is known."""
    if content.mimetype:
        return content.mimetype.startswith("image/")
    return isinstance(content, ImageContent)


def _describe_document(work: _Work, title: str, context: str = "") -> dict[str, object]:
    """What a document's block says besides its source."""
    about: dict[str, object] = {}
    if title.strip():
        about["title"] = title.strip()[:_LONGEST_TITLE]
    if context:
        about["context"] = context
    if work.citing:
        # In one request either all documents can be cited or none.
        about["citations"] = {"enabled": True}
    return about


def _read_server_tool(data: Raw) -> _ServerTool:
    try:
        return _SERVER_TOOL.decode(data)
    except ValueError:
        return _ServerTool()


def _encode_text(text: str) -> Block:
    return (encode_json({"type": "text", "text": text}),)
