"""Counting for llama.cpp: exact, with the model's own template and vocabulary."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister
from vibe_llms.providers.interfaces import Loader, Model, TokenCount, refuse_loading


class LlamacppConversationTokenizer:
    """Counts what a model would be given; `measure` has its thread do so."""

    def __init__(
        self,
        measure: Callable[[Sequence[Canister], Sequence[Invoker], Model, Loader], Awaitable[int]],
    ) -> None:
        self._measure = measure

    async def count(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        model: Model,
        load: Loader = refuse_loading,
    ) -> TokenCount:
        """How many tokens the model would read, template and tools included; loads the model."""
        return TokenCount(await self._measure(canisters, invokers, model, load), estimated=False)
