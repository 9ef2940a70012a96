"""Memory of a user: add, find, change, delete, and forget entries."""

from __future__ import annotations

import asyncio
import threading
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext, suppress
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec

from vibe_llms.base.cross_loop_lock import CrossLoopLock
from vibe_llms.base.exceptions import (
    ConfigurationError,
    EmbeddingsMixed,
    MemoryInvalid,
    StorageError,
)
from vibe_llms.base.locks import LockTimeout
from vibe_llms.embedding.cache import CachedEmbedder
from vibe_llms.embedding.core import ignore
from vibe_llms.embedding.embedding import Embedding
from vibe_llms.embedding.interfaces import Embedder
from vibe_llms.embedding.strict import make_strict
from vibe_llms.memory.changes import HeldScope
from vibe_llms.memory.chunks import embed_entries
from vibe_llms.memory.entries import GLOBAL, Entry, Role, Scope, check_entry, words_of
from vibe_llms.memory.files import MemoryFiles
from vibe_llms.memory.interfaces import MemoryStore
from vibe_llms.memory.long_work import EMBEDDING, LongWork, Report
from vibe_llms.memory.pruning import Retention
from vibe_llms.memory.records import IndexRecord
from vibe_llms.memory.reranking import Reranking
from vibe_llms.memory.retrieval import (
    FOUND_ROLES,
    Recollection,
    RetrievalQuery,
    RetrievalSettings,
)
from vibe_llms.memory.secrets import refuse_secrets
from vibe_llms.memory.store import IndexedStore, ScopeStatus
from vibe_llms.memory.text_search import find_strays, fold
from vibe_llms.memory.versions import Versions
from vibe_llms.messages.identities import produce_identity

T = TypeVar("T")

_CHANGEABLE = frozenset({"content", "importance", "category", "topics"})


#: Typical maximum number of passages of an entry.
_PASSAGES = 4
#: Seconds after which a recall reports that it waits for the embedder.
_SHOWN_SECONDS = 1.0


def ignore_progress(_: int) -> None:
    """Ignore the progress."""


class Memory:
    """Long-term memory of a user; safe to use from several tasks, threads, and processes.

    It is stored in the files of a folder, or in another store. Nothing is read before the first
    call. An entry is durable when `add` returns. Writers wait up to `lock_seconds` for another
    process, then raise `ArchiveLocked`. Readers never wait. A cancelled wait changes nothing.

    With an `embedder`, entries are also found by meaning. If it fails, `notify` gets the reason
    once, and search uses words alone. `notify` also gets each damaged file once. With `reranking`,
    a model judges the results. `versions` is notified of each change. The memory closes all of
    them, and its store. `report` gets the progress of indexing, in any thread, if there are many
    new entries. An interrupted indexing keeps its results.
    """

    def __init__(
        self,
        store: Path | MemoryStore,
        settings: RetrievalSettings = RetrievalSettings(),
        *,
        lock_seconds: float = 10.0,
        durable: bool = True,
        embedder: Embedder | None = None,
        reranking: Reranking | None = None,
        notify: Callable[[str], None] = ignore,
        versions: Versions | None = None,
        report: Report | None = None,
    ) -> None:
        if isinstance(store, Path):
            store = MemoryFiles(store, lock_seconds=lock_seconds, durable=durable)
        self.store = store
        self.versions = versions
        self._settings = settings
        self._embedding = None
        model = ""
        if embedder is not None:
            strict = make_strict(embedder)
            self._embedding = Embedding(CachedEmbedder(strict, store.vectors), notify)
            model = strict.model
        self._reranking = reranking
        self._notify = notify
        self._work = LongWork(report)
        self._store = IndexedStore(store, model, self._work)
        self._lock_seconds = lock_seconds
        self._loading: asyncio.Task[None] | None = None
        # A lock lives as long as a task uses it.
        self._turnstiles: WeakValueDictionary[Scope, CrossLoopLock] = WeakValueDictionary()
        self._guard = threading.Lock()

    @property
    def folder(self) -> Path:
        """Folder of its files; `StorageError` if it is stored elsewhere."""
        return self.store.folder

    @property
    def embedder(self) -> Embedder | None:
        """Embedder of its entries, or `None`."""
        return None if self._embedding is None else self._embedding.embedder

    async def add(
        self,
        content: str,
        *,
        scope: Scope = GLOBAL,
        role: Role = Role.FACT,
        created: datetime | None = None,
        keep_secrets: bool = False,
        **members: Any,
    ) -> Entry:
        """Remember something; for a repeated fact, return the existing entry.

        `members` are further members of `Entry`.

        Raises:
            MemoryInvalid: There is nothing to remember.
            SecretRefused: The text looks like a secret, and `keep_secrets` is not set.
        """
        entry = Entry(
            content=content,
            identity=produce_identity(),
            role=role,
            scope=scope,
            created=created or datetime.now(UTC),
            **members,
        )
        return await self.restore(entry, keep_secrets=keep_secrets)

    async def restore(self, entry: Entry, *, keep_secrets: bool = False) -> Entry:
        """Remember an entry with its own identity and time; otherwise like `add`."""
        checked = check_entry(entry)
        if not keep_secrets:
            refuse_secrets(*words_of(checked))
        return await self._alter(checked.scope, lambda patience: self._store.add(checked, patience))

    async def search(
        self,
        question: str,
        *,
        scopes: Iterable[Scope] = (GLOBAL,),
        roles: Collection[Role] = FOUND_ROLES,
        settings: RetrievalSettings | None = None,
        now: datetime | None = None,
    ) -> Sequence[Recollection]:
        """Return the entries of some scopes that match a question, best first.

        With an embedder, entries without vectors are embedded first; see `embed`.
        """
        wanted = tuple(dict.fromkeys(scopes))
        chosen = settings or self._settings
        asked = RetrievalQuery(question, now or datetime.now(UTC), roles=frozenset(roles))
        if self._embedding is not None:
            await self.embed(wanted)
            vector = await self._embedding.embed_question(question)
            asked = msgspec.structs.replace(asked, vector=vector)
        try:
            return await self._search(asked, wanted, chosen)
        except EmbeddingsMixed as error:
            assert self._embedding is not None
            await self._embedding.discard(error)
            asked = msgspec.structs.replace(asked, vector=None)
            return await self._search(asked, wanted, chosen)

    async def recall(
        self,
        question: str,
        *,
        scopes: Iterable[Scope] = (GLOBAL,),
        settings: RetrievalSettings | None = None,
        seconds: float,
    ) -> Sequence[Recollection]:
        """Search within `seconds`; by words alone if the embedder is slow."""
        wanted, chosen = tuple(dict.fromkeys(scopes)), settings or self._settings
        asked = RetrievalQuery(question, datetime.now(UTC), roles=frozenset(FOUND_ROLES))
        by_words = await asyncio.to_thread(self._store.search, asked, wanted, chosen)
        if self._embedding is None and self._reranking is None:
            self._notify_damaged()
            return by_words
        shown = asyncio.get_running_loop().call_later(_SHOWN_SECONDS, self._report_loading)
        try:
            async with asyncio.timeout(seconds):
                return await self.search(question, scopes=wanted, settings=chosen)
        except TimeoutError:
            if self._embedding is not None:
                self._embedding.report_late(seconds)
            return by_words
        finally:
            shown.cancel()

    def _report_loading(self) -> None:
        if self._embedding is not None:
            self._embedding.report_loading()

    def begin_loading(self) -> None:
        """Load the embedder's model in the background, if there are entries."""
        if self._embedding is not None and self._loading is None:
            loading = self._load(self._embedding)
            self._loading = asyncio.create_task(loading, name="load the embedder")

    async def _load(self, embedding: Embedding) -> None:
        with suppress(StorageError):
            if await self.survey_scopes():
                await embedding.load()

    async def embed(
        self,
        scopes: Iterable[Scope] | None = None,
        *,
        progress: Callable[[int], None] = ignore_progress,
    ) -> int:
        """Compute the missing vectors in batches; return how many entries got some.

        A search does this first; call this to wait now instead. `progress` gets the number of
        entries done.
        """
        embedding, count = self._embedding, 0
        if embedding is None:
            return count
        for scope in await self.survey_scopes() if scopes is None else scopes:
            try:
                # Entry numbers are valid for one index only.
                with self._store.indexes.pinned(scope, passing=scopes is None):
                    done = 0
                    while vectors := await self._embed_some(embedding, scope, done):
                        done += vectors
                        progress(count + done)
                    count += done
            except (EmbeddingsMixed, ConfigurationError) as error:
                embedding.notify(error)
                return count
            finally:
                embedding.report_refused()
        return count

    async def refresh(self, scope: Scope) -> int:
        """Index manual edits, as every search does; return the number of entries."""
        return await asyncio.to_thread(self._noticing, lambda: self._store.refresh(scope))

    async def survey_scopes(self) -> Sequence[Scope]:
        """Return the scopes in which something is or was remembered."""
        return await asyncio.to_thread(self.store.survey_scopes)

    async def survey(
        self, scope: Scope | None = None, *, role: Role | None = None
    ) -> Sequence[Entry]:
        """Return all entries of one scope, or of all, oldest first."""
        entries = await asyncio.to_thread(self._store.survey, scope, role)
        self._notify_damaged()
        return entries

    async def outline(self, scope: Scope) -> Sequence[IndexRecord]:
        """Return the index records of a scope, oldest first: enough to choose entries.

        Only changed files are read. A file overwritten in place may be noticed some seconds later.
        """
        return await asyncio.to_thread(self._store.outline, scope)

    async def read(self, scope: Scope, known: Iterable[IndexRecord]) -> Sequence[Entry | None]:
        """Read the entries of some records; `None` for those that are gone."""
        chosen = tuple(known)
        return await asyncio.to_thread(self._store.read, scope, chosen)

    async def access(self, identity: str, *, scopes: Iterable[Scope] | None = None) -> Entry:
        """Return the entry with an identity, or at least 4 characters of its beginning or end.

        Only these `scopes` are searched; by default all.
        """
        chosen = None if scopes is None else tuple(scopes)
        return (await asyncio.to_thread(self._store.find, identity, chosen))[0]

    async def revise(
        self,
        identity: str,
        *,
        scopes: Iterable[Scope] | None = None,
        keep_secrets: bool = False,
        **changes: Any,
    ) -> Entry:
        """Change the content, importance, category, or topics of an entry in its file.

        Find the entry as `access` does. Raise `SecretRefused` as `add` does.
        """
        if unknown := set(changes) - _CHANGEABLE:
            raise MemoryInvalid(f"{', '.join(sorted(unknown))} cannot be changed")
        if not keep_secrets:
            topics = changes.get("topics", ())
            refuse_secrets(
                *(one for one in (*changes.values(), *topics) if isinstance(one, str)),
            )
        found = await self.access(identity, scopes=scopes)
        return await self._alter(
            found.scope, lambda patience: self._store.revise(found, changes, patience)
        )

    async def remove(
        self, identity: str, *, replaced_by: str = "", scopes: Iterable[Scope] | None = None
    ) -> Entry:
        """Delete an entry: it is no longer found, and its file moves to the deleted ones.

        Find the entry as `access` does.
        """
        found = await self.access(identity, scopes=scopes)
        return await self._alter(
            found.scope, lambda patience: self._store.remove(found, replaced_by, patience)
        )

    async def change(self, scope: Scope, work: Callable[[HeldScope], T]) -> T:
        """Make several changes to a scope as one, while others wait; return the result of `work`.

        `work` runs in a thread, and must not call the memory.
        """
        return await self._alter(
            scope, lambda patience: self._store.carry_out(scope, work, patience)
        )

    async def forget(self, words: str, *, scopes: Iterable[Scope] | None = None) -> Sequence[Entry]:
        """Permanently remove all entries that contain these words, including deleted ones.

        Return the removed entries. The index is purged too; `vibe_llms.memory.purging` purges git.
        Files of other programs are not touched; `notify` gets the paths of matching ones.
        """
        wanted = fold(words)
        if not wanted:
            raise MemoryInvalid("the text to forget is empty")
        gone: list[Entry] = []
        for scope in await self.survey_scopes() if scopes is None else scopes:
            gone += await self._alter(scope, partial(self._store.forget, scope, wanted))
        await asyncio.to_thread(self._store.clear_cache)
        for path in await asyncio.to_thread(find_strays, self.store, wanted):
            self._notify(
                f"{path} also contains the text; it is not part of the memory and was not changed"
            )
        return gone

    async def prune(
        self, rule: Retention, *, scopes: Iterable[Scope] | None = None
    ) -> Sequence[Entry]:
        """Permanently remove old entries, including deleted ones, and return them.

        Versions in git keep them.
        """
        gone: list[Entry] = []
        for scope in await self.survey_scopes() if scopes is None else scopes:
            gone += await self._alter(scope, partial(self._store.prune, scope, rule))
        if gone:
            await asyncio.to_thread(self._store.clear_cache)
        return gone

    async def forget_scope(self, scope: Scope) -> Sequence[Entry]:
        """Permanently remove a scope with its folder, index, and vectors.

        Return the removed entries; an unreadable file is returned as an entry without an identity.
        """
        gone = await self._alter(scope, partial(self._store.forget_scope, scope))
        await asyncio.to_thread(self._store.clear_cache)
        return gone

    async def read_vectors(
        self, entries: Iterable[Entry]
    ) -> Mapping[tuple[Scope, str], array[float]]:
        """Return the existing vectors of entries, by scope and identity.

        An entry of several sentences has the mean of their vectors.
        """
        if self._embedding is None:
            return {}
        scopes = {entry.scope for entry in entries}
        return await asyncio.to_thread(self._store.read_vectors, scopes)

    async def keep_vectors(self, vectors: Iterable[tuple[Entry, array[float]]]) -> None:
        """Store vectors that its embedder made elsewhere, of entries with a single sentence."""
        await asyncio.to_thread(self._store.keep_vectors, vectors)

    async def reindex(self, *, progress: Callable[[int], None] = ignore_progress) -> int:
        """Rebuild the index from the files, with vectors; return the number of entries."""
        count = 0
        for scope in await self.survey_scopes():
            count += await self._run_locked(scope, partial(self._store.reindex, scope))
        await asyncio.to_thread(self._store.clear_cache)
        if self._embedding is not None:
            self._embedding.wake()
        await self.embed(progress=progress)
        await self._keep()
        return count

    def grouped(self) -> AbstractContextManager[None]:
        """Make all changes within the block one version."""
        return nullcontext() if self.versions is None else self.versions.grouped()

    async def status(self) -> Sequence[ScopeStatus]:
        """Return the contents of each scope, with the files that cannot be read."""
        return await asyncio.to_thread(self._store.status)

    async def close(self) -> None:
        """Store the index for the next process, and the last version; safe to call twice."""
        if self._loading is not None:
            self._loading.cancel()
        async with AsyncExitStack() as stack:
            stack.enter_context(self._work.ending())
            stack.push_async_callback(asyncio.to_thread, self.store.close)
            # If closing one fails or is cancelled, the others are closed too.
            for one in (self._reranking, self._embedding, self.versions):
                if one is not None:
                    stack.push_async_callback(one.close)
            await self._keep()

    def _notify_damaged(self) -> None:
        """Report damaged files: each once, and many in one notice."""
        if damaged := [*self.store.take_damaged()]:
            left = len(damaged) - 1
            more = f" ({left:,} more files are damaged; see: vibe-llms doctor)" if left else ""
            self._notify(f"{damaged[0]}; searches skip it until it is fixed{more}")

    async def _search(
        self, asked: RetrievalQuery, scopes: Sequence[Scope], settings: RetrievalSettings
    ) -> Sequence[Recollection]:
        if self._reranking is not None:
            asked = await self._rerank(self._reranking, asked, scopes, settings)
        found = await asyncio.to_thread(self._store.search, asked, scopes, settings)
        self._notify_damaged()
        return found

    async def _rerank(
        self,
        reranking: Reranking,
        asked: RetrievalQuery,
        scopes: Sequence[Scope],
        settings: RetrievalSettings,
    ) -> RetrievalQuery:
        """Add a model's relevance scores of the best matches to the question."""
        count = max(reranking.settings.candidates, settings.limit)
        plain = RetrievalSettings(
            limit=count,
            least_relevance=settings.least_relevance,
            least_likeness=settings.least_likeness,
            dense_weight=settings.dense_weight,
            recency_weight=0.0,
            newer_first=False,
        )
        found = await asyncio.to_thread(self._store.search, asked, scopes, plain)
        relevances = await reranking.weigh(asked.text, found)
        return msgspec.structs.replace(asked, relevances=relevances, pool=count)

    async def _alter(self, scope: Scope, work: Callable[[LockTimeout], T]) -> T:
        """Run work that changes files, under the lock of `_run_locked`."""
        return await self._run_locked(
            scope, lambda patience: self._noticing(lambda: work(patience))
        )

    def _noticing(self, work: Callable[[], T]) -> T:
        try:
            return work()
        finally:
            # After a failure too: version the changes made by then.
            if self.versions is not None:
                self.versions.notice()

    async def _run_locked(self, scope: Scope, work: Callable[[LockTimeout], T]) -> T:
        """Run work that waits for a scope's folder, in order of arrival in this process.

        At most one thread waits for each folder, and none of the shared threads does.
        """
        begun = time.monotonic()
        with self._guard:
            turnstile = self._turnstiles.setdefault(scope, CrossLoopLock())
        async with turnstile:
            # A task that waited here for another process does not wait as long again.
            patience = LockTimeout(self._lock_seconds, begun=max(begun, turnstile.moved))
            run = copy_context().run
            thread = ThreadPoolExecutor(1, "memory")
            try:
                return await asyncio.wrap_future(thread.submit(run, work, patience))
            finally:
                # On cancellation, the thread completes its work, or stops waiting.
                patience.end()
                thread.shutdown(wait=False)
                if patience.met:
                    turnstile.moved = time.monotonic()

    async def _embed_some(self, embedding: Embedding, scope: Scope, done: int) -> int:
        """Embed a batch of entries; return how many, 0 if nothing is left to do.

        `done` is how many were embedded before.
        """
        bare, left = await asyncio.to_thread(
            self._store.survey_bare, scope, embedding.batch // _PASSAGES
        )
        asked = [(known.number, entry) for known, entry in bare]
        vectors = await embed_entries(embedding, asked) if asked else None
        if asked:
            await asyncio.to_thread(self._store.forget_vectors, scope, bare)
        if vectors is None:
            return 0
        # The memory was not held: numbers may belong to other entries now.
        every = [known for known, _ in bare]
        taken = await asyncio.to_thread(self._store.take_vectors, scope, every, vectors)
        if done or taken < left:
            self._work.proceed(EMBEDDING, done + taken, done + left)
        return taken

    async def _keep(self) -> None:
        await asyncio.to_thread(self._store.indexes.keep, LockTimeout(self._lock_seconds))
