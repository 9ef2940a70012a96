"""Entries of memory as JSON, the same on the command line and over HTTP; stable."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from vibe_llms.memory.entries import Entry, Role
from vibe_llms.memory.history import Change
from vibe_llms.memory.retrieval import Recollection


class MemoryEntry(Struct, kw_only=True):
    """JSON form of an entry; see `vibe_llms.memory.Entry`."""

    id: str
    content: str
    role: Role
    scope: str
    created: datetime
    importance: float
    category: str
    topics: tuple[str, ...]
    speaker: str
    conversation: str
    turn: str
    replaced_by: str
    merged_from: tuple[str, ...]
    further: Mapping[str, Any]
    lines: str
    copy_of: str

    @classmethod
    def of(cls, entry: Entry) -> MemoryEntry:
        """Convert an entry."""
        return cls(**_members_of(entry))


class FoundEntry(MemoryEntry, kw_only=True):
    """JSON form of a search result, with the parts of its score."""

    score: float
    reasons: dict[str, float]

    @classmethod
    def of_recollection(cls, found: Recollection) -> FoundEntry:
        """Convert a search result, with its score."""
        return cls(
            **_members_of(found.entry), score=round(found.score, 4), reasons=dict(found.reasons)
        )


class MemoryChange(Struct):
    """JSON form of a change: `added`, `changed`, `deleted`, `brought back`, or `removed`.

    `entry` is the entry as it was then. `commit` is the commit in git, if git keeps versions.
    """

    time: datetime
    change: str
    commit: str
    entry: MemoryEntry

    @classmethod
    def of(cls, change: Change) -> MemoryChange:
        """Convert a change."""
        entry = MemoryEntry.of(change.entry)
        return cls(change.time, str(change.kind), change.commit, entry)


def _members_of(entry: Entry) -> dict[str, Any]:
    members = {name: getattr(entry, name) for name in entry.__struct_fields__}
    return {"id": members.pop("identity"), **members, "scope": str(entry.scope)}
