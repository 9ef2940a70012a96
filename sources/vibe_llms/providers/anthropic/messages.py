"""Converts canisters to pieces of Anthropic's requests: encoded blocks with a role.

`history.py` joins, groups and repairs the pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import Raw, Struct

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
    ReasoningContent,
    Reference,
    TextualContent,
    Upload,
    repair_text,
)
from vibe_llms.messages.events import Notice
from vibe_llms.providers.conversions import (
    Writer,
    head_document,
    name_content,
    name_document,
    name_file,
    nativize_arguments,
)
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.pieces import Block, Slot, encode_json, interleave
from vibe_llms.providers.tool_names import nativize_name

MODULE = "vibe_llms.providers.anthropic"
PDF = "application/pdf"
#: Type of the block that replaces summarized messages.
COMPACTION = "compaction"
_LONGEST_TITLE = 500
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])


class _Cited(Struct):
    citations: list[dict[str, Raw]]


_CITATIONS = msgspec.json.Decoder(_Cited)


class AnthropicPiece(Struct, frozen=True):
    """An encoded canister: its blocks and the role of their message.

    `thinking` counts the thinking blocks at the end, which must not be last in a message; `thinks`
    is True if the first block is thinking. `running` maps the ids of calls that the server carries
    out to their places; `returned` lists those that have a result here or wait for ours. `paused`
    is True if this same model paused its reply there, and `own` if the reply is its own.
    `compacted` is True if the first block replaces messages that Anthropic summarized.
    """

    role: Literal["user", "assistant", "system"]
    blocks: tuple[Block, ...]
    thinking: int = 0
    thinks: bool = False
    running: Mapping[str, int] = {}
    returned: tuple[str, ...] = ()
    paused: bool = False
    compacted: bool = False
    own: bool = False


class _ServerTool(Struct):
    """Common members of the blocks of tools that the server runs."""

    type: str = ""
    id: str = ""
    tool_use_id: str = ""
    tool_id: str = ""


_SERVER_TOOL = msgspec.json.Decoder(_ServerTool)


def nativize(
    canister: Canister,
    model: Model,
    texts: Mapping[str, bytes],
    *,
    call: str = "",
    citing: bool = True,
    unsigned: bool = False,
) -> tuple[AnthropicPiece, Sequence[Notice]]:
    """Return the piece of a canister, and notices about contents that are not sent.

    `texts` maps hashes of referenced texts to their bytes. `call` is the wire id of a call, for its
    canister and for its result. `citing` makes documents citable; it must be the same for all
    documents of a request. `unsigned` sends back thinking that this model did not sign.
    """
    work = _Work(canister, model, MODULE, texts, call)
    work.citing, work.unsigned = citing, unsigned
    return work.write(), work.notices


class _Work(Writer[AnthropicPiece, Block]):
    """Writer of one canister."""

    citing = True
    unsigned = False

    def write_reply(self, canister: AssistantCanister) -> AnthropicPiece:
        blocks: list[Block] = []
        thinking = 0
        thinks = False
        running: dict[str, int] = {}
        returned: list[str] = []
        for content in canister.contents:
            match content:
                case ReasoningContent():
                    if (block := self.nativize_thinking(content)) is not None:
                        thinks = thinks or not blocks
                        blocks.append(block)
                        thinking += 1
                    continue
                case NativeContent(native=native):
                    members = self.read(native, _MEMBERS)
                    if native is None or members is None or "type" not in members:
                        self.leave_out(f"a block {content.label!r} that only its model understands")
                        continue
                    reported = _read_server_tool(native.data)
                    if reported.type.endswith("tool_use"):
                        running[reported.id] = len(blocks)
                    returned.append(reported.tool_use_id)
                    blocks.append((bytes(native.data),))
                case TextualContent():
                    if not (text := self.text(content.data)).strip():
                        continue
                    blocks.append(self.nativize_cited(content, text))
                case _:
                    # The interface takes no pictures or sound in an assistant's message.
                    blocks.append(self.say(content))
            thinking = 0
        paused = self.has_paused(canister) and len(blocks) > thinking
        ran = tuple(returned)
        first = canister.contents[0] if canister.contents else None
        compacted = isinstance(first, NativeContent) and first.label == COMPACTION and bool(blocks)
        return AnthropicPiece(
            "assistant", tuple(blocks), thinking, thinks, running, ran, paused, compacted, self.own
        )

    def nativize_thinking(self, content: ReasoningContent) -> Block | None:
        native = content.native
        members = self.read(native, _MEMBERS)
        if native is not None and members is not None:
            if "type" in members:
                return (bytes(native.data),)
            if "signature" in members:
                thinking = {"type": "thinking", "thinking": self.text(content.data), **members}
                return (encode_json(thinking),)
        if native is None and self.unsigned and self.own and (text := self.text(content.data)):
            return (encode_json({"type": "thinking", "thinking": text}),)
        # Unsigned thinking is refused, such as that of an interrupted reply.
        if native is not None:
            self.leave_out("the reasoning of another model")
        elif content.data:
            self.leave_out("unsigned reasoning")
        return None

    def nativize_cited(self, content: TextualContent, text: str) -> Block:
        cited = self.read(content.native, _CITATIONS)
        if cited is None:
            self.leave_out_additions(content)
            return self.encode_text(text)
        for citation in cited.citations:
            # The interface sends this member but refuses to take it back.
            citation.pop("file_id", None)
        return (encode_json({"type": "text", "text": text, "citations": cited.citations}),)

    def write_call(self, canister: InvocationCanister) -> AnthropicPiece:
        extra = self.members(canister)
        block = {
            "type": "tool_use",
            "id": self.call,
            "name": nativize_name(canister.name),
            "input": nativize_arguments(canister),
            **extra,
        }
        # Code that the server runs may have made the call; it continues when the result arrives.
        caller = _read_server_tool(extra.get("caller", Raw(b"{}")))
        ran, paused = (caller.tool_id,), self.has_paused(canister)
        blocks: tuple[Block, ...] = ((encode_json(block),),)
        return AnthropicPiece("assistant", blocks, returned=ran, paused=paused, own=self.own)

    def has_paused(self, canister: AssistantCanister | InvocationCanister) -> bool:
        """Return True if the reply was paused and this model can continue it."""
        ending = canister.ending
        return self.own and ending is not None and ending.reason == StopReason.PAUSED

    def write_result(self, canister: ResultCanister) -> AnthropicPiece:
        blocks = self.encode(canister.contents)
        head: dict[str, object] = {"type": "tool_result", "tool_use_id": self.call}
        if canister.failed:
            head["is_error"] = True
        before = encode_json(head)[:-1]
        if not blocks:
            return AnthropicPiece("user", ((before + b"}",),))
        return AnthropicPiece("user", ((before + b',"content":[', *interleave(blocks), b"]}"),))

    def write_document(self, canister: DocumentCanister) -> AnthropicPiece:
        return AnthropicPiece("user", tuple(self.encode_document(canister)))

    def encode_document(self, canister: DocumentCanister) -> Sequence[Block]:
        about = self.about(*name_document(canister))
        match canister.contents:
            case (TextualContent() as content,):
                text = self.text(content.data)
                if not text.strip():
                    return []
                source = {"type": "text", "media_type": "text/plain", "data": text}
                return [(encode_json({"type": "document", "source": source, **about}),)]
            case (ImageContent() | FileContent() as content,) if not (
                _is_picture(content) or unsupported(content, self.model)
            ):
                return [self.encode_file(content, about)]
            case contents if any(_is_file(content) for content in contents):
                # A document of blocks takes text and images only, so files are blocks of their own.
                heading = head_document(canister)
                before = [self.encode_text(heading)] if heading else []
                return [*before, *self.encode(contents)]
            case contents:
                blocks = self.encode(contents)
                if not blocks:
                    return []
                start = b'{"type":"document","source":{"type":"content","content":['
                after = b"]}," + encode_json(about)[1:] if about else b"]}}"
                return [(start, *interleave(blocks), after)]

    def unsupported(self, content: MediaContent) -> str:
        return unsupported(content, self.model)

    def encode_media(self, content: MediaContent) -> Block:
        assert isinstance(content, ImageContent | FileContent)
        return self.encode_file(content, self.about(name_file(content)))

    def encode_file(
        self, content: ImageContent | FileContent, about: Mapping[str, object]
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
                instead = self.encode_text(f"[{name_content(content)}, left out to save room]")
                return (
                    Slot(
                        data,
                        "text" if textual else "base64",
                        before + b',"data":',
                        b"}}",
                        b"".join(part for part in instead if isinstance(part, bytes)),
                        name_content(content),
                        self.origin,
                    ),
                )

    def about(self, title: str, context: str = "") -> dict[str, object]:
        """Return the members of a document's block other than its source."""
        about: dict[str, object] = {}
        if title.strip():
            about["title"] = title.strip()[:_LONGEST_TITLE]
        if context:
            about["context"] = context
        if self.citing:
            # In one request, either all documents can be cited or none.
            about["citations"] = {"enabled": True}
        return about

    def frame(self, role: Literal["user", "system"], blocks: Sequence[Block]) -> AnthropicPiece:
        return AnthropicPiece(role, tuple(blocks))

    def encode_text(self, text: str) -> Block:
        return (encode_json({"type": "text", "text": text}),)


def unsupported(content: MediaContent, model: Model) -> str:
    """Return why a model does not accept a content, or an empty text if it does."""
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
                return f"{name} at {url!r}, which is not an http(s) address"
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
    """Return True if a content is sent as a picture; a MIME type decides before the class."""
    if content.mimetype:
        return content.mimetype.startswith("image/")
    return isinstance(content, ImageContent)


def _read_server_tool(data: Raw) -> _ServerTool:
    try:
        return _SERVER_TOOL.decode(data)
    except ValueError:
        return _ServerTool()
