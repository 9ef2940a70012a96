"""Converts canisters to pieces of Gemini's requests: encoded parts with a role.

`history.py` joins, groups and repairs the pieces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

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
    AudioContent,
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
    VideoContent,
    repair_text,
)
from vibe_llms.messages.events import Notice
from vibe_llms.providers.conversions import (
    Writer,
    head_document,
    is_text_file,
    name_content,
    name_file,
    nativize_arguments,
)
from vibe_llms.providers.gemini.controls import read_native
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.pieces import Block, Slot, encode_json
from vibe_llms.providers.tool_names import nativize_name

MODULE = "vibe_llms.providers.gemini"
SIGNATURE = "thoughtSignature"
#: Labels of metadata of a whole reply, which is stored and not sent back.
METADATA = ("groundingMetadata", "citationMetadata", "urlContextMetadata")
Role: TypeAlias = Literal["user", "model", "system"]
#: Beginnings of the addresses that any server reads.
WEB = ("http://", "https://")
_YOUTUBE = frozenset({"youtube.com", "www.youtube.com", "m.youtube.com", "youtu.be"})
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])


class _Signed(Struct):
    """Spans of the parts of a text that were signed, with their signatures."""

    signatures: list[tuple[int, int, str]]


_SIGNED = msgspec.json.Decoder(_Signed)


class MediaSlot(Slot, frozen=True, gc=False, kw_only=True):
    """Slot of inline data; `mimetype` is what the Files API needs to store it instead."""

    mimetype: str


class GeminiPiece(Struct, frozen=True):
    """An encoded canister: its parts and the role of their content.

    `shown` are media of a result that come after all results. `calls` is True if the part is a call
    and `signed` if that has a signature.
    """

    role: Role
    parts: tuple[Block, ...] = ()
    shown: tuple[Block, ...] = ()
    calls: bool = False
    signed: bool = False


def nativize(
    canister: Canister,
    model: Model,
    texts: Mapping[str, bytes],
    *,
    call: str = "",
    made: InvocationCanister | None = None,
    schemes: Sequence[str] = WEB,
) -> tuple[GeminiPiece, Sequence[Notice]]:
    """Return the piece of a canister, and notices about contents that are not sent.

    `texts` maps hashes of referenced texts to their bytes. `call` is the wire id of a call and its
    result, empty if the model gave none; `made` is the call that a result answers. `schemes` are
    the beginnings of addresses that the server reads.
    """
    work = _Work(canister, model, MODULE, texts, call)
    work.made = made
    work.schemes = schemes
    return work.write(), work.notices


class _Work(Writer[GeminiPiece, Block]):
    """Writer of one canister."""

    made: InvocationCanister | None = None
    schemes: Sequence[str] = ()

    def write_reply(self, canister: AssistantCanister) -> GeminiPiece:
        parts: list[Block] = []
        for content in canister.contents:
            match content:
                case TextualContent(data=data, native=native):
                    self.leave_out_additions(content)
                    signed = self.read(native, _SIGNED)
                    if signed is None and not self.text(data).strip():
                        continue
                    parts += _split(self.text(data), signed, thought=False)
                case ReasoningContent(data=data, native=native) if self.own:
                    parts += _split(self.text(data), self.read(native, _SIGNED), thought=True)
                case ReasoningContent():
                    self.leave_out("the reasoning of another model")
                case NativeContent(label=label, native=native):
                    if native is None or self.read(native, _MEMBERS) is None:
                        self.leave_out(f"a block {label!r} that only its model understands")
                    elif label not in METADATA:
                        parts.append((bytes(native.data),))
                case _:
                    parts.append(self._encode_own(content))
        return GeminiPiece("model", tuple(parts))

    def _encode_own(self, content: Content) -> Block:
        """Return a medium that this model made, or the description of another's."""
        if not (self.own and isinstance(content, MediaContent)):
            return self.say(content)
        if not isinstance(content.data, bytes | Reference):
            return self.say(content)
        slot = self._encode_bytes(content, content.data)
        if members := self.read(content.native, _MEMBERS):
            end = slot.after[:-1] + b"," + encode_json(members)[1:]
            slot = msgspec.structs.replace(slot, after=end)
        return (slot,)

    def write_call(self, canister: InvocationCanister) -> GeminiPiece:
        members = dict(self.members(canister))
        more = members.pop("functionCall", None)
        call: dict[str, object] = {"id": self.call} if self.call else {}
        call |= {"name": name_tool(canister.name), "args": nativize_arguments(canister)}
        if more is not None:
            call |= _MEMBERS.decode(more)
        part = encode_json({"functionCall": call, **members})
        return GeminiPiece("model", ((part,),), calls=True, signed=SIGNATURE in members)

    def write_result(self, canister: ResultCanister) -> GeminiPiece:
        assert self.made is not None
        texts: list[str] = []
        shown: list[Block] = []
        for content in canister.contents:
            match content:
                case TextualContent(data=data):
                    texts.append(self.text(data))
                case _ if isinstance(content, MediaContent) and not is_text_file(content):
                    if reason := self.unsupported(content):
                        texts.append(self.describe(content, reason))
                    else:
                        shown.append(self.encode_media(content))
                case ReasoningContent() | NativeContent():
                    self.leave_out("a part that only a model's own reply can contain")
                case FileContent():
                    texts.append(self._head_file(content))
                case _:
                    texts.append(self.describe(content))
        said = "\n".join(text for text in texts if text)
        response = {"error" if canister.failed else "output": said}
        head: dict[str, object] = {"id": self.call} if self.call else {}
        head |= {"name": name_tool(self.made.name), "response": response}
        if not (shown and read_native(self.model).signatures):
            part = (encode_json({"functionResponse": head}),)
            return GeminiPiece("user", (part,), tuple(shown))
        block: list[bytes | Slot] = [b'{"functionResponse":' + encode_json(head)[:-1]]
        for index, one in enumerate(shown):
            block += [b',"parts":[' if not index else b",", *one]
        return GeminiPiece("user", ((*block, b"]}}"),))

    def write_document(self, canister: DocumentCanister) -> GeminiPiece:
        heading = head_document(canister)
        parts = self.encode(canister.contents)
        before = [self.encode_text(heading)] if heading and parts else []
        return GeminiPiece("user", (*before, *parts))

    def frame(self, role: Literal["user", "system"], blocks: Sequence[Block]) -> GeminiPiece:
        return GeminiPiece(role, tuple(blocks))

    def encode_text(self, text: str) -> Block:
        return (encode_json({"text": text}),)

    def unsupported(self, content: MediaContent) -> str:
        return unsupported(content, self.model, self.schemes)

    def encode_media(self, content: MediaContent) -> Block:
        match content.data:
            case Location(url):
                return _encode_file(repair_text(url), find_mimetype(content))
            case Upload(identity):
                return _encode_file(repair_text(identity), content.mimetype)
            case data if isinstance(content, FileContent) and is_text_file(content):
                return self.encode_text(self._head_file(content))
            case data:
                return (self._encode_bytes(content, data),)

    def _head_file(self, content: FileContent) -> str:
        """Return a text file with its name."""
        data = content.data
        assert isinstance(data, bytes | Reference)
        text = self.text(data) if isinstance(data, Reference) else data.decode("utf-8", "replace")
        name = name_file(content)
        return f"{f'File: {name}' if name else 'A file:'}\n{text}"

    def _encode_bytes(self, content: MediaContent, data: bytes | Reference) -> MediaSlot:
        mimetype, name = content.mimetype, name_content(content)
        before = b'{"inlineData":{"mimeType":' + encode_json(mimetype) + b',"data":'
        instead = encode_json({"text": f"[{name}, left out to save room]"})
        return MediaSlot(
            data, "base64", before, b"}}", instead, name, self.origin, mimetype=mimetype
        )


def _split(text: str, signed: _Signed | None, *, thought: bool) -> list[Block]:
    """Return a text as the parts that it came in, as far as their signatures need it."""
    about = {"thought": True} if thought else {}
    if signed is not None and any(end > len(text) for _, end, _ in signed.signatures):
        # The text was changed, so no signature fits it.
        signed = None
    parts: list[Block] = []
    place = 0
    for start, end, signature in signed.signatures if signed is not None else ():
        if start > place:
            parts.append((encode_json({"text": text[place:start], **about}),))
        part = {"text": text[start:end], **about, SIGNATURE: signature}
        parts.append((encode_json(part),))
        place = end
    if place < len(text):
        parts.append((encode_json({"text": text[place:], **about}),))
    return parts


def _encode_file(uri: str, mimetype: str) -> Block:
    about = {"mimeType": mimetype} if mimetype else {}
    return (encode_json({"fileData": {**about, "fileUri": uri}}),)


def name_tool(name: str) -> str:
    """Return the name of a tool on the wire, which must begin with a letter or an underscore.

    >>> name_tool("time/now"), name_tool("3d")
    ('time__now', '_da0568a2_3d')
    """
    return begin_with_letter(nativize_name(name))


def begin_with_letter(native: str) -> str:
    """Return a name on the wire that begins with a letter or an underscore."""
    if native[:1].isalpha() or native[:1] == "_":
        return native
    return f"_{hashlib.sha256(native.encode()).hexdigest()[:8]}_{native}"[:64]


def unsupported(content: MediaContent, model: Model, schemes: Sequence[str] = WEB) -> str:
    """Return why a model does not accept a content, or an empty text if it does."""
    name = name_content(content)
    attributes = model.attributes
    mimetype = content.mimetype
    match content.data:
        case Upload(row=row):
            if row != model.provider:
                return f"{name} that was uploaded to {row!r}"
            taken = not mimetype or _takes(content, mimetype, model)
        case Location(url):
            if not url.startswith(tuple(schemes)):
                known = " or ".join(("http(s)", *schemes[len(WEB) :]))
                return f"{name} at {url!r}, which is not an {known} address"
            mimetype = find_mimetype(content)
            if not mimetype:
                return f"{name} without a MIME type"
            taken = _takes(content, mimetype, model)
        case data:
            if not (data.size if isinstance(data, Reference) else len(data)):
                return f"{name} without any bytes"
            taken = is_text_file(content) or attributes.accept("", mimetype)
    return "" if taken else name


def _takes(content: MediaContent, mimetype: str, model: Model) -> bool:
    textual = isinstance(content, FileContent) and mimetype.startswith("text/")
    return textual or model.attributes.accept("", mimetype)


def find_mimetype(content: MediaContent) -> str:
    """Return the MIME type of a content at an address, perhaps by the end of its path."""
    if content.mimetype or not isinstance(content.data, Location):
        return content.mimetype
    try:
        parts = urlsplit(content.data.url)
    except ValueError:
        return ""
    if isinstance(content, VideoContent) and parts.hostname in _YOUTUBE:
        return "video/mp4"
    from mimetypes import guess_type

    kinds = {ImageContent: "image/", AudioContent: "audio/", VideoContent: "video/"}
    found = guess_type(parts.path)[0] or ""
    return found if found.startswith(kinds.get(type(content), "")) else ""
