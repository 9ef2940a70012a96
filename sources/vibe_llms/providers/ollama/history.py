"""Builds messages that Ollama accepts from a history.

The server puts every message into the model's template, and many templates need alternating roles.
The history is adapted to that in the request only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec
from msgspec import Struct

from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.messages.canisters import Canister, InvocationCanister
from vibe_llms.messages.events import Notice
from vibe_llms.providers import histories
from vibe_llms.providers.histories import Exchange, MessageHistory
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.ollama.messages import BREAK, OllamaPiece, nativize
from vibe_llms.providers.pieces import Fragment, Slot, encode_json, interleave
from vibe_llms.providers.token_estimates import Measure
from vibe_llms.providers.tool_names import nativize_name


def _encode(text: str) -> bytes:
    return encode_json(text)[1:-1]


_INTERRUPTED = OllamaPiece("tool", (_encode(INTERRUPTED),), failed=True)


class _Message(Struct):
    role: str
    texts: list[bytes] = []
    pictures: list[Slot] = []
    thinking: list[bytes] = []
    calls: list[bytes] = []
    about: bytes = b""

    @property
    def blank(self) -> bool:
        """True if the message has no text, pictures or calls."""
        return not (self.texts or self.pictures or self.calls)

    def take(self, piece: OllamaPiece | _Message) -> None:
        """Add the texts, pictures and thinking of another message."""
        self.texts += piece.texts
        self.pictures += piece.pictures
        self.thinking += piece.thinking

    def frame(self) -> list[Fragment]:
        """Return the message as JSON."""
        start = b'{"role":"' + self.role.encode() + b'","content":"'
        start += BREAK.join(self.texts) + b'"' + self.about
        if self.thinking:
            start += b',"thinking":"' + BREAK.join(self.thinking) + b'"'
        if self.calls:
            start += b',"tool_calls":[' + b",".join(self.calls) + b"]"
        if not self.pictures:
            return [start + b"}"]
        return [start + b',"images":[', *interleave((slot,) for slot in self.pictures), b"]}"]


class OllamaHistory(MessageHistory[OllamaPiece, _Message]):
    """The messages of one conversation for one model.

    `measure` is its size without reasoning, and `hidden` that of its reasoning. The pictures of the
    canisters `without` are replaced by words.
    """

    call_form = re.compile(r"[a-zA-Z0-9_.:-]{1,128}")
    unbaked = 2

    def __init__(self, model: Model, without: AbstractSet[str] = frozenset()) -> None:
        super().__init__(model)
        self.measure = Measure()
        self.hidden = Measure()
        self.without = without
        self._native = model.attributes.tools == "native"

    def nativize(
        self, canister: Canister, texts: Mapping[str, bytes], call: str
    ) -> tuple[OllamaPiece, Sequence[Notice]]:
        """Return the piece of a canister, and add its measure."""
        piece, notices = nativize(canister, self.model, texts, call=call, without=self.without)
        self.measure += piece.measure
        if piece.thinking:
            self.hidden += piece.hidden
        return piece, notices

    def is_empty(self, piece: OllamaPiece) -> bool:
        """Return True if the piece has no text or pictures to send."""
        return not (piece.texts or piece.pictures)

    def messages(self) -> list[Fragment]:
        """Return the start of the body with its messages."""
        fragments: list[Fragment] = [b'{"messages":[']
        if system := [text for piece in self.instructions for text in piece.texts]:
            fragments += [*_Message("system", system).frame(), b","]
        return [*fragments, *self.join(self.current()), b"]"]

    def push(self, recent: list[_Message], exchange: Exchange[OllamaPiece], *, last: bool) -> None:
        """Append the messages of an exchange."""
        assistant, user = _Message("assistant"), _Message("user")
        for piece in exchange.spoken:
            assistant.take(piece)
            assistant.calls += [piece.call] if piece.call else []
        answers: list[_Message] = []
        for call, made in exchange.calls.items():
            answer = _answer(made, call, exchange.answers.get(call) or _INTERRUPTED)
            if not self._native:
                user.texts += [_encode(f"The tool {made.name} returned:"), *answer.texts]
                user.pictures += answer.pictures
                continue
            if answer.pictures:
                # Few templates know pictures outside of user messages.
                user.texts.append(_encode(f"(What {made.name} showed is here.)"))
                user.pictures += answer.pictures
                answer.pictures = []
                answer.texts = answer.texts or [b"(It showed what follows.)"]
            answers.append(answer)
        for piece in exchange.others:
            if piece.role == "system":
                user.texts += [b"<system>", *piece.texts, b"</system>"]
            else:
                user.take(piece)
        if not assistant.blank:
            if not recent and not self.baked.count:
                recent.append(_Message("user", [_encode(histories.BEGIN)]))
            recent += [assistant, *answers]
            if user.blank and not answers:
                user.texts.append(_encode(histories.CONTINUE))
        elif user.blank and last and not recent:
            user.texts.append(_encode(histories.CONTINUE))
        if user.blank:
            return
        if recent and recent[-1].role == "user":
            # An empty reply was between them.
            recent[-1].take(user)
        else:
            recent.append(user)

    def copy(self, message: _Message) -> _Message:
        """Return a copy of a message that can grow."""
        names = ("texts", "pictures", "thinking", "calls")
        return msgspec.structs.replace(
            message, **{name: list(getattr(message, name)) for name in names}
        )

    def frame(self, message: _Message) -> list[Fragment]:
        """Return a message as JSON."""
        return message.frame()


def _answer(made: InvocationCanister, call: str, piece: OllamaPiece) -> _Message:
    texts = [*piece.texts] or ([] if piece.pictures else [_encode(histories.NOTHING)])
    if piece.failed:
        texts.insert(0, _encode(histories.FAILED))
    name = encode_json(nativize_name(made.name))
    about = b',"tool_name":' + name + b',"tool_call_id":' + encode_json(call)
    return _Message("tool", texts, list(piece.pictures), about=about)
