"""Reads Anthropic's messages into canisters, as strictly as the real server.

Source: the types of anthropic 2.12.0; the messages are those of the server.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

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
    NativeContent,
    ReasoningContent,
    TextualContent,
)
from vibe_llms.testing.wires.core import RefusedRequest, decode_bytes


class WireMessage(Struct):
    """A message of a request."""

    role: str
    content: str | list[dict[str, Any]]


class MessagesReader:
    """Reader of messages; it raises `Refusal` for messages that the real server refuses."""

    def __init__(self, model: str) -> None:
        self.canisters: list[Canister] = []
        self._model = model
        self._calls: dict[str, str] = {}
        self._open: dict[str, None] = {}
        self._role = ""
        self._place = ""

    def add(self, message: WireMessage, place: str) -> None:
        """Read the next message; `place` is its place in the request."""
        role = message.role
        if role not in ("user", "assistant", "system"):
            raise RefusedRequest(f"{place}.role: Input should be 'user', 'assistant' or 'system'")
        if not self._role and role != "user":
            raise RefusedRequest('messages: first message must use the "user" role')
        if role == "assistant" and self._role != role:
            self._close()
        self._role, self._place = role, place
        if not message.content:
            raise RefusedRequest(f"{place}: all messages must have non-empty content")
        blocks = message.content
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        if role == "system":
            contents = read_texts(blocks, f"{place}.content")
            self.canisters.append(SupervisorCanister(contents=contents))
            return
        spoken: list[Content] = []
        for index, block in enumerate(blocks):
            where = f"{place}.content.{index}"
            match block.get("type"):
                case "tool_use":
                    self._speak(role, spoken)
                    self._add_call(role, block, where)
                case "tool_result":
                    self._speak(role, spoken)
                    self._add_result(role, block, where)
                case "document":
                    self._speak(role, spoken)
                    contents = (_read_source(block, where),)
                    title = str(block.get("title") or "")
                    self.canisters.append(DocumentCanister(contents=contents, title=title))
                case _:
                    if role == "user":
                        self._close()
                    spoken.append(_read_block(block, self._model, where))
        self._speak(role, spoken)

    def conclude(self) -> None:
        """Check at the end that no call lacks its result."""
        self._close()

    def _speak(self, role: str, spoken: list[Content]) -> None:
        if spoken:
            kind = AssistantCanister if role == "assistant" else UserCanister
            self.canisters.append(kind(contents=tuple(spoken)))
            spoken.clear()

    def _add_call(self, role: str, block: Mapping[str, Any], where: str) -> None:
        call = block.get("id")
        if role != "assistant":
            raise RefusedRequest(f"{where}: `tool_use` blocks can only be in `assistant` messages")
        if not isinstance(call, str) or not isinstance(block.get("input"), dict):
            raise RefusedRequest(f"{where}.tool_use: a call needs an id, a name and an input")
        if call in self._calls:
            raise RefusedRequest(f"{where}: `tool_use` ids must be unique")
        canister = InvocationCanister(
            name=str(block.get("name", "")),
            arguments=msgspec.json.encode(block["input"]).decode(),
            call=call,
        )
        self._calls[call] = canister.identity
        self._open[call] = None
        self.canisters.append(canister)

    def _add_result(self, role: str, block: Mapping[str, Any], where: str) -> None:
        call = block.get("tool_use_id")
        if role != "user" or call not in self._open:
            raise RefusedRequest(
                f"{where}: unexpected `tool_use_id` found in `tool_result` blocks: {call}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous "
                "message."
            )
        del self._open[call]
        content = block.get("content") or []
        contents = (
            (TextualContent(content),)
            if isinstance(content, str)
            else tuple(_read_block(part, self._model, where) for part in content)
        )
        failed = bool(block.get("is_error"))
        self.canisters.append(
            ResultCanister(contents=contents, invocation=self._calls[call], failed=failed)
        )

    def _close(self) -> None:
        if self._open:
            raise RefusedRequest(
                f"{self._place}: `tool_use` ids were found without `tool_result` blocks "
                f"immediately after: {', '.join(self._open)}. Each `tool_use` block must have a "
                "corresponding `tool_result` block in the next message."
            )


def sign(model: str, thinking: str) -> str:
    """Return a signature that fits only this model and this thinking."""
    digest = hashlib.sha256(f"{model}\n{thinking}".encode()).digest()
    return base64.b64encode(digest).decode()


def _read_block(block: Mapping[str, Any], model: str, where: str) -> Content:
    match block.get("type"):
        case "text":
            text = block.get("text")
            if not isinstance(text, str) or not text.strip():
                raise RefusedRequest(
                    f"{where}: text content blocks must contain non-whitespace text"
                )
            return TextualContent(text)
        case "thinking":
            thinking = str(block.get("thinking", ""))
            if block.get("signature") != sign(model, thinking):
                raise RefusedRequest(f"{where}: Invalid `signature` in `thinking` block")
            return ReasoningContent(thinking)
        case "image" | "document":
            return _read_source(block, where)
        case str(kind):
            return NativeContent(label=kind)
        case _:
            raise RefusedRequest(f"{where}.type: Field required")


def _read_source(block: Mapping[str, Any], where: str) -> Content:
    match block.get("source"):
        case {"type": "base64", "media_type": str(mimetype), "data": str(data)}:
            content = decode_bytes(data, f"{where}.source.base64")
            if block["type"] == "image":
                return ImageContent(content, mimetype)
            return FileContent(content, mimetype, str(block.get("title") or ""))
        case {"type": "url", "url": str(url)}:
            return ImageContent(Location(url)) if block["type"] == "image" else _file(url)
        case {"type": "text", "data": str(text)}:
            return TextualContent(text)
        case {"type": "content", "content": list(parts)}:
            return TextualContent("\n".join(str(part.get("text", "")) for part in parts))
        case {"type": str(kind)}:
            return NativeContent(label=kind)
        case _:
            raise RefusedRequest(f"{where}.source: Field required")


def _file(url: str) -> FileContent:
    return FileContent(Location(url))


def read_texts(system: str | list[dict[str, Any]], where: str) -> tuple[Content, ...]:
    """Return system text, from the head of a request or from a message."""
    if isinstance(system, str):
        return (TextualContent(system),)
    if any(block.get("type") != "text" for block in system):
        raise RefusedRequest(f"{where}: only text blocks are allowed here")
    return tuple(_read_block(block, "", where) for block in system)
