"""`Documents`: what a session does with documents. It reads files, keeps their text, and searches.

Files are read in processes of their own. Their text is kept in a `DocumentStore`, under the hash of
the file, so that none is read or indexed twice.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from vibe_llms.attachments import produce_document
from vibe_llms.configuration import Configuration
from vibe_llms.documents.extracts import (
    describe_places,
    describe_size,
    write_beginning,
    write_page,
)
from vibe_llms.documents.index import CHARACTERS, hash_document
from vibe_llms.documents.reading import DocumentReader
from vibe_llms.documents.store import DocumentStore, produce_store
from vibe_llms.documents.texts import DocumentText
from vibe_llms.documents.web import fetch
from vibe_llms.exceptions import DocumentUnreadable, RequestError
from vibe_llms.messages.canisters import DocumentCanister
from vibe_llms.messages.contents import FileContent, Reference, TextualContent, hash_bytes
from vibe_llms.providers.interfaces import Loader, refuse_loading
from vibe_llms.providers.provider_pool import Providers
from vibe_llms.tracing import Tracer

#: So many documents are named in an error.
_NAMED = 20
_PAGES = ("text/html", "application/xhtml+xml")
#: The conversations whose web pages are remembered.
_VISITORS = 100


class Found(Struct, frozen=True):
    """A passage of a document that fits a request: its name, where it is, and its text."""

    name: str
    place: str
    text: str


class _Text(Struct, frozen=True):
    """A text that is kept in a store, by its hash."""

    store: DocumentStore
    hash: str


#: A file, or a text that was read before.
_Document: TypeAlias = FileContent | _Text


class _Shelf(Struct, frozen=True):
    """What the tools may read in a conversation: its files by name, and collections."""

    files: Mapping[str, FileContent] = {}
    collections: tuple[str, ...] = ()
    load: Loader = refuse_loading


class _Reading:
    """The reading of a document, and how many tasks wait for it."""

    def __init__(self, task: asyncio.Task[DocumentText]) -> None:
        self.task = task
        self.waiting = 0


class Documents:
    """The documents of one user; closing it closes the store and the reader.

    Collections are those of `library`, which others close, or else of the store.
    """

    def __init__(
        self,
        configuration: Configuration,
        store: DocumentStore,
        reader: DocumentReader,
        tracer: Tracer = Tracer(),
        library: DocumentStore | None = None,
    ) -> None:
        self.store = store
        self._library = library or store
        self.reader = reader
        self._configuration = configuration
        self._tracer = tracer
        self._shelves: dict[str, _Shelf] = {}
        #: The web pages of conversations: the hashes of their texts, by address.
        self._pages: dict[str, dict[str, str]] = {}
        self._readings: dict[str, _Reading] = {}

    async def read(self, document: FileContent, load: Loader = refuse_loading) -> DocumentText:
        """The text of a file, read once and kept; `load` gives its bytes if it is a reference.

        `DocumentUnreadable` says why it has none, `PackageMissing` what to install.
        """
        return (await self._read(document, load))[1]

    async def fetch(self, url: str) -> DocumentCanister:
        """A document from a web address: the main text of a page, or the file that is there.

        `PageUnreadable` says why nothing is fetched, such as a private address.
        """
        configuration = self._configuration
        fetched = await fetch(url, configuration.web, offline=configuration.offline)
        if fetched.mimetype not in _PAGES:
            return produce_document(fetched.data, fetched.name, fetched.url)
        page = await self.reader.read(fetched.data, fetched.name, reader="page")
        title = page.title or fetched.name
        return DocumentCanister((TextualContent(page.text),), title=title, source=fetched.url)

    def shorten(self, name: str, document: DocumentText, room: int, *, tools: bool) -> str:
        """What a model is given of a document that is too long; with `tools` it can search it."""
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
        """Let the tools read some documents and collections in a conversation, until `withdraw`.

        The documents have different names.
        """
        files = {document.name: document for document in documents}
        self._shelves[conversation] = _Shelf(files, tuple(collections), load)

    def withdraw(self, conversation: str) -> None:
        """Let the tools read nothing more in a conversation."""
        self._shelves.pop(conversation, None)

    async def add_page(self, conversation: str, url: str, text: DocumentText) -> None:
        """Let the tools read a web page too in a conversation, while this object lives."""
        digest = await asyncio.to_thread(hash_bytes, text.text.encode("utf-8", "replace"))
        await self.store.add(digest, text)
        pages = self._pages.pop(conversation, {})
        self._pages[conversation] = {**pages, url: digest}
        if len(self._pages) > _VISITORS:
            del self._pages[next(iter(self._pages))]

    def has_attachments_alone(self, conversation: str) -> bool:
        """Return True if the tools may read neither collections nor web pages in a conversation."""
        shelf = self._access_shelf(conversation)
        return not shelf.collections and conversation not in self._pages

    async def survey(self, conversation: str) -> Mapping[str, str]:
        """The documents that the tools may read in a conversation, and what each is.

        Of the files of collections only their names are known.
        """
        shelf = self._access_shelf(conversation)
        found = dict.fromkeys(self._pages.get(conversation, ()), "web page")
        for name, document in (await self._gather(shelf)).items():
            if isinstance(document, _Text):
                found[name] = ""
                continue
            try:
                found[name] = describe_size(await self.read(document, shelf.load))
            except DocumentUnreadable as error:
                found[name] = f"cannot be read: {error}"
        return found

    async def read_page(self, conversation: str, source: str, page: int) -> str:
        """A page of a document; `RequestError` if there is no such document or page."""
        shelf = self._access_shelf(conversation)
        pages = self._survey_pages(conversation)
        document = _access({**await self._gather(shelf), **pages}, source)
        if isinstance(document, _Text):
            text = await document.store.access(document.hash)
            if text is None:
                remedy = "fetch it again" if source in pages else "run: vibe-llms index add"
                raise RequestError(f"the text of {source} is not kept any more; {remedy}")
        else:
            text = await self.read(document, shelf.load)
        try:
            return write_page(source, text, page)
        except ValueError as error:
            raise RequestError(str(error)) from error

    async def search(self, conversation: str, request: str, source: str = "") -> Sequence[Found]:
        """The passages that fit a request best, in one document or in all, the best first."""
        shelf = self._access_shelf(conversation)
        documents = {**await self._gather(shelf), **self._survey_pages(conversation)}
        if source:
            documents = {source: _access(documents, source)}
        return await self._find(request, documents, shelf.load)

    async def find(
        self,
        request: str,
        files: Sequence[FileContent],
        collections: Sequence[str] = (),
        load: Loader = refuse_loading,
    ) -> Sequence[Found]:
        """The passages of files and collections that fit a request best, the best first.

        The files have different names. Those that cannot be read are left out; if none can, it
        raises why. `CollectionNotFound` if there is no such collection.
        """
        shelf = _Shelf({file.name: file for file in files}, tuple(collections), load)
        return await self._find(request, await self._gather(shelf), load)

    async def close(self) -> None:
        """End the processes and close the files; safe to call twice."""
        await self.reader.close()
        await self.store.close()

    def _access_shelf(self, conversation: str) -> _Shelf:
        return self._shelves.get(conversation, _Shelf())

    def _survey_pages(self, conversation: str) -> Mapping[str, _Document]:
        pages = self._pages.get(conversation, {})
        return {url: _Text(self.store, digest) for url, digest in pages.items()}

    async def _gather(self, shelf: _Shelf) -> Mapping[str, _Document]:
        """All documents by name; those of collections by their path in it."""
        found: dict[str, _Document] = dict(shelf.files)
        for collection in shelf.collections:
            known = await self._library.access_collection(collection)
            for file in known.files:
                if file.hash:
                    name = _name_file(file.path, known.paths)
                    found[choose_name(name, found)] = _Text(self._library, file.hash)
        return found

    async def _find(
        self, request: str, documents: Mapping[str, _Document], load: Loader
    ) -> Sequence[Found]:
        #: The names of documents by the hashes of their texts, for each store that has some.
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
        """The key of a file in the store, and its text."""
        match document.data:
            case Reference(hash=digest):
                pass
            case bytes() as data:
                digest = await asyncio.to_thread(hash_bytes, data)
            case _:
                raise DocumentUnreadable(f"{document.name}: only its provider can read it")
        key = hash_document(digest, self.store.version)
        if (text := await self.store.access(key)) is not None:
            return key, text
        # Tasks that want the same document read it once. The last one that is cancelled ends it.
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
    """The name, or one with a number if it is taken.

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
        fetch = ". A web page has to be fetched first" if "://" in source else ""
        raise RequestError(f"there is no document {source!r} here; there are: {known}{more}{fetch}")
    return documents[source]


def _name_file(path: str, roots: Sequence[str]) -> str:
    """The path of a file within the folder that a collection names, or its name."""
    for root in roots:
        if path.startswith(root + os.sep):
            return os.path.relpath(path, root)
    return os.path.basename(path)


def produce_documents(
    configuration: Configuration,
    notify: Callable[[str], None],
    providers: Providers | None = None,
    tracer: Tracer = Tracer(),
    library: DocumentStore | None = None,
) -> Documents:
    """The documents of the user of a configuration; nothing is opened before it is used.

    `providers` are those of the session, for an embedder. Collections are those of `library`, if
    it is given.
    """
    store = produce_store(configuration, providers=providers, notify=notify)
    return Documents(configuration, store, DocumentReader(configuration), tracer, library)
