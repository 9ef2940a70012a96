"""Builds messages that Anthropic accepts from a history.

The history is adapted to the rules of the interface, in the request only: every call has its result
in the next message, tools of the server have returned, roles alternate, the first message is the
user's, no message is empty or ends with thinking, and system text is only where it is allowed.

Source: the rules for system messages are those of
https://platform.claude.com/docs/en/build-with-claude/mid-conversation-system-messages (2026-06).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.messages.canisters import Canister, ResultCanister, UserCanister
from vibe_llms.messages.events import Notice
from vibe_llms.providers import histories
from vibe_llms.providers.anthropic.caching import RequestRhythm
from vibe_llms.providers.anthropic.controls import read_native
from vibe_llms.providers.anthropic.messages import MODULE, AnthropicPiece, nativize
from vibe_llms.providers.conversions import is_own
from vibe_llms.providers.histories import Exchange, MarkedHistory, MarkedMessage, ThinkingRun
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.pieces import Block, Fragment, append_member, encode_json, interleave


def _encode_text(text: str) -> Block:
    return (encode_json({"type": "text", "text": text}),)


_BEGIN, _CONTINUE = _encode_text(histories.BEGIN), _encode_text(histories.CONTINUE)
_SEVERED = _encode_text("(A server tool was called here and did not return.)")


class _Spoken:
    """The assistant's blocks of one exchange.

    `thinking` counts the thinking blocks at the end; `thinks` is True if it begins with thinking.
    `running` maps the ids of calls that the server carries out, and that have no result yet, to
    their places.
    """

    def __init__(self, pieces: Sequence[AnthropicPiece]) -> None:
        self.blocks: list[Block] = []
        self.thinking = 0
        self.thinks = False
        self.running: dict[str, int] = {}
        self.paused = bool(pieces) and pieces[-1].paused
        #: True if a block that replaces earlier messages comes first, as it must.
        self.compacted = bool(pieces) and pieces[0].compacted
        self.own = any(piece.own for piece in pieces)
        for piece in pieces:
            if not self.blocks:
                self.thinks = piece.thinks
            for identity, place in piece.running.items():
                self.running[identity] = len(self.blocks) + place
            for identity in piece.returned:
                self.running.pop(identity, None)
            whole = piece.thinking == len(piece.blocks)
            self.thinking = self.thinking + piece.thinking if whole else piece.thinking
            self.blocks += piece.blocks

    @property
    def silent(self) -> bool:
        """True if all blocks are thinking, so that none is sent."""
        return self.thinking == len(self.blocks)

    def finish(self, *, last: bool) -> list[Block]:
        """Return the blocks to send; `last` is True if nothing follows."""
        blocks = list(self.blocks)
        if not (last and self.paused):
            for place in self.running.values():
                blocks[place] = _SEVERED
        return blocks[: len(blocks) - self.thinking]


class AnthropicHistory(MarkedHistory[AnthropicPiece]):
    """The messages of one conversation for one model.

    With `citing`, documents can be cited; with `unsigned`, thinking without a signature is sent
    back.
    """

    call_form = re.compile(r"[a-zA-Z0-9_-]{1,64}")
    call_prefix = "toolu_"

    def __init__(self, model: Model, *, citing: bool = True, unsigned: bool = False) -> None:
        super().__init__(model, b'{"messages":[')
        self._citing = citing
        self._unsigned = unsigned
        self.rhythm = RequestRhythm()
        self._midway = read_native(model).system_messages
        self._unpaired: list[Notice] = []
        self._run = ThinkingRun()

    def add(self, canister: Canister, texts: Mapping[str, bytes]) -> Sequence[Notice]:
        """Add the next canister; return notices about contents that are changed or not sent."""
        notices = super().add(canister, texts)
        unpaired, self._unpaired = self._unpaired, []
        self.rhythm.add(canister, own=is_own(canister, self.model, MODULE))
        return [*unpaired, *notices]

    def unpair(self, canister: ResultCanister) -> UserCanister:
        """Convert a result that does not follow its call to user text, and add a notice."""
        address = f"{self.model.provider}/{self.model.name}"
        text = f"a result that does not follow its call is sent as text for {address}"
        self._unpaired = [Notice("conversion", text, canister.identity)]
        return super().unpair(canister)

    def nativize(
        self, canister: Canister, texts: Mapping[str, bytes], call: str
    ) -> tuple[AnthropicPiece, Sequence[Notice]]:
        """Return the piece of a canister."""
        return nativize(
            canister,
            self.model,
            texts,
            call=call,
            citing=self._citing,
            unsigned=self._unsigned,
        )

    def is_empty(self, piece: AnthropicPiece) -> bool:
        """Return True if the piece has no blocks to send."""
        return not piece.blocks

    def messages(self, mark: bytes, marks: int = 2) -> list[Fragment]:
        """Return the start of the body with its messages, at most two of the user's marked.

        See `find_marked`; the server looks for the end of a cache only 20 blocks before a mark.

        Messages come first in the body because nothing before them may change from turn to turn.
        """
        recent = self.current()
        if mark and marks > 0:
            for message in self.find_marked(recent)[-marks:]:
                message.blocks[-1] = append_member(message.blocks[-1], mark)
        return [*self.join(recent), b"]"]

    def system(self, mark: bytes) -> list[Fragment]:
        """Return the system text at the head of the request, as members of an array."""
        blocks = [block for piece in self.instructions for block in piece.blocks]
        if blocks and mark:
            blocks[-1] = append_member(blocks[-1], mark)
        return interleave(blocks)

    @property
    def forbids_thinking(self) -> bool:
        """True if an unfinished run of calls began without thinking.

        Such a request must not ask for thinking of type `enabled`: its run has to begin with some.
        """
        spoken = _Spoken(self.open.spoken)
        return self._run.forbids(
            silent=spoken.silent, thinks=spoken.thinks, called=bool(self.open.calls)
        )

    def append_exchange(self, exchange: Exchange[AnthropicPiece]) -> None:
        """Keep an exchange that is closed."""
        super().append_exchange(exchange)
        spoken = _Spoken(exchange.spoken)
        self._run.close(
            silent=spoken.silent,
            thinks=spoken.thinks,
            called=bool(exchange.calls),
            heard=any(self._is_heard(piece) for piece in exchange.others),
        )

    def push(
        self, recent: list[MarkedMessage], exchange: Exchange[AnthropicPiece], *, last: bool
    ) -> None:
        """Append the messages of an exchange."""
        spoken = _Spoken(exchange.spoken)
        user = self.results(exchange)
        system: list[Block] = []
        for piece in exchange.others:
            if not self._is_heard(piece):
                system += piece.blocks
            elif piece.role == "system":
                for block in piece.blocks:
                    user += [_encode_text("<system>"), block, _encode_text("</system>")]
            else:
                user += piece.blocks
        silent = not user and not system
        blocks = spoken.finish(last=last and silent)
        if blocks:
            if not recent and not spoken.compacted:
                recent.append(MarkedMessage("user", [_BEGIN]))
            if spoken.own and recent:
                _find_heard(recent).answered = True
            recent.append(MarkedMessage("assistant", blocks))
        if silent:
            if blocks and spoken.paused:
                # Only a paused reply continues when it is sent its own words; any other assistant
                # message at the end would be a prefill, which newer models refuse.
                return
            user.append(_CONTINUE)
        _push_user(recent, user, system)

    def results(self, exchange: Exchange[AnthropicPiece]) -> list[Block]:
        """Return a result for each call, in the order of the calls."""
        return [
            exchange.answers[call].blocks[0] if call in exchange.answers else _interrupted(call)
            for call in exchange.calls
        ]

    def frame(self, message: MarkedMessage) -> list[Fragment]:
        """Return a message as JSON."""
        start = b'{"role":"' + message.role.encode() + b'","content":['
        return [start, *interleave(message.blocks), b"]}"]

    def _is_heard(self, piece: AnthropicPiece) -> bool:
        """Return True if the piece belongs in a user message."""
        return not (piece.role == "system" and self._midway)


def _find_heard(messages: Sequence[MarkedMessage]) -> MarkedMessage:
    """Return the last message of the user, which system text may follow."""
    return messages[-2] if messages[-1].role == "system" else messages[-1]


def _push_user(recent: list[MarkedMessage], user: list[Block], system: list[Block]) -> None:
    if recent and recent[-1].role == "system":
        # An empty reply was between them: the two sides become one, with system text at the end.
        system = [*recent.pop().blocks, *system]
    if recent and recent[-1].role == "user":
        recent[-1].blocks += user
    else:
        recent.append(MarkedMessage("user", user or [_CONTINUE]))
    if system:
        recent.append(MarkedMessage("system", system))


def _interrupted(call: str) -> Block:
    content = [{"type": "text", "text": INTERRUPTED}]
    result = {"type": "tool_result", "tool_use_id": call, "is_error": True, "content": content}
    return (encode_json(result),)
