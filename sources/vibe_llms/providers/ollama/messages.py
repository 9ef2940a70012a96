"""Canisters to pieces of Ollama's requests: encoded text and pictures, each with its role.

A message of Ollama's has one text, a list of pictures, reasoning and calls; how pieces are put
together to messages is `framing.py`'s affair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
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
from vibe_llms.providers.conversions import (
    Conversion,
    name_content,
    name_document,
    name_file,
)
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.measures import Measure, measure_text
from vibe_llms.providers.ollama.context import MESSAGE, PICTURE
from vibe_llms.providers.ollama.invocations import OllamaInvocationsProcessor
from vibe_llms.providers.pieces import Slot, compact, encode_json

MODULE = "vibe_llms.providers.ollama"
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])


class Piece(Struct, frozen=True):
    """A canister, encoded. Texts are the inner parts of JSON strings, without their quotes.

    `measure` is how large it is without its reasoning, which has the measure `hidden`: most
    templates leave it out, except within a run of calls.
    """

    role: Literal["user", "assistant", "system", "tool"]
    texts: tuple[bytes, ...] = ()
    pictures: tuple[Slot, ...] = ()
    thinking: tuple[bytes, ...] = ()
    call: bytes = b""
    measure: Measure = MESSAGE
    hidden: Measure = Measure()


class OllamaMessagesProcessor:
    """Canisters to pieces, each encoded once."""

    def __init__(self, invocations: OllamaInvocationsProcessor) -> None:
        self._invocations = invocations

    def nativize(
        self,
        canister: Canister,
        model: Model,
        texts: Mapping[str, bytes],
        *,
        call: str = "",
        without: AbstractSet[str] = frozenset(),
    ) -> tuple[Piece, Sequence[Notice]]:
        """The piece of a canister, and what of it this model cannot be sent.

        `texts` are the bytes of texts that the canister has by reference, `call` is the identity on
        the wire of a call. Pictures of the canisters `without` give way to words.
        """
        work = _Work(canister, model, texts, without)
        match canister:
            case AssistantCanister():
                self._nativize_reply(work, canister)
                role: Literal["user", "assistant", "system", "tool"] = "assistant"
            case InvocationCanister():
                role = "assistant"
                self._nativize_call(work, canister, call)
            case ResultCanister():
                role = "tool"
                self._nativize_contents(work, canister.contents)
            case DocumentCanister():
                role = "user"
                if name := ", ".join(filter(None, name_document(canister))):
                    work.say(f"Document: {name}")
                self._nativize_contents(work, canister.contents)
            case SupervisorCanister():
                role = "system"
                self._nativize_contents(work, canister.contents, pictures=False)
            case UserCanister():
                role = "user"
                self._nativize_contents(work, canister.contents)
            case _:
                role = "user"
                work.leave_out(f"a message of the unknown role {canister.label!r}")
        return work.produce_piece(role), work.notices

    def encode_name(self, name: str) -> bytes:
        """The name of a tool on the wire, as JSON."""
        return encode_json(self._invocations.nativize_name(name))

    def check(self, canister: Canister, model: Model, *, known: bool = True) -> None:
        """`ContentUnsupported` where the model cannot take a content of this canister as it is.

        As long as the server was not asked what the model can see (`known`), pictures pass.
        """
        for content in getattr(canister, "contents", ()):
            if not isinstance(content, MediaContent):
                continue
            reason = unsupported(content, model)
            if reason and (known or not _may_be_taken(content)):
                raise ContentUnsupported(
                    f"{model.provider}/{model.name} cannot take {repair_text(reason)}"
                )

    def _nativize_reply(self, work: _Work, canister: AssistantCanister) -> None:
        for content in canister.contents:
            match content:
                case ReasoningContent() if work.own:
                    work.think(work.text(content.data))
                case ReasoningContent():
                    work.leave_out("the reasoning of another model")
                case NativeContent():
                    work.leave_out(f"a block {content.label!r} that only its model understands")
                case TextualContent():
                    work.leave_out_sources(content)
                    work.say(work.text(content.data))
                case _:
                    # A model's own picture or sound cannot be given back as its words.
                    work.say(work.describe(content))

    def _nativize_call(self, work: _Work, canister: InvocationCanister, call: str) -> None:
        name = self._invocations.nativize_name(canister.name)
        arguments: object = (
            Raw(compact((canister.arguments.strip() or "{}").encode()))
            if canister.parsed is not None
            else {"arguments": repair_text(canister.arguments)}
        )
        work.measure += measure_text(f"{name} {repair_text(canister.arguments)}")
        if work.model.attributes.tools != "native":
            work.leave_out("a tool call", "said in words")
            work.say(f"(I called the tool {canister.name} with {canister.arguments or '{}'}.)")
            return
        extra: Mapping[str, Raw] = {}
        if canister.native is not None:
            if work.issued(canister.native):
                extra = _MEMBERS.decode(canister.native.data)
            else:
                work.leave_out_members(canister.native)
        work.call = encode_json(
            {**extra, "id": call, "function": {"name": name, "arguments": arguments}}
        )

    def _nativize_contents(
        self, work: _Work, contents: Sequence[Content], *, pictures: bool = True
    ) -> None:
        for content in contents:
            match content:
                case TextualContent(data=data):
                    work.say(work.text(data))
                case ImageContent() if pictures:
                    work.show(content)
                case FileContent(data=bytes() | Reference()) if _is_text(content):
                    work.name_file(content)
                case ReasoningContent() | NativeContent():
                    work.leave_out("a part that only a model's own reply can hold")
                case _:
                    work.say(work.describe(content))


class _Work(Conversion):
    """One canister on its way to the wire, and how large it is there."""

    def __init__(
        self,
        canister: Canister,
        model: Model,
        texts: Mapping[str, bytes],
        without: AbstractSet[str],
    ) -> None:
        super().__init__(canister, model, MODULE, texts)
        self.measure = MESSAGE
        self.hidden = Measure()
        self.call = b""
        self._without = without
        self._said: list[bytes] = []
        self._thought: list[bytes] = []
        self._pictures: list[Slot] = []

    def produce_piece(self, role: Literal["user", "assistant", "system", "tool"]) -> Piece:
        return Piece(
            role,
            tuple(self._said),
            tuple(self._pictures),
            tuple(self._thought),
            self.call,
            self.measure,
            self.hidden,
        )

    def say(self, text: str) -> None:
        if text.strip():
            self.measure += measure_text(text)
            self._said.append(encode_json(text)[1:-1])

    def think(self, text: str) -> None:
        if text:
            self.hidden += measure_text(text)
            self._thought.append(encode_json(text)[1:-1])

    def show(self, content: ImageContent) -> None:
        if reason := unsupported(content, self.model):
            self.say(self.describe(content, reason))
            return
        if self.origin in self._without:
            self.say(f"[{name_content(content)}, left out to save room]")
            return
        data = content.data
        assert isinstance(data, bytes | Reference)
        self.measure += PICTURE
        self._pictures.append(
            Slot(data, "base64", b"", b"", b"", name_content(content), self.origin)
        )

    def name_file(self, content: FileContent) -> None:
        data = content.data
        assert isinstance(data, bytes | Reference)
        self.say(f"File: {name}" if (name := name_file(content)) else "A file:")
        self.say(
            self.text(data) if isinstance(data, Reference) else data.decode("utf-8", "replace")
        )


def list_references(canister: Canister) -> Sequence[Reference]:
    """What has to be loaded of a canister besides its texts: the files that are text."""
    return [
        content.data
        for content in getattr(canister, "contents", ())
        if isinstance(content, FileContent)
        and _is_text(content)
        and isinstance(content.data, Reference)
    ]


def unsupported(content: MediaContent, model: Model) -> str:
    """Why a model cannot take a content, in words; empty where it can."""
    name = name_content(content)
    match content.data:
        case Upload(row=row):
            return f"{name} that was uploaded to {row!r}"
        case Location(url):
            return f"{name} at {url!r}: the server reads no addresses, so give its bytes"
        case data:
            if not (data.size if isinstance(data, Reference) else len(data)):
                return f"{name} without any bytes"
    match content:
        case ImageContent(mimetype=mimetype):
            taken = model.attributes.accept("" if mimetype else "image", mimetype)
        case FileContent():
            taken = _is_text(content)
        case _:
            taken = False
    return "" if taken else name


def _may_be_taken(content: MediaContent) -> bool:
    """Whether some model might take the content, although this one is not known to."""
    return (
        isinstance(content, ImageContent)
        and isinstance(content.data, bytes | Reference)
        and content.mimetype in ("", "image/png", "image/jpeg", "image/webp")
        and bool(content.data if isinstance(content.data, bytes) else content.data.size)
    )


def _is_text(content: FileContent) -> bool:
    return content.mimetype.startswith("text/")
