"""The use of the context window by a conversation's next request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from msgspec import Struct

from vibe_llms.conversations.context_window import CHARACTERS_PER_TOKEN, measure_tokens
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import (
    Canister,
    DigestCanister,
    DocumentCanister,
    ResultCanister,
    SupervisorCanister,
)
from vibe_llms.providers.pieces import encode_json

#: Source of documents with recalled entries.
_MEMORY = "memory"


class ContextUse(Struct, frozen=True):
    """The tokens of the next request, before its new message.

    `parts` says what they are: `system`, `tools`, `digest`, `documents`, `memory`, `results`, and
    `talk`, which add up to `tokens`. The provider counted the tokens unless `estimated`. The model
    accepts `window`, which is assumed if it is not `known`. The conversation is compacted at
    `compact_at` tokens; None if it never is. `messages` is the number of messages, of which the
    digest summarizes `covered`. `price` is the estimated price of the tokens in US dollars without
    a cache, or None.
    """

    tokens: int
    window: int
    parts: Mapping[str, int]
    messages: int
    covered: int = 0
    known: bool = True
    estimated: bool = True
    compact_at: int | None = None
    price: Decimal | None = None

    @property
    def free(self) -> int:
        """Tokens that are left of the window."""
        return max(self.window - self.tokens, 0)


def divide_tokens(
    tokens: int,
    messages: Iterable[Canister],
    tools: Sequence[Invoker],
    digest: DigestCanister | None,
) -> Mapping[str, int]:
    """Divide the tokens of a request among its parts, in proportion to the characters."""
    parts: dict[str, int] = dict.fromkeys(
        ("system", "tools", "digest", "documents", "memory", "results", "talk"), 0
    )
    parts["tools"] = measure_tools(tools)
    for one in messages:
        summary = digest is not None and one.identity == digest.identity
        parts["digest" if summary else _part_of(one)] += measure_tokens(one)
    total = sum(parts.values())
    if not total:
        return {**parts, "talk": tokens}
    divided = {name: size * tokens // total for name, size in parts.items()}
    divided["talk"] += tokens - sum(divided.values())
    return divided


def measure_tools(tools: Iterable[Invoker]) -> int:
    """Return an estimate of the tokens of declared tools, by their characters."""
    size = sum(
        len(one.name) + len(one.description) + len(encode_json(one.arguments_schema))
        for one in tools
    )
    return size // CHARACTERS_PER_TOKEN


def _part_of(canister: Canister) -> str:
    match canister:
        case SupervisorCanister():
            return "system"
        case DocumentCanister(source=source):
            return "memory" if source == _MEMORY else "documents"
        case ResultCanister():
            return "results"
        case _:
            return "talk"
