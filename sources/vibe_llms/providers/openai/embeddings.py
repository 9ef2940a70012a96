"""Embeddings by `/embeddings`, of OpenAI and compatible servers.

The encoding is left to the server, since some compatible servers refuse a request for one. Vectors
are read from numbers or from base64 of little-endian single floats.

Source: `types/embedding_create_params.py` and `types/create_embedding_response.py` of openai
3.54.0.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import ReplyMalformed
from vibe_llms.base.redaction import quote
from vibe_llms.messages.canisters import Usage
from vibe_llms.providers.embeddings import check_vectors
from vibe_llms.providers.interfaces import Embeddings


class _Item(Struct, frozen=True):
    embedding: list[float] | str
    index: int | None = None


class _Usage(Struct, frozen=True):
    prompt_tokens: int | None = None


class _Answer(Struct, frozen=True):
    data: list[_Item]
    usage: _Usage | None = None


_ANSWER = msgspec.json.Decoder(_Answer)


def read_embeddings(
    body: bytes, count: int, *, provider: str, dimensions: int | None
) -> Embeddings:
    """Return `count` vectors; raise `ReplyMalformed` if there is not one for each text."""
    try:
        answer = _ANSWER.decode(body)
        vectors = [_read_numbers(item.embedding) for item in answer.data]
    except (ValueError, RecursionError) as error:
        raise ReplyMalformed(
            f"the vectors cannot be read from {quote(body)}", provider=provider
        ) from error
    check_vectors(vectors, count, provider=provider, dimensions=dimensions)
    used = (answer.usage or _Usage()).prompt_tokens or 0
    return Embeddings(_order(answer.data, vectors, provider), Usage(uncached_input_tokens=used))


def _read_numbers(embedding: list[float] | str) -> array[float]:
    if not isinstance(embedding, str):
        return array("f", embedding)
    import base64

    numbers = array("f")
    numbers.frombytes(base64.b64decode(embedding, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _order(
    items: Sequence[_Item], vectors: Sequence[array[float]], provider: str
) -> Sequence[array[float]]:
    """Return the vectors in the order of their texts, or as sent if they have no index."""
    if all(item.index is None for item in items):
        return vectors
    places = {item.index: vector for item, vector in zip(items, vectors, strict=True)}
    if places.keys() != set(range(len(items))):
        raise ReplyMalformed("the server sent two vectors for the same text", provider=provider)
    return [places[place] for place in range(len(items))]
