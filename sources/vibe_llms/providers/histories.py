"""Requirements of all wires for histories: calls have results, and roles take turns.

A history is folded as it grows. Each canister becomes a piece of the wire when it is first seen.
Pieces gather in the open exchange, the only part that later canisters can still change. A closed
exchange is framed once and kept as bytes, so that a turn costs only what it adds.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import ClassVar, Generic, TypeVar

from msgspec import Struct

from vibe_llms.invocation.execution import INTERRUPTED
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
    SupervisorCanister,
    UnknownCanister,
    UserCanister,
)
from vibe_llms.messages.contents import TextualContent
from vibe_llms.messages.events import Notice
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.pieces import Baked, Block, Fragment

#: Texts for places where a wire requires text and the history has none.
BEGIN = "(The conversation begins.)"
CONTINUE = "(Please continue.)"
FAILED = "(The call failed.)"
NOTHING = "(It returned nothing.)"

P = TypeVar("P")
M = TypeVar("M")


def pair_calls(canisters: Sequence[Canister]) -> Iterator[Canister]:
    """Yield a history in which every call has its result before the conversation goes on.

    A call without a result gets one that says so; a result of no call becomes a user message.
    """
    waiting: dict[str, InvocationCanister] = {}
    for canister in canisters:
        if isinstance(canister, ResultCanister):
            called = waiting.pop(canister.invocation, None)
            yield unpair(canister) if called is None else canister
            continue
        reply = getattr(canister, "reply", None)
        if not all(call.reply == reply for call in waiting.values()):
            yield from _interrupt(waiting)
        if isinstance(canister, InvocationCanister):
            waiting[canister.identity] = canister
        yield canister
    yield from _interrupt(waiting)


def _interrupt(waiting: dict[str, InvocationCanister]) -> Iterator[ResultCanister]:
    """Yield results of the calls that have none, and forget the calls."""
    for call in waiting:
        text = TextualContent(INTERRUPTED)
        yield ResultCanister((text,), identity=call, invocation=call, failed=True)
    waiting.clear()


def unpair(canister: ResultCanister) -> UserCanister:
    """Turn a result that does not follow its call into a user message."""
    return UserCanister(
        (TextualContent("A tool returned:"), *canister.contents), identity=canister.identity
    )


class Exchange(Generic[P]):
    """Reply of the assistant, the results of its calls, and what others said after it.

    `calls` are the calls by their ids on the wire, `answers` the results by the same ids.
    """

    def __init__(self) -> None:
        self.reply = ""
        self.spoken: list[P] = []
        self.calls: dict[str, InvocationCanister] = {}
        self.answers: dict[str, P] = {}
        self.others: list[P] = []

    @property
    def answered(self) -> bool:
        """True if the user's side has begun."""
        return bool(self.answers or self.others)


class ThinkingRun:
    """The current run of calls and results, which has to begin with thinking if that is enabled.

    If other contents come with the results, Anthropic does not say whether the run continues, so it
    also counts from there.
    """

    def __init__(self) -> None:
        # True if the run began with thinking; None outside of a run.
        self._thought: bool | None = None
        self._thought_since: bool | None = None

    def close(self, *, silent: bool, thinks: bool, called: bool, heard: bool) -> None:
        """Add a closed exchange.

        `silent` is True if nothing of the assistant is sent, so that the text before and after it
        becomes one user message; `thinks` if its message begins with thinking; `called` if it has
        calls; `heard` if the user's message has more than results.
        """
        if silent:
            self._thought_since = None if heard else self._thought_since
        elif not called:
            self._thought = self._thought_since = None
        else:
            self._thought = thinks if self._thought is None else self._thought
            since = thinks if self._thought_since is None else self._thought_since
            self._thought_since = None if heard else since

    def forbids(self, *, silent: bool, thinks: bool, called: bool) -> bool:
        """Return True if a request must not enable thinking, with an open exchange like this."""
        begun = (self._thought, self._thought_since)
        if silent:
            return False in begun
        return called and not all(thinks if one is None else one for one in begun)


class WireHistory(ABC, Generic[P]):
    """Messages of one conversation for one model, which grow as the conversation does.

    `call_form` is the form of a call's id on this wire, `call_prefix` the start of a generated id.
    If `heads` is True, instructions at the very beginning are kept apart.
    """

    call_form: re.Pattern[str]
    call_prefix: ClassVar[str] = "call_"
    heads: ClassVar[bool] = True

    def __init__(self, model: Model) -> None:
        self.model = model
        self.instructions: list[P] = []
        self.open: Exchange[P] = Exchange()
        self._calls: set[str] = set()
        self._begun = False

    @abstractmethod
    def nativize(
        self, canister: Canister, texts: Mapping[str, bytes], call: str
    ) -> tuple[P, Sequence[Notice]]:
        """Return the piece of a canister; `call` is the id on the wire of a call or its result."""

    @abstractmethod
    def is_empty(self, piece: P) -> bool:
        """Return True if the piece is omitted from the request."""

    @abstractmethod
    def append_exchange(self, exchange: Exchange[P]) -> None:
        """Keep a closed exchange, which no later canister changes."""

    def add(self, canister: Canister, texts: Mapping[str, bytes]) -> Sequence[Notice]:
        """Add the next canister; return notices of what is not sent unchanged."""
        # Common kinds come first, because each check takes time.
        call = ""
        match canister:
            case UserCanister() | AssistantCanister():
                pass
            case InvocationCanister():
                call = next(call for call in self.propose_calls(canister) if self.is_free(call))
            case ResultCanister():
                answered = self._find_call(canister)
                canister = self.unpair(canister) if answered is None else canister
                call = answered or ""
        piece, notices = self.nativize(canister, texts, call)
        match canister:
            case UserCanister():
                self._hear(piece)
            case AssistantCanister() | InvocationCanister():
                self._begun = True
                self.add_reply(canister, piece, call)
            case ResultCanister():
                self.open.answers[call] = piece
            case UnknownCanister():
                pass
            case SupervisorCanister() if self.heads and not self._begun:
                self.instructions.append(piece)
            case _:
                self._hear(piece)
        return notices

    def _hear(self, piece: P) -> None:
        """Add a message of a user, a document, or a supervisor."""
        self._begun = True
        if not self.is_empty(piece):
            self.open.others.append(piece)

    def add_reply(
        self, canister: AssistantCanister | InvocationCanister, piece: P, call: str
    ) -> None:
        """Add a part of a reply; after results, or calls of another reply, open a new exchange."""
        state = self.open
        if state.answered or (state.calls and state.reply != canister.reply):
            self.close()
            state = self.open
        state.reply = canister.reply
        state.spoken.append(piece)
        if isinstance(canister, InvocationCanister):
            self._calls.add(call)
            state.calls[call] = canister

    def close(self) -> None:
        """Close the open exchange."""
        exchange, self.open = self.open, Exchange()
        self.append_exchange(exchange)

    def propose_calls(self, canister: InvocationCanister) -> Iterator[str]:
        """Yield ids of a call on the wire, the provider's own first."""
        yield canister.call
        yield f"{self.call_prefix}{canister.identity.replace('-', '')}"
        yield from (f"{self.call_prefix}{number}" for number in count(len(self._calls)))

    def unpair(self, canister: ResultCanister) -> UserCanister:
        """Turn a result that does not follow its call into a user message."""
        return unpair(canister)

    def is_free(self, call: str) -> bool:
        """Return True if a call can have this id on the wire."""
        return bool(self.call_form.fullmatch(call)) and call not in self._calls

    def _find_call(self, canister: ResultCanister) -> str | None:
        """Return the call of the open exchange that a result answers, or None."""
        state = self.open
        waiting = (
            call
            for call, made in state.calls.items()
            if made.identity == canister.invocation and call not in state.answers
        )
        return next(waiting, None)


class MessageHistory(WireHistory[P], Generic[P, M]):
    """History of messages whose last ones may still grow; neighbors of one role are merged.

    The last `unbaked` messages stay as they are, the ones before are baked.
    """

    unbaked: ClassVar[int]

    def __init__(self, model: Model, start: bytes = b"") -> None:
        super().__init__(model)
        self.recent: list[M] = []
        self.baked = Baked(start)

    @abstractmethod
    def push(self, recent: list[M], exchange: Exchange[P], *, last: bool) -> None:
        """Append the messages of an exchange; `last` is True if no other follows."""

    @abstractmethod
    def copy(self, message: M) -> M:
        """Return a copy of a message that can be extended on its own."""

    @abstractmethod
    def frame(self, message: M) -> list[Fragment]:
        """Encode a message as JSON."""

    def append_exchange(self, exchange: Exchange[P]) -> None:
        """Keep a closed exchange."""
        self.push(self.recent, exchange, last=False)
        while self.is_settled():
            self.baked.append(self.frame(self.recent.pop(0)))

    def is_settled(self) -> bool:
        """Return True if the first message that is not baked can be baked."""
        return len(self.recent) > self.unbaked

    def current(self) -> list[M]:
        """Return the messages that are not baked, including the open exchange."""
        recent = [self.copy(message) for message in self.recent]
        self.push(recent, self.open, last=True)
        return recent

    def join(self, recent: Sequence[M]) -> list[Fragment]:
        """Return the baked messages and these, as members of an array."""
        fragments = self.baked.fragments()
        for index, message in enumerate(recent):
            if index or self.baked.count:
                fragments.append(b",")
            fragments += self.frame(message)
        return fragments


class MarkedMessage(Struct):
    """A message; `answered` is True if this model replied to it, so that a cache may end here."""

    role: str
    blocks: list[Block]
    answered: bool = False


class MarkedHistory(MessageHistory[P, MarkedMessage]):
    """History in which two messages of the user are marked as ends of a cache."""

    # Large enough that the messages that are marked are not baked.
    unbaked = 6
    #: Most messages that are not baked because the last one that this model answered is the first.
    most_unbaked = 200

    def find_marked(self, recent: Sequence[MarkedMessage]) -> list[MarkedMessage]:
        """Return the last message of the user, after the last one that this model has answered.

        There the cache of the previous request ends. Without a reply of this model, the first of
        them is the one before the last.
        """
        users = [message for message in recent if message.role == "user"]
        answered = [message for message in users[:-1] if message.answered]
        return [*(answered or users[:-1])[-1:], *users[-1:]]

    def is_settled(self) -> bool:
        """Return True if the first message can be baked: it will not be marked any more."""
        recent = self.recent
        if len(recent) <= self.unbaked:
            return False
        if not recent[0].answered or len(recent) > self.most_unbaked:
            return True
        return any(message.answered for message in recent[1:])

    def copy(self, message: MarkedMessage) -> MarkedMessage:
        """Return a copy of a message that can grow."""
        return MarkedMessage(message.role, list(message.blocks), message.answered)
