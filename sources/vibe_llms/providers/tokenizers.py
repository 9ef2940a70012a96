"""Counting by an endpoint of the provider's, which answers with the number of input tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec import Struct

from vibe_llms.exceptions import ReplyMalformed
from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister
from vibe_llms.providers.interfaces import Loader, Model, TokenCount, refuse_loading


class _Count(Struct):
    input_tokens: int


class AskingTokenizer:
    """Asks the server; `ask` sends a conversation to the counting endpoint."""

    def __init__(
        self,
        ask: Callable[[Sequence[Canister], Sequence[Invoker], Model, Loader], Awaitable[bytes]],
    ) -> None:
        self._ask = ask

    async def count(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        model: Model,
        load: Loader = refuse_loading,
    ) -> TokenCount:
        """The number of tokens that the model would read, tools and system text included."""
        body = await self._ask(canisters, invokers, model, load)
        try:
            count = msgspec.json.decode(body, type=_Count)
        except ValueError as error:
            raise ReplyMalformed(
                f"the count of tokens is not in {body[:80]!r}", provider=model.provider
            ) from error
        return TokenCount(count.input_tokens, estimated=False)
