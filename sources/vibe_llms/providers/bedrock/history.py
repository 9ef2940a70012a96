"""Builds messages that Converse accepts from a history.

The history is adapted to the rules of the interface, in the request only: every call has its result
in the next message, roles alternate, the first message and the last are the user's, no message is
empty, no text is blank, and none ends with reasoning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.events import Notice
from vibe_llms.providers import histories
from vibe_llms.providers.bedrock.messages import BedrockPiece, nativize
from vibe_llms.providers.histories import Exchange, MarkedHistory, MarkedMessage, ThinkingRun
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.pieces import Block, Fragment, encode_json, interleave


def _encode_text(text: str) -> Block:
    return (encode_json({"text": text}),)


_BEGIN, _CONTINUE = _encode_text(histories.BEGIN), _encode_text(histories.CONTINUE)
_OPEN_SYSTEM, _CLOSE_SYSTEM = _encode_text("<system>"), _encode_text("</system>")


class _Spoken:
    """The assistant's blocks of one exchange; reasoning at the end is not sent."""

    def __init__(self, pieces: Sequence[BedrockPiece]) -> None:
        blocks, thinking = list[Block](), 0
        self.thinks = self.own = False
        for piece in pieces:
            if not blocks:
                self.thinks = piece.thinks
            whole = piece.thinking == len(piece.blocks)
            thinking = thinking + piece.thinking if whole else piece.thinking
            blocks += piece.blocks
            self.own = self.own or piece.own
        self.blocks = blocks[: len(blocks) - thinking]


class BedrockHistory(MarkedHistory[BedrockPiece]):
    """The messages of one conversation for one model; with `citing`, files can be cited."""

    call_form = re.compile(r"[a-zA-Z0-9_-]{1,64}")
    call_prefix: ClassVar[str] = "tooluse_"

    def __init__(self, model: Model, *, citing: bool = True) -> None:
        super().__init__(model, b'{"messages":[')
        self._citing = citing
        self._files = 0
        self._run = ThinkingRun()
        #: Names of the tools that were called, which must be declared as long as this is sent.
        self.called: dict[str, None] = {}

    def nativize(
        self, canister: Canister, texts: Mapping[str, bytes], call: str
    ) -> tuple[BedrockPiece, Sequence[Notice]]:
        """Return the piece of a canister."""
        piece, notices = nativize(
            canister, self.model, texts, call=call, files=self._files, citing=self._citing
        )
        self._files += piece.files
        self.called |= dict.fromkeys(piece.names)
        return piece, notices

    def is_empty(self, piece: BedrockPiece) -> bool:
        """Return True if the piece has no blocks to send."""
        return not piece.blocks

    def messages(self, mark: bytes) -> list[Fragment]:
        """Return the start of the body with its messages, at most two of the user's marked.

        See `find_marked`.
        """
        recent = self.current()
        if mark:
            for message in self.find_marked(recent):
                message.blocks.append((mark,))
        return [*self.join(recent), b"]"]

    def system(self, mark: bytes) -> list[Fragment]:
        """Return the system text at the head of the request, as members of an array."""
        blocks = [block for piece in self.instructions for block in piece.blocks]
        if blocks and mark:
            blocks.append((mark,))
        return interleave(blocks)

    @property
    def forbids_thinking(self) -> bool:
        """True if an unfinished run of calls began without thinking, which cannot be enabled."""
        spoken = _Spoken(self.open.spoken)
        return self._run.forbids(
            silent=not spoken.blocks, thinks=spoken.thinks, called=bool(self.open.calls)
        )

    def append_exchange(self, exchange: Exchange[BedrockPiece]) -> None:
        """Keep an exchange that is closed."""
        super().append_exchange(exchange)
        spoken = _Spoken(exchange.spoken)
        self._run.close(
            silent=not spoken.blocks,
            thinks=spoken.thinks,
            called=bool(exchange.calls),
            heard=bool(exchange.others),
        )

    def push(
        self, recent: list[MarkedMessage], exchange: Exchange[BedrockPiece], *, last: bool
    ) -> None:
        """Append the messages of an exchange."""
        spoken = _Spoken(exchange.spoken)
        user = self.results(exchange)
        for piece in exchange.others:
            for block in piece.blocks:
                system = piece.role == "system"
                user += [_OPEN_SYSTEM, block, _CLOSE_SYSTEM] if system else [block]
        if spoken.blocks:
            if not recent:
                recent.append(MarkedMessage("user", [_BEGIN]))
            recent[-1].answered = recent[-1].answered or spoken.own
            recent.append(MarkedMessage("assistant", spoken.blocks))
        if recent and recent[-1].role == "user":
            recent[-1].blocks += user
        else:
            recent.append(MarkedMessage("user", user or [_CONTINUE]))

    def results(self, exchange: Exchange[BedrockPiece]) -> list[Block]:
        """Return a result for each call, in the order of the calls."""
        return [
            exchange.answers[call].blocks[0] if call in exchange.answers else _interrupt(call)
            for call in exchange.calls
        ]

    def frame(self, message: MarkedMessage) -> list[Fragment]:
        """Return a message as JSON."""
        start = b'{"role":"' + message.role.encode() + b'","content":['
        return [start, *interleave(message.blocks), b"]}"]


def _interrupt(call: str) -> Block:
    content = [{"text": INTERRUPTED}]
    return (encode_json({"toolResult": {"toolUseId": call, "content": content}}),)
