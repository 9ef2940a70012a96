"""Operations of a memory on its store and indexes; safe to use from several threads.

Writers hold the scope in the store; readers do not. For the order of locks see
`vibe_llms.memory.indexes`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import EmbeddingsMixed, MemoryDamaged, MemoryNotFound, StorageError
from vibe_llms.base.locks import LockTimeout
from vibe_llms.embedding.cache import digest_text
from vibe_llms.memory.changes import HeldScope
from vibe_llms.memory.chunks import split_passages
from vibe_llms.memory.entries import SHORTEST_PART, Entry, Role, Scope, check_entry, is_part
from vibe_llms.memory.index import ScopeIndex
from vibe_llms.memory.indexes import Indexes
from vibe_llms.memory.interfaces import MemoryStore
from vibe_llms.memory.long_work import LongWork
from vibe_llms.memory.places import identity_in
from vibe_llms.memory.pruning import Retention, find_old
from vibe_llms.memory.records import IndexRecord
from vibe_llms.memory.retrieval import Recollection, RetrievalQuery, RetrievalSettings, retrieve
from vibe_llms.memory.similarity import find_mean
from vibe_llms.memory.summaries import find_derived
from vibe_llms.memory.text_search import find_all, find_holding

T = TypeVar("T")


class ScopeStatus(Struct, frozen=True):
    """Contents of a scope; `damaged` are files that are not entries, with the reason."""

    scope: Scope
    entries: int
    deleted: int
    damaged: Sequence[MemoryDamaged] = ()


class IndexedStore:
    """A store with the indexes of its scopes; `model` makes their vectors.

    A change to a scope waits for other processes within its `patience`, then raises
    `ArchiveLocked`.
    """

    def __init__(self, files: MemoryStore, model: str, work: LongWork | None = None) -> None:
        self.files = files
        self._cache = files.vectors
        self._model = model
        self.indexes = Indexes(files, model, work=work)

    def refresh(self, scope: Scope) -> int:
        """Index the changes in a scope; return the number of entries."""
        with self._current(scope) as index:
            return len(index)

    def add(self, entry: Entry, patience: LockTimeout) -> Entry:
        """Write a checked entry; return the fact that it repeats, if there is one."""
        scope = entry.scope
        if entry.role != Role.FACT:
            with self.files.changing(scope, seconds=patience):
                # The next search finds it; a repeated turn is a turn of its own.
                self.files.write(entry)
            return entry
        return self.carry_out(scope, lambda held: held.restore(entry), patience)

    def search(
        self, question: RetrievalQuery, scopes: Sequence[Scope], settings: RetrievalSettings
    ) -> Sequence[Recollection]:
        """Return the matches, best first; raise `EmbeddingsMixed` if the vector does not fit."""
        with self.files.reading(), self.indexes.holding(scopes) as indexes:
            if question.vector is not None:
                for index in indexes:
                    index.check_size(question.vector)
            return retrieve(question, indexes, settings)

    def survey_bare(
        self, scope: Scope, count: int
    ) -> tuple[Sequence[tuple[IndexRecord, Entry]], int]:
        """Return up to `count` entries without vectors, and the number of all of them.

        Raise `EmbeddingsMixed` if others have vectors of another model.
        """
        with self._current(scope, thorough=False) as index:
            if index.mixed:
                raise EmbeddingsMixed(
                    f"the vectors of {scope} come from {index.embedder}, but the embedder is now "
                    f"{index.model}; rebuild them: vibe-llms memory reindex"
                )
            return index.survey_bare(count), index.count_bare()

    def forget_vectors(self, scope: Scope, bare: Iterable[tuple[IndexRecord, Entry]]) -> None:
        """Delete the vectors of entries that were changed or removed while they were embedded.

        Another process may have deleted an entry since, and does not know its vectors.
        """
        old: set[bytes] = set()
        before = {known.place: (known, entry) for known, entry in bare}
        with self.files.reading(), self.indexes.using(scope, passing=True) as index:
            stats = self.files.stat_many(scope, before)
            for place, (known, entry) in before.items():
                if stats.get(place) != known.stat:
                    now = index.read(known)
                    old |= _digest_all([entry]) - _digest_all([] if now is None else [now])
        if old:
            # If this fails, the next call of `forget` removes them.
            with suppress(StorageError):
                self._cache.forget(old)

    def take_vectors(
        self,
        scope: Scope,
        bare: Iterable[IndexRecord],
        vectors: Mapping[int, Sequence[array[float]]],
    ) -> int:
        """Index the vectors of unchanged entries; return their number."""
        with self._using(scope, passing=True) as index, index.lock:
            current = index.find_unchanged(bare)
            index.take_vectors({number: vectors[number] for number in current})
            return len(current)

    def read_vectors(self, scopes: Iterable[Scope]) -> dict[tuple[Scope, str], array[float]]:
        """Return the mean vectors of the entries of some scopes, where they exist."""
        found: dict[tuple[Scope, str], array[float]] = {}
        for scope in scopes:
            with self._current(scope) as index:
                if index.mixed:
                    continue
                for known in index:
                    if (rows := index.vectors_of(known.number)) is not None:
                        vectors = [array("f", row.tolist()) for row in rows]
                        found[scope, known.identity] = find_mean(vectors)
        return found

    def keep_vectors(self, vectors: Iterable[tuple[Entry, array[float]]]) -> None:
        """Store the vectors of entries with a single passage, if their length fits the model."""
        size = self._cache.read_size(self._model)
        found: dict[bytes, array[float]] = {}
        for entry, vector in vectors:
            passages = split_passages(entry)
            if len(passages) == 1 and size in (None, len(vector)):
                found[digest_text(passages[0])] = vector
        if found and len({len(vector) for vector in found.values()}) == 1:
            self._cache.write(self._model, found)

    def survey(self, scope: Scope | None, role: Role | None) -> Sequence[Entry]:
        """Return all entries of a scope, or of all, oldest first."""
        found: list[Entry] = []
        for one in self.files.survey_scopes() if scope is None else [scope]:
            with self._using(one, passing=scope is None) as index:
                with index.lock:
                    index.refresh()
                    records = [known for known in index if role is None or known.role == role]
                found += (entry for entry in index.read_many(records) if entry is not None)
        return sorted(found, key=lambda entry: (entry.created, entry.identity))

    def outline(self, scope: Scope) -> Sequence[IndexRecord]:
        """Return the records of a scope, oldest first."""
        with self._current(scope, passing=False, thorough=False) as index:
            return [*index]

    def read(self, scope: Scope, known: Iterable[IndexRecord]) -> Sequence[Entry | None]:
        """Read the entries of some records; `None` for those that are gone."""
        with self._using(scope) as index:
            return index.read_many([*known])

    def find(self, identity: str, scopes: Sequence[Scope] | None) -> tuple[Entry, str]:
        """Return the entry of an identity, or of a part of it, and its place.

        Raise `MemoryDamaged` if it cannot be read.
        """
        if len(identity) < SHORTEST_PART:
            raise MemoryNotFound(
                f"{identity!r} is too short; use at least {SHORTEST_PART} characters"
            )
        fitting: list[tuple[Scope, IndexRecord]] = []
        damaged: list[MemoryDamaged] = []
        for scope in self.files.survey_scopes() if scopes is None else scopes:
            with self._current(scope, passing=scopes is None) as index:
                fitting += ((scope, one) for one in index if is_part(identity, one.identity))
                damaged += (
                    error
                    for place, error in index.damaged.items()
                    if is_part(identity, identity_in(place))
                )
        exact = [(scope, known) for scope, known in fitting if known.identity == identity]
        if len(exact) > 1:
            places = ", ".join(f"{scope}/{known.place}" for scope, known in exact)
            raise MemoryNotFound(f"several files have the id {identity!r}; fix them: {places}")
        if len(exact or fitting) > 1:
            raise MemoryNotFound(f"{identity!r} matches several entries; use more characters")
        for scope, known in exact or fitting:
            with suppress(FileNotFoundError):
                return self.files.read(scope, known.place), known.place
        for error in damaged:
            raise error
        raise MemoryNotFound(f"no entry matches {identity!r}; see: vibe-llms memory list")

    def revise(self, found: Entry, changes: dict[str, Any], patience: LockTimeout) -> Entry:
        """Change an entry that was found, in its file."""
        with (
            self.indexes.using(found.scope, passing=True) as index,
            self._changing(index, patience),
        ):
            # It may have changed since it was found; in this scope, which is held.
            entry, place = self.find(found.identity, [found.scope])
            revised = check_entry(msgspec.structs.replace(entry, **changes))
            self.files.rewrite(revised, place)
            self.refresh(found.scope)
        return revised

    def remove(self, found: Entry, replaced_by: str, patience: LockTimeout) -> Entry:
        """Move an entry that was found to the deleted ones."""
        with (
            self.indexes.using(found.scope, passing=True) as index,
            self._changing(index, patience),
        ):
            entry, place = self.find(found.identity, [found.scope])
            self.files.delete(entry, place, replaced_by=replaced_by)
            self.refresh(found.scope)
        return entry

    def carry_out(self, scope: Scope, work: Callable[[HeldScope], T], patience: LockTimeout) -> T:
        """Run `work` while the scope is held."""
        with self.indexes.using(scope) as index, self._changing(index, patience):
            return work(HeldScope(self.files, index))

    def forget(self, scope: Scope, wanted: str, patience: LockTimeout) -> Sequence[Entry]:
        """Permanently remove entries that contain these folded words, with all derived data."""

        def find() -> Sequence[tuple[str, Entry]]:
            holding = find_holding(self.files, scope, wanted)
            return [*holding, *find_derived(self.files, scope, holding)]

        return self._erase(scope, find, patience)

    def prune(self, scope: Scope, rule: Retention, patience: LockTimeout) -> Sequence[Entry]:
        """Permanently remove old entries, with all derived data."""
        # Most scopes have nothing that is old, and need not be held.
        if not (self.files.holds(scope) and find_old(self.files, scope, rule)):
            return []
        return self._erase(scope, lambda: find_old(self.files, scope, rule), patience)

    def _erase(
        self, scope: Scope, find: Callable[[], Sequence[tuple[str, Entry]]], patience: LockTimeout
    ) -> Sequence[Entry]:
        """Permanently remove the entries that are found while the scope is held."""
        if not self.files.holds(scope):
            return []
        with self.indexes.using(scope) as index, self._changing(index, patience):
            holding = find()
            # The index first: after a crash the files still show that work is left.
            index.discard()
            self._cache.forget(_digest_all(entry for _, entry in holding))
            self.files.erase(scope, [place for place, _ in holding])
            self.files.clear(scope)
            with index.lock:
                # A search may have read the files in between.
                index.discard()
                index.refresh()
        return [entry for _, entry in holding]

    def forget_scope(self, scope: Scope, patience: LockTimeout) -> Sequence[Entry]:
        """Permanently remove a scope, with everything in its folders."""
        holding: list[tuple[str, Entry]] = []
        if self.files.holds(scope):
            with (
                self.indexes.using(scope, passing=True) as index,
                self._changing(index, patience),
            ):
                holding = find_all(self.files, scope)
                index.discard()
                self._cache.forget(_digest_all(entry for _, entry in holding))
                self.files.erase_scope(scope)
                index.discard()
        # May be left after the scope's folder was removed by hand.
        self.files.erase_derived(scope)
        return [entry for _, entry in holding]

    def clear_cache(self) -> None:
        """Delete the vectors of all but current entries.

        The indexes of scopes whose folders are gone are removed too.
        """
        self.files.clear_derived()
        if self._cache.exists():
            self._cache.retain(_digest_all(self.survey(None, None)))

    def reindex(self, scope: Scope, patience: LockTimeout) -> int:
        """Rebuild the index of a scope; return the number of entries."""
        with self.indexes.using(scope, passing=True) as index:
            with self._changing(index, patience):
                index.discard()
            with self.files.reading(), index.lock:
                index.refresh()
                count = len(index)
            index.store(always=True)
        return count

    def status(self) -> Sequence[ScopeStatus]:
        """Return the contents of each scope."""
        found: list[ScopeStatus] = []
        for scope in self.files.survey_scopes():
            deleted = len(self.files.scan(scope, deleted=True))
            with self._current(scope) as index:
                damaged = tuple(index.damaged.values())
                found.append(ScopeStatus(scope, len(index), deleted, damaged))
        return found

    @contextmanager
    def _using(self, scope: Scope, *, passing: bool = False) -> Iterator[ScopeIndex]:
        """Provide the index of a scope, for reading entries too."""
        with self.files.reading(), self.indexes.using(scope, passing=passing) as index:
            yield index

    @contextmanager
    def _current(
        self, scope: Scope, *, passing: bool = True, thorough: bool = True
    ) -> Iterator[ScopeIndex]:
        """Provide the index of a scope with its lock, brought up to date."""
        with self._using(scope, passing=passing) as index, index.lock:
            index.refresh(thorough=thorough)
            yield index

    @contextmanager
    def _changing(self, index: ScopeIndex, patience: LockTimeout) -> Iterator[None]:
        """Hold the scope of an index, which is scanned again if the change fails."""
        done = False
        try:
            with self.files.changing(index.scope, seconds=patience):
                yield
            done = True
        finally:
            if not done:
                index.rescan_later()


def _digest_all(entries: Iterable[Entry]) -> set[bytes]:
    """Return the digests that identify the vectors of some entries."""
    return {digest_text(text) for entry in entries for text in split_passages(entry)}
