"""The passages of an entry, each of which has a vector of its own.

The vector of a long text is a mixture of its topics and close to none of them, so each sentence is
a passage, with the name of the speaker. A change of the passages makes stored indexes invalid: see
the format in `vibe_llms.memory.snapshot`.
"""

from __future__ import annotations

from vibe_llms.memory.entries import Entry
from vibe_llms.memory.sentences import split_sentences

#: A shorter sentence is joined to the next.
_SHORTEST = 4
#: A longer text has longer passages instead of more.
MOST = 16


def split_passages(entry: Entry) -> list[str]:
    """The texts whose vectors an entry is found by; at least one if it has words.

    There are at most 16.
    """
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
