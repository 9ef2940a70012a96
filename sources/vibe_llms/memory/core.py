"""`Memory`: what is remembered for a user, found, changed, given up and forgotten."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from vibe_llms.exceptions import (
    ConfigurationError,
    EmbeddingsMixed,
    MemoryInvalid,
)
from vibe_llms.memory.catalogue import Known
from vibe_llms.memory.changes import HeldScope
from vibe_llms.memory.embedders.cache import (
    EMBEDDINGS,
    CachedEmbedder,
    EmbeddingCache,
)
from vibe_llms.memory.embedders.core import ignore
from vibe_llms.memory.embedders.interfaces import Embedder
from vibe_llms.memory.embedders.strict import make_strict
from vibe_llms.memory.embedding import Embedding
from vibe_llms.memory.entries import GLOBAL, Entry, Role, Scope, check_entry, words_of
from vibe_llms.memory.files import ENTRIES
from vibe_llms.memory.reranking import Reranking
from vibe_llms.memory.retrieval import (
    FOUND_ROLES,
    Question,
    Recollection,
    RetrievalSettings,
)
from vibe_llms.memory.secrets import refuse_secrets
from vibe_llms.memory.store import ScopeStatus, Store
from vibe_llms.memory.traces import fold
from vibe_llms.memory.turnstiles import Turnstiles
from vibe_llms.memory.versions import Versions
from vibe_llms.messages.identities import produce_identity
from vibe_llms.storage.locks import Patience

T = TypeVar("T")

_CHANGEABLE = frozenset({"content", "importance", "category", "topics"})


#: So long a recall may take before it says what it waits for.
_SHOWN_SECONDS = 1.0


def ignore_progress(_: int) -> None:
    """For those who do not want to know."""


class Memory:
    """Everything below one folder; safe to use from several tasks, threads and processes.

    Nothing is read before something is asked. What has been added is durable when `add` returns.
    Where another process holds a scope, whoever changes that scope waits for `lock_seconds`, and
    gets `ArchiveLocked`; nobody else waits, and what is cancelled meanwhile changes nothing.
    With an `embedder`, which it closes, entries are also found by their meaning; `tell` is told
    once what keeps them from it, and then they are found by their words alone. It is told once of
    each file that is no entry, too. With `reranking`,
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
        cache = EmbeddingCache(folder / EMBEDDINGS, lock_seconds=lock_seconds)
        self._embedding = None
        model = ""
        if embedder is not None:
            strict = make_strict(embedder)
            self._embedding = Embedding(CachedEmbedder(strict, cache), tell)
            model = strict.model
        self._reranking = reranking
        self._tell = tell
        self._store = Store(
            folder,
            cache,
            model,
            lock_seconds=lock_seconds,
            durable=durable,
        )
        self._lock_seconds = lock_seconds
        self._loading: asyncio.Task[None] | None = None
        self._turnstiles: Turnstiles[Scope] = Turnstiles()

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
        keep_secrets: bool = False,
        **members: Any,
    ) -> Entry:
        """Remember something; the same fact again gives the entry that is there already.

        `members` are those of `Entry`. `MemoryInvalid` where there is nothing to remember, and
        `SecretRefused` where it looks like a secret, unless `keep_secrets` is set.
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
        """Remember an entry with the identity and the time that it has; the rest as with `add`."""
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
        try:
            return await self._search(asked, wanted, chosen)
        except EmbeddingsMixed as error:
            assert self._embedding is not None
            await self._embedding.give_up(error)
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
        """The same within so many seconds: what words alone find where an embedder takes longer."""
        wanted, chosen = tuple(dict.fromkeys(scopes)), settings or self._settings
        asked = Question(question, datetime.now(UTC), roles=frozenset(FOUND_ROLES))
        by_words = await self._do(lambda: self._store.search(asked, wanted, chosen))
        if self._embedding is None and self._reranking is None:
            self._tell_damaged()
            return by_words
        shown = asyncio.get_running_loop().call_later(_SHOWN_SECONDS, self._tell_loading)
        try:
            async with asyncio.timeout(seconds):
                return await self.search(question, scopes=wanted, settings=chosen)
        except TimeoutError:
            if self._embedding is not None:
                self._embedding.tell_late(seconds)
            return by_words
        finally:
            shown.cancel()

    def _tell_loading(self) -> None:
        if self._embedding is not None:
            self._embedding.tell_loading()

    def begin_loading(self) -> None:
        """Load the embedder's model in the background, if there is anything that it could find."""
        if (
            self._embedding is not None
            and self._loading is None
            and (self.folder / ENTRIES).is_dir()
        ):
            self._loading = asyncio.create_task(self._embedding.load(), name="load the embedder")

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
        for scope in await self._survey_scopes() if scopes is None else scopes:
            try:
                # Numbers that are of one index mean nothing in another one.
                with self._store.pinned(scope, passing=scopes is None):
                    while vectors := await self._embed_some(embedding, scope):
                        count += vectors
                        progress(count)
            except (EmbeddingsMixed, ConfigurationError) as error:
                embedding.tell(error)
                return count
            finally:
                embedding.tell_refused()
        return count

    async def refresh(self, scope: Scope) -> int:
        """Take in now what was changed by hand, as every search does; how many entries it has."""
        return await self._do(lambda: self._telling(lambda: self._store.refresh(scope)))

    async def survey(
        self, scope: Scope | None = None, *, role: Role | None = None
    ) -> Sequence[Entry]:
        """All entries of one scope, or of all, the oldest first."""
        entries = await self._do(lambda: self._store.survey(scope, role))
        self._tell_damaged()
        return entries

    async def outline(self, scope: Scope) -> Sequence[Known]:
        """What is known of all entries of a scope, the oldest first: enough to choose some.

        Files are read only where they changed. One that was written over in place may be noticed
        some seconds later.
        """
        return await self._do(lambda: self._store.outline(scope))

    async def read(self, scope: Scope, known: Iterable[Known]) -> Sequence[Entry | None]:
        """Some entries of an outline, as their files have them now; none for those that went."""
        chosen = tuple(known)
        return await self._do(lambda: self._store.read(scope, chosen))

    async def access(self, identity: str, *, scopes: Iterable[Scope] | None = None) -> Entry:
        """The entry with an identity, or at least 4 characters of its beginning or end.

        Of others than these `scopes` nothing is said; without them all count.
        """
        chosen = None if scopes is None else tuple(scopes)
        return await self._do(lambda: self._store.find(identity, chosen))

    async def revise(
        self,
        identity: str,
        *,
        scopes: Iterable[Scope] | None = None,
        keep_secrets: bool = False,
        **changes: Any,
    ) -> Entry:
        """The entry with another content, importance, category or topics, in its file as before.

        It is looked for as `access` does. `SecretRefused` as with `add`.
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
        """Give an entry up: it is found no more, and lies among the deleted ones.

        It is looked for as `access` does.
        """
        found = await self.access(identity, scopes=scopes)
        return await self._alter(
            found.scope, lambda patience: self._store.remove(found, replaced_by, patience)
        )

    async def change(self, scope: Scope, work: Callable[[HeldScope], T]) -> T:
        """Carry out several changes to a scope as one, while others wait; gives what `work` gives.

        It runs in a thread, and must not call the memory.
        """
        return await self._alter(
            scope, lambda patience: self._store.carry_out(scope, work, patience)
        )

    async def forget(self, words: str, *, scopes: Iterable[Scope] | None = None) -> Sequence[Entry]:
        """Remove for good whatever holds these words, deleted entries and the index included.

        The entries that were removed are returned. What git keeps of them is found and purged by
        `vibe_llms.memory.purging`; what other programs keep is not touched, and told where it lies
        beside the scopes.
        """
        wanted = fold(words)
        if not wanted:
            raise MemoryInvalid("say what is to be forgotten")
        gone: list[Entry] = []
        for scope in await self._survey_scopes() if scopes is None else scopes:
            gone += await self._alter(scope, partial(self._store.forget, scope, wanted))
        await self._do(self._store.clear_cache)
        for path in await self._do(partial(self._store.find_strays, wanted)):
            self._tell(f"{path} holds it too; it is no part of the memory, and is not touched")
        return gone

    async def forget_scope(self, scope: Scope) -> Sequence[Entry]:
        """Remove all of a scope for good, its folder, its index and its vectors included.

        What was removed is returned; what is no entry of ours stands in one without an identity.
        """
        gone = await self._alter(scope, partial(self._store.forget_scope, scope))
        await self._do(self._store.clear_cache)
        return gone

    async def read_vectors(
        self, entries: Iterable[Entry]
    ) -> Mapping[tuple[Scope, str], array[float]]:
        """The vectors that entries have now, by scope and identity; none is made.

        That of several sentences is their mean.
        """
        if self._embedding is None:
            return {}
        scopes = {entry.scope for entry in entries}
        return await self._do(lambda: self._store.read_vectors(scopes))

    async def keep_vectors(self, vectors: Iterable[tuple[Entry, array[float]]]) -> None:
        """Keep vectors that its embedder made elsewhere, of entries that are a single sentence."""
        await self._do(lambda: self._store.keep_vectors(vectors))

    async def reindex(self, *, progress: Callable[[int], None] = ignore_progress) -> int:
        """Make the index anew from the files, vectors too; how many entries it has."""
        count = 0
        for scope in await self._survey_scopes():
            count += await self._hold(scope, partial(self._store.reindex, scope))
        await self._do(self._store.clear_cache)
        if self._embedding is not None:
            self._embedding.wake()
        await self.embed(progress=progress)
        await self._keep()
        return count

    def grouped(self) -> AbstractContextManager[None]:
        """Changes within the block are one version."""
        return nullcontext() if self.versions is None else self.versions.grouped()

    async def status(self) -> Sequence[ScopeStatus]:
        """What there is, and what cannot be read."""
        return await self._do(self._store.status)

    async def close(self) -> None:
        """Keep the index for the next process, and the last version; safe to call twice."""
        if self._loading is not None:
            self._loading.cancel()
        async with AsyncExitStack() as stack:
            # Whatever fails or is cancelled on the way, the rest is closed too.
            for one in (self._reranking, self._embedding, self.versions):
                if one is not None:
                    stack.push_async_callback(one.close)
            await self._keep()

    def _tell_damaged(self) -> None:
        """Tell once of each file that somebody meant to be remembered, and that is not."""
        for what in self._store.take_damaged():
            self._tell(f"{what}; what it says is not found until it is mended")

    async def _search(
        self, asked: Question, scopes: Sequence[Scope], settings: RetrievalSettings
    ) -> Sequence[Recollection]:
        if self._reranking is not None:
            asked = await self._rerank(self._reranking, asked, scopes, settings)
        found = await self._do(lambda: self._store.search(asked, scopes, settings))
        self._tell_damaged()
        return found

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
            recency_weight=0.0,
            newer_first=False,
        )
        found = await self._do(lambda: self._store.search(asked, scopes, plain))
        relevances = await reranking.weigh(asked.text, found)
        return msgspec.structs.replace(asked, relevances=relevances, pool=count)

    async def _alter(self, scope: Scope, work: Callable[[Patience], T]) -> T:
        """The same as `_hold`, for what changes files."""
        return await self._hold(scope, lambda patience: self._telling(lambda: work(patience)))

    def _telling(self, work: Callable[[], T]) -> T:
        try:
            return work()
        finally:
            # Also where it failed half-way: what has changed shall be kept.
            if self.versions is not None:
                self.versions.notice()

    async def _hold(self, scope: Scope, work: Callable[[Patience], T]) -> T:
        """Do work that waits for a scope's folder, after what came before it in this process.

        So one thread at most waits for each folder, and it is none of those that others need.
        """
        begun = time.monotonic()
        turnstile = self._turnstiles.access(scope)
        async with turnstile:
            # Whoever waited here because of another process does not wait as long once more.
            patience = Patience(self._lock_seconds, begun=max(begun, turnstile.moved))
            run = copy_context().run
            thread = ThreadPoolExecutor(1, "memory")
            try:
                return await asyncio.wrap_future(thread.submit(run, work, patience))
            finally:
                # Where this was cancelled, the thread ends what it has begun, or waits no more.
                patience.end()
                thread.shutdown(wait=False)
                if patience.met:
                    turnstile.moved = time.monotonic()

    async def _embed_some(self, embedding: Embedding, scope: Scope) -> int:
        """Give vectors to a batch of entries; to how many, 0 where nothing is left to do now."""
        bare = await self._do(lambda: self._store.survey_bare(scope))
        asked = [(known.number, entry) for known, entry in bare]
        vectors = await embedding.embed_entries(asked) if asked else None
        if asked:
            await self._do(lambda: self._store.forget_vectors(scope, bare))
        if vectors is None:
            return 0
        # The memory was free meanwhile: numbers may be those of other entries now.
        every = [known for known, _ in bare]
        return await self._do(lambda: self._store.take_vectors(scope, every, vectors))

    async def _survey_scopes(self) -> Sequence[Scope]:
        return await self._do(self._store.survey_scopes)

    async def _keep(self) -> None:
        patience = Patience(self._lock_seconds)
        await self._do(lambda: self._store.keep(patience))

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)
