"""Metadata of an entry in the index, so that long conversations need few files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from vibe_llms.embedding.words import digest_of
from vibe_llms.memory.entries import Entry, Role

#: Front matter of a turn whose facts have not been extracted yet.
MARK, PENDING = "ingestion", "pending"
_DIGEST_LENGTH = 12
#: The last group of a UUID is random.
_NAME_LENGTH = 12
LEVELS = ("L1", "L2", "L3")
#: Approximate number of bytes per token.
_BYTES_PER_TOKEN = 4
#: Higher counts are invalid, and no index could store them.
_MOST_TOKENS = 2**48

#: Aware, since it is compared with aware times.
_Time = Annotated[datetime, Meta(tz=True)]
_Tokens = Annotated[int, Meta(ge=0, le=_MOST_TOKENS)]


class Coverage(Struct, frozen=True):
    """Front matter of a summary: what it summarizes, and how much shorter it is.

    `sums_up` are the ends of the ids of its sources. Times alone are not enough: a clock may be set
    back.
    """

    covers_from: _Time
    covers_until: _Time
    source_tokens: _Tokens
    summary_tokens: _Tokens = 0
    summary_kind: str = ""
    compression: float = 0.0
    sums_up: str = ""

    @property
    def names(self) -> frozenset[str]:
        """Sources of the summary, each by `name_of` its identity."""
        return frozenset(self.sums_up.split())

    def covers(self, when: datetime) -> bool:
        """Return True if the summary may cover what was said at this time."""
        return self.covers_from <= when <= self.covers_until


# msgspec 0.22 crashes if two threads are the first to use a type, so it is used here first.
msgspec.json.Decoder(Coverage)


class Metadata(Struct, frozen=True, array_like=True):
    """Length of an entry, its `pending` state, and the level and coverage of a summary.

    A summary written by hand has no level and no coverage.
    """

    tokens: int
    pending: bool = False
    level: str = ""
    coverage: Coverage | None = None


def name_of(identity: str) -> str:
    """Return the end of an identity, by which a summary names an entry that it covers."""
    return identity[-_NAME_LENGTH:]


def metadata_of(entry: Entry) -> Metadata:
    """Return the metadata of an entry."""
    tokens = count_tokens(entry.content)
    if entry.role == Role.SUMMARY:
        if entry.category not in LEVELS:
            return Metadata(tokens)
        return Metadata(tokens, level=entry.category, coverage=read_coverage(entry))
    return Metadata(tokens, pending=is_pending(entry))


def is_pending(entry: Entry) -> bool:
    """Return True if the facts of a turn are still missing."""
    return entry.role == Role.USER and read_mark(entry) is not None


def produce_mark(recalled: Iterable[str]) -> str:
    """Produce the mark of a pending turn, with digests of its recalled sentences."""
    return "-".join((PENDING, *dict.fromkeys(map(digest_of_sentence, recalled))))


def read_mark(entry: Entry) -> frozenset[str] | None:
    """Return the digests in the mark of a turn, or `None` if it has no mark."""
    mark, *digests = str(entry.further.get(MARK, "")).split("-")
    return frozenset(digests) if mark == PENDING else None


def digest_of_sentence(text: str) -> str:
    """Return the digest of a sentence, ignoring case and punctuation."""
    return digest_of(text)[:_DIGEST_LENGTH]


def remove_mark(entry: Entry) -> Entry:
    """Return the turn without its mark, for when its facts are stored."""
    further = {name: value for name, value in entry.further.items() if name != MARK}
    lines = re.sub(rf"(?m)^{MARK}: *['\"]?{PENDING}\b.*\n", "", entry.lines)
    return msgspec.structs.replace(entry, further=further, lines=lines)


def read_coverage(entry: Entry) -> Coverage | None:
    """Return the coverage of a summary, or `None` if it was written or changed by hand."""
    try:
        return msgspec.convert(dict(entry.further), Coverage, strict=False)
    except (msgspec.ValidationError, OverflowError):
        return None


def count_tokens(text: str) -> int:
    """Estimate the number of tokens of a text."""
    return -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN)
