"""`MemoryStore`: what keeps the entries of a memory, and what is derived from them.

An entry is a text at a place within a scope, the same text in every store: Markdown with front
matter. Searching, deduplication and forgetting are above this, and the same for all stores.
`vibe_llms.testing.check_memory_store` tests a store.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Protocol

from vibe_llms.configuration import Configuration
from vibe_llms.exceptions import MemoryDamaged
from vibe_llms.memory.entries import Entry, Scope
from vibe_llms.memory.places import Difference, FileStat
from vibe_llms.memory.tickets import TicketJournal
from vibe_llms.storage.locks import Patience


class MemoryStores(Protocol):
    """Opens the memory of each user; what `produce_part(backend, "memory")` gives."""

    def open_store(self, user: str, configuration: Configuration) -> MemoryStore:
        """The memory of a user, whose own files are at the places of the configuration."""
        ...

    def open_journal(self, user: str, configuration: Configuration) -> TicketJournal:
        """The turns that are still to be remembered for a user."""
        ...

    def close(self) -> None:
        """Close what is open, if the backend is not closed; safe to call twice."""
        ...


class MemoryStore(Protocol):
    """The entries of one memory; any thread may call it, and every method waits for the store.

    Readers never wait for writers. What is written while a scope is held is durable when the scope
    is released. If it cannot be, a store may keep none of it.
    """

    @property
    def folder(self) -> Path:
        """The folder that people may edit; `StorageError` for a store without files."""
        ...

    @property
    def has_files(self) -> bool:
        """Whether people may read and edit the entries as files."""
        ...

    @property
    def address(self) -> str:
        """Where it is, for people."""
        ...

    @property
    def vectors(self) -> VectorStore:
        """The vectors of texts."""
        ...

    def changing(
        self, scope: Scope, *, seconds: float | Patience | None = None
    ) -> AbstractContextManager[None]:
        """Hold a scope to change it, which makes it exist; others get `ArchiveLocked` in the end.

        For the order of locks see `vibe_llms.memory.indexes`.
        """
        ...

    def reading(self) -> AbstractContextManager[None]:
        """Several calls of one thread that are cheaper together; callers hold no lock yet."""
        ...

    def place_of(self, entry: Entry) -> str:
        """Where an entry is within its scope; `MemoryInvalid` for a wrong identity."""
        ...

    def write(self, entry: Entry) -> str:
        """Write an entry, new or over the old one, while its scope is held; returns its place."""
        ...

    def rewrite(self, entry: Entry, place: str) -> None:
        """Write an entry again at its place, while its scope is held."""
        ...

    def delete(self, entry: Entry, place: str, *, replaced_by: str = "") -> None:
        """Move an entry to the deleted ones, while its scope is held."""
        ...

    def erase(self, scope: Scope, places: Iterable[str]) -> None:
        """Permanently remove some entries, deleted ones too, while their scope is held."""
        ...

    def erase_scope(self, scope: Scope) -> None:
        """Permanently remove all of a scope, while it is held."""
        ...

    def erase_derived(self, scope: Scope) -> None:
        """Remove what is derived from the entries of a scope that is gone."""
        ...

    def clear(self, scope: Scope) -> None:
        """Remove what crashes left unfinished, while the scope is held."""
        ...

    def clear_derived(self) -> None:
        """Remove what is derived from the entries of scopes that are gone."""
        ...

    def holds(self, scope: Scope, place: str = "") -> bool:
        """Whether a scope exists, or has something at a place."""
        ...

    def read(self, scope: Scope, place: str) -> Entry:
        """The entry at a place; raises `MemoryDamaged` or `FileNotFoundError`."""
        ...

    def read_many(
        self, scope: Scope, places: Collection[str]
    ) -> Iterator[tuple[str, Entry | MemoryDamaged]]:
        """The entries at some places with these, in any order; none for what is gone."""
        ...

    def read_all(self, scope: Scope) -> Iterator[tuple[str, bytes | None]]:
        """The bytes at all places of a scope; `None` where they are too long for an entry."""
        ...

    def read_parts(self, scope: Scope, place: str) -> Iterator[bytes]:
        """The bytes at a place, part by part."""
        ...

    def take_damaged(self) -> Sequence[str]:
        """The errors of texts that were read and are no entries; each is returned once."""
        ...

    def survey_scopes(self) -> Sequence[Scope]:
        """The scopes that exist, in order."""
        ...

    def survey_strays(self) -> Sequence[Path]:
        """Files that belong to no scope, of other programs perhaps."""
        ...

    def scan(self, scope: Scope, *, deleted: bool = False) -> Mapping[str, FileStat]:
        """The entries of a scope by their places, or its deleted ones."""
        ...

    def stat_many(self, scope: Scope, places: Collection[str]) -> Mapping[str, FileStat]:
        """The same as `scan`, for some places."""
        ...

    def produce_scanner(self, scope: Scope) -> Scanner:
        """What finds changes in a scope."""
        ...

    def access_snapshots(self, scope: Scope) -> Snapshots:
        """The stored indexes of a scope."""
        ...

    def read_last(self, scope: Scope) -> datetime | None:
        """When the facts of a scope were deduplicated last."""
        ...

    def write_last(self, scope: Scope, last: datetime) -> None:
        """Keep when the facts of a scope were deduplicated last."""
        ...

    def deduplicating(self, scope: Scope, *, seconds: float) -> AbstractContextManager[None]:
        """Be the only one that deduplicates a scope; others get `ArchiveLocked`."""
        ...

    def close(self) -> None:
        """Close what is open; safe to call twice."""
        ...


class VectorStore(Protocol):
    """Vectors by their model and a digest of the text, so that each is made only once."""

    @property
    def epoch(self) -> int:
        """The number of removals: vectors begun before one may be of removed texts."""
        ...

    def exists(self) -> bool:
        """Whether there may be any."""
        ...

    def read(self, model: str, digests: Sequence[bytes]) -> Mapping[bytes, array[float]]:
        """The vectors of those digests that have one; none if they cannot be read."""
        ...

    def read_size(self, model: str) -> int | None:
        """How many numbers the vectors of a model have; `None` if there are none."""
        ...

    def write(
        self, model: str, vectors: Mapping[bytes, array[float]], epoch: int | None = None
    ) -> None:
        """Keep vectors, if possible, unless they were begun in another `epoch`."""
        ...

    def discard(self, model: str) -> None:
        """Remove the vectors of a model."""
        ...

    def forget(self, digests: Iterable[bytes]) -> None:
        """Remove the vectors of digests; `StorageError` if they stay."""
        ...

    def retain(self, digests: Iterable[bytes]) -> None:
        """Remove all vectors except those of these digests; `StorageError` if they stay."""
        ...


class Scanner(Protocol):
    """Finds what changed in a scope since it looked last; one thread at a time uses it."""

    def scan(self, known: Mapping[str, FileStat], *, thorough: bool) -> Difference | None:
        """What differs from what is `known`, or `None` if nothing does.

        Unless `thorough`, changes that are slow to find may be found later.
        """
        ...

    def is_listed(self) -> bool:
        """Whether no fact came or went since the last scan."""
        ...

    def take_in(self, place: str) -> None:
        """Note that the caller has written at a place."""
        ...

    def leave_out(self, place: str) -> None:
        """Note that the caller has removed what was at a place."""
        ...

    def doubt(self) -> None:
        """Scan again the next time, whatever has changed."""
        ...

    def reset(self) -> None:
        """Forget all earlier scans."""
        ...


class Snapshots(Protocol):
    """The stored indexes of one scope; derived, so that losing them costs time only."""

    @property
    def least(self) -> int:
        """How many changes are worth a snapshot when the index goes out of use."""
        ...

    def read(self, wanted: Collection[str]) -> Iterator[tuple[str, Mapping[str, bytes]]]:
        """Those that are complete: the embedder, and the parts that are wanted."""
        ...

    def write(self, embedder: str, parts: Mapping[str, bytes]) -> None:
        """Store one in place of all others, while the scope is held."""
        ...

    def discard(self) -> None:
        """Remove all."""
        ...
