"""Converts canisters to pieces of Converse's requests: encoded blocks with a role.

`history.py` joins, groups and repairs the pieces.

Source: the shape `ContentBlock` in botocore 1.44, and the rules in its documentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
)
from vibe_llms.messages.contents import (
    Location,
    MediaContent,
    NativeContent,
    ReasoningContent,
    Reference,
    TextualContent,
    Upload,
)
from vibe_llms.messages.events import Notice
from vibe_llms.providers.bedrock.controls import BedrockAttributes, read_native
from vibe_llms.providers.bedrock.events import ToolStart
from vibe_llms.providers.conversions import (
    Writer,
    head_document,
    is_text_file,
    name_content,
    name_file,
    nativize_arguments,
)
from vibe_llms.providers.histories import FAILED, NOTHING
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.pieces import Block, Slot, encode_json, interleave
from vibe_llms.providers.tool_names import nativize_name

MODULE = "vibe_llms.providers.bedrock"
_OFFICE = "application/vnd.openxmlformats-officedocument"
#: Blocks of images and files, and the names of their formats, by MIME type. A text file is sent as
#: text, which all models read, and which does not count as one of the few files of a request.
FORMATS: Mapping[str, tuple[str, str]] = {
    **{f"image/{name}": ("image", name) for name in ("png", "jpeg", "gif", "webp")},
    "image/jpg": ("image", "jpeg"),
    "application/pdf": ("document", "pdf"),
    "application/msword": ("document", "doc"),
    f"{_OFFICE}.wordprocessingml.document": ("document", "docx"),
    "application/vnd.ms-excel": ("document", "xls"),
    f"{_OFFICE}.spreadsheetml.sheet": ("document", "xlsx"),
    **{f"video/{name}": ("video", name) for name in ("mp4", "webm", "mpeg")},
    "video/quicktime": ("video", "mov"),
    "video/x-matroska": ("video", "mkv"),
    "video/x-flv": ("video", "flv"),
    "video/x-ms-wmv": ("video", "wmv"),
    "video/3gpp": ("video", "three_gp"),
    **{f"audio/{name}": ("audio", name) for name in ("wav", "flac", "ogg", "aac", "opus")},
    "audio/mpeg": ("audio", "mp3"),
    "audio/mp3": ("audio", "mp3"),
    "audio/mp4": ("audio", "mp4"),
    "audio/x-wav": ("audio", "wav"),
}
#: Kinds of contents whose MIME type decides what they are sent as.
_BY_TYPE = ("image", "file")
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_SEVERED = "(A server tool was called here and did not return.)"
_CITATIONS = msgspec.json.Decoder(dict[str, list[dict[str, Any]]])


class _ServerTool(Struct, rename="camel"):
    """Beginning of a call that Bedrock carries out, or of its result."""

    tool_use: ToolStart | None = None
    tool_result: ToolStart | None = None


_SERVER_TOOL = msgspec.json.Decoder(_ServerTool)


class BedrockPiece(Struct, frozen=True):
    """An encoded canister: its blocks and the role of their message.

    `thinking` counts the reasoning blocks at the end, which must not be last in a message; `thinks`
    is True if the first block is reasoning. `names` are the tools that were called, and `own` is
    True for a reply of this model. `files` is the number of files in the blocks, which are
    numbered.
    """

    role: Literal["user", "assistant", "system"]
    blocks: tuple[Block, ...]
    thinking: int = 0
    thinks: bool = False
    names: tuple[str, ...] = ()
    own: bool = False
    files: int = 0


def nativize(
    canister: Canister,
    model: Model,
    texts: Mapping[str, bytes],
    *,
    call: str = "",
    files: int = 0,
    citing: bool = True,
) -> tuple[BedrockPiece, Sequence[Notice]]:
    """Return the piece of a canister, and notices about contents that are not sent.

    `texts` maps hashes of referenced texts to their bytes. `call` is the wire id of a call, for its
    canister and for its result. `files` is the number of files before this canister, whose names
    must be unique in a request. With `citing`, the model can cite files.
    """
    work = _Work(canister, model, MODULE, texts, call)
    work.native = read_native(model)
    work.files, work.citing = files, citing and work.native.citations
    piece = work.write()
    return msgspec.structs.replace(piece, files=work.files - files), work.notices


class _Work(Writer[BedrockPiece, Block]):
    """Writer of one canister."""

    native = BedrockAttributes()
    files = 0
    citing = True

    def write_reply(self, canister: AssistantCanister) -> BedrockPiece:
        blocks: list[Block] = []
        thinking = 0
        thinks = False
        # Places of calls that Bedrock carries out and that have no result yet, by their ids.
        running: dict[str | None, int] = {}
        names: list[str] = []
        for content in canister.contents:
            match content:
                case ReasoningContent():
                    if (block := self.nativize_reasoning(content)) is not None:
                        thinks = thinks or not blocks
                        blocks.append(block)
                        thinking += 1
                    continue
                case NativeContent(native=native):
                    if native is None or self.read(native, _MEMBERS) is None:
                        self.leave_out(f"a block {content.label!r} that only its model understands")
                        continue
                    read = _read_server_tool(native.data)
                    if read.tool_use is not None:
                        names.append(read.tool_use.name or "")
                        running[read.tool_use.tool_use_id] = len(blocks)
                    elif read.tool_result is not None:
                        running.pop(read.tool_result.tool_use_id, None)
                    blocks.append((bytes(native.data),))
                case TextualContent():
                    if not (text := self.text(content.data)).strip():
                        continue
                    blocks.append(self.nativize_cited(content, text))
                case _:
                    # Images and files can only be in a user's message.
                    blocks.append(self.say(content))
            thinking = 0
        for place in running.values():
            blocks[place] = self.encode_text(_SEVERED)
        return BedrockPiece(
            "assistant", tuple(blocks), thinking, thinks, tuple(filter(None, names)), self.own
        )

    def nativize_reasoning(self, content: ReasoningContent) -> Block | None:
        """Return the block of signed or encrypted reasoning; other reasoning is refused."""
        native = content.native
        members = self.read(native, _MEMBERS)
        if native is not None and members is not None:
            if "redactedContent" in members:
                return (encode_json({"reasoningContent": members}),)
            if "signature" in members:
                told = {"text": self.text(content.data), **members}
                return (encode_json({"reasoningContent": {"reasoningText": told}}),)
        if native is not None:
            self.leave_out("the reasoning of another model")
        elif content.data and (self.native.thinking or not self.own):
            # Models that sign nothing need none of their reasoning, and several refuse it.
            self.leave_out("unsigned reasoning")
        return None

    def nativize_cited(self, content: TextualContent, text: str) -> Block:
        cited = self.read(content.native, _CITATIONS)
        if not cited or not cited.get("citations"):
            self.leave_out_additions(content)
            return self.encode_text(text)
        block = {"content": [{"text": text}], "citations": cited["citations"]}
        return (encode_json({"citationsContent": block}),)

    def write_call(self, canister: InvocationCanister) -> BedrockPiece:
        name = nativize_name(canister.name)
        self.members(canister)
        block = {"toolUseId": self.call, "name": name, "input": nativize_arguments(canister)}
        blocks: tuple[Block, ...] = ((encode_json({"toolUse": block}),),)
        return BedrockPiece("assistant", blocks, names=(name,), own=self.own)

    def write_result(self, canister: ResultCanister) -> BedrockPiece:
        # JSON results must be objects, so all of them are sent as text.
        blocks = self.encode(canister.contents)
        status = b""
        if canister.failed and self.native.result_status:
            status = b',"status":"error"'
        elif canister.failed:
            blocks.insert(0, self.encode_text(FAILED))
        # Some models refuse a result without content.
        blocks = blocks or [self.encode_text(NOTHING)]
        start = b'{"toolResult":{"toolUseId":' + encode_json(self.call) + b',"content":['
        return BedrockPiece("user", ((start, *interleave(blocks), b"]" + status + b"}}"),))

    def write_document(self, canister: DocumentCanister) -> BedrockPiece:
        blocks = self.encode(canister.contents)
        heading = head_document(canister)
        if heading and blocks:
            blocks.insert(0, self.encode_text(heading))
        return BedrockPiece("user", tuple(blocks))

    def unsupported(self, content: MediaContent) -> str:
        return unsupported(content, self.model, self.native)

    def encode_media(self, content: MediaContent) -> Block:
        instead = self.encode_text(f"[{name_content(content)}, left out to save room]")
        left = b"".join(part for part in instead if isinstance(part, bytes))
        label = name_content(content)
        if is_text_file(content):
            assert isinstance(content.data, bytes | Reference)
            # A heading keeps a blank file from being a blank text, which is refused.
            name = name_file(content)
            prefix = encode_json(f"File {name}:\n\n" if name else "A file:\n\n")[1:-1]
            return (
                Slot(content.data, "text", b'{"text":', b"}", left, label, self.origin, prefix),
            )
        kind, form = FORMATS[content.mimetype]
        members: dict[str, Any] = {"format": form}
        named = b""
        if kind == "document":
            self.files += 1
            # The name is a place where text could instruct the model, so it is neutral; a message
            # with a file must have text too.
            members["name"] = f"document-{self.files}"
            told = name_file(content)
            text = members["name"] + (f": {told}" if told else "")
            (said,) = self.encode_text(text)
            assert isinstance(said, bytes)
            named = said + b","
            if self.citing:
                members["citations"] = {"enabled": True}
        head = b'{"' + kind.encode() + b'":' + encode_json(members)[:-1]
        match content.data:
            case Location(url):
                place = encode_json({"s3Location": {"uri": url}})
                return (named + head + b',"source":' + place + b"}}",)
            case Upload():
                raise TypeError("uploads are not supported")
            case data:
                before, after = head + b',"source":{"bytes":', b"}}}"
                slot = Slot(data, "base64", before, after, left, label, self.origin)
                return (named, slot) if named else (slot,)

    def frame(self, role: Literal["user", "system"], blocks: Sequence[Block]) -> BedrockPiece:
        return BedrockPiece(role, tuple(blocks))

    def encode_text(self, text: str) -> Block:
        return (encode_json({"text": text}),)


def _read_server_tool(block: Raw) -> _ServerTool:
    try:
        return _SERVER_TOOL.decode(block)
    except ValueError:
        return _ServerTool()


def unsupported(content: MediaContent, model: Model, native: BedrockAttributes) -> str:
    """Return why a model does not accept a content, or an empty text if it does."""
    name = name_content(content)
    match content.data:
        case Upload(row=row):
            return f"{name} that was uploaded to {row!r}"
        case Location(url):
            if not url.startswith("s3://") or not native.s3:
                return f"{name} at {url!r}, which is not an address that it reads"
            size = 1
        case data:
            size = data.size if isinstance(data, Reference) else len(data)
    if not size:
        return f"{name} without any bytes"
    if is_text_file(content):
        return ""
    kind, _ = FORMATS.get(content.mimetype, ("", ""))
    own = str(content.__struct_config__.tag)
    fits = kind == own or (own in _BY_TYPE and kind in ("image", "document"))
    if not fits or content.mimetype not in model.attributes.accepts:
        return name
    most = {"image": native.image_bytes, "document": native.file_bytes}.get(kind)
    return f"{name} of {size} bytes, which is more than {most}" if most and size > most else ""
