"""The index of a scope as it is stored: bytes in parts, read back only where they fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from vibe_llms.memory.catalogue import Known
from vibe_llms.memory.generations import Counts, read_generation
from vibe_llms.memory.lexical import LexicalIndex
from vibe_llms.memory.vectors import VectorIndex


class StoredIndex(Struct, frozen=True):
    """What is stored; `vectors` are of the model `embedder`, if there are any."""

    known: Sequence[Known]
    lexical: LexicalIndex
    vectors: VectorIndex | None
    embedder: str


def encode_index(stored: StoredIndex) -> tuple[Counts, Mapping[str, bytes]]:
    """What `write_generation` writes."""
    parts = {
        "entries": msgspec.msgpack.encode(stored.known),
        "words": stored.lexical.encode(),
    }
    vectors = stored.vectors
    if vectors is not None:
        parts["vectors"] = vectors.encode()
    counts = Counts(
        len(stored.known),
        len(stored.lexical),
        0 if vectors is None else len(vectors),
        stored.embedder,
    )
    return counts, parts


def read_index(folder: Path, model: str) -> StoredIndex:
    """The index in the folder of a generation, with vectors if they are of this model.

    `ValueError`, `OSError` or `StorageError` where there is none, or its parts do not fit.
    """
    wanted = ("entries", "words", *(("vectors",) if model else ()))
    counts, parts = read_generation(folder, wanted)
    if not parts.keys() >= {"entries", "words"}:
        raise ValueError("parts of it are missing")
    known = msgspec.msgpack.decode(parts["entries"], type=list[Known])
    lexical = LexicalIndex.decode(parts["words"])
    if len(known) != counts.entries or len(lexical) != counts.words:
        raise ValueError("its counts do not fit")
    if len(known) != lexical.count:
        raise ValueError("its parts do not fit each other")
    vectors = None
    if counts.embedder == model and "vectors" in parts:
        vectors = VectorIndex.decode(parts["vectors"])
        if len(vectors) != counts.vectors or vectors.model != model:
            raise ValueError("its vectors do not fit")
        if not vectors.numbers <= {one.number for one in known}:
            raise ValueError("its vectors are of other entries")
    return StoredIndex(known, lexical, vectors, counts.embedder)
