"""Counting tokens; the server has nothing to ask, so it is an estimate."""

from collections.abc import Sequence

from vibe_llms import Canister, Invoker, TextualContent
from vibe_llms.providers.interfaces import Loader, Model, TokenCount, refuse_loading
from vibe_llms.providers.pieces import load_texts


class ShoutConversationTokenizer:
    """A word is a token."""

    async def count(
        self,
        canisters: Sequence[Canister],
        invokers: Sequence[Invoker],
        model: Model,
        load: Loader = refuse_loading,
    ) -> TokenCount:
        """How many words the model would hear."""
        texts = await load_texts(canisters, load)
        said = [
            content.data
            for canister in canisters
            for content in canister.contents
            if isinstance(content, TextualContent) and isinstance(content.data, str)
        ]
        said += [text.decode() for text in texts.values()]
        return TokenCount(max(len(" ".join(said).split()), 1), estimated=True)
