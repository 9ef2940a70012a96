"""Canisters to pieces of Ollama's requests: encoded text and pictures, each with its role.

A message of Ollama's has one text, a list of pictures, reasoning and calls; how pieces are put
together to messages is in `history.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

import msgspec
from msgspec import Struct

from vibe_llms.events import Notice
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    DocumentCanister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
)
from vibe_llms.messages.contents import (
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
    Writer,
    head_document,
    is_text_file,
    name_content,
    name_file,
    nativize_arguments,
)
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.ollama.context import MESSAGE, PICTURE
from vibe_llms.providers.pieces import Slot, encode_json
from vibe_llms.providers.token_estimates import Measure, measure_text
from vibe_llms.providers.tool_names import nativize_name

MODULE = "vibe_llms.providers.ollama"
#: The separator of two texts of a message.
BREAK = b"\\n\\n"

_NOTHING = Measure()

Role = Literal["user", "assistant", "system", "tool"]


class Piece(Struct, frozen=True):
    """A canister, encoded. Texts are the inner parts of JSON strings, without their quotes.

    `measure` is how large it is without its reasoning, which has the measure `hidden`: most
    templates leave it out, except within a run of calls.
    """

    role: Role
    texts: tuple[bytes, ...] = ()
    pictures: tuple[Slot, ...] = ()
    thinking: tuple[bytes, ...] = ()
    call: bytes = b""
    measure: Measure = MESSAGE
    hidden: Measure = _NOTHING
    failed: bool = False


def nativize(
    canister: Canister,
    model: Model,
    texts: Mapping[str, bytes],
    *,
    call: str = "",
    without: AbstractSet[str] = frozenset(),
) -> tuple[Piece, Sequence[Notice]]:
    """The piece of a canister, and what of it this model cannot be sent.

    `texts` are the bytes of texts that the canister has by reference, `call` is the id on the wire
    of a call. Pictures of the canisters `without` give way to words.
    """
    work = _Work(canister, model, MODULE, texts, call)
    work.without = without
    return work.write(), work.notices


class _Work(Writer[Piece, bytes | Slot]):
    """One canister on its way to the wire, and how large it is there."""

    without: AbstractSet[str] = frozenset()
    measure = MESSAGE

    def write_reply(self, canister: AssistantCanister) -> Piece:
        said: list[bytes | Slot] = []
        thinking: list[bytes] = []
        hidden = _NOTHING
        for content in canister.contents:
            match content:
                case TextualContent():
                    self.leave_out_sources(content)
                    if (text := self.text(content.data)).strip():
                        said.append(self.encode_text(text))
                case ReasoningContent() if self.own:
                    if text := self.text(content.data):
                        hidden += measure_text(text)
                        thinking.append(encode_json(text)[1:-1])
                case ReasoningContent():
                    self.leave_out("the reasoning of another model")
                case NativeContent():
                    self.leave_out(f"a block {content.label!r} that only its model understands")
                case _:
                    # A model's own picture or sound cannot be given back as its words.
                    said.append(self.say(content))
        piece = self._frame("assistant", said)
        if not thinking:
            return piece
        return msgspec.structs.replace(piece, thinking=tuple(thinking), hidden=hidden)

    def write_call(self, canister: InvocationCanister) -> Piece:
        name = nativize_name(canister.name)
        self.measure += measure_text(f"{name} {repair_text(canister.arguments)}")
        if self.model.attributes.tools != "native":
            self.leave_out("a tool call", "said in words")
            words = f"(I called the tool {canister.name} with {canister.arguments or '{}'}.)"
            return self._frame("assistant", [self.encode_text(words)])
        function = {"name": name, "arguments": nativize_arguments(canister)}
        call = {**self.members(canister), "id": self.call, "function": function}
        return msgspec.structs.replace(self._frame("assistant", ()), call=encode_json(call))

    def write_result(self, canister: ResultCanister) -> Piece:
        piece = self._frame("tool", self.encode(canister.contents))
        return msgspec.structs.replace(piece, failed=canister.failed)

    def write_document(self, canister: DocumentCanister) -> Piece:
        heading = head_document(canister)
        before = [self.encode_text(heading)] if heading else []
        return self._frame("user", [*before, *self.encode(canister.contents)])

    def write_instructions(self, canister: SupervisorCanister) -> Piece:
        return self._frame("system", self.encode(canister.contents))

    def frame(self, role: Literal["user", "system"], blocks: Sequence[bytes | Slot]) -> Piece:
        return self._frame(role, blocks)

    def _frame(self, role: Role, blocks: Sequence[bytes | Slot]) -> Piece:
        said = tuple([block for block in blocks if isinstance(block, bytes)])
        if len(said) == len(blocks):
            return Piece(role, said, measure=self.measure)
        shown = tuple([block for block in blocks if isinstance(block, Slot)])
        return Piece(role, said, shown, measure=self.measure)

    def encode_text(self, text: str) -> bytes:
        self.measure += measure_text(text)
        return encode_json(text)[1:-1]

    def unsupported(self, content: MediaContent) -> str:
        if isinstance(content, ImageContent) and not isinstance(self.canister, SupervisorCanister):
            return unsupported(content, self.model)
        return "" if is_text_file(content) else name_content(content)

    def encode_media(self, content: MediaContent) -> bytes | Slot:
        data = content.data
        assert isinstance(data, bytes | Reference)
        if isinstance(content, FileContent):
            name = name_file(content)
            text = (
                self.text(data) if isinstance(data, Reference) else data.decode("utf-8", "replace")
            )
            heading = self.encode_text(f"File: {name}" if name else "A file:")
            return BREAK.join([heading, self.encode_text(text)]) if text.strip() else heading
        if self.origin in self.without:
            return self.encode_text(f"[{name_content(content)}, left out to save room]")
        self.measure += PICTURE
        return Slot(data, "base64", b"", b"", b"", name_content(content), self.origin)


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
            taken = is_text_file(content)
        case _:
            taken = False
    return "" if taken else name


def may_be_taken(content: MediaContent) -> bool:
    """Whether some model might take the content, although this one is not known to."""
    return (
        isinstance(content, ImageContent)
        and isinstance(content.data, bytes | Reference)
        and content.mimetype in ("", "image/png", "image/jpeg", "image/webp")
        and bool(content.data if isinstance(content.data, bytes) else content.data.size)
    )
