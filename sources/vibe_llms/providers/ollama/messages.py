"""Converts canisters to pieces of Ollama's requests: encoded text and pictures with a role.

A message has one text, a list of pictures, reasoning and calls. `history.py` joins pieces to
messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

import msgspec
from msgspec import Struct

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
from vibe_llms.messages.events import Notice
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
#: Separator between texts of a message, as in a JSON string.
BREAK = b"\\n\\n"

_NOTHING = Measure()

Role = Literal["user", "assistant", "system", "tool"]


class OllamaPiece(Struct, frozen=True):
    """An encoded canister. Texts are the contents of JSON strings, without quotes.

    `measure` is its size without reasoning, and `hidden` that of its reasoning: most templates omit
    reasoning, except within a run of calls.
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
) -> tuple[OllamaPiece, Sequence[Notice]]:
    """Return the piece of a canister, and notices about contents that are not sent.

    `texts` maps hashes of referenced texts to their bytes, and `call` is the wire id of a call.
    Pictures of the canisters `without` are replaced by words.
    """
    work = _Work(canister, model, MODULE, texts, call)
    work.without = without
    return work.write(), work.notices


class _Work(Writer[OllamaPiece, bytes | Slot]):
    """Writer of one canister, which also measures it."""

    without: AbstractSet[str] = frozenset()
    measure = MESSAGE

    def write_reply(self, canister: AssistantCanister) -> OllamaPiece:
        said: list[bytes | Slot] = []
        thinking: list[bytes] = []
        hidden = _NOTHING
        for content in canister.contents:
            match content:
                case TextualContent():
                    self.leave_out_additions(content)
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
                    # The interface takes no pictures or sound in an assistant's message.
                    said.append(self.say(content))
        piece = self._frame("assistant", said)
        if not thinking:
            return piece
        return msgspec.structs.replace(piece, thinking=tuple(thinking), hidden=hidden)

    def write_call(self, canister: InvocationCanister) -> OllamaPiece:
        name = nativize_name(canister.name)
        self.measure += measure_text(f"{name} {repair_text(canister.arguments)}")
        if self.model.attributes.tools != "native":
            self.leave_out("a tool call", "sent as text")
            words = f"(I called the tool {canister.name} with {canister.arguments or '{}'}.)"
            return self._frame("assistant", [self.encode_text(words)])
        function = {"name": name, "arguments": nativize_arguments(canister)}
        call = {**self.members(canister), "id": self.call, "function": function}
        return msgspec.structs.replace(self._frame("assistant", ()), call=encode_json(call))

    def write_result(self, canister: ResultCanister) -> OllamaPiece:
        piece = self._frame("tool", self.encode(canister.contents))
        return msgspec.structs.replace(piece, failed=canister.failed)

    def write_document(self, canister: DocumentCanister) -> OllamaPiece:
        heading = head_document(canister)
        before = [self.encode_text(heading)] if heading else []
        return self._frame("user", [*before, *self.encode(canister.contents)])

    def write_instructions(self, canister: SupervisorCanister) -> OllamaPiece:
        return self._frame("system", self.encode(canister.contents))

    def frame(self, role: Literal["user", "system"], blocks: Sequence[bytes | Slot]) -> OllamaPiece:
        return self._frame(role, blocks)

    def _frame(self, role: Role, blocks: Sequence[bytes | Slot]) -> OllamaPiece:
        said = tuple([block for block in blocks if isinstance(block, bytes)])
        if len(said) == len(blocks):
            return OllamaPiece(role, said, measure=self.measure)
        shown = tuple([block for block in blocks if isinstance(block, Slot)])
        return OllamaPiece(role, said, shown, measure=self.measure)

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
    """Return why a model does not accept a content, or an empty text if it does."""
    name = name_content(content)
    match content.data:
        case Upload(row=row):
            return f"{name} that was uploaded to {row!r}"
        case Location(url):
            return f"{name} at {url!r}: the server does not load addresses; attach the file itself"
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
    """Return True if a model not yet described may accept the content."""
    return (
        isinstance(content, ImageContent)
        and isinstance(content.data, bytes | Reference)
        and content.mimetype in ("", "image/png", "image/jpeg", "image/webp")
        and bool(content.data if isinstance(content.data, bytes) else content.data.size)
    )
