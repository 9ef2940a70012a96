"""`MemoryStore`: storage for the entries of a memory, and for data derived from them.

An entry is a text at a place within a scope, the same text in every store: Markdown with front
matter. Search, deduplication, and forgetting are built on this, and are the same for all stores.
Code that needs only a part of a store names that part, such as `EntryReader`.
`vibe_llms.testing.check_memory_store` tests a store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Protocol

from vibe_llms.base.configuration import Configuration
from vibe_llms.base.exceptions import MemoryDamaged
from vibe_llms.base.locks import LockTimeout
from vibe_llms.embedding.interfaces import VectorStore
from vibe_llms.memory.entries import Entry, Scope
from vibe_llms.memory.places import Difference, FileStat
from vibe_llms.memory.tickets import TicketJournal


class MemoryStores(Protocol):
    """Factory for the memory of each user; produced by `MEMORY_STORES`."""

    def open_store(self, user: str, configuration: Configuration) -> MemoryStore:
        """Open the memory of a user, whose own files are at the places of the configuration."""
        ...

    def open_journal(self, user: str, configuration: Configuration) -> TicketJournal:
        """Open the journal of a user's turns that are still to be remembered."""
        ...

    def close(self) -> None:
        """Close open resources, except the backend; safe to call twice."""
        ...


class EntryReader(Protocol):
    """Part of a store that lists entries and reads them."""

    @property
    def address(self) -> str:
        """Location of the store, for people."""
        ...

    @property
    def has_files(self) -> bool:
        """True if people may read and edit the entries as files."""
        ...

    def survey_scopes(self) -> Sequence[Scope]:
        """Return the existing scopes, in order."""
        ...

    def holds(self, scope: Scope, place: str = "") -> bool:
        """Return True if a scope exists, or has something at a place."""
        ...

    def scan(self, scope: Scope, *, deleted: bool = False) -> Mapping[str, FileStat]:
        """Return the entries of a scope by place, or its deleted ones."""
        ...

    def stat_many(self, scope: Scope, places: Collection[str]) -> Mapping[str, FileStat]:
        """Return the same as `scan`, for some places."""
        ...

    def read(self, scope: Scope, place: str) -> Entry:
        """Return the entry at a place; raise `MemoryDamaged` or `FileNotFoundError`."""
        ...

    def read_many(
        self, scope: Scope, places: Collection[str]
    ) -> Iterator[tuple[str, Entry | MemoryDamaged]]:
        """Yield places with their entries or errors, in any order, skipping missing ones."""
        ...

    def read_last(self, scope: Scope) -> datetime | None:
        """Return the time the facts of a scope were last deduplicated."""
        ...


class TextReader(EntryReader, Protocol):
    """Part of a store that reads all texts, including those that are not entries."""

    def read_all(self, scope: Scope) -> Iterator[tuple[str, bytes | None]]:
        """Yield the bytes at all places of a scope; `None` where they are too long for an entry."""
        ...

    def read_parts(self, scope: Scope, place: str) -> Iterator[bytes]:
        """Yield the bytes at a place in chunks."""
        ...

    def take_damaged(self) -> Sequence[str]:
        """Return the errors of texts that were read and are not entries, each once."""
        ...

    def survey_strays(self) -> Sequence[Path]:
        """Return files that belong to no scope, possibly of other programs."""
        ...


class EntryWriter(EntryReader, Protocol):
    """Part of a store that writes and removes entries, while their scope is held."""

    def place_of(self, entry: Entry) -> str:
        """Return the place of an entry in its scope; raise `MemoryInvalid` for a bad identity."""
        ...

    def write(self, entry: Entry) -> str:
        """Write an entry, replacing an old one, while its scope is held; return its place."""
        ...

    def rewrite(self, entry: Entry, place: str) -> None:
        """Rewrite an entry at its place, while its scope is held."""
        ...

    def delete(self, entry: Entry, place: str, *, replaced_by: str = "") -> None:
        """Move an entry to the deleted ones, while its scope is held."""
        ...

    def erase(self, scope: Scope, places: Iterable[str]) -> None:
        """Permanently remove some entries, including deleted ones, while their scope is held."""
        ...

    def erase_scope(self, scope: Scope) -> None:
        """Permanently remove a scope, while it is held."""
        ...


class IndexStorage(EntryReader, Protocol):
    """Part of a store that an index needs: locks, detectors of changes, and snapshots."""

    def changing(
        self, scope: Scope, *, seconds: float | LockTimeout | None = None
    ) -> AbstractContextManager[None]:
        """Hold a scope to change it, creating it if needed; others wait, then get `ArchiveLocked`.

        For the order of locks see `vibe_llms.memory.indexes`.
        """
        ...

    def clear(self, scope: Scope) -> None:
        """Remove leftovers of crashes, while the scope is held."""
        ...

    def produce_scanner(self, scope: Scope) -> Scanner:
        """Produce a detector of changes in a scope."""
        ...

    def access_snapshots(self, scope: Scope) -> Snapshots:
        """Return the stored indexes of a scope."""
        ...

    def erase_derived(self, scope: Scope) -> None:
        """Remove the derived data of a removed scope."""
        ...

    def clear_derived(self) -> None:
        """Remove the derived data of all removed scopes."""
        ...


class MemoryStore(TextReader, EntryWriter, IndexStorage, Protocol):
    """Entries of one memory; safe to call from any thread. Every method waits for the store.

    Readers never wait for writers. Changes made while a scope is held are durable when the scope is
    released. If they cannot be, a store may keep none of them.
    """

    @property
    def folder(self) -> Path:
        """Folder that people may edit; `StorageError` for a store without files."""
        ...

    @property
    def vectors(self) -> VectorStore:
        """Store of the vectors of texts."""
        ...

    def reading(self) -> AbstractContextManager[None]:
        """Group several calls of one thread to make them cheaper; callers hold no lock yet."""
        ...

    def write_last(self, scope: Scope, last: datetime) -> None:
        """Record the time the facts of a scope were last deduplicated."""
        ...

    def deduplicating(self, scope: Scope, *, seconds: float) -> AbstractContextManager[None]:
        """Hold the exclusive right to deduplicate a scope; others get `ArchiveLocked`."""
        ...

    def close(self) -> None:
        """Close open resources; safe to call twice."""
        ...


class Scanner(Protocol):
    """Detector of changes in a scope since its last scan; not thread-safe."""

    def scan(self, known: Mapping[str, FileStat], *, thorough: bool) -> Difference | None:
        """Return the difference from the `known` files, or `None` if nothing changed.

        Unless `thorough`, changes that are slow to find may be found later.
        """
        ...

    def is_listed(self) -> bool:
        """Return True if no fact came or went since the last scan."""
        ...

    def add(self, place: str) -> None:
        """Note that the caller has written at a place."""
        ...

    def remove(self, place: str) -> None:
        """Note that the caller has removed the file at a place."""
        ...

    def rescan_later(self) -> None:
        """Scan again the next time, even if nothing seems to have changed."""
        ...

    def reset(self) -> None:
        """Forget all earlier scans."""
        ...


class Snapshots(Protocol):
    """Stored indexes of one scope; derived, so losing them costs only time."""

    @property
    def least(self) -> int:
        """Minimum number of changes for a snapshot when the index is dropped from memory."""
        ...

    def read(self, wanted: Collection[str]) -> Iterator[tuple[str, Mapping[str, bytes]]]:
        """Yield complete snapshots: the embedder, and the wanted parts."""
        ...

    def write(self, embedder: str, parts: Mapping[str, bytes]) -> None:
        """Store one snapshot in place of all others, while the scope is held."""
        ...

    def discard(self) -> None:
        """Remove all snapshots."""
        ...
