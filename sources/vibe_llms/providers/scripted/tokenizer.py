"""Counts tokens as a script can: by estimating."""

from __future__ import annotations

from collections.abc import Sequence

from vibe_llms.invocation.invokers import Invoker
from vibe_llms.messages.canisters import Canister
from vibe_llms.messages.codecs import encode_canister
from vibe_llms.providers.interfaces import Loader, Model, TokenCount, refuse_loading

_BYTES_PER_TOKEN = 4


class ScriptedConversationTokenizer:
    """An estimate: a token for every four bytes."""

    async def count(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        model: Model,
        load: Loader = refuse_loading,
    ) -> TokenCount:
        """The estimated number of tokens."""
        size = sum(len(encode_canister(canister)) for canister in canisters)
        return TokenCount(size // _BYTES_PER_TOKEN, estimated=True)
