"""Pieces put together to the messages of a template.

Many templates raise where roles do not alternate, where system text stands elsewhere than at the
beginning, or where the first message is not a user's. What a history need not fulfil of that is
mended here, on the way out only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from vibe_llms.events import Notice
from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.messages.canisters import Canister
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.llamacpp.messages import LlamacppMessagesProcessor, Piece

_BEGIN = "(The conversation begins.)"
_CONTINUE = "(Please continue.)"
_NOTHING = "(It returned nothing.)"


class History:
    """The pieces of one conversation for one model; grows as the conversation does.

    A template makes the whole prompt anew every time, so nothing but the pieces is kept.
    """

    def __init__(self, processor: LlamacppMessagesProcessor, model: Model) -> None:
        self._processor = processor
        self._model = model
        self._pieces: list[Piece] = []

    def add(self, canister: Canister, texts: Mapping[str, bytes]) -> Sequence[Notice]:
        """Take the next canister; the notices tell what of it is not sent as it is."""
        piece, notices = self._processor.nativize(canister, self._model, texts)
        if piece.role != "nobody":
            self._pieces.append(piece)
        return notices

    def messages(self) -> list[dict[str, Any]]:
        """The messages: a system's, then the user's and the assistant's in turn."""
        return frame(self._pieces, native=self._model.attributes.tools == "native")


class _Open(Struct):
    """What is not closed yet: an assistant's message, and what the user's side says after it."""

    texts: list[str] = []
    thinking: list[str] = []
    calls: list[Piece] = []
    answers: dict[str, Piece] = {}
    user: list[str] = []
    reply: str = ""

    @property
    def silent(self) -> bool:
        """Whether the assistant says nothing."""
        return not (self.texts or self.calls)


def frame(pieces: Sequence[Piece], *, native: bool) -> list[dict[str, Any]]:
    """The messages of a whole conversation; without `native` calls are told in words."""
    system: list[str] = []
    messages: list[dict[str, Any]] = []
    state = _Open()
    begun = False
    for piece in pieces:
        match piece.role:
            case "system" if not begun:
                system.append(piece.text)
                continue
            case "system":
                if piece.text:
                    state.user.append(f"<system>\n{piece.text}\n</system>")
            case "assistant" | "call":
                # A second reply after calls, or after words of the user's, is a message of its own.
                closed = bool(state.user or state.answers)
                if closed or (state.calls and state.reply != piece.reply):
                    _close(messages, state, native=native)
                    state = _Open()
                state.reply = piece.reply
                state.texts += [piece.text] if piece.text else []
                state.thinking += [piece.thinking] if piece.thinking else []
                if piece.role == "call":
                    state.calls.append(piece)
            case "result" if _waits(state, piece):
                state.answers[piece.answers] = piece
            case "result":
                # Its call is not in its place, so they cannot be paired.
                state.user.append(f"A tool returned:\n\n{piece.text or _NOTHING}")
            case _:
                state.user += [piece.text] if piece.text else []
        begun = True
    _close(messages, state, native=native)
    if not messages or messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": _CONTINUE})
    if any(system):
        messages.insert(0, {"role": "system", "content": "\n\n".join(filter(None, system))})
    return messages


def fold_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]] | None:
    """The messages with the system's text in the first of the user's; `None` if it has none.

    For templates that raise where there is a system's message, as Gemma's do.
    """
    if len(messages) < 2 or messages[0]["role"] != "system":
        return None
    system, first, *rest = messages
    return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *rest]


def _waits(state: _Open, piece: Piece) -> bool:
    return piece.answers not in state.answers and any(
        call.identity == piece.answers for call in state.calls
    )


def _close(messages: list[dict[str, Any]], state: _Open, *, native: bool) -> None:
    """Put what is open to the messages."""
    answers = [(call, _answer(state.answers.get(call.identity))) for call in state.calls]
    user = list(state.user)
    if not native:
        user[:0] = [f"The tool {call.title} returned:\n\n{words}" for call, words in answers]
    if not state.silent:
        if not messages:
            messages.append({"role": "user", "content": _BEGIN})
        message: dict[str, Any] = {"role": "assistant", "content": "\n\n".join(state.texts)}
        if state.thinking:
            message["reasoning_content"] = "\n\n".join(state.thinking)
        if native and state.calls:
            message["tool_calls"] = [_declare(call) for call in state.calls]
        messages.append(message)
    if native:
        messages += [
            {"role": "tool", "name": call.name, "tool_call_id": call.identity, "content": words}
            for call, words in answers
        ]
    if not user:
        return
    text = "\n\n".join(user)
    if messages and messages[-1]["role"] == "user":
        # An empty reply stood between.
        messages[-1]["content"] += f"\n\n{text}"
    else:
        messages.append({"role": "user", "content": text})


def _answer(piece: Piece | None) -> str:
    if piece is None:
        return f"(The call failed.)\n\n{INTERRUPTED}"
    text = piece.text or _NOTHING
    return f"(The call failed.)\n\n{text}" if piece.failed else text


def _declare(call: Piece) -> dict[str, Any]:
    # Most templates write the arguments as JSON themselves; a text they would quote.
    return {
        "type": "function",
        "id": call.identity,
        "function": {"name": call.name, "arguments": dict(call.arguments)},
    }
