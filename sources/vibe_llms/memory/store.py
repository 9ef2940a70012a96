"""What a memory does on the disk: everything that one task of one process does at a time.

Whoever calls holds the lock of the memory; a scope's own lock keeps other processes apart.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from vibe_llms.exceptions import EmbeddingsMixed, MemoryDamaged, MemoryNotFound
from vibe_llms.memory.changes import HeldScope
from vibe_llms.memory.embedders.cache import EmbeddingCache, digest_text
from vibe_llms.memory.entries import Entry, Role, Scope, check_entry
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.index import Known, ScopeIndex
from vibe_llms.memory.passages import split_passages
from vibe_llms.memory.retrieval import Question, Recollection, RetrievalSettings, retrieve
from vibe_llms.memory.summaries import find_derived
from vibe_llms.memory.traces import find_holding

T = TypeVar("T")

#: So many entries get their vectors at a time.
_BATCH = 64
_SHORTEST_PREFIX = 4


class ScopeStatus(Struct, frozen=True):
    """What a scope holds; `damaged` are files that are no entries, with the reason."""

    scope: Scope
    entries: int
    deleted: int
    damaged: Sequence[MemoryDamaged] = ()


class Store:
    """The files below a folder with the indexes of their scopes; `model` makes their vectors."""

    def __init__(
        self, folder: Path, cache: EmbeddingCache, model: str, *, lock_seconds: float, durable: bool
    ) -> None:
        self._files = MemoryFiles(folder, lock_seconds=lock_seconds, durable=durable)
        self._cache = cache
        self._model = model
        self._indexes: dict[Scope, ScopeIndex] = {}

    def survey_scopes(self) -> list[Scope]:
        """The scopes that there are."""
        return self._files.survey_scopes()

    def refresh(self, scope: Scope) -> int:
        """Take in what changed in a scope; how many entries it has."""
        return len(self._fresh(scope))

    def index_of(self, scope: Scope) -> ScopeIndex:
        """The index of a scope, whatever it knows."""
        if scope not in self._indexes:
            self._indexes[scope] = ScopeIndex(self._files, scope, self._model)
        return self._indexes[scope]

    def _fresh(self, scope: Scope, *, thorough: bool = True) -> ScopeIndex:
        index = self.index_of(scope)
        index.refresh(thorough=thorough)
        return index

    def add(self, entry: Entry) -> Entry:
        """Write an entry, checked; the fact that says the same, if one does."""
        with self._files.changing(entry.scope):
            if entry.role != Role.FACT:
                # The next search finds it; a repeated turn is a turn of its own.
                self._files.write(entry)
                return entry
            index = self.index_of(entry.scope)
            repeat = index.find_repeat(entry)
            if repeat is not None:
                return repeat
            index.take_in(entry, self._files.write(entry))
        index.store()
        return entry

    def search(
        self, question: Question, scopes: Sequence[Scope], settings: RetrievalSettings
    ) -> Sequence[Recollection]:
        """What fits a question, the best first."""
        indexes = [self._fresh(one, thorough=False) for one in scopes]
        found = retrieve(question, indexes, settings)
        for index in indexes:
            # Whoever asks does not wait for those who change something.
            index.store(seconds=0)
        return found

    def survey_bare(self, scope: Scope) -> Sequence[tuple[Known, Entry]]:
        """Some entries without vectors; `EmbeddingsMixed` where others have another model's."""
        index = self._fresh(scope, thorough=False)
        if index.mixed:
            raise EmbeddingsMixed(
                f"what is remembered in {scope} has vectors of {index.embedder}, and the embedder "
                f"is {index.model} now; make them anew: vibe-llms memory reindex"
            )
        return index.survey_bare(_BATCH)

    def take_vectors(
        self, scope: Scope, bare: Iterable[Known], vectors: Mapping[int, Sequence[array[float]]]
    ) -> None:
        """Take in the vectors of entries that were bare, and are in the index as they were."""
        index = self.index_of(scope)
        current = [known.number for known in bare if index.still_has(known)]
        index.take_vectors({number: vectors[number] for number in current})

    def survey(self, scope: Scope | None, role: Role | None) -> Sequence[Entry]:
        """All entries of a scope, or of all, the oldest first."""
        scopes = self.survey_scopes() if scope is None else [scope]
        found: list[Entry] = []
        for one in scopes:
            index = self._fresh(one)
            for known in index.entries:
                if role is None or known.role == role:
                    entry = index.read(known)
                    if entry is not None:
                        found.append(entry)
        return sorted(found, key=lambda entry: (entry.created, entry.identity))

    def find(
        self, identity: str, scopes: Sequence[Scope] | None = None
    ) -> tuple[ScopeIndex, Entry, Known]:
        """The entry of an identity, or of a part of it, and where it is known."""
        if len(identity) < _SHORTEST_PREFIX:
            raise MemoryNotFound(f"{identity!r} is too short; give at least 4 characters")
        fitting = [
            (index, known)
            for scope in (self.survey_scopes() if scopes is None else scopes)
            for index in (self._fresh(scope),)
            for known in index.entries
            if known.identity.startswith(identity) or known.identity.endswith(identity)
        ]
        exact = [(index, known) for index, known in fitting if known.identity == identity]
        if len(exact) > 1:
            places = ", ".join(f"{index.scope}/{known.place}" for index, known in exact)
            raise MemoryNotFound(f"several files have the id {identity!r}; mend them: {places}")
        if len(exact or fitting) > 1:
            raise MemoryNotFound(f"{identity!r} fits several entries; give more of it")
        for index, known in exact or fitting:
            entry = index.read(known)
            if entry is not None:
                return index, entry, known
        raise MemoryNotFound(f"nothing is remembered as {identity!r}; see: vibe-llms memory list")

    def revise(
        self, identity: str, changes: dict[str, Any], scopes: Sequence[Scope] | None = None
    ) -> Entry:
        """Write an entry anew, changed, in the file that it has."""
        _, entry, _ = self.find(identity, scopes)
        with self._files.changing(entry.scope):
            # Somebody may have changed it since it was found; in this scope, which is held.
            index, entry, known = self.find(entry.identity, [entry.scope])
            revised = check_entry(msgspec.structs.replace(entry, **changes))
            self._files.rewrite(revised, known.place)
            index.refresh()
        return revised

    def remove(
        self, identity: str, replaced_by: str, scopes: Sequence[Scope] | None = None
    ) -> Entry:
        """Move an entry among the deleted ones."""
        _, entry, _ = self.find(identity, scopes)
        with self._files.changing(entry.scope):
            index, entry, known = self.find(entry.identity, [entry.scope])
            self._files.give_up(entry, known.place, replaced_by=replaced_by)
            index.refresh()
        return entry

    def carry_out(self, scope: Scope, work: Callable[[HeldScope], T]) -> T:
        """Do work while a scope is held."""
        index = self.index_of(scope)
        with self._files.changing(scope):
            given = work(HeldScope(self._files, index))
        index.store()
        return given

    def forget(self, wanted: str, scopes: Sequence[Scope] | None) -> Sequence[Entry]:
        """Remove for good whatever holds these folded words, and what was made of it."""
        gone: list[Entry] = []
        for scope in scopes if scopes is not None else self.survey_scopes():
            if not self._files.path_of(scope).is_dir():
                continue
            with self._files.changing(scope):
                holding = find_holding(self._files, scope, wanted)
                holding += find_derived(self._files, scope, holding)
                # The index first: after a crash the files still tell that there is work left.
                index = self.index_of(scope)
                index.discard()
                self._cache.forget(_digest_all(entry for _, entry in holding))
                self._files.erase(scope, [place for place, _ in holding])
                self._files.clear(scope)
                index.refresh()
            gone += [entry for _, entry in holding]
        self._clear_cache()
        return gone

    def _clear_cache(self) -> None:
        """Keep vectors of what is remembered now, and of no text that was there before."""
        if self._cache.exists():
            self._cache.retain(_digest_all(self.survey(None, None)))

    def reindex(self) -> int:
        """Make all indexes anew; how many entries there are."""
        count = 0
        for scope in self.survey_scopes():
            index = self.index_of(scope)
            index.discard()
            index.refresh()
            index.store(always=True)
            count += len(index)
        self._clear_cache()
        return count

    def status(self) -> Sequence[ScopeStatus]:
        """What each scope holds."""
        return [
            ScopeStatus(
                scope,
                len(index),
                len(self._files.look(scope, deleted=True)),
                tuple(index.damaged.values()),
            )
            for scope in self.survey_scopes()
            for index in (self._fresh(scope),)
        ]

    def keep(self) -> None:
        """Store all indexes for the next process."""
        for index in self._indexes.values():
            index.store(always=True)


def _digest_all(entries: Iterable[Entry]) -> set[bytes]:
    """What the vectors of some entries are kept under."""
    return {digest_text(text) for entry in entries for text in split_passages(entry)}
