"""Words of messages, as PostgreSQL searches for them.

The library splits texts itself, so that they match as in the index of the directory archive and on
servers of any locale: case and diacritics do not matter, and every character of a script without
spaces is a word. Pairs of such characters are indexed too, because a `tsvector` keeps too few
positions to find neighbors. The owner is a word of every message, so that the index does not return
other users' messages.
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
#: Limits of a `tsvector`: bytes of a word, last position, and total bytes.
_WORD_BYTES = 500
_LAST_POSITION = 16_383
_VECTOR_BYTES = 1_000_000
#: Number of positions kept per word, for the rating.
_POSITIONS_PER_WORD = 8


class Query(Struct, frozen=True):
    """Words of a search for the index and for the rating, and phrases of adjacent words."""

    wanted: str
    rated: str
    phrases: Sequence[str]


def encode_words(owner: str, text: str) -> str:
    """Return the `tsvector` of a text."""
    places: dict[str, list[int]] = {}
    for place, word in enumerate(_with_pairs(_split(text)), 1):
        held = places.setdefault(word, [])
        if len(held) < _POSITIONS_PER_WORD:
            held.append(min(place, _LAST_POSITION))
    encoded = [_quote(f"@{owner}")]
    size = 0
    for word, held in places.items():
        size += len(word.encode()) + 2 * len(held) + 4
        if size > _VECTOR_BYTES:
            break
        encoded.append(f"{_quote(word)}:{','.join(map(str, held))}")
    return " ".join(encoded)


def encode_query(owner: str, words: Sequence[str]) -> Query | None:
    """Return the query for messages with all words, or `None` if the words are empty."""
    split = [_split(word) for word in words]
    parts = dict.fromkeys(part for one in split for part in _with_pairs(one))
    if not parts:
        return None
    rated = " & ".join(map(_quote, parts))
    phrases = [f" {' '.join(one)} " for one in split if len(one) > 1]
    return Query(f"{_quote(f'@{owner}')} & {rated}", rated, phrases)


def has_phrases(text: str, query: Query) -> bool:
    """Return True if the text contains the query's phrases."""
    if not query.phrases:
        return True
    flat = f" {' '.join(_split(text))} "
    return all(phrase in flat for phrase in query.phrases)


def _split(text: str) -> Sequence[str]:
    if text.isascii():
        words = _ASCII_WORD.findall(text.lower())
        return (
            words
            if max(map(len, words), default=0) <= _WORD_BYTES
            else [w[:_WORD_BYTES] for w in words]
        )
    bare = _DIACRITICS.sub("", normalize("NFD", text.casefold()))
    return [word[:_WORD_BYTES] for word in _WORD.findall(normalize("NFC", bare))]


def _with_pairs(words: Sequence[str]) -> Iterator[str]:
    """Yield words, and after a word of a script without spaces, its pair with the one before."""
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
