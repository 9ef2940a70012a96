"""Counting for Ollama, whose interface has no counting: estimates that say so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister
from vibe_llms.providers.interfaces import Loader, Model, TokenCount, refuse_loading
from vibe_llms.providers.measures import Measure


class OllamaConversationTokenizer:
    """Estimates; `measure` gives how large a conversation is on the wire."""

    def __init__(
        self,
        measure: Callable[
            [Sequence[Canister], Sequence[Invoker], Model, Loader], Awaitable[Measure]
        ],
    ) -> None:
        self._measure = measure

    async def count(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        model: Model,
        load: Loader = refuse_loading,
    ) -> TokenCount:
        """About how many tokens the model would read, tools and system text included."""
        measure = await self._measure(canisters, invokers, model, load)
        return TokenCount(measure.likely, estimated=True)
