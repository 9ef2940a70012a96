"""Metadata of an entry in the index, so that long conversations need few files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from vibe_llms.memory.entries import Entry, Role
from vibe_llms.memory.words import digest_of

#: The front matter of a turn whose facts are still to be looked for.
MARK, PENDING = "ingestion", "pending"
_DIGEST_LENGTH = 12
#: The last group of a UUID is left to chance.
_NAME_LENGTH = 12
LEVELS = ("L1", "L2", "L3")
#: About so many bytes of text make a token.
_BYTES_PER_TOKEN = 4
#: More is no count of anything, and no index could store it.
_MOST_TOKENS = 2**48

#: A time in a zone, as all others are that it is compared with.
_Time = Annotated[datetime, Meta(tz=True)]
_Tokens = Annotated[int, Meta(ge=0, le=_MOST_TOKENS)]


class Coverage(Struct, frozen=True):
    """What the front matter of a summary says: what it summarizes, and how much shorter it is.

    `sums_up` are the ends of the ids of what it was made of. Times alone are not enough: a clock
    may be set back.
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
        """The entries that it was made of, each by `name_of` its identity."""
        return frozenset(self.sums_up.split())

    def covers(self, when: datetime) -> bool:
        """Whether it may contain what was said then; if false, it does not."""
        return self.covers_from <= when <= self.covers_until


# msgspec 0.22 crashes where two threads are the first to use a type, so it is used here first.
msgspec.json.Decoder(Coverage)


class Metadata(Struct, frozen=True, array_like=True):
    """How long an entry is, whether a turn is `pending`, and of a summary its level and coverage.

    A summary written by hand has none.
    """

    tokens: int
    pending: bool = False
    level: str = ""
    coverage: Coverage | None = None


def name_of(identity: str) -> str:
    """The end of an identity, by which a summary names an entry that it covers."""
    return identity[-_NAME_LENGTH:]


def metadata_of(entry: Entry) -> Metadata:
    """The metadata of an entry."""
    tokens = count_tokens(entry.content)
    if entry.role == Role.SUMMARY:
        if entry.category not in LEVELS:
            return Metadata(tokens)
        return Metadata(tokens, level=entry.category, coverage=read_coverage(entry))
    return Metadata(tokens, pending=is_pending(entry))


def is_pending(entry: Entry) -> bool:
    """Whether the facts of a turn are still missing."""
    return entry.role == Role.USER and read_mark(entry) is not None


def produce_mark(recalled: Iterable[str]) -> str:
    """The mark of a pending turn, with digests of its sentences that were only recalled."""
    return "-".join((PENDING, *dict.fromkeys(map(digest_of_sentence, recalled))))


def read_mark(entry: Entry) -> frozenset[str] | None:
    """The digests in the mark of a turn; `None` if it has no such mark."""
    mark, *digests = str(entry.further.get(MARK, "")).split("-")
    return frozenset(digests) if mark == PENDING else None


def digest_of_sentence(text: str) -> str:
    """The digest of a sentence, without regard to case and punctuation."""
    return digest_of(text)[:_DIGEST_LENGTH]


def remove_mark(entry: Entry) -> Entry:
    """The turn without its mark, as when its facts are stored."""
    further = {name: value for name, value in entry.further.items() if name != MARK}
    lines = re.sub(rf"(?m)^{MARK}: *['\"]?{PENDING}\b.*\n", "", entry.lines)
    return msgspec.structs.replace(entry, further=further, lines=lines)


def read_coverage(entry: Entry) -> Coverage | None:
    """What a summary covers; `None` if it was written or changed by hand."""
    try:
        return msgspec.convert(dict(entry.further), Coverage, strict=False)
    except (msgspec.ValidationError, OverflowError):
        return None


def count_tokens(text: str) -> int:
    """About how many tokens a text has."""
    return -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN)
