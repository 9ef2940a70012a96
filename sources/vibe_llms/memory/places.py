"""Places of entries within their scope, in every store.

facts/TIME__IDENTITY.md      others are named in `vibe_llms.memory.names`
turns/{user,assistant}/…
summaries/{L1,L2,L3}/…
deleted/…                    deleted entries, at the same places
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC

from msgspec import Struct

from vibe_llms.base.exceptions import MemoryInvalid
from vibe_llms.memory.entries import Entry, Role
from vibe_llms.memory.names import SUFFIX

DELETED = "deleted"
_LEVELS = ("L1", "L2", "L3")
_PLACES = {Role.FACT: "facts", Role.USER: "turns/user", Role.ASSISTANT: "turns/assistant"}
FACTS = _PLACES[Role.FACT]
FOLDERS = (*_PLACES.values(), *(f"summaries/{level}" for level in _LEVELS))
_NAME = re.compile(r".*__([0-9a-z][0-9a-z-]{0,63})\.md")
_IDENTITY = re.compile(r"[0-9a-z][0-9a-z-]{0,63}")


class FileStat(Struct, frozen=True, array_like=True):
    """Size, times, and inode of an entry's file, which show whether it changed.

    Times are in nanoseconds. In a database the inode is the number of the change.
    """

    size: int
    modified: int
    changed: int
    inode: int


class Difference(Struct, frozen=True):
    """Places that are gone, and those that are new or changed."""

    gone: Collection[str]
    changed: Mapping[str, FileStat]


def place_of(entry: Entry) -> str:
    """Return the place of an entry in its scope; raise `MemoryInvalid` for a bad identity."""
    check_place(entry)
    if entry.role == Role.SUMMARY:
        level = entry.category if entry.category in _LEVELS else _LEVELS[-1]
        folder = f"summaries/{level}"
    else:
        folder = _PLACES[entry.role]
    time = entry.created.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    return f"{folder}/{time}__{entry.identity}{SUFFIX}"


def check_place(entry: Entry) -> None:
    """Raise `MemoryInvalid` if the identity of an entry cannot be part of a file name."""
    if not _IDENTITY.fullmatch(entry.identity):
        raise MemoryInvalid(f"{entry.identity!r} cannot be the identity of an entry")


def identity_in(place: str) -> str:
    """Return the identity in a file name written by the library, or an empty string."""
    match = _NAME.fullmatch(place)
    return match[1] if match else ""
