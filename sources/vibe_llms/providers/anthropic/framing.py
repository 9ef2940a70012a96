"""Pieces put together to the messages of a request that Anthropic accepts.

A history is folded once: each canister is encoded when it is first seen, and what can no longer
change becomes one run of bytes. A turn therefore costs what it adds, and the joining of bytes.

What the interface demands and a history need not fulfil is mended here, on the way out only: every
call has its result in the message after it, tools of the server's have returned, roles alternate,
the first message is a user's, no message is empty or ends with thinking, system text stands where
it may.

Source: the rules for system messages are those of
https://platform.claude.com/docs/en/build-with-claude/mid-conversation-system-messages (2026-06).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from msgspec import Struct

from vibe_llms.events import Notice
from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
    StopReason,
    SupervisorCanister,
    UnknownCanister,
    UserCanister,
)
from vibe_llms.messages.contents import TextualContent
from vibe_llms.providers.anthropic.controls import read_native
from vibe_llms.providers.anthropic.messages import (
    MODULE,
    AnthropicMessagesProcessor,
    Piece,
    is_call_identity,
)
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.pieces import (
    Baked,
    Block,
    Fragment,
    append_member,
    encode_json,
    interleave,
)

_UNBAKED_MESSAGES = 6
_BEGIN = b'{"type":"text","text":"(The conversation begins.)"}'
_CONTINUE = b'{"type":"text","text":"(Please continue.)"}'
_SEVERED = b'{"type":"text","text":"(A tool of the server was called here and did not return.)"}'


class _Message(Struct):
    role: str
    blocks: list[Block]


class _Open:
    """What is not closed yet: an assistant's message, or what the user's side says after it.

    `thinking` counts the thinking at the end of the message, `thinks` tells whether it begins with
    some. `running` are the places of calls that the server itself carries out, by their identities,
    as long as no result has come; `calls` are ours, identities on the wire to those of canisters.
    """

    def __init__(self) -> None:
        self.assistant: list[Block] = []
        self.thinking = 0
        self.thinks = False
        self.running: dict[str, int] = {}
        self.reply = ""
        self.paused = False
        self.calls: dict[str, str] = {}
        self.answers: dict[str, Block] = {}
        self.user: list[Block] = []
        self.system: list[Block] = []

    @property
    def answered(self) -> bool:
        """Whether the user's side has begun."""
        return bool(self.user or self.system or self.answers)

    @property
    def silent(self) -> bool:
        """Whether nothing of the assistant's is sent."""
        return self.thinking == len(self.assistant)

    def finish(self, *, last: bool) -> list[Block]:
        """The blocks of the assistant's message, fit to be sent; `last` if nothing follows."""
        blocks = list(self.assistant)
        if not (last and self.paused):
            for place in self.running.values():
                blocks[place] = (_SEVERED,)
        return blocks[: len(blocks) - self.thinking]

    def results(self) -> list[Block]:
        """A result for each call, in their order."""
        return [self.answers.get(call) or _interrupted(call) for call in self.calls]


class History:
    """The messages of one conversation for one model; grows as the conversation does."""

    def __init__(
        self, processor: AnthropicMessagesProcessor, model: Model, *, citing: bool = True
    ) -> None:
        self._processor = processor
        self._model = model
        self._citing = citing
        self._midway = read_native(model).system_messages
        self._system: list[Block] = []
        self._baked = Baked(b'{"messages":[')
        self._recent: list[_Message] = []
        self._open = _Open()
        self._calls: set[str] = set()
        self._begun = False
        # Whether the present run of calls and results began with thinking; nothing outside of one.
        # Where something else is said with the results, the interface does not say whether the run
        # goes on, so the second of them counts from there.
        self._thought: bool | None = None
        self._thought_since: bool | None = None

    def add(self, canister: Canister, texts: Mapping[str, bytes]) -> Sequence[Notice]:
        """Take the next canister; the notices tell what of it is not sent as it is."""
        call = ""
        told: list[Notice] = []
        if isinstance(canister, InvocationCanister):
            call = next(call for call in self._name_call(canister) if self._is_free(call))
        elif isinstance(canister, ResultCanister) and not (call := self._find_call(canister)):
            canister = _unpaired(canister)
            address = f"{self._model.provider}/{self._model.name}"
            text = f"a result that does not follow its call is said in words for {address}"
            told.append(Notice("conversion", text, canister.identity))
        piece, notices = self._processor.nativize(
            canister, self._model, texts, call=call, citing=self._citing
        )
        match canister:
            case UnknownCanister():
                pass
            case SupervisorCanister() if not self._begun:
                self._system += piece.blocks
            case AssistantCanister() | InvocationCanister():
                self._begun = True
                self._add_reply(canister, piece, call)
            case ResultCanister():
                self._open.answers[call] = piece.blocks[0]
            case _:
                self._begun = True
                self._add_other(canister, piece)
        return [*told, *notices]

    def messages(self, mark: bytes) -> list[Fragment]:
        """The start of the body, its messages; `mark` is put on the last two of the user's.

        They come first in the body because nothing before them may change from turn to turn.
        """
        recent = [_Message(message.role, list(message.blocks)) for message in self._recent]
        self._push(recent, last=True)
        if mark:
            users = [message for message in recent if message.role == "user"]
            for message in users[-2:]:
                message.blocks[-1] = append_member(message.blocks[-1], mark)
        fragments = self._baked.fragments()
        for index, message in enumerate(recent):
            if index or self._baked.count:
                fragments.append(b",")
            fragments += _frame(message)
        return [*fragments, b"]"]

    def system(self, mark: bytes) -> list[Fragment]:
        """The system text at the head of the request, as members of an array."""
        if not self._system:
            return []
        *blocks, last = self._system
        return interleave([*blocks, append_member(last, mark) if mark else last])

    @property
    def forbids_thinking(self) -> bool:
        """Whether a run of calls goes on that began without thinking.

        Then `thinking` of the type `enabled` is refused: such a run has to begin with some.
        """
        state = self._open
        begun = (self._thought, self._thought_since)
        if state.silent:
            return False in begun
        thought = all(state.thinks if one is None else one for one in begun)
        return bool(state.calls) and not thought

    def _name_call(self, canister: InvocationCanister) -> Iterator[str]:
        """Identities of a call on the wire: the provider's own where it may serve, else ours."""
        yield canister.call
        yield f"toolu_{canister.identity.replace('-', '')}"
        yield from (f"toolu_{number}" for number in count(len(self._calls)))

    def _is_free(self, call: str) -> bool:
        return is_call_identity(call) and call not in self._calls

    def _find_call(self, canister: ResultCanister) -> str:
        """The call of the open message that a result answers, or nothing."""
        state = self._open
        waiting = (
            call
            for call, identity in state.calls.items()
            if identity == canister.invocation and call not in state.answers
        )
        return next(waiting, "")

    def _add_reply(
        self, canister: AssistantCanister | InvocationCanister, piece: Piece, call: str
    ) -> None:
        state = self._open
        if state.answered or (state.calls and state.reply != canister.reply):
            self._close()
            state = self._open
        state.reply = canister.reply
        if not state.assistant:
            state.thinks = piece.thinks
        for identity, place in piece.running.items():
            state.running[identity] = len(state.assistant) + place
        for identity in piece.returned:
            state.running.pop(identity, None)
        whole = piece.thinking == len(piece.blocks)
        state.thinking = state.thinking + piece.thinking if whole else piece.thinking
        state.assistant += piece.blocks
        state.paused = len(piece.blocks) > piece.thinking and self._has_paused(canister)
        if isinstance(canister, InvocationCanister):
            self._calls.add(call)
            state.calls[call] = canister.identity

    def _has_paused(self, canister: AssistantCanister | InvocationCanister) -> bool:
        """Whether a reply waits to be gone on with, which only the model that paused can do."""
        provenance, ending = canister.provenance, canister.ending
        if provenance is None or ending is None or ending.reason != StopReason.PAUSED:
            return False
        own = (MODULE, self._model.provider, self._model.name)
        return (provenance.module, provenance.row, provenance.model) == own

    def _add_other(self, canister: Canister, piece: Piece) -> None:
        state = self._open
        match canister:
            case SupervisorCanister() if self._midway:
                state.system += piece.blocks
            case SupervisorCanister():
                for block in piece.blocks:
                    state.user += [(b'{"type":"text","text":"<system>"}',), block]
                    state.user.append((b'{"type":"text","text":"</system>"}',))
            case _:
                state.user += piece.blocks

    def _close(self) -> None:
        """The open messages are complete: nothing that comes changes them any more."""
        state = self._open
        self._push(self._recent, last=False)
        if state.silent:
            # What is said before and after it becomes one message of the user's.
            self._thought_since = None if state.user else self._thought_since
        elif not state.calls:
            self._thought = self._thought_since = None
        else:
            self._thought = state.thinks if self._thought is None else self._thought
            since = state.thinks if self._thought_since is None else self._thought_since
            self._thought_since = None if state.user else since
        self._open = _Open()
        while len(self._recent) > _UNBAKED_MESSAGES:
            self._baked.append(_frame(self._recent.pop(0)))

    def _push(self, recent: list[_Message], *, last: bool) -> None:
        """Put the open messages to the recent ones."""
        state = self._open
        user = [*state.results(), *state.user]
        silent = not user and not state.system
        blocks = state.finish(last=last and silent)
        if blocks:
            if not recent:
                recent.append(_Message("user", [(_BEGIN,)]))
            recent.append(_Message("assistant", blocks))
        if silent:
            if blocks and state.paused:
                # Only what paused goes on when it is sent its own words; any other message of the
                # assistant's at the end would be a prefill, which newer models refuse.
                return
            user.append((_CONTINUE,))
        _push_user(recent, user, list(state.system))


def _push_user(recent: list[_Message], user: list[Block], system: list[Block]) -> None:
    if recent and recent[-1].role == "system":
        # An empty reply stood between: the two sides become one, its system text at the end.
        system = [*recent.pop().blocks, *system]
    if recent and recent[-1].role == "user":
        recent[-1].blocks += user
    else:
        recent.append(_Message("user", user or [(_CONTINUE,)]))
    if system:
        recent.append(_Message("system", system))


def _interrupted(call: str) -> Block:
    return (
        encode_json(
            {
                "type": "tool_result",
                "tool_use_id": call,
                "is_error": True,
                "content": [{"type": "text", "text": INTERRUPTED}],
            }
        ),
    )


def _unpaired(canister: ResultCanister) -> UserCanister:
    """A result whose call is not in its place: said in words, since it cannot be paired."""
    return UserCanister(
        (TextualContent("A tool returned:"), *canister.contents), identity=canister.identity
    )


def _frame(message: _Message) -> list[Fragment]:
    start = b'{"role":"' + message.role.encode() + b'","content":['
    return [start, *interleave(message.blocks), b"]}"]
