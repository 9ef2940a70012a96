"""Copy the entries of every scope of one memory to another, with their texts unchanged.

Entries deleted in the source are deleted in the target too. Vectors and indexes are derived, and
are rebuilt on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from vibe_llms.base.exceptions import MemoryDamaged, StorageError
from vibe_llms.memory.entries import Entry, Scope
from vibe_llms.memory.interfaces import EntryReader, MemoryStore


class CopiedMemory(Struct, frozen=True):
    """Number of entries, number copied now, and the errors of unreadable entries."""

    entries: int = 0
    copied: int = 0
    damaged: Sequence[str] = ()


def copy_memory(
    source: EntryReader, target: MemoryStore, report: Callable[[int], None] = lambda _: None
) -> CopiedMemory:
    """Copy all scopes, then read the target again and compare.

    An entry with a different text in the target is overwritten. `report` gets the number of entries
    so far.
    """
    entries = copied = 0
    damaged: list[str] = []
    for scope in source.survey_scopes():
        wanted = _read(source, scope, damaged)
        deleted = source.scan(scope, deleted=True)
        with target.changing(scope):
            there = _read(target, scope, [])
            for place, entry in wanted.items():
                if there.get(place) != entry:
                    target.rewrite(entry, place)
                    copied += 1
            for place in there.keys() & deleted.keys() - wanted.keys():
                target.delete(there[place], place)
            if (last := source.read_last(scope)) is not None:
                target.write_last(scope, last)
        found = _read(target, scope, [])
        if any(found.get(place) != entry for place, entry in wanted.items()):
            raise StorageError(f"{scope} differs from the source after it was copied")
        entries += len(wanted)
        report(entries)
    return CopiedMemory(entries, copied, damaged)


def _read(store: EntryReader, scope: Scope, damaged: list[str]) -> Mapping[str, Entry]:
    found: dict[str, Entry] = {}
    for place, entry in store.read_many(scope, store.scan(scope)):
        if isinstance(entry, MemoryDamaged):
            damaged.append(str(entry))
        else:
            found[place] = entry
    return found
