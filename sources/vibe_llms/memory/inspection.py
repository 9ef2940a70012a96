"""Checks whether all entries of a memory can be read."""

from __future__ import annotations

from collections.abc import Iterator

from vibe_llms.exceptions import MemoryDamaged, MemoryInvalid, StorageError
from vibe_llms.memory.interfaces import MemoryStore
from vibe_llms.storage.interfaces import Diagnosis


def inspect_memory(store: MemoryStore, user: str) -> Iterator[Diagnosis]:
    """The entries that cannot be read, and are ignored; or why the memory cannot be used."""
    try:
        for scope in store.survey_scopes():
            for _, entry in store.read_many(scope, sorted(store.scan(scope))):
                if isinstance(entry, MemoryDamaged):
                    yield _describe(entry, store, user)
    except (MemoryInvalid, StorageError) as error:
        yield Diagnosis("memory", store.address, str(error))


def _describe(error: MemoryDamaged, store: MemoryStore, user: str) -> Diagnosis:
    text = str(error).removeprefix(f"{error.path}: ")
    if store.has_files:
        return Diagnosis("memory", error.path, text, "fix it by hand, or move it away")
    path = f"{user}/{error.path}"
    return Diagnosis("memory", path, text, "restore the database from a backup")
