"""Copies the entries of one memory to another: those of every scope, with their texts as they are.

What was deleted in the source is deleted in the target too. Vectors and indexes are derived, and
are made again where they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from vibe_llms.exceptions import MemoryDamaged, StorageError
from vibe_llms.memory.entries import Entry, Scope
from vibe_llms.memory.interfaces import MemoryStore


class CopiedMemory(Struct, frozen=True):
    """How many entries there are, how many were copied now, and the errors of unreadable ones."""

    entries: int = 0
    copied: int = 0
    damaged: Sequence[str] = ()


def copy_memory(
    source: MemoryStore, target: MemoryStore, report: Callable[[int], None] = lambda _: None
) -> CopiedMemory:
    """Copy all scopes; returns when the target was read again and has the same entries.

    An entry that the target has with another text gets that of the source. `report` gets the number
    of entries so far.
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


def _read(store: MemoryStore, scope: Scope, damaged: list[str]) -> Mapping[str, Entry]:
    found: dict[str, Entry] = {}
    for place, entry in store.read_many(scope, store.scan(scope)):
        if isinstance(entry, MemoryDamaged):
            damaged.append(str(entry))
        else:
            found[place] = entry
    return found
