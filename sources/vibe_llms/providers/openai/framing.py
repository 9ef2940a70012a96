"""What both interfaces demand of a history, mended on the way out, and encoded once.

Every call has its result right after it, in the order of the calls, and an identity of its own. A
history is folded once: each canister is encoded when it is first seen, and what can no longer
change becomes one run of bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

from vibe_llms.events import Notice
from vibe_llms.messages.canisters import (
    AssistantCanister,
    Canister,
    InvocationCanister,
    ResultCanister,
    UnknownCanister,
    UserCanister,
)
from vibe_llms.messages.contents import TextualContent
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.openai.controls import read_native
from vibe_llms.providers.pieces import Baked, Block, Fragment

P = TypeVar("P")

#: What a history that ends or begins with the assistant is given, since local models need it.
BEGIN = "(The conversation begins.)"
CONTINUE = "(Please continue.)"
_CALL = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_SHORT_CALL = re.compile(r"[a-zA-Z0-9]{9}")
_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"

Nativize = Callable[..., tuple[P, Sequence[Notice]]]


class Open(Generic[P]):
    """What is not closed yet: an assistant's reply, its results, and what is said after them.

    `calls` are identities on the wire to those of canisters. `kept` counts the pieces of `spoken`
    that the server keeps itself.
    """

    def __init__(self) -> None:
        self.reply = ""
        self.spoken: list[P] = []
        self.kept = 0
        self.calls: dict[str, str] = {}
        self.answers: dict[str, P] = {}
        self.others: list[P] = []

    @property
    def answered(self) -> bool:
        """Whether something was said after the reply."""
        return bool(self.answers or self.others)

    def since(self) -> Open[P]:
        """The same without what the server keeps."""
        later: Open[P] = Open()
        later.spoken = self.spoken[self.kept :]
        later.calls, later.answers, later.others = self.calls, self.answers, self.others
        return later


class Framer(Protocol[P]):
    """Turns what is open into members of the request."""

    def is_empty(self, piece: P) -> bool:
        """Whether nothing of a canister is sent."""
        ...

    def frame(self, state: Open[P], *, first: bool, last: bool) -> Iterator[Block]:
        """The members; `first` if none stands before them, `last` if none follows."""
        ...


class History(Generic[P]):
    """The messages of one conversation for one model; grows as the conversation does."""

    def __init__(
        self, start: bytes, model: Model, nativize: Nativize[P], framer: Framer[P]
    ) -> None:
        self._start = start
        self._model = model
        self._nativize = nativize
        self._framer = framer
        self._short = read_native(model).short_calls
        self._baked = Baked(start)
        self._open: Open[P] = Open()
        self._seen: set[str] = set()
        # What the server keeps already, if it keeps something: how to name it, and what came after.
        self.kept = ""
        self._later: Baked | None = None

    def add(self, canister: Canister, texts: Mapping[str, bytes]) -> Sequence[Notice]:
        """Take the next canister; the notices tell what of it is not sent as it is."""
        call = ""
        if isinstance(canister, InvocationCanister):
            call = next(call for call in self._name_call(canister) if self._is_free(call))
        elif isinstance(canister, ResultCanister) and not (call := self._find_call(canister)):
            canister = _unpaired(canister)
        piece, notices = self._nativize(canister, self._model, texts, call=call)
        match canister:
            case UnknownCanister():
                pass
            case AssistantCanister() | InvocationCanister():
                self._add_reply(canister, piece, call)
            case ResultCanister():
                self._open.answers[call] = piece
            case _ if not self._framer.is_empty(piece):
                self._open.others.append(piece)
        return notices

    def keep(self, response: str) -> None:
        """The server keeps what was said so far under this name."""
        if self._open.answered:
            # The reply was empty, so that nothing stands after what it answers.
            self._close()
        self.kept = response
        self._later = Baked(self._start)
        self._open.kept = len(self._open.spoken)

    def fragments(self, *, later: bool = False) -> list[Fragment]:
        """The start of the body, its messages; `later` for those that the server does not keep."""
        baked, state = self._baked, self._open
        if later and self._later is not None:
            baked, state = self._later, self._open.since()
        fragments = baked.fragments()
        first = not baked.count
        for block in self._framer.frame(state, first=first, last=True):
            if not first:
                fragments.append(b",")
            first = False
            fragments += block
        return [*fragments, b"]"]

    def _name_call(self, canister: InvocationCanister) -> Iterator[str]:
        """Identities of a call on the wire: the provider's own where it may serve, else ours."""
        yield canister.call
        if not self._short:
            yield f"call_{canister.identity.replace('-', '')}"
        for number in count():
            yield _shorten(f"{canister.identity}/{number}")

    def _is_free(self, call: str) -> bool:
        form = _SHORT_CALL if self._short else _CALL
        return call not in self._seen and bool(form.fullmatch(call))

    def _find_call(self, canister: ResultCanister) -> str:
        """The call of the open reply that a result answers, or nothing."""
        state = self._open
        waiting = (
            call
            for call, identity in state.calls.items()
            if identity == canister.invocation and call not in state.answers
        )
        return next(waiting, "")

    def _add_reply(
        self, canister: AssistantCanister | InvocationCanister, piece: P, call: str
    ) -> None:
        if self._framer.is_empty(piece):
            return
        state = self._open
        if state.answered or (state.calls and state.reply != canister.reply):
            self._close()
            state = self._open
        state.reply = canister.reply
        state.spoken.append(piece)
        if isinstance(canister, InvocationCanister):
            self._seen.add(call)
            state.calls[call] = canister.identity

    def _close(self) -> None:
        """What is open is complete: nothing that comes changes it any more."""
        state, self._open = self._open, Open()
        for block in self._framer.frame(state, first=not self._baked.count, last=False):
            self._baked.append(block)
        if self._later is not None:
            first = not self._later.count
            for block in self._framer.frame(state.since(), first=first, last=False):
                self._later.append(block)


def _shorten(text: str) -> str:
    number = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8])
    letters = []
    for _ in range(9):
        number, index = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[index])
    return "".join(letters)


def _unpaired(canister: ResultCanister) -> UserCanister:
    """A result whose call is not in its place: said in words, since it cannot be paired."""
    return UserCanister(
        (TextualContent("A tool returned:"), *canister.contents), identity=canister.identity
    )


def read_tools(extras: Mapping[str, Any]) -> Sequence[Any]:
    """The tools that are given as they are."""
    tools = extras.get("tools", ())
    return tools if isinstance(tools, list | tuple) else ()
