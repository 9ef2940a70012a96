"""Texts of one owner's documents, searched without blocking the event loop.

A store belongs to one owner and uses one folder, so a server gives each user a separate store.
Apart from the definitions of collections, all its data is derived from documents.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from vibe_llms.base.configuration import Configuration
from vibe_llms.base.exceptions import VibeLlmsError
from vibe_llms.base.meta import __version__
from vibe_llms.conversations.document_texts import DocumentText
from vibe_llms.documents import collections
from vibe_llms.documents.collections import CollectionFile, Collections, survey_files
from vibe_llms.documents.index import CHARACTERS, DocumentIndex, hash_document
from vibe_llms.documents.passages import Passage
from vibe_llms.documents.settings import read_document_settings
from vibe_llms.documents.snapshots import Snapshot
from vibe_llms.embedding.cache import (
    EMBEDDINGS,
    CachedEmbedder,
    EmbeddingCache,
    digest_text,
)
from vibe_llms.embedding.core import ignore
from vibe_llms.embedding.embedding import Embedding
from vibe_llms.embedding.interfaces import Embedder
from vibe_llms.embedding.rows import produce_embedder
from vibe_llms.embedding.strict import make_strict
from vibe_llms.providers.provider_pool import Providers

#: Folder within that of the user's data.
FOLDER = "documents"
#: Hours after which an unused document is dropped.
TTL_HOURS = 24.0
#: Seconds that a search waits for missing vectors. After that, it uses only words.
WAIT_SECONDS = 10.0
_HOUR = 3600.0
#: Seconds between searches for unused documents.
_PURGE_SECONDS = 600.0
#: Maximum number of files of a collection that are read at the same time.
_READERS = 2
#: Nanoseconds after a change in which a file may change again without a new time.
_TICK_NANOSECONDS = 2_000_000_000


class FileReader(Protocol):
    """Reader of the files of a collection, such as `vibe_llms.documents.reading.DocumentReader`.

    It raises a `VibeLlmsError` for a file that it cannot read.
    """

    async def snapshot(self, source: Path) -> Snapshot:
        """Return a copy of a file's current bytes. The store closes it."""
        ...

    async def read(self, source: Snapshot) -> DocumentText:
        """Return the text of a document."""
        ...


_REPLACED = "the file was replaced while it was read; run the command again"


class Refreshed(Struct, frozen=True):
    """Result of a refresh: the paths that it read, and the numbers of unchanged and removed files.

    `problems` maps unreadable files to the reason.
    """

    read: tuple[str, ...] = ()
    unchanged: int = 0
    removed: int = 0
    problems: dict[str, str] = {}


class DocumentStore:
    """Documents of one owner, in a folder, or in memory without one.

    Safe to use from several tasks of one event loop. Several processes may use the same folder.
    With an `embedder`, passages are also found by meaning. Its vectors are made in the background,
    and a search waits up to `wait_seconds` for them. `notify` is called from any thread with news
    for users that do not make a call fail. Texts of another `version` of the readers are not used.
    Callers close the store, which closes the embedder.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        embedder: Embedder | None = None,
        ttl_hours: float = TTL_HOURS,
        lock_seconds: float = 10.0,
        wait_seconds: float = WAIT_SECONDS,
        version: str = __version__,
        notify: Callable[[str], None] = ignore,
    ) -> None:
        self.version = version
        self._index = DocumentIndex(folder, lock_seconds=lock_seconds, notify=notify)
        self._collections = Collections(folder, self._index.database, lock_seconds=lock_seconds)
        self._cache = EmbeddingCache(
            None if folder is None else folder / EMBEDDINGS, lock_seconds=lock_seconds
        )
        self._embedding: Embedding | None = None
        if embedder is not None:
            cached = CachedEmbedder(make_strict(embedder), self._cache)
            self._embedding = Embedding(cached, notify, searched="documents are")
        self._ttl_seconds = ttl_hours * _HOUR
        self._wait_seconds = wait_seconds
        self._purge_after = 0.0
        #: Tasks that make vectors, by the hash of their document.
        self._making: dict[str, asyncio.Task[None]] = {}

    async def add(self, digest: str, document: DocumentText) -> None:
        """Index a text under the hash of its file; see `hash_document`.

        If the hash is already there, the text is only marked as used.
        """
        await asyncio.to_thread(self._add, digest, document)
        await self._make_vectors([digest])

    async def access(self, digest: str) -> DocumentText | None:
        """Return the text with a hash, or `None` if its file has to be read again."""
        return await asyncio.to_thread(self._access, digest)

    async def search(
        self, request: str, hashes: Collection[str], *, characters: int = CHARACTERS
    ) -> Sequence[Passage]:
        """Return the passages of documents that fit a request best, best first.

        The total length is at most `characters`. If the documents are shorter, they are returned
        whole. Unknown hashes are ignored.
        """
        question, model = None, ""
        if self._embedding is not None:
            await self._wait_for_vectors(hashes)
            question = await self._embedding.embed_question(request)
            model = self._embedding.model

        def search() -> Sequence[Passage]:
            found = self._index.search(
                request, hashes, characters=characters, question=question, model=model
            )
            self._index.touch(hashes)
            return found

        return await asyncio.to_thread(search)

    async def survey_collections(self) -> Sequence[collections.Collection]:
        """Return all collections, sorted by name."""
        return await asyncio.to_thread(self._collections.survey)

    async def access_collection(self, name: str) -> collections.Collection:
        """Return a collection, or raise `CollectionNotFound`."""
        return await asyncio.to_thread(self._collections.access, name)

    async def add_to_collection(
        self, name: str, paths: Iterable[Path], *, follow_links: bool = False
    ) -> None:
        """Add files and folders to a collection, and create it if necessary.

        `refresh` reads them. With `follow_links`, it also follows links to files in the
        collection's folders from now on.
        """
        add = partial(self._collections.add, follow_links=follow_links)
        await asyncio.to_thread(add, name, [*paths])

    async def remove_collection(self, name: str) -> None:
        """Remove a collection. Its files stay."""
        await asyncio.to_thread(self._collections.remove, name)

    async def survey_read(self, collection: str) -> Mapping[str, CollectionFile]:
        """Return the stored states of files, by path; the collection need not be defined here."""
        rows = await asyncio.to_thread(self._collections.survey_files, collection)
        return {one.path: one for one in rows}

    async def record_read(self, collection: str, file: CollectionFile) -> None:
        """Store the state of a file, whose text is kept from now on."""
        await asyncio.to_thread(self._collections.record, collection, file)

    async def leave_out(self, collection: str, paths: Iterable[str]) -> None:
        """Remove the states of files; their texts expire."""
        await asyncio.to_thread(self._collections.leave_out, collection, [*paths])

    async def finish(self) -> None:
        """Wait for all vectors that are being made."""
        while making := [*self._making.values()]:
            await asyncio.wait(making)

    async def refresh(
        self,
        name: str,
        reader: FileReader,
        progress: Callable[[int, int, str], None] = lambda *_: None,
    ) -> Refreshed:
        """Read the new and changed files of a collection, and drop files that are gone.

        `progress` gets the number of files done, the total, and the path of a file. Each file is
        stored when it is read, so an interrupted refresh continues where it ended. An unreadable
        file does not stop the refresh, and is tried again the next time.
        """
        collection = await self.access_collection(name)
        known = {one.path: one for one in collection.files}
        follow = collection.follow_links
        there = await asyncio.to_thread(
            lambda: [*survey_files(collection.paths, follow_links=follow)]
        )
        gone = known.keys() - {path for path, _ in there}
        await asyncio.to_thread(self._collections.leave_out, name, gone)
        files = [
            CollectionFile(path, problem=str(found.strerror))
            if isinstance(found, OSError)
            else CollectionFile(path, found.st_size, found.st_mtime_ns)
            for path, found in there
        ]
        named = frozenset(collection.paths)
        #: Device and inode numbers of files found in folders.
        numbers = {
            path: (found.st_dev, found.st_ino)
            for path, found in there
            if not isinstance(found, OSError) and not (follow or path in named)
        }
        changed = [one for one in files if not await self._is_known(one, known.get(one.path))]
        done: list[CollectionFile] = []

        async def work(waiting: Iterator[CollectionFile]) -> None:
            for one in waiting:
                file = await self._read(one, reader, numbers.get(one.path))
                await asyncio.to_thread(self._collections.record, name, file)
                done.append(file)
                progress(len(done), len(changed), file.path)

        waiting = iter(changed)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_READERS):
                    group.create_task(work(waiting))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        return Refreshed(
            tuple(one.path for one in done if not one.problem),
            len(files) - len(changed),
            len(gone),
            {one.path: one.problem for one in done if one.problem},
        )

    async def close(self) -> None:
        """Close the files and the embedder; safe to call twice."""
        making = [*self._making.values()]
        for task in making:
            task.cancel()
        await asyncio.gather(*making, return_exceptions=True)
        if self._embedding is not None:
            await self._embedding.close()
        await asyncio.to_thread(self._index.close)

    def _add(self, digest: str, document: DocumentText) -> None:
        self._index.add(digest, document)
        if time.monotonic() >= self._purge_after:
            self._purge()
            self._purge_after = time.monotonic() + _PURGE_SECONDS

    def _purge(self) -> None:
        unused = self._index.survey_unused(time.time() - self._ttl_seconds)
        if unused and self._cache.exists():
            with suppress(VibeLlmsError):
                self._cache.forget(
                    digest_text(text) for digest in unused for text in self._index.split(digest)
                )
        self._index.drop(unused)

    def _access(self, digest: str) -> DocumentText | None:
        found = self._index.access(digest)
        if found is not None:
            self._index.touch([digest])
        return found

    async def _is_known(self, file: CollectionFile, before: CollectionFile | None) -> bool:
        """Return True if the text of an unchanged file is stored."""
        if before is None or before.problem or file.problem:
            return False
        if (before.size, before.modified) != (file.size, file.modified):
            return False
        return await asyncio.to_thread(self._index.has, before.hash)

    async def _read(
        self, file: CollectionFile, reader: FileReader, number: tuple[int, int] | None
    ) -> CollectionFile:
        """Return the file with the hash of its text, or with its problem.

        A file with another `number` was replaced, perhaps by a link to somewhere else.
        """
        if file.problem:
            return file
        now = time.time_ns()
        try:
            with await reader.snapshot(Path(file.path)) as snapshot:
                if number is not None and snapshot.number != number:
                    return CollectionFile(file.path, problem=_REPLACED)
                key = hash_document(snapshot.digest, self.version)
                if await asyncio.to_thread(self._index.has, key):
                    await asyncio.to_thread(self._index.touch, [key])
                else:
                    await self.add(key, await reader.read(snapshot))
        except VibeLlmsError as error:
            return CollectionFile(file.path, problem=str(error))
        modified = file.modified if now - file.modified > _TICK_NANOSECONDS else 0
        return CollectionFile(file.path, file.size, modified, key)

    async def _make_vectors(self, hashes: Collection[str]) -> None:
        """Start to make the missing vectors of some documents."""
        if self._embedding is None:
            return
        model = self._embedding.model
        for digest in await asyncio.to_thread(self._index.survey_bare, hashes, model):
            if digest not in self._making:
                task = asyncio.create_task(self._embed(self._embedding, digest))
                self._making[digest] = task
                task.add_done_callback(partial(self._forget_task, digest))

    def _forget_task(self, digest: str, _: asyncio.Task[None]) -> None:
        self._making.pop(digest, None)

    async def _wait_for_vectors(self, hashes: Collection[str]) -> None:
        assert self._embedding is not None
        await self._make_vectors(hashes)
        making = [self._making[one] for one in hashes if one in self._making]
        if making:
            self._embedding.report_loading()
            _, late = await asyncio.wait(making, timeout=self._wait_seconds)
            if late:
                self._embedding.report_late(self._wait_seconds)

    async def _embed(self, embedding: Embedding, digest: str) -> None:
        try:
            texts = await asyncio.to_thread(self._index.split, digest)
            vectors = await embedding.embed_texts(texts)
            if vectors is None:
                return
            embedding.report_refused()
            found = {place: vectors[text] for place, text in enumerate(texts) if text in vectors}
            await asyncio.to_thread(self._index.put_vectors, digest, embedding.model, found)
        except VibeLlmsError as error:
            embedding.notify(error)


def produce_store(
    configuration: Configuration,
    *,
    providers: Providers | None = None,
    notify: Callable[[str], None] = ignore,
) -> DocumentStore:
    """Return the store in the user's folder, as set in `[documents]`. It is opened on first use.

    `providers` come from the session, if there is one.
    """
    settings = read_document_settings(configuration)
    embedder = None
    if settings.embedder:
        embedder = produce_embedder(
            configuration, settings.embedder, providers=providers, notify=notify
        )
    return DocumentStore(
        configuration.places.data / FOLDER,
        embedder=embedder,
        ttl_hours=settings.ttl_hours,
        lock_seconds=configuration.storage.lock_seconds,
        notify=notify,
    )
