"""Pieces put together to the messages of a request that Ollama, and the models' templates, accept.

A history is folded once: each canister is encoded when it is first seen, and what can no longer
change becomes one run of bytes. A turn therefore costs what it adds, and the joining of bytes.

The server itself takes nearly any order of messages, but it renders them by the template that came
with the model, and many of these raise where roles do not alternate, where system text stands
elsewhere than at the beginning, or where the first message is not a user's. What a history need not
fulfil of that is mended here, on the way out only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import count

import msgspec
from msgspec import Struct

from vibe_llms.events import Notice
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
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.measures import Measure
from vibe_llms.providers.ollama.messages import OllamaMessagesProcessor, Piece
from vibe_llms.providers.pieces import Baked, Fragment, Slot, encode_json, interleave

_UNBAKED_MESSAGES = 2
_BEGIN = b"(The conversation begins.)"
_CONTINUE = b"(Please continue.)"
_NOTHING = b"(It returned nothing.)"
_BREAK = b"\\n\\n"
_CALL = re.compile(r"[a-zA-Z0-9_.:-]{1,128}")


class _Message(Struct):
    role: str
    texts: list[bytes] = []
    pictures: list[Slot] = []
    thinking: list[bytes] = []
    calls: list[bytes] = []
    about: bytes = b""

    @property
    def blank(self) -> bool:
        """Whether it says nothing to anybody."""
        return not (self.texts or self.pictures or self.calls)

    def take(self, piece: Piece | _Message) -> None:
        """Add what another one says."""
        self.texts += piece.texts
        self.pictures += piece.pictures
        self.thinking += piece.thinking

    def frame(self) -> list[Fragment]:
        """The message as JSON."""
        start = b'{"role":"' + self.role.encode() + b'","content":"'
        start += _BREAK.join(self.texts) + b'"' + self.about
        if self.thinking:
            start += b',"thinking":"' + _BREAK.join(self.thinking) + b'"'
        if self.calls:
            start += b',"tool_calls":[' + b",".join(self.calls) + b"]"
        if not self.pictures:
            return [start + b"}"]
        return [start + b',"images":[', *interleave((slot,) for slot in self.pictures), b"]}"]


class _Call(Struct, frozen=True):
    identity: str
    name: str


class _Open:
    """What is not closed yet: an assistant's message, or what the user's side says after it.

    `calls` are identities on the wire to the calls, `answers` to what they returned.
    """

    def __init__(self) -> None:
        self.assistant = _Message("assistant")
        self.user = _Message("user")
        self.reply = ""
        self.calls: dict[str, _Call] = {}
        self.answers: dict[str, _Message] = {}

    @property
    def answered(self) -> bool:
        """Whether the user's side has begun."""
        return bool(self.answers) or not self.user.blank


class History:
    """The messages of one conversation for one model; grows as the conversation does.

    `measure` is how large it is, and `hidden` its reasoning. The pictures of the canisters
    `without` give way to words.
    """

    def __init__(
        self,
        processor: OllamaMessagesProcessor,
        model: Model,
        without: AbstractSet[str] = frozenset(),
    ) -> None:
        self.measure = Measure()
        self.hidden = Measure()
        self.without = without
        self._processor = processor
        self._model = model
        self._native = model.attributes.tools == "native"
        self._system: list[bytes] = []
        self._baked = Baked()
        self._recent: list[_Message] = []
        self._open = _Open()
        self._calls: set[str] = set()
        self._begun = False

    def add(self, canister: Canister, texts: Mapping[str, bytes]) -> Sequence[Notice]:
        """Take the next canister; the notices tell what of it is not sent as it is."""
        call = ""
        if isinstance(canister, InvocationCanister):
            call = next(call for call in _name_call(canister, self._calls) if self._is_free(call))
        elif isinstance(canister, ResultCanister) and not (call := self._find_call(canister)):
            canister = _unpaired(canister)
        piece, notices = self._processor.nativize(
            canister, self._model, texts, call=call, without=self.without
        )
        self.measure += piece.measure
        self.hidden += piece.hidden
        match canister:
            case UnknownCanister():
                pass
            case SupervisorCanister() if not self._begun:
                self._system += piece.texts
            case AssistantCanister() | InvocationCanister():
                self._begun = True
                self._add_reply(canister, piece, call)
            case ResultCanister():
                self._open.answers[call] = self._produce_answer(canister, piece, call)
            case _:
                self._begun = True
                self._add_other(canister, piece)
        return notices

    def messages(self) -> list[Fragment]:
        """The start of the body: its messages."""
        recent = [_copy(message) for message in self._recent]
        self._push(recent, last=True)
        fragments: list[Fragment] = [b'{"messages":[']
        if self._system:
            fragments += [*_Message("system", self._system).frame(), b","]
        fragments += self._baked.fragments()
        for index, message in enumerate(recent):
            if index or self._baked.count:
                fragments.append(b",")
            fragments += message.frame()
        return [*fragments, b"]"]

    def _is_free(self, call: str) -> bool:
        return bool(_CALL.fullmatch(call)) and call not in self._calls

    def _find_call(self, canister: ResultCanister) -> str:
        """The call of the open message that a result answers, or nothing."""
        state = self._open
        waiting = (
            call
            for call, made in state.calls.items()
            if made.identity == canister.invocation and call not in state.answers
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
        state.assistant.take(piece)
        if isinstance(canister, InvocationCanister):
            self._calls.add(call)
            state.calls[call] = _Call(canister.identity, canister.name)
            if self._native:
                state.assistant.calls.append(piece.call)

    def _add_other(self, canister: Canister, piece: Piece) -> None:
        user = self._open.user
        if isinstance(canister, SupervisorCanister) and piece.texts:
            user.texts += [b"<system>", *piece.texts, b"</system>"]
            return
        user.take(piece)

    def _produce_answer(self, canister: ResultCanister, piece: Piece, call: str) -> _Message:
        name = self._processor.encode_name(self._open.calls[call].name)
        texts = [*piece.texts] or ([] if piece.pictures else [_NOTHING])
        if canister.failed:
            texts.insert(0, b"(The call failed.)")
        about = b',"tool_name":' + name + b',"tool_call_id":' + encode_json(call)
        return _Message("tool", texts, list(piece.pictures), about=about)

    def _close(self) -> None:
        """The open messages are complete: nothing that comes changes them any more."""
        self._push(self._recent, last=False)
        self._open = _Open()
        while len(self._recent) > _UNBAKED_MESSAGES:
            self._baked.append(self._recent.pop(0).frame())

    def _push(self, recent: list[_Message], *, last: bool) -> None:
        """Put the open messages to the recent ones."""
        state = self._open
        user = _Message("user")
        answers: list[_Message] = []
        for call, made in state.calls.items():
            answer = state.answers.get(call) or self._interrupt(made, call)
            if not self._native:
                name = encode_json(f"The tool {made.name} returned:")[1:-1]
                user.texts += [name, *answer.texts]
                user.pictures += answer.pictures
                continue
            if answer.pictures:
                # Pictures are shown by the user's side alone: few templates know others.
                user.texts.append(encode_json(f"(What {made.name} showed is here.)")[1:-1])
                user.pictures += answer.pictures
                answer = _copy(answer)
                answer.pictures = []
                answer.texts = answer.texts or [b"(It showed what follows.)"]
            answers.append(answer)
        user.take(state.user)
        if not state.assistant.blank:
            if not recent and not self._baked.count:
                recent.append(_Message("user", [_BEGIN]))
            recent.append(_copy(state.assistant))
            recent += answers
            if user.blank and not answers:
                user.texts.append(_CONTINUE)
        elif user.blank and last and not recent:
            user.texts.append(_CONTINUE)
        if user.blank:
            return
        if recent and recent[-1].role == "user":
            # An empty reply stood between.
            recent[-1].take(user)
        else:
            recent.append(user)

    def _interrupt(self, made: _Call, call: str) -> _Message:
        result = ResultCanister(
            (TextualContent(INTERRUPTED),), invocation=made.identity, failed=True
        )
        piece, _ = self._processor.nativize(result, self._model, {})
        return self._produce_answer(result, piece, call)


def _copy(message: _Message) -> _Message:
    lists = {
        name: list(getattr(message, name)) for name in ("texts", "pictures", "thinking", "calls")
    }
    return msgspec.structs.replace(message, **lists)


def _name_call(canister: InvocationCanister, taken: AbstractSet[str]) -> Iterator[str]:
    """Identities of a call on the wire: the provider's own where it may serve, else ours."""
    yield canister.call
    yield f"call_{canister.identity.replace('-', '')}"
    yield from (f"call_{number}" for number in count(len(taken)))


def _unpaired(canister: ResultCanister) -> UserCanister:
    """A result whose call is not in its place: said in words, since it cannot be paired."""
    return UserCanister(
        (TextualContent("A tool returned:"), *canister.contents), identity=canister.identity
    )
