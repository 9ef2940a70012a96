"""A history as the messages of a request that Anthropic accepts.

What the interface demands and a history need not fulfil is mended here, on the way out only: every
call has its result in the message after it, tools of the server's have returned, roles alternate,
the first message is a user's, no message is empty or ends with thinking, system text is where
it may.

Source: the rules for system messages are those of
https://platform.claude.com/docs/en/build-with-claude/mid-conversation-system-messages (2026-06).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from vibe_llms.events import Notice
from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.messages.canisters import Canister, ResultCanister, UserCanister
from vibe_llms.providers import histories
from vibe_llms.providers.anthropic.controls import read_native
from vibe_llms.providers.anthropic.messages import Piece, nativize
from vibe_llms.providers.histories import Exchange, MessageHistory
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.pieces import Block, Fragment, append_member, encode_json, interleave


def _encode_text(text: str) -> Block:
    return (encode_json({"type": "text", "text": text}),)


_BEGIN, _CONTINUE = _encode_text(histories.BEGIN), _encode_text(histories.CONTINUE)
_SEVERED = _encode_text("(A tool of the server was called here and did not return.)")


class _Message(Struct):
    role: str
    blocks: list[Block]


class _Spoken:
    """What the assistant says in an exchange.

    `thinking` counts the thinking at its end, `thinks` says whether it begins with some. `running`
    are the places of calls that the server itself carries out, by their ids, as long as no result
    has come.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.blocks: list[Block] = []
        self.thinking = 0
        self.thinks = False
        self.running: dict[str, int] = {}
        self.paused = bool(pieces) and pieces[-1].paused
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
        """Whether nothing of it is sent."""
        return self.thinking == len(self.blocks)

    def finish(self, *, last: bool) -> list[Block]:
        """The blocks, fit to be sent; `last` if nothing follows."""
        blocks = list(self.blocks)
        if not (last and self.paused):
            for place in self.running.values():
                blocks[place] = _SEVERED
        return blocks[: len(blocks) - self.thinking]


class AnthropicHistory(MessageHistory[Piece, _Message]):
    """The messages of one conversation for one model.

    `citing` says whether documents are cited, `unsigned` whether thinking without a signature is
    sent back.
    """

    call_form = re.compile(r"[a-zA-Z0-9_-]{1,64}")
    call_prefix = "toolu_"
    # So many that the last two of the user's, which are marked, stay as they are.
    unbaked = 6

    def __init__(self, model: Model, *, citing: bool = True, unsigned: bool = False) -> None:
        super().__init__(model, b'{"messages":[')
        self._citing = citing
        self._unsigned = unsigned
        self._midway = read_native(model).system_messages
        self._unpaired: list[Notice] = []
        # Whether the present run of calls and results began with thinking; nothing outside of one.
        # Where something else is said with the results, the interface does not say whether the run
        # goes on, so the second of them counts from there.
        self._thought: bool | None = None
        self._thought_since: bool | None = None

    def add(self, canister: Canister, texts: Mapping[str, bytes]) -> Sequence[Notice]:
        """Add the next canister; the notices say what of it is not sent as it is."""
        notices = super().add(canister, texts)
        unpaired, self._unpaired = self._unpaired, []
        return [*unpaired, *notices]

    def unpair(self, canister: ResultCanister) -> UserCanister:
        """A result that does not follow its call, as words, which a notice says."""
        address = f"{self.model.provider}/{self.model.name}"
        text = f"a result that does not follow its call is said in words for {address}"
        self._unpaired = [Notice("conversion", text, canister.identity)]
        return super().unpair(canister)

    def nativize(
        self, canister: Canister, texts: Mapping[str, bytes], call: str
    ) -> tuple[Piece, Sequence[Notice]]:
        """The piece of a canister."""
        return nativize(
            canister,
            self.model,
            texts,
            call=call,
            citing=self._citing,
            unsigned=self._unsigned,
        )

    def is_empty(self, piece: Piece) -> bool:
        """Whether nothing of a canister is sent."""
        return not piece.blocks

    def messages(self, mark: bytes) -> list[Fragment]:
        """The start of the body, its messages; `mark` is put on the last two of the user's.

        They come first in the body because nothing before them may change from turn to turn.
        """
        recent = self.current()
        if mark:
            users = [message for message in recent if message.role == "user"]
            for message in users[-2:]:
                message.blocks[-1] = append_member(message.blocks[-1], mark)
        return [*self.join(recent), b"]"]

    def system(self, mark: bytes) -> list[Fragment]:
        """The system text at the head of the request, as members of an array."""
        blocks = [block for piece in self.instructions for block in piece.blocks]
        if blocks and mark:
            blocks[-1] = append_member(blocks[-1], mark)
        return interleave(blocks)

    @property
    def forbids_thinking(self) -> bool:
        """Whether a run of calls continues that began without thinking.

        Then `thinking` of the type `enabled` is refused: such a run has to begin with some.
        """
        spoken = _Spoken(self.open.spoken)
        begun = (self._thought, self._thought_since)
        if spoken.silent:
            return False in begun
        thought = all(spoken.thinks if one is None else one for one in begun)
        return bool(self.open.calls) and not thought

    def settle(self, exchange: Exchange[Piece]) -> None:
        """Keep an exchange that is closed."""
        super().settle(exchange)
        spoken = _Spoken(exchange.spoken)
        heard = any(self._is_heard(piece) for piece in exchange.others)
        if spoken.silent:
            # What is said before and after it becomes one message of the user's.
            self._thought_since = None if heard else self._thought_since
        elif not exchange.calls:
            self._thought = self._thought_since = None
        else:
            self._thought = spoken.thinks if self._thought is None else self._thought
            since = spoken.thinks if self._thought_since is None else self._thought_since
            self._thought_since = None if heard else since

    def push(self, recent: list[_Message], exchange: Exchange[Piece], *, last: bool) -> None:
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
            if not recent:
                recent.append(_Message("user", [_BEGIN]))
            recent.append(_Message("assistant", blocks))
        if silent:
            if blocks and spoken.paused:
                # Only what paused goes on when it is sent its own words; any other message of the
                # assistant's at the end would be a prefill, which newer models refuse.
                return
            user.append(_CONTINUE)
        _push_user(recent, user, system)

    def results(self, exchange: Exchange[Piece]) -> list[Block]:
        """A result for each call, in their order."""
        return [
            exchange.answers[call].blocks[0] if call in exchange.answers else _interrupted(call)
            for call in exchange.calls
        ]

    def copy(self, message: _Message) -> _Message:
        """A message that can grow without the original."""
        return _Message(message.role, list(message.blocks))

    def frame(self, message: _Message) -> list[Fragment]:
        """A message as JSON."""
        start = b'{"role":"' + message.role.encode() + b'","content":['
        return [start, *interleave(message.blocks), b"]}"]

    def _is_heard(self, piece: Piece) -> bool:
        """Whether a message of the user's contains something that others said."""
        return not (piece.role == "system" and self._midway)


def _push_user(recent: list[_Message], user: list[Block], system: list[Block]) -> None:
    if recent and recent[-1].role == "system":
        # An empty reply stood between: the two sides become one, its system text at the end.
        system = [*recent.pop().blocks, *system]
    if recent and recent[-1].role == "user":
        recent[-1].blocks += user
    else:
        recent.append(_Message("user", user or [_CONTINUE]))
    if system:
        recent.append(_Message("system", system))


def _interrupted(call: str) -> Block:
    content = [{"type": "text", "text": INTERRUPTED}]
    result = {"type": "tool_result", "tool_use_id": call, "is_error": True, "content": content}
    return (encode_json(result),)
