"""Index of one scope: updated from its files, stored as snapshots.

The files are authoritative: changes in the folder are read before each answer. A snapshot is
derived; if it does not fit, the index is rebuilt from the files.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any

from vibe_llms.base.exceptions import (
    ArchiveLocked,
    EmbeddingsMixed,
    MemoryDamaged,
    SessionClosed,
    StorageError,
)
from vibe_llms.base.locks import LockTimeout
from vibe_llms.embedding.vectors import VectorIndex
from vibe_llms.embedding.words import digest_of, label, split_words
from vibe_llms.memory.database import IndexDatabase
from vibe_llms.memory.entries import SPOKEN, Entry, Role, Scope
from vibe_llms.memory.interfaces import IndexStorage
from vibe_llms.memory.long_work import READING, LongWork
from vibe_llms.memory.metadata import metadata_of
from vibe_llms.memory.parts import Fit, WeightedPart
from vibe_llms.memory.places import FileStat
from vibe_llms.memory.records import IndexRecord

#: Parts of a snapshot.
_DATABASE, _VECTORS = "database", "vectors"
#: Number of changes that justify a new snapshot, and share of all entries.
_CHANGES, _SHARE = 64, 0.05
#: Files read at a time; the work can be stopped in between.
_READ = 1024
#: Characters of entries without vectors that are kept, so that their files are read once.
_ROOM = 16 * 1024 * 1024
#: Pause after a snapshot could not be written.
_REST_SECONDS = 60.0


class ScopeIndex:
    """Entries of one scope, found by their words, and by vectors of a `model` if it has one.

    `embedder` is the model of its vectors, including stored ones. If it differs from `model`, no
    vectors are added or searched until the index is discarded. `loaded` is True after the first
    read.

    Only the thread that holds `lock` may use it. `read` and `discard` need no lock, and callers of
    `store` must hold none; `vibe_llms.memory.indexes` explains the order.
    """

    def __init__(
        self, files: IndexStorage, scope: Scope, model: str = "", work: LongWork | None = None
    ) -> None:
        self.scope = scope
        self.model = model
        self.embedder = ""
        self.damaged: dict[str, MemoryDamaged] = {}
        self.lock = threading.RLock()
        self.loaded = False
        self._files = files
        self._work = work or LongWork()
        self._snapshots = files.access_snapshots(scope)
        self._scanner = files.produce_scanner(scope)
        self._database = IndexDatabase()
        self._vectors: VectorIndex | None = None
        self._broken: dict[str, FileStat] = {}
        #: Entries without vectors, oldest first; the entries just read are kept.
        self._bare: dict[int, Entry | None] = {}
        self._room = _ROOM
        self._changes = 0
        self._rests_until = 0.0

    def __len__(self) -> int:
        return len(self._database)

    def __iter__(self) -> Iterator[IndexRecord]:
        """Iterate over the records of all entries, oldest first."""
        return iter(self._database)

    @property
    def mixed(self) -> bool:
        """True if the stored vectors are of another model than the one in use."""
        return bool(self.model and self.embedder and self.embedder != self.model)

    def refresh(self, *, thorough: bool = True) -> None:
        """Index the files that changed since the last refresh.

        Unless `thorough`, files overwritten in place among many may be noticed some seconds later.
        """
        if not self.loaded:
            self._load()
            self.loaded = thorough = True
        news = self._scanner.scan(ChainMap(self._database.stats, self._broken), thorough=thorough)
        if news is None:
            return
        for place in news.gone:
            self._clear_damage(place)
        # Files that the system could not read are read again.
        self.damaged = {
            place: error for place, error in self.damaged.items() if place in self._broken
        }
        complete = False
        try:
            with self._database.together():
                for place in news.gone:
                    self._drop(place)
                self._changes += len(news.gone)
                self._read_changed(news.changed)
            complete = True
        finally:
            if not complete:
                # The next scan finds the rest.
                self._scanner.rescan_later()

    def _read_changed(self, changed: Mapping[str, FileStat]) -> None:
        """Index new and changed entries, roughly oldest first, and report the progress.

        If the process ends early, the entries read so far are kept.
        """
        # The names of our files begin with the time.
        places = sorted(changed, key=os.path.basename)
        for start in range(0, len(places), _READ):
            if start:
                self._work.proceed(READING, start, len(places))
            some = places[start : start + _READ]
            read: dict[str, Entry] = {}
            for place, entry in self._files.read_many(self.scope, some):
                if isinstance(entry, MemoryDamaged):
                    self._note_damaged(place, entry, changed[place])
                else:
                    self._clear_damage(place)
                    read[place] = entry
            for place in some:
                if place not in read:
                    self._drop(place)
            for place in sorted(read, key=lambda one: (read[one].created, read[one].identity)):
                self._put(read[place], place, changed[place])
            self._changes += len(some)
        if len(places) > _READ:
            self._work.proceed(READING, len(places), len(places))

    def rescan_later(self) -> None:
        """Scan again, since a change may have failed in the middle."""
        with self.lock:
            self._scanner.rescan_later()

    def _note_damaged(self, place: str, error: MemoryDamaged, stat: FileStat) -> None:
        self.damaged[place] = error
        if isinstance(error.__cause__, OSError):
            # The file is not damaged; the system could not read it now.
            self._scanner.rescan_later()
        else:
            self._broken[place] = stat

    def _clear_damage(self, place: str) -> None:
        self.damaged.pop(place, None)
        self._broken.pop(place, None)

    def count_entries(self, words: Iterable[str]) -> Mapping[str, int]:
        """Estimate how many entries have each word."""
        return self._database.count_entries(words)

    def score(
        self, parts: Sequence[WeightedPart], count: int, roles: Collection[Role]
    ) -> Mapping[int, Fit]:
        """Return how entries fit a message; see `IndexDatabase.score`."""
        return self._database.score(parts, count, roles)

    def assess(self, parts: Sequence[WeightedPart], numbers: Iterable[int]) -> Mapping[int, Fit]:
        """Return how some entries fit a message."""
        return self._database.assess(parts, numbers)

    def rank(self, question: array[float], count: int) -> Mapping[int, float]:
        """Return the entries nearest to a vector, with their cosines."""
        return {} if self._vectors is None else self._vectors.search(question, count)

    def compare(self, question: array[float], numbers: Sequence[int]) -> Mapping[int, float]:
        """Return the cosines of those entries that have vectors."""
        return {} if self._vectors is None else self._vectors.score(question, numbers)

    def sum_up(self, question: array[float]) -> tuple[float, int]:
        """Return the sum of the cosines of all chunks, and the number of chunks."""
        return (0.0, 0) if self._vectors is None else self._vectors.sum_up(question)

    def check_size(self, vector: array[float]) -> None:
        """Raise `EmbeddingsMixed` if the dimensions of a vector differ from the stored ones."""
        if self._vectors is not None and not self._vectors.fits(vector):
            raise EmbeddingsMixed(
                f"{self.model} now returns vectors of {len(vector)} dimensions instead of "
                f"{self._vectors.dimension}; rebuild them: vibe-llms memory reindex"
            )

    def vectors_of(self, number: int) -> Any:
        """Return the vectors of an entry's chunks as a numpy array, or `None` without vectors."""
        return None if self._vectors is None else self._vectors.read(number)

    def survey_bare(self, count: int) -> Sequence[tuple[IndexRecord, Entry]]:
        """Return up to `count` entries without vectors, newest first."""
        if not self.model or self.mixed:
            return []
        numbers = [*islice(reversed(self._bare), count)]
        read = {number: self._bare[number] for number in numbers}
        for number in numbers:
            # If the embedder fails, they are read again.
            self._keep_bare(number, None)
        records = {one.number: one for one in self.records(numbers)}
        lacking = [one for one in records.values() if read[one.number] is None]
        for one, entry in zip(lacking, self.read_many(lacking), strict=True):
            read[one.number] = entry
        found: list[tuple[IndexRecord, Entry]] = []
        for number in numbers:
            if (entry := read[number]) is None or number not in records:
                del self._bare[number]
            else:
                found.append((records[number], entry))
        return found

    def count_bare(self) -> int:
        """Return the number of entries without vectors."""
        return len(self._bare) if self.model and not self.mixed else 0

    def find_unchanged(self, records: Iterable[IndexRecord]) -> Sequence[int]:
        """Return the numbers of the unchanged entries."""
        known = {record.number: record for record in records}
        return [one.number for one in self.records(known) if known[one.number] == one]

    def take_vectors(self, vectors: Mapping[int, Sequence[array[float]]]) -> None:
        """Add vectors made by `model` to existing entries that have none."""
        fresh = {number: some for number, some in vectors.items() if number in self._bare}
        if not fresh or self.mixed:
            return
        if self._vectors is None:
            self._vectors = VectorIndex(self.model)
        for one in chain.from_iterable(fresh.values()):
            self.check_size(one)
        self._vectors.add(fresh)
        self.embedder = self.model
        for number in fresh:
            self._drop_bare(number)
        self._changes += len(fresh)

    def find_repeat(self, entry: Entry, *, looked: bool = False) -> Entry | None:
        """Return the fact with the same normalized text, as the files are now.

        `looked` is True if the caller has refreshed the index since it holds the scope.
        """
        if not looked and not (self.loaded and self._scanner.is_listed()):
            self.refresh()
        wanted = digest_of(entry.content)
        for record in self._database.facts(wanted):
            found = self.read(record)
            if found is not None and digest_of(found.content) == wanted:
                return found
        return None

    def find(self, identity: str) -> IndexRecord | None:
        """Return the record of the entry with this identity."""
        return self._database.find(identity)

    def add_written(self, entry: Entry, place: str) -> None:
        """Add an entry that was just written at a place, without a scan."""
        stat = self._files.stat_many(self.scope, [place]).get(place)
        if not self.loaded or stat is None or self._database.stats.get(place) == stat:
            # The next refresh finds it, or one in another thread did.
            return
        self._clear_damage(place)
        self._put(entry, place, stat)
        self._scanner.add(place)
        self._changes += 1

    def drop_moved(self, place: str) -> None:
        """Remove the entry of a file that was just moved away, without a scan."""
        if place in self._database.stats:
            self._drop(place)
            self._scanner.remove(place)
            self._changes += 1

    def records(self, numbers: Iterable[int]) -> Iterator[IndexRecord]:
        """Yield the records of the entries with some numbers, in any order."""
        return self._database.records(numbers)

    def read(self, record: IndexRecord) -> Entry | None:
        """Read the entry from its file; return `None` if it is gone or damaged."""
        try:
            return self._files.read(self.scope, record.place)
        except (FileNotFoundError, MemoryDamaged):
            return None

    def read_many(self, records: Sequence[IndexRecord]) -> Sequence[Entry | None]:
        """Read several entries, in the order of their records."""
        found = dict(self._files.read_many(self.scope, [one.place for one in records]))
        entries = (found.get(one.place) for one in records)
        return [None if isinstance(one, MemoryDamaged) else one for one in entries]

    def store(self, *, always: bool = False, seconds: float | LockTimeout | None = None) -> bool:
        """Write a snapshot for the next process, if enough changed or if `always`.

        If the disk is full or read-only, nothing is written. Return False if another process held
        the scope for all `seconds`.
        """
        enough = self._snapshots.least if always else max(_CHANGES, _SHARE * len(self))
        if self._changes < enough or (time.monotonic() < self._rests_until and not always):
            return True
        try:
            if not self._files.holds(self.scope):
                return True
            # Under the lock, so that nothing is stored that another process forgets.
            with self._files.changing(self.scope, seconds=seconds):
                self._files.clear(self.scope)
                self._write()
        except ArchiveLocked:
            return False
        except StorageError:
            self._rests_until = time.monotonic() + _REST_SECONDS
        return True

    def _write(self) -> None:
        with self.lock:
            with suppress(SessionClosed):
                self.refresh(thorough=False)
            parts = {_DATABASE: self._database.serialize()}
            if self._vectors is not None:
                parts[_VECTORS] = self._vectors.encode()
            embedder = self.embedder
            changes, self._changes = self._changes, 0
        written = False
        try:
            self._snapshots.write(embedder, parts)
            written = True
        finally:
            if not written:
                with self.lock:
                    self._changes += changes

    def discard(self) -> None:
        """Remove the snapshot and empty the index; call while the scope is held."""
        self._snapshots.discard()
        with self.lock:
            self._reset()

    def _reset(self) -> None:
        self._database = IndexDatabase()
        self._vectors, self.embedder = None, ""
        self._bare, self._broken, self._room = {}, {}, _ROOM
        self._scanner.reset()
        self.damaged.clear()
        self._changes = 1
        self.loaded = True

    def _load(self) -> None:
        """Load any complete snapshot, since the files are scanned next."""
        wanted = (_DATABASE, _VECTORS) if self.model else (_DATABASE,)
        for embedder, parts in self._snapshots.read(wanted):
            try:
                database = IndexDatabase(parts.get(_DATABASE, b""))
                numbers = sorted(record.number for record in database)
                vectors = None
                if embedder == self.model and _VECTORS in parts:
                    vectors = VectorIndex.decode(parts[_VECTORS])
            except ValueError:
                continue
            self._database, self._vectors, self.embedder = database, vectors, embedder
            done = () if vectors is None else vectors.numbers
            self._bare = dict.fromkeys(number for number in numbers if number not in done)
            return
        self._changes = 1

    def _put(self, entry: Entry, place: str, stat: FileStat) -> None:
        self._drop_vectors(place)
        spoken = entry.role in SPOKEN
        # Turns of an unknown conversation have no neighbors, unless the scope is a conversation.
        together = spoken and (entry.conversation or self.scope.kind == "conversation")
        record = IndexRecord(
            place=place,
            stat=stat,
            number=0,
            identity=entry.identity,
            role=entry.role,
            created=entry.created,
            importance=entry.importance,
            conversation=entry.conversation,
            # Only facts are looked up by digest.
            digest=digest_of(entry.content) if entry.role == Role.FACT else "",
            asks=spoken and entry.content.endswith(("?", "\uff1f")),
            metadata=metadata_of(entry),
        )
        number = self._database.put(
            record,
            split_words(entry.content),
            label(entry.speaker, entry.created, (entry.category, *entry.topics)),
            entry.conversation if together else None,
        )
        self._keep_bare(number, entry if self.model else None)

    def _drop(self, place: str) -> None:
        self._drop_vectors(place)
        self._database.drop(place)

    def _drop_vectors(self, place: str) -> None:
        record = self._database.at(place)
        if record is not None:
            self._drop_bare(record.number)
            if self._vectors is not None:
                self._vectors.remove(record.number)

    def _keep_bare(self, number: int, entry: Entry | None) -> None:
        """Record an entry without vectors, and keep its text if there is room."""
        old = self._bare.get(number)
        self._room += 0 if old is None else len(old.content)
        kept = None if entry is None or len(entry.content) > self._room else entry
        self._room -= 0 if kept is None else len(kept.content)
        self._bare[number] = kept

    def _drop_bare(self, number: int) -> None:
        if number in self._bare:
            self._keep_bare(number, None)
            del self._bare[number]
