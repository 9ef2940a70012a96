"""`Memory`: what is remembered for a user, found, changed, given up and forgotten."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from vibe_llms.exceptions import (
    ConfigurationError,
    EmbeddingsMixed,
    MemoryDamaged,
    MemoryInvalid,
    MemoryNotFound,
)
from vibe_llms.memory.changes import HeldScope
from vibe_llms.memory.embedders.cache import (
    EMBEDDINGS,
    CachedEmbedder,
    EmbeddingCache,
    digest_text,
)
from vibe_llms.memory.embedders.core import ignore
from vibe_llms.memory.embedders.interfaces import Embedder
from vibe_llms.memory.embedding import Embedding
from vibe_llms.memory.entries import GLOBAL, Entry, Role, Scope, check_entry
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.index import Known, ScopeIndex
from vibe_llms.memory.passages import split_passages
from vibe_llms.memory.reranking import Reranking
from vibe_llms.memory.retrieval import (
    FOUND_ROLES,
    Question,
    Recollection,
    RetrievalSettings,
    retrieve,
)
from vibe_llms.memory.summaries import find_derived
from vibe_llms.memory.traces import find_holding, fold
from vibe_llms.memory.versions import Versions
from vibe_llms.messages.identities import produce_identity

T = TypeVar("T")

#: So many entries get their vectors at a time.
_BATCH = 64

_SHORTEST_PREFIX = 4
_CHANGEABLE = frozenset({"content", "importance", "category", "topics"})


def ignore_progress(_: int) -> None:
    """For those who do not want to know."""


class ScopeStatus(Struct, frozen=True):
    """What a scope holds; `damaged` are files that are no entries, with the reason."""

    scope: Scope
    entries: int
    deleted: int
    damaged: Sequence[MemoryDamaged] = ()


class Memory:
    """Everything below one folder; safe to use from several tasks, threads and processes.

    Nothing is read before something is asked. What has been added is durable when `add` returns.
    With an `embedder`, which it closes, entries are also found by their meaning; `tell` is told
    once what keeps them from it, and then they are found by their words alone. With `reranking`,
    which it closes too, a model judges what was found. `versions`, closed as well, are told of each
    change.
    """

    def __init__(
        self,
        folder: Path,
        settings: RetrievalSettings = RetrievalSettings(),
        *,
        lock_seconds: float = 10.0,
        durable: bool = True,
        embedder: Embedder | None = None,
        reranking: Reranking | None = None,
        tell: Callable[[str], None] = ignore,
        versions: Versions | None = None,
    ) -> None:
        self.folder = folder
        self.versions = versions
        self._settings = settings
        self._cache = EmbeddingCache(folder / EMBEDDINGS, lock_seconds=lock_seconds)
        self._embedding = None
        if embedder is not None:
            self._embedding = Embedding(CachedEmbedder(embedder, self._cache), tell)
        self._reranking = reranking
        self._files = MemoryFiles(folder, lock_seconds=lock_seconds, durable=durable)
        self._indexes: dict[Scope, ScopeIndex] = {}
        self._lock = threading.Lock()

    @property
    def embedder(self) -> Embedder | None:
        """What makes vectors of its entries, if anything does."""
        return None if self._embedding is None else self._embedding.embedder

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
        entry = Entry(
            content=content,
            identity=produce_identity(),
            role=role,
            scope=scope,
            created=created or datetime.now(UTC),
            **members,
        )
        return await self.restore(entry)

    async def restore(self, entry: Entry) -> Entry:
        """Remember an entry with the identity and the time that it has; repeats as with `add`."""
        checked = check_entry(entry)
        return await self._alter(lambda: self._add(checked))

    async def search(
        self,
        question: str,
        *,
        scopes: Iterable[Scope] = (GLOBAL,),
        roles: Collection[Role] = FOUND_ROLES,
        settings: RetrievalSettings | None = None,
        now: datetime | None = None,
    ) -> Sequence[Recollection]:
        """What fits a question within some scopes, the best first; nothing where nothing does.

        With an embedder, entries that have no vectors yet get them first; see `embed`.
        """
        wanted = tuple(dict.fromkeys(scopes))
        chosen = settings or self._settings
        asked = Question(question, now or datetime.now(UTC), roles=frozenset(roles))
        if self._embedding is not None:
            await self.embed(wanted)
            vector = await self._embedding.embed_question(question)
            asked = msgspec.structs.replace(asked, vector=vector)
        if self._reranking is not None:
            asked = await self._rerank(self._reranking, asked, wanted, chosen)
        return await self._do(lambda: self._search(asked, wanted, chosen))

    async def embed(
        self,
        scopes: Iterable[Scope] | None = None,
        *,
        progress: Callable[[int], None] = ignore_progress,
    ) -> int:
        """Give vectors to what has none yet, in batches; how many entries got some.

        A search does so first, so this is for those who would rather wait now. `progress` is told
        how many entries there are that got theirs.
        """
        embedding, count = self._embedding, 0
        if embedding is None:
            return count
        for scope in await self._do(self._files.survey_scopes) if scopes is None else scopes:
            try:
                while vectors := await self._embed_some(embedding, scope):
                    count += vectors
                    progress(count)
            except (EmbeddingsMixed, ConfigurationError) as error:
                embedding.tell(error)
                return count
        return count

    async def refresh(self, scope: Scope) -> int:
        """Take in now what was changed by hand, as every search does; how many entries it has."""
        return await self._alter(lambda: len(self._fresh(scope)))

    async def survey(
        self, scope: Scope | None = None, *, role: Role | None = None
    ) -> Sequence[Entry]:
        """All entries of one scope, or of all, the oldest first."""
        return await self._do(lambda: self._survey(scope, role))

    async def access(self, identity: str) -> Entry:
        """The entry with an identity, or at least 4 characters of its beginning or end."""
        return await self._do(lambda: self._find(identity)[1])

    async def revise(self, identity: str, **changes: Any) -> Entry:
        """The entry with another content, importance, category or topics, in its file as before."""
        if unknown := set(changes) - _CHANGEABLE:
            raise MemoryInvalid(f"{', '.join(sorted(unknown))} cannot be changed")
        return await self._alter(lambda: self._revise(identity, changes))

    async def remove(self, identity: str, *, replaced_by: str = "") -> Entry:
        """Give an entry up: it is found no more, and lies among the deleted ones."""
        return await self._alter(lambda: self._remove(identity, replaced_by))

    async def change(self, scope: Scope, work: Callable[[HeldScope], T]) -> T:
        """Carry out several changes to a scope as one, while others wait; gives what `work` gives.

        It runs in a thread, and must not call the memory.
        """
        return await self._alter(lambda: self._carry_out(scope, work))

    async def forget(self, words: str, *, scopes: Iterable[Scope] | None = None) -> Sequence[Entry]:
        """Remove for good whatever holds these words, deleted entries and the index included.

        The entries that were removed are returned. What git keeps of them is found and purged by
        `vibe_llms.memory.purging`; what other programs keep is not touched.
        """
        wanted = fold(words)
        if not wanted:
            raise MemoryInvalid("say what is to be forgotten")
        chosen = None if scopes is None else tuple(scopes)
        return await self._alter(lambda: self._forget(wanted, chosen))

    async def reindex(self, *, progress: Callable[[int], None] = ignore_progress) -> int:
        """Make the index anew from the files, vectors too; how many entries it has."""
        count = await self._do(self._reindex)
        await self.embed(progress=progress)
        await self._do(self._store)
        return count

    async def status(self) -> Sequence[ScopeStatus]:
        """What there is, and what cannot be read."""
        return await self._do(self._status)

    async def close(self) -> None:
        """Keep the index for the next process, and the last version; safe to call twice."""
        if self._indexes:
            await self._do(self._store)
        if self.versions is not None:
            await self.versions.close()
        if self._embedding is not None:
            await self._embedding.close()
        if self._reranking is not None:
            await self._reranking.close()

    async def _rerank(
        self,
        reranking: Reranking,
        asked: Question,
        scopes: Sequence[Scope],
        settings: RetrievalSettings,
    ) -> Question:
        """The question, answered by what a model thinks of the entries that fit it best."""
        count = max(reranking.settings.candidates, settings.limit)
        plain = RetrievalSettings(
            limit=count,
            least_relevance=settings.least_relevance,
            least_likeness=settings.least_likeness,
            dense_weight=settings.dense_weight,
        )
        found = await self._do(lambda: self._search(asked, scopes, plain))
        relevances = await reranking.weigh(asked.text, found)
        return msgspec.structs.replace(asked, relevances=relevances, pool=count)

    async def _alter(self, work: Callable[[], T]) -> T:
        """The same as `_do`, for what changes files."""

        def change() -> T:
            try:
                return work()
            finally:
                # Also where it failed half-way: what has changed shall be kept.
                if self.versions is not None:
                    self.versions.notice()

        return await self._do(change)

    async def _embed_some(self, embedding: Embedding, scope: Scope) -> int:
        """Give vectors to a batch of entries; to how many, 0 where nothing is left to do now."""
        bare = await self._do(lambda: self._survey_bare(scope))
        vectors = await embedding.embed_entries(bare) if bare else None
        if vectors is None:
            return 0
        await self._do(lambda: self._index(scope).take_vectors(vectors))
        return len(bare)

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(self._locked, work)

    def _locked(self, work: Callable[[], T]) -> T:
        with self._lock:
            return work()

    def _index(self, scope: Scope) -> ScopeIndex:
        if scope not in self._indexes:
            model = "" if self._embedding is None else self._embedding.model
            self._indexes[scope] = ScopeIndex(self._files, scope, model)
        return self._indexes[scope]

    def _fresh(self, scope: Scope, *, thorough: bool = True) -> ScopeIndex:
        index = self._index(scope)
        index.refresh(thorough=thorough)
        return index

    def _add(self, entry: Entry) -> Entry:
        with self._files.changing(entry.scope):
            if entry.role != Role.FACT:
                # The next search finds it; a repeated turn is a turn of its own.
                self._files.write(entry)
                return entry
            index = self._index(entry.scope)
            repeat = index.find_repeat(entry)
            if repeat is not None:
                return repeat
            index.take_in(entry, self._files.write(entry))
        index.store()
        return entry

    def _search(
        self, question: Question, scopes: Sequence[Scope], settings: RetrievalSettings
    ) -> Sequence[Recollection]:
        indexes = [self._fresh(one, thorough=False) for one in scopes]
        found = retrieve(question, indexes, settings)
        for index in indexes:
            # Whoever asks does not wait for those who change something.
            index.store(seconds=0)
        return found

    def _survey_bare(self, scope: Scope) -> Sequence[tuple[int, Entry]]:
        index = self._fresh(scope, thorough=False)
        if index.mixed:
            raise EmbeddingsMixed(
                f"what is remembered in {scope} has vectors of {index.embedder}, and the embedder "
                f"is {index.model} now; make them anew: vibe-llms memory reindex"
            )
        return index.survey_bare(_BATCH)

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

    def _revise(self, identity: str, changes: dict[str, Any]) -> Entry:
        _, entry, _ = self._find(identity)
        with self._files.changing(entry.scope):
            # Somebody may have changed it since it was found.
            index, entry, known = self._find(entry.identity)
            revised = check_entry(msgspec.structs.replace(entry, **changes))
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

    def _carry_out(self, scope: Scope, work: Callable[[HeldScope], T]) -> T:
        index = self._index(scope)
        with self._files.changing(scope):
            given = work(HeldScope(self._files, index))
        index.store()
        return given

    def _forget(self, wanted: str, scopes: Sequence[Scope] | None) -> Sequence[Entry]:
        gone: list[Entry] = []
        for scope in scopes if scopes is not None else self._files.survey_scopes():
            if not self._files.path_of(scope).is_dir():
                continue
            with self._files.changing(scope):
                holding = find_holding(self._files, scope, wanted)
                holding += find_derived(self._files, scope, holding)
                # The index first: after a crash the files still tell that there is work left.
                index = self._index(scope)
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
            self._cache.retain(_digest_all(self._survey(None, None)))

    def _reindex(self) -> int:
        count = 0
        for scope in self._files.survey_scopes():
            index = self._index(scope)
            index.discard()
            index.refresh()
            index.store(always=True)
            count += len(index)
        self._clear_cache()
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


def _digest_all(entries: Iterable[Entry]) -> set[bytes]:
    """What the vectors of some entries are kept under."""
    return {digest_text(text) for entry in entries for text in split_passages(entry)}
