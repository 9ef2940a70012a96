"""A history as the messages of a template.

Many templates raise where roles do not alternate, where system text is elsewhere than at the
beginning, or where the first message is not a user's. What a history need not fulfil of that is
mended here, on the way out only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from vibe_llms.events import Notice
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
from vibe_llms.providers.histories import (
    BEGIN,
    CONTINUE,
    FAILED,
    NOTHING,
    Exchange,
    MessageHistory,
)
from vibe_llms.providers.llamacpp.messages import Piece, nativize
from vibe_llms.providers.pieces import Fragment, encode_json

_Message: TypeAlias = dict[str, Any]


class LlamacppHistory(MessageHistory[Piece, _Message]):
    """The messages of one conversation for one model.

    A template makes the whole prompt anew every time, so no message is baked. Without tools of the
    model's own, calls are written in words.
    """

    unbaked = sys.maxsize

    def nativize(
        self, canister: Canister, texts: Mapping[str, bytes], call: str
    ) -> tuple[Piece, Sequence[Notice]]:
        """The piece of a canister."""
        return nativize(canister, self.model, texts)

    def is_empty(self, piece: Piece) -> bool:
        """Whether nothing of a canister is sent."""
        return not piece.text

    def propose_calls(self, canister: InvocationCanister) -> Iterator[str]:
        """The id of the canister: the model never sees another."""
        yield canister.identity

    def is_free(self, call: str) -> bool:
        """Whether a call can have this id."""
        return True

    def unpair(self, canister: ResultCanister) -> UserCanister:
        """A result that does not follow its call, as words."""
        worded = super().unpair(canister)
        if any(_speaks(content) for content in canister.contents):
            return worded
        return UserCanister((*worded.contents, TextualContent(NOTHING)), identity=worded.identity)

    def messages(self) -> list[_Message]:
        """The messages: a system's, then the user's and the assistant's in turn."""
        messages = self.current()
        if not messages or messages[-1]["role"] == "assistant":
            messages.append({"role": "user", "content": CONTINUE})
        if system := [piece.text for piece in self.instructions if piece.text]:
            messages.insert(0, {"role": "system", "content": "\n\n".join(system)})
        return messages

    def push(self, recent: list[_Message], exchange: Exchange[Piece], *, last: bool) -> None:
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
            # An empty reply stood between.
            recent[-1]["content"] += f"\n\n{text}"
        else:
            recent.append({"role": "user", "content": text})

    def copy(self, message: _Message) -> _Message:
        """A message that can grow without the original."""
        return dict(message)

    def frame(self, message: _Message) -> list[Fragment]:
        """A message as JSON."""
        return [encode_json(message)]


def fold_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]] | None:
    """The messages with the system's text in the first of the user's; `None` if it has none.

    For templates that raise where there is a system's message, as Gemma's do.
    """
    if len(messages) < 2 or messages[0]["role"] != "system":
        return None
    system, first, *rest = messages
    return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *rest]


def _speaks(content: Content) -> bool:
    """Whether a content of a result is shown, or described."""
    if isinstance(content, TextualContent) and isinstance(content.data, str):
        return bool(content.data.strip())
    return not isinstance(content, ReasoningContent | NativeContent)


def _answer(piece: Piece | None) -> str:
    if piece is None:
        return f"{FAILED}\n\n{INTERRUPTED}"
    text = piece.text or NOTHING
    return f"{FAILED}\n\n{text}" if piece.failed else text


def _declare(call: Piece) -> _Message:
    # Most templates write the arguments as JSON themselves; a text they would quote.
    return {
        "type": "function",
        "id": call.identity,
        "function": {"name": call.name, "arguments": dict(call.arguments)},
    }
