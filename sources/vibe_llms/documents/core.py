"""`Documents`: a session's access to documents. It reads files, keeps their text, and searches it.

Files are read in separate processes. Their text is kept in a `DocumentStore` under the hash of the
file, so that no file is read or indexed twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from vibe_llms.base.configuration import Configuration
from vibe_llms.base.exceptions import DocumentUnreadable, RequestError
from vibe_llms.conversations.attachments import produce_document
from vibe_llms.conversations.document_texts import DocumentText
from vibe_llms.documents.catalog import Catalog
from vibe_llms.documents.extracts import (
    describe_places,
    describe_size,
    write_beginning,
    write_page,
)
from vibe_llms.documents.index import CHARACTERS, hash_document
from vibe_llms.documents.reading import DocumentReader
from vibe_llms.documents.store import DocumentStore, Refreshed, produce_store
from vibe_llms.documents.web import fetch
from vibe_llms.messages.canisters import DocumentCanister
from vibe_llms.messages.contents import FileContent, Reference, TextualContent, hash_bytes
from vibe_llms.messages.tracing import Tracer
from vibe_llms.providers.interfaces import Loader, refuse_loading
from vibe_llms.providers.provider_pool import Providers
from vibe_llms.storage.interfaces import ContentArchive

#: Maximum number of documents named in an error.
_NAMED = 20
_PAGES = ("text/html", "application/xhtml+xml")
#: Maximum number of conversations whose web pages are remembered.
_VISITORS = 100


class Found(Struct, frozen=True):
    """A passage of a document that fits a request: the document's name, its place, and its text."""

    name: str
    place: str
    text: str


class _Text(Struct, frozen=True):
    """A text in a store, by its hash."""

    store: DocumentStore
    hash: str


#: A file, or a text that was read before.
_Document: TypeAlias = FileContent | _Text


class _Attachments(Struct, frozen=True):
    """Documents that the tools may read in a conversation: files by name, and collections."""

    files: Mapping[str, FileContent] = {}
    collections: tuple[str, ...] = ()
    load: Loader = refuse_loading


class _Reading:
    """A running task that reads a document, and the number of tasks that wait for it."""

    def __init__(self, task: asyncio.Task[DocumentText]) -> None:
        self.task = task
        self.waiting = 0


class Documents:
    """Documents of one user. Closing this object closes the store and the reader.

    Collections come from `library`, which its owner closes, or else from the store, and from the
    files that the user has uploaded to the `archive`. Of the library's, only those `offered` can be
    used, if not None.
    """

    def __init__(
        self,
        configuration: Configuration,
        store: DocumentStore,
        reader: DocumentReader,
        tracer: Tracer = Tracer(),
        library: DocumentStore | None = None,
        archive: ContentArchive | None = None,
        offered: Container[str] | None = None,
    ) -> None:
        self.store = store
        self.catalog = Catalog(library or store, store, archive, offered)
        self._load = refuse_loading if archive is None else archive.load_all
        self.reader = reader
        self._configuration = configuration
        self._tracer = tracer
        self._attachments: dict[str, _Attachments] = {}
        #: Hashes of the texts of web pages, by conversation and address.
        self._pages: dict[str, dict[str, str]] = {}
        self._readings: dict[str, _Reading] = {}

    async def read(self, document: FileContent, load: Loader = refuse_loading) -> DocumentText:
        """Return the text of a file, which is read once and kept. `load` reads references.

        Raises `DocumentUnreadable` with the reason, or `PackageMissing` with the command.
        """
        return (await self._read(document, load))[1]

    async def add(
        self,
        collection: str,
        paths: Iterable[str | Path],
        progress: Callable[[int, int, str], None] = lambda *_: None,
        *,
        follow_links: bool = False,
    ) -> Refreshed:
        """Add files and folders to a collection, and read what is new or changed in it.

        Creates the collection if necessary. `progress` and problems are as in
        `DocumentStore.refresh`.
        """
        added = map(Path, paths)
        await self.store.add_to_collection(collection, added, follow_links=follow_links)
        return await self.store.refresh(collection, self.reader, progress)

    async def refresh(
        self,
        collection: str,
        progress: Callable[[int, int, str], None] = lambda *_: None,
        *,
        failed: bool = False,
    ) -> Refreshed:
        """Read the waiting files of a collection of uploads; see `Catalog.refresh`."""
        return await self.catalog.refresh(collection, self._read_upload, progress, failed=failed)

    async def _read_upload(self, document: FileContent) -> DocumentText:
        return await self.read(document, self._load)

    async def fetch(self, url: str) -> DocumentCanister:
        """Return a document from a web address: the main text of a page, or the file there.

        Raises `PageUnreadable` with the reason, such as a private address.
        """
        configuration = self._configuration
        fetched = await fetch(url, configuration.web, offline=configuration.offline)
        if fetched.mimetype not in _PAGES:
            return produce_document(fetched.data, fetched.name, fetched.url)
        page = await self.reader.read(fetched.data, fetched.name, reader="page")
        title = page.title or fetched.name
        return DocumentCanister((TextualContent(page.text),), title=title, source=fetched.url)

    def shorten(self, name: str, document: DocumentText, room: int, *, tools: bool) -> str:
        """Return the beginning of a document that is too long. With `tools`, mention the search."""
        search = (
            f'Call documents/search_document with source "{name}" to find passages in it, and '
            "documents/read_document to read its pages."
        )
        return write_beginning(name, document, room, search if tools else "")

    def offer(
        self,
        conversation: str,
        documents: Sequence[FileContent],
        collections: Sequence[str],
        load: Loader,
    ) -> None:
        """Let the tools read documents and collections in a conversation until `withdraw`.

        The documents must have different names.
        """
        files = {document.name: document for document in documents}
        self._attachments[conversation] = _Attachments(files, tuple(collections), load)

    def withdraw(self, conversation: str) -> None:
        """Stop giving the tools documents and collections in a conversation."""
        self._attachments.pop(conversation, None)

    async def add_page(self, conversation: str, url: str, text: DocumentText) -> None:
        """Let the tools read a web page in a conversation for the lifetime of this object."""
        digest = await asyncio.to_thread(hash_bytes, text.text.encode("utf-8", "replace"))
        await self.store.add(digest, text)
        pages = self._pages.pop(conversation, {})
        self._pages[conversation] = {**pages, url: digest}
        if len(self._pages) > _VISITORS:
            del self._pages[next(iter(self._pages))]

    def has_attachments_alone(self, conversation: str) -> bool:
        """Return True if the tools can read neither collections nor web pages in a conversation."""
        attached = self._access_attachments(conversation)
        return not attached.collections and conversation not in self._pages

    async def survey(self, conversation: str) -> Mapping[str, str]:
        """Return the documents that the tools can read in a conversation, with descriptions.

        Files of collections do not have a description.
        """
        attached = self._access_attachments(conversation)
        found = dict.fromkeys(self._pages.get(conversation, ()), "web page")
        for name, document in (await self._gather(attached)).items():
            if isinstance(document, _Text):
                found[name] = ""
                continue
            try:
                found[name] = describe_size(await self.read(document, attached.load))
            except DocumentUnreadable as error:
                found[name] = f"cannot be read: {error}"
        return found

    async def read_page(self, conversation: str, source: str, page: int) -> str:
        """Return a page of a document, or raise a `RequestError` if it does not exist."""
        attached = self._access_attachments(conversation)
        pages = self._survey_pages(conversation)
        document = _access({**await self._gather(attached), **pages}, source)
        if isinstance(document, _Text):
            text = await document.store.access(document.hash)
            if text is None:
                remedy = "fetch it again" if source in pages else "run: vibe-llms index add"
                raise RequestError(f"the text of {source} is no longer stored; {remedy}")
        else:
            text = await self.read(document, attached.load)
        try:
            return write_page(source, text, page)
        except ValueError as error:
            raise RequestError(str(error)) from error

    async def search(self, conversation: str, request: str, source: str = "") -> Sequence[Found]:
        """Return the passages that fit a request best, from one document or all, best first."""
        attached = self._access_attachments(conversation)
        documents = {**await self._gather(attached), **self._survey_pages(conversation)}
        if source:
            documents = {source: _access(documents, source)}
        return await self._find(request, documents, attached.load)

    async def find(
        self,
        request: str,
        files: Sequence[FileContent],
        collections: Sequence[str] = (),
        load: Loader = refuse_loading,
    ) -> Sequence[Found]:
        """Return the passages of files and collections that fit a request best, best first.

        The files must have different names. Unreadable files are skipped, unless all are, which
        raises the first error. Raises `CollectionNotFound` for an unknown collection.
        """
        attached = _Attachments({file.name: file for file in files}, tuple(collections), load)
        return await self._find(request, await self._gather(attached), load)

    async def close(self) -> None:
        """End the processes and close the files; safe to call twice."""
        await self.reader.close()
        await self.store.close()

    def _access_attachments(self, conversation: str) -> _Attachments:
        return self._attachments.get(conversation, _Attachments())

    def _survey_pages(self, conversation: str) -> Mapping[str, _Document]:
        pages = self._pages.get(conversation, {})
        return {url: _Text(self.store, digest) for url, digest in pages.items()}

    async def _gather(self, attached: _Attachments) -> Mapping[str, _Document]:
        """Return all documents by name. Files of collections are named by their path in it."""
        found: dict[str, _Document] = dict(attached.files)
        for collection in attached.collections:
            known = await self.catalog.access(collection)
            if known.count("waiting"):
                await self.refresh(collection)
                known = await self.catalog.access(collection)
            for one in known.documents:
                if one.hash:
                    found[choose_name(one.name, found)] = _Text(known.store, one.hash)
        return found

    async def _find(
        self, request: str, documents: Mapping[str, _Document], load: Loader
    ) -> Sequence[Found]:
        #: Names of documents by the hash of their text, for each store that has some.
        shelved: dict[DocumentStore, dict[str, str]] = {}
        failures: list[DocumentUnreadable] = []
        for name, document in documents.items():
            try:
                text = document if isinstance(document, _Text) else await self._keep(document, load)
            except DocumentUnreadable as error:
                failures.append(error)
            else:
                shelved.setdefault(text.store, {})[text.hash] = name
        if failures and not shelved:
            raise failures[0]
        with self._tracer.work("retrieval", text=request):
            found = [
                (passage, names[passage.hash])
                for store, names in shelved.items()
                for passage in await store.search(
                    request, names, characters=CHARACTERS // len(shelved)
                )
            ]
        if len(shelved) > 1:
            found.sort(key=lambda one: one[0].score, reverse=True)
        return [Found(name, describe_places(one.place, one.last), one.text) for one, name in found]

    async def _keep(self, document: FileContent, load: Loader) -> _Text:
        return _Text(self.store, (await self._read(document, load))[0])

    async def _read(self, document: FileContent, load: Loader) -> tuple[str, DocumentText]:
        """Return the key of a file in the store, and its text."""
        match document.data:
            case Reference(hash=digest):
                pass
            case bytes() as data:
                digest = await asyncio.to_thread(hash_bytes, data)
            case _:
                raise DocumentUnreadable(f"{document.name}: only the provider can read it")
        key = hash_document(digest, self.store.version)
        if (text := await self.store.access(key)) is not None:
            return key, text
        # Tasks that want the same document share one reading, which ends with the last of them.
        if (reading := self._readings.get(key)) is None:
            task = asyncio.create_task(self._read_anew(key, document, load))
            reading = self._readings[key] = _Reading(task)
        reading.waiting += 1
        try:
            return key, await asyncio.shield(reading.task)
        finally:
            reading.waiting -= 1
            if not reading.waiting:
                del self._readings[key]
                reading.task.cancel()

    async def _read_anew(self, key: str, document: FileContent, load: Loader) -> DocumentText:
        data = document.data
        if isinstance(data, Reference):
            data = (await load([data]))[data.hash]
        assert isinstance(data, bytes)
        with self._tracer.work("read_document", text=document.name):
            text = await self.reader.read(data, document.name, mimetype=document.mimetype)
        await self.store.add(key, text)
        return text


def choose_name(name: str, taken: Collection[str]) -> str:
    """Return the name, with a number appended if it is taken.

    >>> choose_name("a.pdf", ["a.pdf", "a.pdf (2)"])
    'a.pdf (3)'
    """
    chosen, number = name, 1
    while chosen in taken:
        number += 1
        chosen = f"{name} ({number})"
    return chosen


def _access(documents: Mapping[str, _Document], source: str) -> _Document:
    if source not in documents:
        known = ", ".join([*documents][:_NAMED]) or "none"
        more = f" and {len(documents) - _NAMED} more" if len(documents) > _NAMED else ""
        fetch = ". Fetch the web page first" if "://" in source else ""
        raise RequestError(f"document {source!r} not found; available: {known}{more}{fetch}")
    return documents[source]


def produce_documents(
    configuration: Configuration,
    notify: Callable[[str], None],
    providers: Providers | None = None,
    tracer: Tracer = Tracer(),
    library: DocumentStore | None = None,
    archive: ContentArchive | None = None,
    offered: Container[str] | None = None,
) -> Documents:
    """Return the documents of a configuration's user. Nothing is opened before its first use.

    `providers` come from the session, for an embedder. Collections come from `library`, if given,
    of which only those `offered` can be used, if not None, and from the files that the user has
    uploaded to the `archive`.
    """
    store = produce_store(configuration, providers=providers, notify=notify)
    reader = DocumentReader(configuration)
    return Documents(configuration, store, reader, tracer, library, archive, offered)
