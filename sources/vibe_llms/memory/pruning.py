"""Forgetting by age: which entries are old, and how important ones are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from vibe_llms.base.exceptions import MemoryDamaged
from vibe_llms.memory.entries import Entry, Scope
from vibe_llms.memory.interfaces import EntryReader
from vibe_llms.memory.metadata import is_pending
from vibe_llms.memory.places import DELETED


class Retention(Struct, frozen=True):
    """Rule by which entries are forgotten: not created or changed since `before`.

    Entries with an importance of `importance` or more are kept, unless they are deleted already.
    Turns whose facts are still missing are kept too.
    """

    before: datetime
    importance: float

    @classmethod
    def of(cls, days: float, importance: float, now: datetime | None = None) -> Retention:
        """Create the rule for an age in days."""
        return cls((now or datetime.now(UTC)) - timedelta(days=days), importance)

    def forgets(self, entry: Entry, place: str) -> bool:
        """Return True if an entry, whose file is old, is forgotten."""
        if entry.created >= self.before:
            return False
        if place.startswith(f"{DELETED}/"):
            return True
        return entry.importance < self.importance and not is_pending(entry)


def find_old(files: EntryReader, scope: Scope, rule: Retention) -> list[tuple[str, Entry]]:
    """Return the places of a scope that a rule forgets, least important and oldest first.

    Only old files are read. Unreadable ones are kept.
    """
    limit = rule.before.timestamp() * 1e9
    places = [place for place, stat in files.scan(scope).items() if stat.modified < limit]
    places += [
        f"{DELETED}/{place}"
        for place, stat in files.scan(scope, deleted=True).items()
        if stat.modified < limit
    ]
    found = [
        (place, entry)
        for place, entry in (files.read_many(scope, places) if places else ())
        if not isinstance(entry, MemoryDamaged) and rule.forgets(entry, place)
    ]
    return sorted(found, key=lambda one: (one[1].importance, one[1].created, one[1].identity))


async def survey_old(
    files: EntryReader, rule: Retention, *, scopes: Iterable[Scope] | None = None
) -> Sequence[tuple[str, Entry]]:
    """Return the places and entries that `Memory.prune` would remove now."""
    chosen = None if scopes is None else tuple(scopes)

    def work() -> list[tuple[str, Entry]]:
        every = files.survey_scopes() if chosen is None else chosen
        return [
            one for scope in every if files.holds(scope) for one in find_old(files, scope, rule)
        ]

    return await asyncio.to_thread(work)
