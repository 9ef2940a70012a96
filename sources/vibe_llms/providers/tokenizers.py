"""How many tokens a model would read: as an endpoint of its server counts, or estimated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from vibe_llms.exceptions import ReplyMalformed
from vibe_llms.messages.canisters import Canister, InvocationCanister
from vibe_llms.messages.contents import Reference, TextualContent
from vibe_llms.providers.interfaces import Loader, Model, TokenCount
from vibe_llms.providers.pieces import Slot, load_texts
from vibe_llms.providers.requests import Request
from vibe_llms.providers.token_estimates import measure_text
from vibe_llms.providers.usages import MOST_TOKENS
from vibe_llms.redaction import quote

BYTES_A_TOKEN = 4
#: About what a picture of common size costs, or a page.
MEDIA_TOKENS = 1_000


class _Count(Struct):
    input_tokens: Annotated[int, Meta(ge=0, le=MOST_TOKENS)]


def read_count(body: bytes, provider: str) -> TokenCount:
    """The answer of an endpoint that counts; `ReplyMalformed` where it has no count."""
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
    """About how many tokens a request has: a quarter of its bytes.

    Where that can be too much for the model, also how many its texts have at least.
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
