"""All collections that a user can search: those of a library, and those of uploaded files.

A library has collections of files and folders. A user's own collection is the uploaded files with
its name in their purpose. The files are in the user's archive, so that every server has them. Their
text is derived: it is in the user's store, where a row for each file says how its reading ended.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Literal, NoReturn, TypeAlias

from msgspec import Struct

from vibe_llms.base.exceptions import CollectionNotFound, ContentMissing, VibeLlmsError
from vibe_llms.documents.collections import Collection, CollectionFile, check_name
from vibe_llms.documents.extracts import describe_places
from vibe_llms.documents.index import CHARACTERS, hash_document
from vibe_llms.documents.store import DocumentStore, Refreshed
from vibe_llms.messages.contents import FileContent, Reference
from vibe_llms.storage.interfaces import ContentArchive, UploadedFile

#: Begins the purpose of the files of a collection, before the collection's name. No collection of a
#: library can have the whole as its name.
PURPOSE = "collection/"

State: TypeAlias = Literal["waiting", "indexed", "failed"]
#: Reads the text of a file and keeps it in the user's store.
ReadDocument: TypeAlias = Callable[[FileContent], Awaitable[object]]


class CatalogDocument(Struct, frozen=True):
    """A document of a collection: `waiting` to be read, `indexed`, or `failed` with a `problem`.

    `hash` is the key of its text in the store, once it is indexed.
    """

    id: str
    name: str
    size: int
    state: State
    problem: str = ""
    hash: str = ""
    mimetype: str = ""
    created: str = ""


class CatalogCollection(Struct, frozen=True):
    """A collection, whose texts are in `store`; `own` if the user uploads its files."""

    name: str
    own: bool
    documents: Sequence[CatalogDocument]
    store: DocumentStore

    def count(self, state: State) -> int:
        """Return the number of documents in a state."""
        return sum(one.state == state for one in self.documents)


class FoundPassage(Struct, frozen=True):
    """A passage of a document that fits a request; `score` is from 0 to 1."""

    collection: CatalogCollection
    document: CatalogDocument
    place: str
    text: str
    score: float


class Catalog:
    """The collections of one user, and those of a library that are `offered`; None for all.

    If both have a name, the library's is used. The two stores belong to others.
    """

    def __init__(
        self,
        library: DocumentStore,
        store: DocumentStore,
        archive: ContentArchive | None,
        offered: Container[str] | None = None,
    ) -> None:
        self._library = library
        self._store = store
        self._archive = archive
        self._offered = offered

    async def survey(self) -> Sequence[CatalogCollection]:
        """Return all collections, sorted by name."""
        uploaded: dict[str, list[UploadedFile]] = {}
        for file in await self._survey_files():
            uploaded.setdefault(file.purpose.removeprefix(PURPOSE), []).append(file)
        found = {name: await self._describe_own(name, files) for name, files in uploaded.items()}
        for one in await self._library.survey_collections():
            if self._offers(one.name):
                found[one.name] = self._describe(one)
        return [found[name] for name in sorted(found)]

    async def access(self, name: str) -> CatalogCollection:
        """Return a collection, or raise `CollectionNotFound`."""
        if self._offers(name):
            with suppress(CollectionNotFound):
                return self._describe(await self._library.access_collection(name))
        if name and (files := await self._survey_files(name)):
            return await self._describe_own(name, files)
        return await self._refuse(name)

    async def upload(self, name: str, data: bytes, file: str, mimetype: str) -> CatalogDocument:
        """Add a file to an own collection, in place of one with its name; it waits to be read."""
        assert self._archive is not None
        check_name(name)
        identity = identify(name, file)
        kept = await self._archive.upload(
            data, file, mimetype, identity=identity, purpose=PURPOSE + name
        )
        return self._describe_file(kept, await self._store.survey_read(PURPOSE + name))

    async def remove(self, name: str, documents: Iterable[str]) -> None:
        """Delete documents of an own collection by their ids."""
        assert self._archive is not None
        for identity in documents:
            with suppress(ContentMissing):
                await self._archive.remove_file(identity)
            await self._store.leave_out(PURPOSE + name, [identity])

    async def refresh(
        self,
        name: str,
        read: ReadDocument,
        progress: Callable[[int, int, str], None] = lambda *_: None,
        *,
        failed: bool = False,
    ) -> Refreshed:
        """Read the waiting documents of an own collection, and with `failed` the failed ones too.

        Each is recorded when it is read, so an interrupted refresh continues where it ended. The
        texts of deleted documents expire. `progress` gets the number of documents done, the total,
        and the name of a document.
        """
        files = await self._survey_files(name)
        if not files:
            await self._refuse(name)
        rows = await self._store.survey_read(PURPOSE + name)
        wanted = ("waiting", "failed") if failed else ("waiting",)
        # The oldest first, as they were uploaded.
        chosen = [one for one in files[::-1] if self._describe_file(one, rows).state in wanted]
        problems: dict[str, str] = {}
        for number, file in enumerate(chosen, 1):
            row = await self._read(file, read)
            await self._store.record_read(PURPOSE + name, row)
            if row.problem:
                problems[file.name] = row.problem
            progress(number, len(chosen), file.name)
        rows = await self._store.survey_read(PURPOSE + name)
        gone = rows.keys() - {one.id for one in await self._survey_files(name)}
        await self._store.leave_out(PURPOSE + name, gone)
        done = tuple(one.name for one in chosen if one.name not in problems)
        return Refreshed(done, len(files) - len(chosen), len(gone), problems)

    async def search(
        self,
        request: str,
        collections: Sequence[CatalogCollection],
        *,
        characters: int = CHARACTERS,
    ) -> Sequence[FoundPassage]:
        """Return the passages of indexed documents that fit a request best, best first."""
        #: Documents by the hash of their text, for each store that has some.
        shelved: dict[DocumentStore, dict[str, tuple[CatalogCollection, CatalogDocument]]] = {}
        for collection in collections:
            for document in collection.documents:
                if document.hash:
                    shelf = shelved.setdefault(collection.store, {})
                    shelf.setdefault(document.hash, (collection, document))
        found = [
            FoundPassage(
                *shelf[one.hash], describe_places(one.place, one.last), one.text, one.score
            )
            for store, shelf in shelved.items()
            for one in await store.search(request, shelf, characters=characters // len(shelved))
        ]
        return sorted(found, key=lambda one: one.score, reverse=True)

    async def _refuse(self, name: str) -> NoReturn:
        known = ", ".join(one.name for one in await self.survey()) or "none"
        raise CollectionNotFound(f"collection {name!r} not found; available: {known}")

    def _offers(self, name: str) -> bool:
        return self._offered is None or name in self._offered

    async def _survey_files(self, name: str = "") -> Sequence[UploadedFile]:
        """Return the files of an own collection, or of all, newest first."""
        files = () if self._archive is None else await self._archive.survey_files()
        if name:
            return [one for one in files if one.purpose == PURPOSE + name]
        return [one for one in files if one.purpose.startswith(PURPOSE)]

    async def _read(self, file: UploadedFile, read: ReadDocument) -> CollectionFile:
        """Read a file; return its row, with the hash of its text or its problem."""
        key = self._key(file)
        try:
            await read(FileContent(Reference(file.hash, file.size), file.mimetype, file.name))
        except VibeLlmsError as error:
            return CollectionFile(file.id, file.size, hash=key, problem=str(error))
        return CollectionFile(file.id, file.size, hash=key)

    async def _describe_own(self, name: str, files: Iterable[UploadedFile]) -> CatalogCollection:
        rows = await self._store.survey_read(PURPOSE + name)
        documents = sorted(
            (self._describe_file(one, rows) for one in files), key=lambda one: (one.name, one.id)
        )
        return CatalogCollection(name, True, documents, self._store)

    def _describe_file(
        self, file: UploadedFile, rows: Mapping[str, CollectionFile]
    ) -> CatalogDocument:
        row = rows.get(file.id)
        # A file that was replaced, or read by another version, waits to be read again.
        known = row if row is not None and row.hash == self._key(file) else None
        problem = "" if known is None else known.problem
        return CatalogDocument(
            id=file.id,
            name=file.name,
            size=file.size,
            state="waiting" if known is None else "failed" if problem else "indexed",
            problem=problem,
            hash="" if known is None or problem else known.hash,
            mimetype=file.mimetype,
            created=file.created,
        )

    def _key(self, file: UploadedFile) -> str:
        return hash_document(file.hash, self._store.version)

    def _describe(self, collection: Collection) -> CatalogCollection:
        """Describe a collection of the library; documents are named by their path in it."""
        documents = [
            CatalogDocument(
                id=identify(collection.name, one.path),
                name=_name_file(one.path, collection.paths),
                size=one.size,
                state="failed" if one.problem else "indexed",
                problem=one.problem,
                hash=one.hash,
            )
            for one in collection.files
        ]
        return CatalogCollection(collection.name, False, documents, self._library)


def identify(collection: str, file: str) -> str:
    """Return the id of a document by its collection, and its name or path there."""
    return hashlib.sha256(f"{PURPOSE}{collection}\0{file}".encode()).hexdigest()[:32]


def _name_file(path: str, roots: Sequence[str]) -> str:
    """Return a file's path within a folder of the collection, or its name."""
    for root in roots:
        if path.startswith(root + os.sep):
            return os.path.relpath(path, root)
    return os.path.basename(path)
