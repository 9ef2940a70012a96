"""What several facts that say the same become: one fact, in which nothing is lost or said twice."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import msgspec

from vibe_llms.memory.entries import Entry
from vibe_llms.memory.sentences import is_ended, split_sentences
from vibe_llms.memory.statements import includes
from vibe_llms.memory.wordings import read_wording

_GOES_ON = ":;,"


def merge_entries(kept: Entry, others: Sequence[Entry]) -> Entry:
    """The first fact with what the others say besides, their topics, and where that came from."""
    content = kept.content
    for other in others:
        content = merge_contents(content, other.content)
    every = (kept, *others)
    topics = dict.fromkeys(chain.from_iterable(entry.topics for entry in every))
    merged = dict.fromkeys(
        (
            *kept.merged_from,
            *chain.from_iterable((entry.identity, *entry.merged_from) for entry in others),
        )
    )
    # A file may be a copy of another one, made by hand.
    merged.pop(kept.identity, None)
    return msgspec.structs.replace(
        kept,
        content=content,
        topics=tuple(topics),
        category=next((entry.category for entry in every if entry.category), ""),
        merged_from=tuple(merged),
    )


def merge_contents(kept: str, other: str) -> str:
    """The one text and then what only the other says, by sentences.

    A sentence is left out only where another has all its words, in order and next to each other,
    and nothing around them that may change what they say; articles do not count.

    >>> merge_contents("Tea is served at five.", "Tea is served at five in the garden. Be early.")
    'Tea is served at five in the garden. Be early.'
    """
    if says_all(kept, other):
        return kept
    if "\n" in kept or "\n" in other:
        return other if says_all(other, kept) else f"{kept}\n\n{other}"
    sentences = split_sentences(kept)
    for sentence in split_sentences(other):
        if any(_repeats(one, sentence) for one in sentences):
            continue
        said = [place for place, one in enumerate(sentences) if _repeats(sentence, one)]
        if said:
            sentences[said[0]] = sentence
            for place in reversed(said[1:]):
                del sentences[place]
        else:
            sentences.append(sentence)
    ended = [one if one[-1] in _GOES_ON or is_ended(one) else f"{one}." for one in sentences[:-1]]
    ended.append(sentences[-1])
    joined = " ".join(ended)
    # A sentence like "5." would be taken for the number of the next one.
    return joined if split_sentences(joined) == ended else "\n".join(ended)


def says_all(text: str, other: str) -> bool:
    """Whether each sentence of the other text stands word for word within one of the first."""
    sentences = split_sentences(text)
    return all(any(_contains(one, part) for one in sentences) for part in split_sentences(other))


def _repeats(sentence: str, part: str) -> bool:
    # Marks alone stand for themselves: a sentence that has them too may give way to another.
    return part == sentence or (bool(_read_parts(part)) and _contains(sentence, part))


def _contains(sentence: str, part: str) -> bool:
    wanted = _read_parts(part)
    return includes(_read_parts(sentence), wanted) if wanted else part in sentence


def _read_parts(text: str) -> Sequence[str]:
    return tuple(chain.from_iterable(read_wording(text).statements))
