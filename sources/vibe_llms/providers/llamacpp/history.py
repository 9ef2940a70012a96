"""History of a conversation as the messages of a template.

Many templates raise if roles do not alternate, if system text is not at the beginning, or if the
first message is not a user's. Histories that break these rules are repaired in the request only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.messages.canisters import (
    Canister,
    InvocationCanister,
    ResultCanister,
    UserCanister,
)
from vibe_llms.messages.contents import (
    Content,
    NativeContent,
    ReasoningContent,
    TextualContent,
)
from vibe_llms.messages.events import Notice
from vibe_llms.providers.histories import (
    BEGIN,
    CONTINUE,
    FAILED,
    NOTHING,
    Exchange,
    MessageHistory,
)
from vibe_llms.providers.llamacpp.messages import LlamacppPiece, nativize
from vibe_llms.providers.pieces import Fragment, encode_json

_Message: TypeAlias = dict[str, Any]


class LlamacppHistory(MessageHistory[LlamacppPiece, _Message]):
    """Messages of one conversation for one model.

    A template renders the whole prompt for every request, so no message is baked. If the model has
    no native tool calls, calls are written in words.
    """

    unbaked = sys.maxsize

    def nativize(
        self, canister: Canister, texts: Mapping[str, bytes], call: str
    ) -> tuple[LlamacppPiece, Sequence[Notice]]:
        """Return the piece of a canister and its notices."""
        return nativize(canister, self.model, texts)

    def is_empty(self, piece: LlamacppPiece) -> bool:
        """Return True if the piece is omitted from the request."""
        return not piece.text

    def propose_calls(self, canister: InvocationCanister) -> Iterator[str]:
        """Yield the id of the canister; the model never sees another."""
        yield canister.identity

    def is_free(self, call: str) -> bool:
        """Return True: any call can have this id."""
        return True

    def unpair(self, canister: ResultCanister) -> UserCanister:
        """Turn a result that does not follow its call into a user message."""
        worded = super().unpair(canister)
        if any(_speaks(content) for content in canister.contents):
            return worded
        return UserCanister((*worded.contents, TextualContent(NOTHING)), identity=worded.identity)

    def messages(self) -> list[_Message]:
        """Return the messages: the system's, then the user's and the assistant's in turn."""
        messages = self.current()
        if not messages or messages[-1]["role"] == "assistant":
            messages.append({"role": "user", "content": CONTINUE})
        if system := [piece.text for piece in self.instructions if piece.text]:
            messages.insert(0, {"role": "system", "content": "\n\n".join(system)})
        return messages

    def push(
        self, recent: list[_Message], exchange: Exchange[LlamacppPiece], *, last: bool
    ) -> None:
        """Append the messages of an exchange."""
        native = self.model.attributes.tools == "native"
        spoken = exchange.spoken
        calls = [piece for piece in spoken if piece.role == "call"]
        answers = [(call, _answer(exchange.answers.get(call.identity))) for call in calls]
        user = [
            f"<system>\n{piece.text}\n</system>" if piece.role == "system" else piece.text
            for piece in exchange.others
        ]
        if not native:
            user[:0] = [f"The tool {call.title} returned:\n\n{words}" for call, words in answers]
        texts = [piece.text for piece in spoken if piece.text]
        if texts or calls:
            if not recent:
                recent.append({"role": "user", "content": BEGIN})
            message: _Message = {"role": "assistant", "content": "\n\n".join(texts)}
            if thinking := [piece.thinking for piece in spoken if piece.thinking]:
                message["reasoning_content"] = "\n\n".join(thinking)
            if native and calls:
                message["tool_calls"] = [_declare(call) for call in calls]
            recent.append(message)
        if native:
            recent += [
                {"role": "tool", "name": call.name, "tool_call_id": call.identity, "content": words}
                for call, words in answers
            ]
        if not user:
            return
        text = "\n\n".join(user)
        if recent and recent[-1]["role"] == "user":
            # An empty reply was between them.
            recent[-1]["content"] += f"\n\n{text}"
        else:
            recent.append({"role": "user", "content": text})

    def copy(self, message: _Message) -> _Message:
        """Return a copy of a message that can be extended on its own."""
        return dict(message)

    def frame(self, message: _Message) -> list[Fragment]:
        """Encode a message as JSON."""
        return [encode_json(message)]


def fold_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]] | None:
    """Move system text into the first user message, or return `None` if there is no system text.

    For templates that raise for a system message, such as Gemma's.
    """
    if len(messages) < 2 or messages[0]["role"] != "system":
        return None
    system, first, *rest = messages
    return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *rest]


def _speaks(content: Content) -> bool:
    """Return True if a content of a result is shown or described."""
    if isinstance(content, TextualContent) and isinstance(content.data, str):
        return bool(content.data.strip())
    return not isinstance(content, ReasoningContent | NativeContent)


def _answer(piece: LlamacppPiece | None) -> str:
    if piece is None:
        return f"{FAILED}\n\n{INTERRUPTED}"
    text = piece.text or NOTHING
    return f"{FAILED}\n\n{text}" if piece.failed else text


def _declare(call: LlamacppPiece) -> _Message:
    # Most templates write the arguments as JSON themselves; they would quote a string.
    return {
        "type": "function",
        "id": call.identity,
        "function": {"name": call.name, "arguments": dict(call.arguments)},
    }
