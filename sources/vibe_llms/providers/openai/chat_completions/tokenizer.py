"""Estimates tokens: Chat Completions has no endpoint that would count them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister
from vibe_llms.providers.interfaces import Loader, Model, TokenCount, refuse_loading
from vibe_llms.providers.pieces import Slot
from vibe_llms.providers.requests import Request

BYTES_A_TOKEN = 4
#: About what a picture of common size costs, or a page.
MEDIA_TOKENS = 1_000


class ChatCompletionsConversationTokenizer:
    """An estimate, and it says so; `encode` makes the request of a conversation."""

    def __init__(
        self,
        encode: Callable[
            [Sequence[Canister], Sequence[Invoker], Model, Loader], Awaitable[Request]
        ],
    ) -> None:
        self._encode = encode

    async def count(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        model: Model,
        load: Loader = refuse_loading,
    ) -> TokenCount:
        """About how many tokens the model would read: a quarter of the bytes of the request."""
        request = await self._encode(canisters, invokers, model, load)
        size, media = 0, 0
        for fragment in request.fragments:
            if not isinstance(fragment, Slot):
                size += len(fragment)
            elif fragment.encoding == "text":
                size += fragment.encoded_size
            else:
                media += 1
        tokens = -(-size // BYTES_A_TOKEN) + media * MEDIA_TOKENS
        return TokenCount(tokens, estimated=True)
