"""Check a memory for unreadable entries and copies."""

from __future__ import annotations

from collections.abc import Iterator

from vibe_llms.base.exceptions import MemoryDamaged, MemoryInvalid, StorageError
from vibe_llms.memory.files import ENTRIES
from vibe_llms.memory.interfaces import EntryReader
from vibe_llms.storage.interfaces import Diagnosis

#: Length of a short id.
_SHORT = 12


def inspect_memory(store: EntryReader, user: str) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each unreadable entry and copy, or for an unusable memory."""
    try:
        for scope in store.survey_scopes():
            for place, entry in store.read_many(scope, sorted(store.scan(scope))):
                if isinstance(entry, MemoryDamaged):
                    yield _describe(entry, store, user)
                elif entry.copy_of:
                    short = entry.identity[-_SHORT:]
                    yield Diagnosis(
                        "memory",
                        f"{store.address}/{ENTRIES}/{scope}/{place}",
                        f"a copy of {entry.copy_of[-_SHORT:]} made by another program",
                        f"to see it: vibe-llms memory show {short}; to delete it: vibe-llms memory "
                        f"rm {short}; to keep both: vibe-llms memory edit {short}",
                    )
    except (MemoryInvalid, StorageError) as error:
        yield Diagnosis("memory", store.address, str(error))


def _describe(error: MemoryDamaged, store: EntryReader, user: str) -> Diagnosis:
    text = str(error).removeprefix(f"{error.path}: ")
    if store.has_files:
        return Diagnosis("memory", error.path, text, "fix it or move it away")
    path = f"{user}/{error.path}"
    remedy = (
        "restore a backup into another database, and copy this row from its vibe.memory_entries"
    )
    return Diagnosis("memory", path, text, remedy)
