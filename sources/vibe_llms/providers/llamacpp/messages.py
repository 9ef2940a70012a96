"""Canisters to pieces: what a message of a template can hold, each with its role.

Templates know text, calls and results of calls, and some of them reasoning. How pieces are put
together to messages is in `history.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

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
    MediaContent,
    NativeContent,
    ReasoningContent,
    Reference,
    TextualContent,
    repair_text,
)
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


class Piece(Struct, frozen=True):
    """A canister in the terms of templates.

    `identity` is that of a call, `name` the tool's name for the model, `title` its canonical one.
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
) -> tuple[Piece, Sequence[Notice]]:
    """The piece of a canister, and what of it this model cannot be given.

    `texts` are the bytes of texts that the canister has by reference.
    """
    work = _Work(canister, model, MODULE, texts)
    return work.write(), work.notices


class _Work(Writer[Piece, str]):
    """One canister on its way to a template."""

    def write_reply(self, canister: AssistantCanister) -> Piece:
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
                    self.leave_out_sources(content)
                    said.append(self.text(data))
                case _:
                    said.append(self.describe(content))
        return Piece(
            "assistant",
            _paragraphs(said),
            _paragraphs(thought),
        )

    def write_call(self, canister: InvocationCanister) -> Piece:
        if canister.native is not None:
            self.leave_out_members(canister.native)
        parsed = canister.parsed
        arguments = repair(dict(parsed)) if parsed is not None else None
        title = repair_text(canister.name)
        text = ""
        if self.model.attributes.tools != "native":
            self.leave_out("a tool call", "said in words")
            text = f"(I called the tool {title} with {repair_text(canister.arguments) or '{}'}.)"
        return Piece(
            "call",
            text,
            identity=canister.identity,
            name=nativize_name(canister.name),
            title=title,
            arguments=arguments
            if isinstance(arguments, dict)
            else {"arguments": repair_text(canister.arguments)},
        )

    def write_result(self, canister: ResultCanister) -> Piece:
        return Piece("result", _paragraphs(self.encode(canister.contents)), failed=canister.failed)

    def write_document(self, canister: DocumentCanister) -> Piece:
        texts = [head_document(canister), *self.encode(canister.contents)]
        return Piece("user", _paragraphs(texts))

    def write_instructions(self, canister: SupervisorCanister) -> Piece:
        return Piece("system", _paragraphs(self.encode(canister.contents)))

    def frame(self, role: Literal["user", "system"], blocks: Sequence[str]) -> Piece:
        return Piece(role, _paragraphs(blocks))

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
                raise TypeError("a file elsewhere is described")
        name = name_file(content)
        return _paragraphs([f"File: {name}" if name else "A file:", text])


def unsupported(content: MediaContent) -> str:
    """Why a model cannot take a content, in words; empty where it can."""
    name = name_content(content)
    return "" if is_text_file(content) else f"{name}; it takes text, and files of text"


def _paragraphs(texts: Sequence[str]) -> str:
    return "\n\n".join(text for text in texts if text.strip())
