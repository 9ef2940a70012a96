"""The words of messages, as PostgreSQL searches for them.

We split texts ourselves, so that they match as they do in the index of the directory archive, and
on servers of any locale: case and diacritics do not matter, and every character of a script without
spaces is a word. Of these, pairs are indexed too, because a `tsvector` keeps too few positions to
find neighbors by them. The owner is a word of every message, so that the index finds nothing of
others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from unicodedata import normalize

from msgspec import Struct

from vibe_llms.storage.texts import UNSPACED

_UNSPACED = re.compile(UNSPACED)
_WORD = re.compile(rf"{UNSPACED}|(?:(?!{UNSPACED})[^\W_])+")
_ASCII_WORD = re.compile(r"[a-z0-9]+")
_DIACRITICS = re.compile("[\u0300-\u036f]")
#: What a `tsvector` can hold: bytes of a word, the last position, and bytes of all of it.
_LONGEST = 500
_LAST = 16_383
_LARGEST = 1_000_000
#: So many places of a word are kept, for its rating.
_PLACES = 8


class Query(Struct, frozen=True):
    """The words of a search: for the index, for the rating, and those that follow each other."""

    wanted: str
    rated: str
    phrases: Sequence[str]


def encode_words(owner: str, text: str) -> str:
    """The `tsvector` of a text."""
    places: dict[str, list[int]] = {}
    for place, word in enumerate(_with_pairs(_split(text)), 1):
        held = places.setdefault(word, [])
        if len(held) < _PLACES:
            held.append(min(place, _LAST))
    encoded = [_quote(f"@{owner}")]
    size = 0
    for word, held in places.items():
        size += len(word.encode()) + 2 * len(held) + 4
        if size > _LARGEST:
            break
        encoded.append(f"{_quote(word)}:{','.join(map(str, held))}")
    return " ".join(encoded)


def encode_query(owner: str, words: Sequence[str]) -> Query | None:
    """The query for messages with all of some words; `None` if nothing is in them."""
    split = [_split(word) for word in words]
    parts = dict.fromkeys(part for one in split for part in _with_pairs(one))
    if not parts:
        return None
    rated = " & ".join(map(_quote, parts))
    phrases = [f" {' '.join(one)} " for one in split if len(one) > 1]
    return Query(f"{_quote(f'@{owner}')} & {rated}", rated, phrases)


def has_phrases(text: str, query: Query) -> bool:
    """Whether the words that follow each other in a query do so in a text."""
    if not query.phrases:
        return True
    flat = f" {' '.join(_split(text))} "
    return all(phrase in flat for phrase in query.phrases)


def _split(text: str) -> Sequence[str]:
    if text.isascii():
        words = _ASCII_WORD.findall(text.lower())
        return (
            words if max(map(len, words), default=0) <= _LONGEST else [w[:_LONGEST] for w in words]
        )
    bare = _DIACRITICS.sub("", normalize("NFD", text.casefold()))
    return [word[:_LONGEST] for word in _WORD.findall(normalize("NFC", bare))]


def _with_pairs(words: Sequence[str]) -> Iterator[str]:
    """Words, each followed by the pair that it ends, if both are of scripts without spaces."""
    before = ""
    for word in words:
        yield word
        is_unspaced = not word.isascii() and _UNSPACED.fullmatch(word) is not None
        if is_unspaced and before:
            yield before + word
        before = word if is_unspaced else ""


def _quote(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
