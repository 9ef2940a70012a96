"""Number of tokens that a model would read: counted by its server, or estimated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from vibe_llms.base.exceptions import ReplyMalformed
from vibe_llms.base.redaction import quote
from vibe_llms.messages.canisters import Canister, InvocationCanister
from vibe_llms.messages.contents import Reference, TextualContent
from vibe_llms.providers.interfaces import Loader, Model, TokenCount
from vibe_llms.providers.pieces import Slot, load_texts
from vibe_llms.providers.requests import Request
from vibe_llms.providers.token_estimates import measure_text
from vibe_llms.providers.usages import MOST_TOKENS

BYTES_A_TOKEN = 4
#: Approximate tokens of an image of common size, or of a page.
MEDIA_TOKENS = 1_000


class _Count(Struct):
    input_tokens: Annotated[int, Meta(ge=0, le=MOST_TOKENS)]


def read_count(body: bytes, provider: str) -> TokenCount:
    """Read the count in a server's answer; raise `ReplyMalformed` if it has none."""
    try:
        count = msgspec.json.decode(body, type=_Count)
    except ValueError as error:
        raise ReplyMalformed(
            f"the count of tokens is not in {quote(body)}", provider=provider
        ) from error
    return TokenCount(count.input_tokens, estimated=False)


async def estimate_request(
    request: Request, canisters: Sequence[Canister], model: Model, load: Loader
) -> TokenCount:
    """Estimate the tokens of a request as a quarter of its bytes.

    Unless the model's context varies, also return the minimum number of tokens of its texts.
    """
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
    """Return a lower bound of the tokens in the texts and calls of a conversation."""
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
