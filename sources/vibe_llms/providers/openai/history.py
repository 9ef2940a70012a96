"""History for both interfaces: results directly after their calls, and ids of its own.

If the server keeps the conversation, the part that it has is not sent again.
"""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod
from collections.abc import Iterator
from itertools import count
from typing import TypeVar

from vibe_llms.messages.canisters import AssistantCanister, InvocationCanister
from vibe_llms.providers.histories import Exchange, WireHistory
from vibe_llms.providers.interfaces import Model
from vibe_llms.providers.openai.controls import read_native
from vibe_llms.providers.pieces import Baked, Block, Fragment

P = TypeVar("P")

_SHORT_CALL = re.compile(r"[a-zA-Z0-9]{9}")
_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"


class OpenAIHistory(WireHistory[P]):
    """The members of one conversation for one model, after `start`.

    `kept` is the name under which the server keeps the conversation, if it does.
    """

    call_form = re.compile(r"[a-zA-Z0-9_-]{1,40}")
    heads = False

    def __init__(self, start: bytes, model: Model) -> None:
        super().__init__(model)
        self.kept = ""
        self._start = start
        self._baked = Baked(start)
        # Later members, with the pieces of the open reply that the server keeps too.
        self._later: Baked | None = None
        self._kept_pieces = 0
        self._short = read_native(model).short_calls
        if self._short:
            self.call_form = _SHORT_CALL

    @abstractmethod
    def frame(self, state: Exchange[P], *, first: bool, last: bool) -> Iterator[Block]:
        """Yield the members of an exchange; `first` and `last` mark its place in the request."""

    def add_reply(
        self, canister: AssistantCanister | InvocationCanister, piece: P, call: str
    ) -> None:
        """Add a part of a reply, unless it is empty."""
        if not self.is_empty(piece):
            super().add_reply(canister, piece, call)

    def keep(self, response: str) -> None:
        """Note that the server keeps the conversation so far under this name."""
        if self.open.answered:
            # The reply was empty, so nothing follows the message that it answers.
            self.close()
        self.kept = response
        self._later = Baked(self._start)
        self._kept_pieces = len(self.open.spoken)

    def append_exchange(self, exchange: Exchange[P]) -> None:
        """Keep an exchange that is closed."""
        for block in self.frame(exchange, first=not self._baked.count, last=False):
            self._baked.append(block)
        if self._later is not None:
            first = not self._later.count
            for block in self.frame(self._drop_kept(exchange), first=first, last=False):
                self._later.append(block)
        self._kept_pieces = 0

    def fragments(self, *, later: bool = False) -> list[Fragment]:
        """Return the start of the body with its members, with `later` only those not kept."""
        baked, state = self._baked, self.open
        if later and self._later is not None:
            baked, state = self._later, self._drop_kept(state)
        fragments = baked.fragments()
        first = not baked.count
        for block in self.frame(state, first=first, last=True):
            if not first:
                fragments.append(b",")
            first = False
            fragments += block
        return [*fragments, b"]"]

    def propose_calls(self, canister: InvocationCanister) -> Iterator[str]:
        """Yield candidate ids of a call on the wire, the provider's own first."""
        yield canister.call
        if not self._short:
            yield f"{self.call_prefix}{canister.identity.replace('-', '')}"
        for number in count():
            yield _shorten(f"{canister.identity}/{number}")

    def _drop_kept(self, exchange: Exchange[P]) -> Exchange[P]:
        """Return the exchange without the parts that the server keeps."""
        later: Exchange[P] = Exchange()
        later.spoken = exchange.spoken[self._kept_pieces :]
        later.calls, later.answers, later.others = exchange.calls, exchange.answers, exchange.others
        return later


def _shorten(text: str) -> str:
    number = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8])
    letters = []
    for _ in range(9):
        number, index = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[index])
    return "".join(letters)
