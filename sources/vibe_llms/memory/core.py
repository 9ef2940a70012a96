"""`Memory`: what is remembered for a user, found, changed, given up and forgotten."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from vibe_llms.exceptions import MemoryDamaged, MemoryInvalid, MemoryNotFound
from vibe_llms.memory.entries import GLOBAL, Entry, Role, Scope
from vibe_llms.memory.files import DELETED, MemoryFiles, identity_in
from vibe_llms.memory.index import Known, ScopeIndex
from vibe_llms.memory.retrieval import Recollection, RetrievalSettings, retrieve
from vibe_llms.messages.contents import repair_text
from vibe_llms.messages.identities import produce_identity

T = TypeVar("T")

_SHORTEST_PREFIX = 4
_CHANGEABLE = frozenset({"content", "importance", "category", "topics"})


class ScopeStatus(Struct, frozen=True):
    """What a scope holds; `damaged` are files that are no entries, with the reason."""

    scope: Scope
    entries: int
    deleted: int
    damaged: Sequence[MemoryDamaged] = ()


class Memory:
    """Everything below one folder; safe to use from several tasks, threads and processes.

    Nothing is read before something is asked. What has been added is durable when `add` returns.
    """

    def __init__(
        self,
        folder: Path,
        settings: RetrievalSettings = RetrievalSettings(),
        *,
        lock_seconds: float = 10.0,
        durable: bool = True,
    ) -> None:
        self.folder = folder
        self._settings = settings
        self._files = MemoryFiles(folder, lock_seconds=lock_seconds, durable=durable)
        self._indexes: dict[Scope, ScopeIndex] = {}
        self._lock = threading.Lock()

    async def add(
        self,
        content: str,
        *,
        scope: Scope = GLOBAL,
        role: Role = Role.FACT,
        created: datetime | None = None,
        **members: Any,
    ) -> Entry:
        """Remember something; the same fact again gives the entry that is there already.

        `members` are those of `Entry`. `MemoryInvalid` where there is nothing to remember.
        """
        content = repair_text(content).strip()
        if not content:
            raise MemoryInvalid("there is nothing to remember in an empty text")
        entry = Entry(
            content=content,
            identity=produce_identity(),
            role=role,
            scope=scope,
            created=created or datetime.now(UTC),
            **members,
        )
        return await self._do(lambda: self._add(entry))

    async def search(
        self,
        question: str,
        *,
        scopes: Iterable[Scope] = (GLOBAL,),
        settings: RetrievalSettings | None = None,
        now: datetime | None = None,
    ) -> Sequence[Recollection]:
        """What fits a question within some scopes, the best first; nothing where nothing does."""
        wanted = tuple(dict.fromkeys(scopes))
        chosen = settings or self._settings
        when = now or datetime.now(UTC)
        return await self._do(
            lambda: retrieve(question, [self._fresh(one) for one in wanted], chosen, when)
        )

    async def survey(
        self, scope: Scope | None = None, *, role: Role | None = None
    ) -> Sequence[Entry]:
        """All entries of one scope, or of all, the oldest first."""
        return await self._do(lambda: self._survey(scope, role))

    async def access(self, identity: str) -> Entry:
        """The entry with an identity, or a prefix of at least 4 characters that fits only one."""
        return await self._do(lambda: self._find(identity)[1])

    async def revise(self, identity: str, **changes: Any) -> Entry:
        """The entry with another content, importance, category or topics, in its file as before."""
        if unknown := set(changes) - _CHANGEABLE:
            raise MemoryInvalid(f"{', '.join(sorted(unknown))} cannot be changed")
        return await self._do(lambda: self._revise(identity, changes))

    async def remove(self, identity: str, *, replaced_by: str = "") -> Entry:
        """Give an entry up: it is found no more, and lies among the deleted ones."""
        return await self._do(lambda: self._remove(identity, replaced_by))

    async def forget(self, words: str, *, scopes: Iterable[Scope] | None = None) -> Sequence[Entry]:
        """Remove for good whatever holds these words, deleted entries and the index included.

        The entries that were removed are returned. What other programs keep, git for one, is not
        touched.
        """
        wanted = " ".join(repair_text(words).split()).casefold()
        if not wanted:
            raise MemoryInvalid("say what is to be forgotten")
        chosen = None if scopes is None else tuple(scopes)
        return await self._do(lambda: self._forget(wanted, chosen))

    async def reindex(self) -> int:
        """Make the index anew from the files; how many entries it has."""
        return await self._do(self._reindex)

    async def status(self) -> Sequence[ScopeStatus]:
        """What there is, and what cannot be read."""
        return await self._do(self._status)

    async def close(self) -> None:
        """Keep the index for the next process; safe to call twice."""
        if self._indexes:
            await self._do(self._store)

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(self._locked, work)

    def _locked(self, work: Callable[[], T]) -> T:
        with self._lock:
            return work()

    def _fresh(self, scope: Scope) -> ScopeIndex:
        if scope not in self._indexes:
            self._indexes[scope] = ScopeIndex(self._files, scope)
        index = self._indexes[scope]
        index.refresh()
        return index

    def _add(self, entry: Entry) -> Entry:
        with self._files.changing(entry.scope):
            index = self._fresh(entry.scope)
            if entry.role == Role.FACT:
                repeat = index.find_repeat(entry)
                if repeat is not None:
                    return repeat
            self._files.write(entry)
            index.refresh()
        index.store()
        return entry

    def _survey(self, scope: Scope | None, role: Role | None) -> Sequence[Entry]:
        scopes = self._files.survey_scopes() if scope is None else [scope]
        found: list[Entry] = []
        for one in scopes:
            index = self._fresh(one)
            for known in index.entries:
                if role is None or known.role == role:
                    entry = index.read(known)
                    if entry is not None:
                        found.append(entry)
        return sorted(found, key=lambda entry: (entry.created, entry.identity))

    def _find(self, identity: str) -> tuple[ScopeIndex, Entry, Known]:
        if len(identity) < _SHORTEST_PREFIX:
            raise MemoryNotFound(f"{identity!r} is too short; give at least 4 characters")
        fitting = [
            (index, known)
            for scope in self._files.survey_scopes()
            for index in (self._fresh(scope),)
            for known in index.entries
            if known.identity.startswith(identity)
        ]
        exact = [(index, known) for index, known in fitting if known.identity == identity]
        if len(exact or fitting) > 1:
            raise MemoryNotFound(f"{identity!r} fits several entries; give more of it")
        for index, known in exact or fitting:
            entry = index.read(known)
            if entry is not None:
                return index, entry, known
        raise MemoryNotFound(f"nothing is remembered as {identity!r}; see: vibe-llms memory list")

    def _revise(self, identity: str, changes: dict[str, Any]) -> Entry:
        _, entry, _ = self._find(identity)
        with self._files.changing(entry.scope):
            # Somebody may have changed it since it was found.
            index, entry, known = self._find(entry.identity)
            revised = msgspec.structs.replace(entry, **changes)
            if not revised.content.strip():
                raise MemoryInvalid("there is nothing to remember in an empty text")
            self._files.rewrite(revised, known.place)
            index.refresh()
        return revised

    def _remove(self, identity: str, replaced_by: str) -> Entry:
        _, entry, _ = self._find(identity)
        with self._files.changing(entry.scope):
            index, entry, known = self._find(entry.identity)
            self._files.give_up(entry, known.place, replaced_by=replaced_by)
            index.refresh()
        return entry

    def _forget(self, wanted: str, scopes: Sequence[Scope] | None) -> Sequence[Entry]:
        gone: list[Entry] = []
        for scope in scopes if scopes is not None else self._files.survey_scopes():
            with self._files.changing(scope):
                places = [*self._files.look(scope)]
                places += [f"{DELETED}/{place}" for place in self._files.look(scope, deleted=True)]
                holding = [
                    (place, entry)
                    for place in places
                    for entry in (self._read_anything(scope, place),)
                    if wanted in " ".join(entry.content.split()).casefold()
                ]
                self._files.erase(scope, [place for place, _ in holding])
                if holding:
                    index = self._fresh(scope)
                    index.discard()
                    index.refresh()
            gone += [entry for _, entry in holding]
        return gone

    def _read_anything(self, scope: Scope, place: str) -> Entry:
        """The entry at a place, or its whole text where it is none."""
        try:
            return self._files.read(scope, place)
        except (MemoryDamaged, FileNotFoundError):
            text = self._files.read_text(scope, place)
            created = datetime.fromtimestamp(0, UTC)
            return Entry(content=text, identity=identity_in(place), scope=scope, created=created)

    def _reindex(self) -> int:
        count = 0
        for scope in self._files.survey_scopes():
            index = self._indexes.setdefault(scope, ScopeIndex(self._files, scope))
            index.discard()
            index.refresh()
            index.store(always=True)
            count += len(index)
        return count

    def _status(self) -> Sequence[ScopeStatus]:
        return [
            ScopeStatus(
                scope,
                len(index),
                len(self._files.look(scope, deleted=True)),
                tuple(index.damaged.values()),
            )
            for scope in self._files.survey_scopes()
            for index in (self._fresh(scope),)
        ]

    def _store(self) -> None:
        for index in self._indexes.values():
            index.store(always=True)
