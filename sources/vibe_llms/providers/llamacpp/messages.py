"""Conversion of canisters to pieces: the contents of a template's message, with a role.

Templates support text, calls, results of calls, and in some cases reasoning. `history.py` joins
pieces into messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

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
    MediaContent,
    NativeContent,
    ReasoningContent,
    Reference,
    TextualContent,
    repair_text,
)
from vibe_llms.messages.events import Notice
from vibe_llms.providers.conversions import (
    Writer,
    head_document,
    is_text_file,
    name_content,
    name_file,
)
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.repairs import repair
from vibe_llms.providers.tool_names import nativize_name

MODULE = "vibe_llms.providers.llamacpp"

Role = Literal["user", "assistant", "system", "call", "result"]


class LlamacppPiece(Struct, frozen=True):
    """Canister in the terms of templates.

    `identity` is a call's id, `name` the tool's name for the model, `title` its canonical name.
    """

    role: Role
    text: str = ""
    thinking: str = ""
    identity: str = ""
    name: str = ""
    title: str = ""
    arguments: Mapping[str, Any] = {}
    failed: bool = False


def nativize(
    canister: Canister, model: Model, texts: Mapping[str, bytes]
) -> tuple[LlamacppPiece, Sequence[Notice]]:
    """Return the piece of a canister, and notices of contents that the model cannot be given.

    `texts` holds the bytes of texts that the canister has by reference.
    """
    work = _Work(canister, model, MODULE, texts)
    return work.write(), work.notices


class _Work(Writer[LlamacppPiece, str]):
    """Conversion of one canister for a template."""

    def write_reply(self, canister: AssistantCanister) -> LlamacppPiece:
        said: list[str] = []
        thought: list[str] = []
        for content in canister.contents:
            match content:
                case ReasoningContent(data=data) if self.own:
                    thought.append(self.text(data))
                case ReasoningContent():
                    self.leave_out("the reasoning of another model")
                case NativeContent():
                    self.leave_out(f"a block {content.label!r} that only its model understands")
                case TextualContent(data=data):
                    self.leave_out_additions(content)
                    said.append(self.text(data))
                case _:
                    said.append(self.describe(content))
        return LlamacppPiece(
            "assistant",
            _paragraphs(said),
            _paragraphs(thought),
        )

    def write_call(self, canister: InvocationCanister) -> LlamacppPiece:
        if canister.native is not None:
            self.leave_out_members(canister.native)
        parsed = canister.parsed
        arguments = repair(dict(parsed)) if parsed is not None else None
        title = repair_text(canister.name)
        text = ""
        if self.model.attributes.tools != "native":
            self.leave_out("a tool call", "sent as text")
            text = f"(I called the tool {title} with {repair_text(canister.arguments) or '{}'}.)"
        return LlamacppPiece(
            "call",
            text,
            identity=canister.identity,
            name=nativize_name(canister.name),
            title=title,
            arguments=arguments
            if isinstance(arguments, dict)
            else {"arguments": repair_text(canister.arguments)},
        )

    def write_result(self, canister: ResultCanister) -> LlamacppPiece:
        return LlamacppPiece(
            "result", _paragraphs(self.encode(canister.contents)), failed=canister.failed
        )

    def write_document(self, canister: DocumentCanister) -> LlamacppPiece:
        texts = [head_document(canister), *self.encode(canister.contents)]
        return LlamacppPiece("user", _paragraphs(texts))

    def write_instructions(self, canister: SupervisorCanister) -> LlamacppPiece:
        return LlamacppPiece("system", _paragraphs(self.encode(canister.contents)))

    def frame(self, role: Literal["user", "system"], blocks: Sequence[str]) -> LlamacppPiece:
        return LlamacppPiece(role, _paragraphs(blocks))

    def encode_text(self, text: str) -> str:
        return text

    def unsupported(self, content: MediaContent) -> str:
        return "" if is_text_file(content) else name_content(content)

    def encode_media(self, content: MediaContent) -> str:
        match content.data:
            case bytes(data):
                text = data.decode("utf-8", "replace")
            case Reference() as data:
                text = self.text(data)
            case _:
                raise TypeError("only bytes and references can be sent")
        name = name_file(content)
        return _paragraphs([f"File: {name}" if name else "A file:", text])


def unsupported(content: MediaContent) -> str:
    """Explain why a model cannot take a content, or return an empty string if it can."""
    name = name_content(content)
    return "" if is_text_file(content) else f"{name}; it accepts text and text files"


def _paragraphs(texts: Sequence[str]) -> str:
    return "\n\n".join(text for text in texts if text.strip())
