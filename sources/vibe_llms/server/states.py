"""Signed states: earlier work of the agent, kept by the client instead of the server.

A state contains the agent's messages of one turn in the form of Chat Completions, with the calls of
its own tools and their results, including images and files. The signature binds it to the user, the
agent, and the client-visible history, so that no other text is accepted as the agent's.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    Provenance,
    ResultCanister,
)
from vibe_llms.messages.contents import (
    AudioContent,
    Content,
    FileContent,
    ImageContent,
    Location,
    VideoContent,
    text_of,
)
from vibe_llms.providers.openai.chat_completions.chunks import CallPiece, FunctionDelta
from vibe_llms.server.chat_requests import (
    AudioPart,
    ChatMessage,
    FileData,
    FilePart,
    ImagePart,
    ImageUrl,
    InputAudio,
    Part,
    TextPart,
    read_messages,
    write_data_url,
)
from vibe_llms.server.failures import Rejected

#: Member of results without text from untrusted sources.
_TRUSTED = "trusted"


class ReplyState(Struct, forbid_unknown_fields=True):
    """Messages, calls, and results of the agent in one turn, with a signature."""

    tool_call_history: list[dict[str, Any]]
    signature: str


class StateSigner:
    """Writer and reader of the states of one agent's replies to one user."""

    def __init__(self, secret: bytes, user: str, agent: str) -> None:
        """Create a signer with the secret of the servers."""
        self._secret = secret
        self._place = (user.encode(), agent.encode())
        self._provenance = Provenance("vibe_llms.server", "", agent)

    def write(self, canisters: Sequence[Canister], visible: bytes) -> ReplyState:
        """Return the state of a turn; `visible` is the hash of the history up to its end."""
        history = _describe(canisters)
        return ReplyState(history, self._sign(history, visible))

    def read(self, state: ReplyState, visible: bytes, param: str) -> Sequence[Canister]:
        """Return the messages in a state; `Rejected` if it was not written for this history."""
        signature = self._sign(state.tool_call_history, visible).encode()
        if not hmac.compare_digest(signature, state.signature.encode()):
            raise Rejected(
                "the state does not belong to this reply of this history",
                param=param,
                code="invalid_state",
            )
        said = read_messages(msgspec.convert(state.tool_call_history, list[ChatMessage]))
        results = (one for one in state.tool_call_history if one.get("role") == "tool")
        return [
            replace(one, provenance=self._provenance)
            if isinstance(one, AssistantCanister | InvocationCanister)
            else replace(one, trusted=next(results).get(_TRUSTED) is True)
            if isinstance(one, ResultCanister)
            else one
            for one in said
        ]

    def _sign(self, history: Sequence[Mapping[str, Any]], visible: bytes) -> str:
        parts = (*self._place, visible, msgspec.json.encode(history, order="sorted"))
        signed = hmac.new(self._secret, digestmod=hashlib.sha256)
        for part in parts:
            signed.update(len(part).to_bytes(8, "big") + part)
        return signed.hexdigest()


def _describe(canisters: Sequence[Canister]) -> list[dict[str, Any]]:
    """Return the agent's messages and the results of its calls in the form of Chat Completions.

    Calls without a result belong to the client and are left out.
    """
    results = {one.invocation for one in canisters if isinstance(one, ResultCanister)}
    messages: list[dict[str, Any]] = []
    calls: dict[str, str] = {}
    for canister in canisters:
        match canister:
            case AssistantCanister(contents=contents) if content := _describe_contents(contents):
                messages.append({"role": "assistant", "content": content})
            case InvocationCanister(identity=identity) if identity in results:
                calls[identity] = f"call_{identity}"
                function = FunctionDelta(canister.name, canister.arguments or "{}")
                call = CallPiece(id=calls[identity], function=function)
                messages.append({"role": "assistant", "tool_calls": [msgspec.to_builtins(call)]})
            case ResultCanister(invocation=call) if call in calls:
                content = _describe_contents(canister.contents)
                message = {"role": "tool", "tool_call_id": calls[call], "content": content}
                messages.append({**message, _TRUSTED: True} if canister.trusted else message)
    return messages


def _describe_contents(contents: Sequence[Content]) -> str | list[dict[str, Any]]:
    """Return a text, or a list of parts if there are images or files."""
    text = text_of(contents)
    media = [part for one in contents if (part := _describe_media(one)) is not None]
    if not media:
        return text
    said = [TextPart(text)] if text else []
    described: list[dict[str, Any]] = msgspec.to_builtins([*said, *media])
    return described


def _describe_media(content: Content) -> Part | None:
    match content:
        case ImageContent(data=Location(url=url)):
            return ImagePart(ImageUrl(url))
        case ImageContent(data=bytes(data), mimetype=mimetype):
            return ImagePart(ImageUrl(write_data_url(data, mimetype)))
        case AudioContent(data=bytes(data), mimetype=mimetype):
            encoded = base64.b64encode(data).decode()
            return AudioPart(InputAudio(encoded, mimetype.removeprefix("audio/")))
        case VideoContent(data=bytes(data), mimetype=mimetype):
            return FilePart(FileData(write_data_url(data, mimetype)))
        case FileContent(data=bytes(data), mimetype=mimetype, name=name):
            return FilePart(FileData(write_data_url(data, mimetype), name))
    return None
