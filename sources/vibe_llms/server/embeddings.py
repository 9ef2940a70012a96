"""The endpoint `POST /v1/embeddings`: vectors of texts, from the configured embedders.

Source: `types/embedding_create_params.py` and `create_embedding_response.py` of openai 3.54.0.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from vibe_llms.providers.token_estimates import measure_text
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.failures import Rejected
from vibe_llms.server.reading import read_body
from vibe_llms.server.spaces import UserSpace

#: OpenAI's maximum.
_MOST_TEXTS = 2048


class EmbeddingRequest(Struct):
    """The body of a request."""

    model: str
    input: str | Annotated[list[Any], Meta(min_length=1, max_length=_MOST_TEXTS)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=65536)] | None = None

    @property
    def texts(self) -> Sequence[str]:
        """The texts; raises `Rejected` for tokens, which only one model understands."""
        texts = [self.input] if isinstance(self.input, str) else self.input
        for place, text in enumerate(texts):
            if not isinstance(text, str):
                raise Rejected("send texts, not tokens", param=f"input[{place}]")
            if not text.strip():
                raise Rejected("a text is empty", param=f"input[{place}]")
        return texts


class EmbeddingItem(Struct):
    """The vector of a text: numbers, or their bytes in base64."""

    index: int
    embedding: Sequence[float] | str
    object: str = "embedding"


class EmbeddingUsage(Struct):
    """Estimated number of tokens in the texts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingReply(Struct):
    """The body of a reply."""

    data: Sequence[EmbeddingItem]
    model: str
    usage: EmbeddingUsage
    object: str = "list"


_DECODER = msgspec.json.Decoder(EmbeddingRequest)


async def create_embeddings(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Create a vector for each text."""
    request = await exchange.decode(partial(read_body, _DECODER), core.settings)
    texts = request.texts
    model = request.model
    if not core.embedders.names(model):
        # As in chats, only listed models can be named.
        model = (await space.resolve_model(model))[1] or model
    async with exchange.until_disconnect(), core.turn_limit(), space.asking():
        vectors = await core.embedders.embed(model, texts, request.dimensions)
    # Estimated, because not all embedders report tokens.
    tokens = sum(measure_text(text).likely for text in texts)
    core.metrics.find_tokens(model, "input").inc(tokens)
    packed = request.encoding_format == "base64"
    reply = EmbeddingReply(
        [
            EmbeddingItem(index, _encode_base64(vector) if packed else tuple(vector))
            for index, vector in enumerate(vectors)
        ],
        request.model,
        EmbeddingUsage(tokens, tokens),
    )
    await exchange.reply(msgspec.json.encode(reply))


def _encode_base64(vector: array[float]) -> str:
    """Encode the numbers as little-endian 32-bit floats in base64."""
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()
