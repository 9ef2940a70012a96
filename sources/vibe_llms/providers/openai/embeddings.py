"""Texts to vectors: `/embeddings`, of OpenAI and of servers like it.

The numbers are asked for as the server likes to send them, and read as numbers or as base64 of
little-endian single floats; some compatible servers refuse to be asked for either.

Source: `types/embedding_create_params.py` and `types/create_embedding_response.py` of openai
3.54.0.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from vibe_llms.exceptions import ReplyMalformed
from vibe_llms.messages.canisters import Usage
from vibe_llms.providers.embeddings import check_vectors
from vibe_llms.providers.interfaces import Embeddings
from vibe_llms.redaction import quote


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
    """The vectors of so many texts; `ReplyMalformed` where there is not one for each."""
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
    """The vectors in the order of their texts; servers that send no index keep it."""
    if all(item.index is None for item in items):
        return vectors
    places = {item.index: vector for item, vector in zip(items, vectors, strict=True)}
    if places.keys() != set(range(len(items))):
        raise ReplyMalformed("the server sent two vectors for one text", provider=provider)
    return [places[place] for place in range(len(items))]
