"""Passages of an entry, each with a vector of its own.

The vector of a long text mixes its topics and is close to none of them, so each sentence is a
passage, with the name of the speaker. A change of the passages invalidates stored indexes: see the
format in `vibe_llms.memory.snapshot`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from vibe_llms.embedding.embedding import Embedding
from vibe_llms.memory.entries import Entry
from vibe_llms.memory.sentences import split_sentences

#: Shorter sentences are joined to the next, in characters.
_SHORTEST = 4
#: Maximum number of passages; a longer text has longer passages instead.
MOST = 16


def split_passages(entry: Entry) -> list[str]:
    """Split an entry into up to 16 passages to embed; at least one if it has words."""
    parts: list[str] = []
    short = ""
    for sentence in split_sentences(entry.content):
        part = f"{short}{sentence}"
        short = ""
        if len(part) < _SHORTEST:
            short = f"{part} "
        else:
            parts.append(part)
    if short:
        parts.append(short.strip())
    if len(parts) > MOST:
        size = -(-len(parts) // MOST)
        parts = [" ".join(parts[at : at + size]) for at in range(0, len(parts), size)]
    return [f"{entry.speaker}: {part}" if entry.speaker else part for part in parts]


async def embed_entries(
    embedding: Embedding, entries: Sequence[tuple[int, Entry]]
) -> dict[int, Sequence[array[float]]] | None:
    """Embed the passages of entries; return their vectors by the numbers of the entries.

    An entry whose file was emptied by hand has none, nor has a refused passage. Return `None` if
    the embedder does not work.
    """
    passages = {number: split_passages(entry) for number, entry in entries}
    vectors = await embedding.embed_texts([text for some in passages.values() for text in some])
    if vectors is None:
        return None
    return {
        number: [vectors[text] for text in some if text in vectors]
        for number, some in passages.items()
    }
