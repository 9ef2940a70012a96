"""Estimates tokens: Chat Completions has no endpoint that would count them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister, InvocationCanister
from vibe_llms.messages.contents import Reference, TextualContent
from vibe_llms.providers.interfaces import Loader, Model, TokenCount, refuse_loading
from vibe_llms.providers.measures import measure_text
from vibe_llms.providers.pieces import Slot, load_texts
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
        """About how many tokens the model would read: a quarter of the bytes of the request.

        What its texts surely have is told where that can be too much.
        """
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
        if model.attributes.context_varies:
            return TokenCount(tokens, estimated=True)
        least = await _count_least(canisters, load)
        return TokenCount(max(tokens, least), estimated=True, at_least=least)


async def _count_least(canisters: Sequence[Canister], load: Loader) -> int:
    """How many tokens the texts and the calls of a conversation have at least."""
    texts = await load_texts(canisters, load)
    least = 0
    for canister in canisters:
        if isinstance(canister, InvocationCanister):
            least += measure_text(canister.arguments).least
        for content in canister.contents:
            match content:
                case TextualContent(data=Reference(hash=digest)):
                    least += measure_text(texts[digest].decode()).least
                case TextualContent(data=str() as text):
                    least += measure_text(text).least
                case _:
                    pass
    return least
