"""Builds contents that Gemini accepts from a history.

The history is adapted to the rules of the interface, in the request only: roles alternate, the
first content is the user's, none is empty, each call has its result in the next content, and a call
that this model did not sign has the signature that Google names for such calls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.messages.canisters import Canister, InvocationCanister, ResultCanister
from vibe_llms.messages.events import Notice
from vibe_llms.providers import histories
from vibe_llms.providers.conversions import is_own
from vibe_llms.providers.gemini.controls import read_native
from vibe_llms.providers.gemini.messages import (
    MODULE,
    SIGNATURE,
    GeminiPiece,
    name_tool,
    nativize,
)
from vibe_llms.providers.histories import Exchange, MessageHistory
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.pieces import Block, Fragment, append_member, encode_json, interleave

#: Signature for calls that the model did not make itself, or made without one.
#: Source: https://ai.google.dev/gemini-api/docs/thought-signatures#faqs (2026-11).
UNSIGNED = b'"' + SIGNATURE.encode() + b'":"skip_thought_signature_validator"'


def _encode_text(text: str) -> Block:
    return (encode_json({"text": text}),)


_BEGIN, _CONTINUE = _encode_text(histories.BEGIN), _encode_text(histories.CONTINUE)


class _Message(Struct):
    role: str
    parts: list[Block]


class GeminiHistory(MessageHistory[GeminiPiece, _Message]):
    """The contents of one conversation for one model.

    `schemes` are the beginnings of addresses that the server reads. Calls are `identified` if the
    interface knows their ids.
    """

    call_form = re.compile(r"[\x21-\x7e]{1,256}")
    unbaked = 2

    def __init__(self, model: Model, *, schemes: Sequence[str], identified: bool) -> None:
        super().__init__(model, b'{"contents":[')
        self._signs = read_native(model).signatures
        self._schemes = schemes
        self._identified = identified

    def nativize(
        self, canister: Canister, texts: Mapping[str, bytes], call: str
    ) -> tuple[GeminiPiece, Sequence[Notice]]:
        """Return the piece of a canister."""
        made: InvocationCanister | None = None
        if isinstance(canister, InvocationCanister):
            made = canister
        elif isinstance(canister, ResultCanister):
            made = self.open.calls[call]
        identified = made is not None and self._is_identified(made)
        wire = call if identified else ""
        return nativize(canister, self.model, texts, call=wire, made=made, schemes=self._schemes)

    def _is_identified(self, made: InvocationCanister) -> bool:
        """Return True if a call has an id on the wire: only if this model gave it one."""
        return self._identified and bool(made.call) and is_own(made, self.model, MODULE)

    def is_empty(self, piece: GeminiPiece) -> bool:
        """Return True if the piece has no parts to send."""
        return not piece.parts

    def contents(self) -> list[Fragment]:
        """Return the start of the body with its contents."""
        return [*self.join(self.current()), b"]"]

    def system(self) -> list[Fragment]:
        """Return the system text at the head of the request, as members of an array."""
        return interleave(block for piece in self.instructions for block in piece.parts)

    def push(self, recent: list[_Message], exchange: Exchange[GeminiPiece], *, last: bool) -> None:
        """Append the contents of an exchange."""
        spoken = self._sign(exchange.spoken)
        user: list[Block] = []
        shown: list[Block] = []
        for call, made in exchange.calls.items():
            answer = exchange.answers.get(call) or self._interrupt(call, made)
            user += answer.parts
            if answer.shown:
                shown += [_encode_text(f"(What {made.name} showed is here.)"), *answer.shown]
        user += shown
        for piece in exchange.others:
            if piece.role == "system":
                user += [_encode_text("<system>"), *piece.parts, _encode_text("</system>")]
            else:
                user += piece.parts
        if spoken:
            if not recent and not self.baked.count:
                recent.append(_Message("user", [_BEGIN]))
            recent += [_Message("model", spoken), _Message("user", user or [_CONTINUE])]
        elif user and recent and recent[-1].role == "user":
            # An empty reply was between them.
            recent[-1].parts += user
        elif user or (last and not recent and not self.baked.count):
            recent.append(_Message("user", user or [_CONTINUE]))

    def _sign(self, spoken: Sequence[GeminiPiece]) -> list[Block]:
        """Return the parts of a reply; its first call has a signature if the model wants one.

        Of parallel calls, only the first is signed.
        """
        parts: list[Block] = []
        first = self._signs
        for piece in spoken:
            if piece.calls and first:
                first = False
                if not piece.signed:
                    parts.append(append_member(piece.parts[0], UNSIGNED))
                    continue
            parts += piece.parts
        return parts

    def _interrupt(self, call: str, made: InvocationCanister) -> GeminiPiece:
        head: dict[str, object] = {"id": call} if self._is_identified(made) else {}
        head |= {"name": name_tool(made.name), "response": {"error": INTERRUPTED}}
        return GeminiPiece("user", ((encode_json({"functionResponse": head}),),))

    def copy(self, message: _Message) -> _Message:
        """Return a copy of a content that can grow."""
        return _Message(message.role, list(message.parts))

    def frame(self, message: _Message) -> list[Fragment]:
        """Return a content as JSON."""
        start = b'{"role":"' + message.role.encode() + b'","parts":['
        return [start, *interleave(message.parts), b"]}"]
