"""Canisters to pieces: what a message of a template can hold, each with its role.

Templates know text, calls and results of calls, and some of them reasoning. How pieces are put
together to messages is `framing.py`'s affair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

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
    MediaContent,
    NativeContent,
    ReasoningContent,
    Reference,
    TextualContent,
    repair_text,
)
from vibe_llms.providers.conversions import (
    Conversion,
    name_content,
    name_document,
    name_file,
)
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.llamacpp.invocations import LlamacppInvocationsProcessor
from vibe_llms.providers.repairs import repair

MODULE = "vibe_llms.providers.llamacpp"

Role = Literal["user", "assistant", "system", "call", "result", "nobody"]


class Piece(Struct, frozen=True):
    """A canister in the terms of templates.

    `identity` and `reply` are those of the canister, `answers` is the identity of the call that a
    result is of, `name` is the tool's name for the model and `title` its canonical one.
    """

    role: Role
    text: str = ""
    thinking: str = ""
    identity: str = ""
    reply: str = ""
    name: str = ""
    title: str = ""
    arguments: Mapping[str, Any] = {}
    answers: str = ""
    failed: bool = False


class LlamacppMessagesProcessor:
    """Canisters to pieces, each made once."""

    def __init__(self, invocations: LlamacppInvocationsProcessor) -> None:
        self._invocations = invocations

    def nativize(
        self, canister: Canister, model: Model, texts: Mapping[str, bytes]
    ) -> tuple[Piece, Sequence[Notice]]:
        """The piece of a canister, and what of it this model cannot be given.

        `texts` are the bytes of texts that the canister has by reference.
        """
        work = _Work(canister, model, MODULE, texts)
        match canister:
            case AssistantCanister():
                piece = self._nativize_reply(work, canister)
            case InvocationCanister():
                piece = self._nativize_call(work, canister)
            case ResultCanister():
                text = work.join(canister.contents)
                piece = Piece("result", text, answers=canister.invocation, failed=canister.failed)
            case DocumentCanister():
                name = ", ".join(filter(None, name_document(canister)))
                title = [f"Document: {name}"] if name else []
                piece = Piece("user", _paragraphs([*title, work.join(canister.contents)]))
            case SupervisorCanister():
                piece = Piece("system", work.join(canister.contents))
            case UserCanister():
                piece = Piece("user", work.join(canister.contents))
            case _:
                work.leave_out(f"a message of the unknown role {canister.label!r}")
                piece = Piece("nobody")
        return piece, work.notices

    def check(self, canister: Canister, model: Model) -> None:
        """`ContentUnsupported` where the model cannot take a content of this canister as it is."""
        for content in getattr(canister, "contents", ()):
            if isinstance(content, MediaContent) and not _is_text(content):
                raise ContentUnsupported(
                    f"{model.provider}/{model.name} cannot take "
                    f"{repair_text(name_content(content))}; it takes text, and files of text"
                )

    def _nativize_reply(self, work: _Work, canister: AssistantCanister) -> Piece:
        said: list[str] = []
        thought: list[str] = []
        for content in canister.contents:
            match content:
                case ReasoningContent(data=data) if work.own:
                    thought.append(work.text(data))
                case ReasoningContent():
                    work.leave_out("the reasoning of another model")
                case NativeContent():
                    work.leave_out(f"a block {content.label!r} that only its model understands")
                case TextualContent(data=data):
                    work.leave_out_sources(content)
                    said.append(work.text(data))
                case _:
                    said.append(work.describe(content))
        return Piece(
            "assistant",
            _paragraphs(said),
            _paragraphs(thought),
            canister.identity,
            canister.reply,
        )

    def _nativize_call(self, work: _Work, canister: InvocationCanister) -> Piece:
        if canister.native is not None:
            work.leave_out_members(canister.native)
        parsed = canister.parsed
        arguments = repair(dict(parsed)) if parsed is not None else None
        title = repair_text(canister.name)
        text = ""
        if work.model.attributes.tools != "native":
            work.leave_out("a tool call", "said in words")
            text = f"(I called the tool {title} with {repair_text(canister.arguments) or '{}'}.)"
        return Piece(
            "call",
            text,
            identity=canister.identity,
            reply=canister.reply,
            name=self._invocations.nativize_name(canister.name),
            title=title,
            arguments=arguments
            if isinstance(arguments, dict)
            else {"arguments": repair_text(canister.arguments)},
        )


class _Work(Conversion):
    """One canister on its way to a template."""

    def join(self, contents: Sequence[Content]) -> str:
        """What is said, in one text."""
        said: list[str] = []
        for content in contents:
            match content:
                case TextualContent(data=data):
                    said.append(self.text(data))
                case FileContent(data=bytes() | Reference() as data) if _is_text(content):
                    said.append(f"File: {name}" if (name := name_file(content)) else "A file:")
                    said.append(
                        self.text(data)
                        if isinstance(data, Reference)
                        else data.decode("utf-8", "replace")
                    )
                case ReasoningContent() | NativeContent():
                    self.leave_out("a part that only a model's own reply can hold")
                case _:
                    said.append(self.describe(content))
        return _paragraphs(said)


def list_references(canister: Canister) -> Sequence[Reference]:
    """What has to be loaded of a canister besides its texts: the files that are text."""
    return [
        content.data
        for content in getattr(canister, "contents", ())
        if isinstance(content, FileContent)
        and _is_text(content)
        and isinstance(content.data, Reference)
    ]


def _is_text(content: MediaContent) -> bool:
    return (
        isinstance(content, FileContent)
        and content.mimetype.startswith("text/")
        and isinstance(content.data, bytes | Reference)
    )


def _paragraphs(texts: Sequence[str]) -> str:
    return "\n\n".join(text for text in texts if text.strip())
