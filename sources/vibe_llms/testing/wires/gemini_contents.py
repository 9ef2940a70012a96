"""Reads Gemini's contents into canisters, as strictly as the real server.

Source: the types of google-genai 3.6.1; the messages are those of the server.
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
    InvocationCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    Location,
    NativeContent,
    ReasoningContent,
    TextualContent,
    VideoContent,
)
from vibe_llms.testing.wires.core import RefusedRequest, decode_bytes

#: What may be in place of the signature of a call that the model did not make.
_DUMMIES = ("skip_thought_signature_validator", "context_engineering_is_the_way_to_go")


class WireContent(Struct):
    """A content of a request."""

    parts: list[dict[str, Any]] = []
    role: str = "user"


class ContentsReader:
    """Reader of contents; it raises `RefusedRequest` for those that the real server refuses."""

    def __init__(self, model: str, files: Mapping[str, Any]) -> None:
        self.canisters: list[Canister] = []
        self._model = model
        self._files = files
        self._open: list[InvocationCanister] = []
        self._role = ""

    def add(self, content: WireContent, place: str) -> None:
        """Read the next content; `place` is its place in the request."""
        if content.role not in ("user", "model"):
            raise RefusedRequest("Please use a valid role: user, model.")
        if not self._role and content.role == "model":
            raise RefusedRequest("Please ensure that the first content is from the user.")
        self._role = content.role
        if not content.parts:
            raise RefusedRequest(
                f"* GenerateContentRequest.{place}.parts: contents.parts must not be empty."
            )
        answers = [part for part in content.parts if "functionResponse" in part]
        if len(answers) != len(self._open):
            raise RefusedRequest(
                "Please ensure that the number of function response parts is equal to the number "
                "of function call parts of the function call turn."
            )
        spoken: list[Content] = []
        called = False
        for index, part in enumerate(content.parts):
            where = f"{place}.parts[{index}]"
            if "functionCall" in part:
                self._speak(spoken)
                self._add_call(part, where, first=not called)
                called = True
            elif "functionResponse" in part:
                self._add_result(part["functionResponse"], where)
            else:
                spoken.append(self._read(part, where))
        self._speak(spoken)

    def conclude(self) -> None:
        """Check at the end that the user has the last word, and no call lacks its result."""
        if self._role != "user" or self._open:
            raise RefusedRequest("Please ensure that single turn requests end with a user role.")

    def read_texts(self, content: WireContent, place: str) -> tuple[Content, ...]:
        """Return the texts of a content."""
        if any("text" not in part for part in content.parts):
            raise RefusedRequest(f"* GenerateContentRequest.{place}: only text is allowed here")
        return tuple(self._read(part, place) for part in content.parts)

    def _speak(self, spoken: list[Content]) -> None:
        if spoken:
            kind = AssistantCanister if self._role == "model" else UserCanister
            self.canisters.append(kind(contents=tuple(spoken)))
            spoken.clear()

    def _add_call(self, part: Mapping[str, Any], where: str, *, first: bool) -> None:
        made, signature = part["functionCall"], part.get("thoughtSignature")
        if self._role != "model" or not isinstance(made.get("name"), str):
            raise RefusedRequest(f"{where}: a function call needs a name, and is the model's")
        if signature not in (None, *_DUMMIES, sign(self._model, made["name"])):
            raise RefusedRequest("Corrupted thought signature.")
        if first and signature is None and _signs(self._model):
            raise RefusedRequest(
                "Function call is missing a thought_signature in functionCall parts."
            )
        canister = InvocationCanister(
            name=made["name"],
            arguments=msgspec.json.encode(made.get("args") or {}).decode(),
            call=str(made.get("id") or ""),
        )
        self._open.append(canister)
        self.canisters.append(canister)

    def _add_result(self, answer: Mapping[str, Any], where: str) -> None:
        made = self._open.pop(0)
        if answer.get("name") != made.name or (answer.get("id") or "") != made.call:
            raise RefusedRequest(f"{where}: the function response answers no function call")
        response = answer.get("response")
        if not isinstance(response, dict):
            raise RefusedRequest(f"{where}.function_response: response is required")
        failed = "error" in response
        said = response.get("error", response.get("output", response))
        text = said if isinstance(said, str) else msgspec.json.encode(said).decode()
        media = tuple(self._read(one, where) for one in answer.get("parts") or ())
        contents = (*([TextualContent(text)] if text else []), *media)
        self.canisters.append(
            ResultCanister(contents=contents, invocation=made.identity, failed=failed)
        )

    def _read(self, part: Mapping[str, Any], where: str) -> Content:
        match part:
            case {"text": str(text)}:
                signature = part.get("thoughtSignature")
                if not text and signature is None:
                    raise _empty(where)
                if signature not in (None, sign(self._model, text)):
                    raise RefusedRequest("Corrupted thought signature.")
                return ReasoningContent(text) if part.get("thought") else TextualContent(text)
            case {"inlineData": {"mimeType": str(mimetype), "data": str(data)}}:
                content = decode_bytes(data, f"{where}.inline_data")
                return _produce_media(content, mimetype)
            case {"fileData": {"fileUri": str(uri)} as file}:
                name = f"files/{uri.rpartition('/files/')[2]}"
                if "/files/" in uri and name not in self._files:
                    short = name.removeprefix("files/")
                    raise RefusedRequest(
                        f"You do not have permission to access the File {short} or it may not "
                        "exist.",
                        status=403,
                    )
                return _produce_media(Location(uri), str(file.get("mimeType") or ""))
            case _ if kinds := [name for name in part if name not in ("thought", "partMetadata")]:
                return NativeContent(label=kinds[0])
            case _:
                raise _empty(where)


def sign(model: str, words: str) -> str:
    """Return a signature that fits only this model and these words."""
    digest = hashlib.sha256(f"{model}\n{words}".encode()).digest()
    return base64.b64encode(digest).decode()


def _signs(model: str) -> bool:
    """Return True for the models that refuse calls without a signature."""
    return model.startswith("gemini-") and model[7:8].isdigit() and model[7:8] not in "12"


def _produce_media(data: bytes | Location, mimetype: str) -> Content:
    match mimetype.partition("/")[0]:
        case "image":
            return ImageContent(data, mimetype)
        case "audio":
            return AudioContent(data, mimetype)
        case "video":
            return VideoContent(data, mimetype)
        case _:
            return FileContent(data, mimetype)


def _empty(where: str) -> RefusedRequest:
    return RefusedRequest(
        f"* GenerateContentRequest.{where}.data: required oneof field 'data' must have one "
        "initialized field"
    )
