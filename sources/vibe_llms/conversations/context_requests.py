"""The request that a digest makes shorter, and the function that asks a model for its summary."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec import Struct

from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, DigestCanister, ReplyCanister
from vibe_llms.providers.interfaces import Loader, Model, Notifier


class Asking(Protocol):
    """A function that sends a request without showing or storing the reply."""

    def __call__(
        self,
        messages: Sequence[Canister],
        *,
        tools: bool = True,
        natively: bool = False,
        prompt: str = "",
    ) -> Awaitable[Sequence[ReplyCanister]]:
        """Return the reply; `tools` are the same as in other requests, or none.

        With `natively`, the provider summarizes the messages, by its own prompt or by `prompt`.
        """
        ...


class NextRequest(Struct, frozen=True):
    """The next request of a turn: its messages and tools, and the model that gets it.

    It also has the messages `said`, which no digest leaves out. `ask` sends other requests to the
    model.
    """

    model: Model
    messages: Sequence[Canister]
    tools: Sequence[Invoker]
    ask: Asking
    notify: Notifier
    said: Sequence[Canister] = ()


class SummaryFailures(Struct):
    """Number of summaries of a conversation, one after the other, that could not be used."""

    count: int = 0


class CompactionRequest(Struct, frozen=True, kw_only=True):
    """The conversation to compact.

    `messages` are all its messages without digests, with the texts of documents; `load` loads their
    contents. `next` is the next request, which has `tokens`. The model accepts `window`, and the
    digest aims at `target`. `confirm` is awaited before a digest is made, and returns False to
    prevent that. With `manual`, the user has asked for it, and `focus` is the user's wish for the
    summary.
    """

    messages: Sequence[Canister]
    load: Loader
    next: NextRequest
    digest: DigestCanister | None
    tokens: int
    window: int
    target: int
    confirm: Callable[[], Awaitable[bool]]
    failures: SummaryFailures
    manual: bool = False
    focus: str = ""
