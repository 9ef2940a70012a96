"""`Documents`: what a session does with documents. It reads files, keeps their text, and searches.

Files are read in processes of their own. Their text is kept in a `Library`, under the hash of the
file, so that none is read or indexed twice.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from vibe_llms.attachments import produce_document
from vibe_llms.configuration import Configuration
from vibe_llms.documents.extracts import describe_range, describe_size, write_beginning, write_page
from vibe_llms.documents.library import Library
from vibe_llms.documents.reading import DocumentReader
from vibe_llms.documents.texts import DocumentText
from vibe_llms.documents.web import fetch
from vibe_llms.exceptions import DocumentUnreadable, RequestError
from vibe_llms.messages.canisters import DocumentCanister
from vibe_llms.messages.contents import FileContent, Reference, TextualContent, hash_bytes
from vibe_llms.meta import __version__
from vibe_llms.providers.interfaces import Loader, refuse_loading

FOLDER = "documents"
_PAGES = ("text/html", "application/xhtml+xml")


class Found(Struct, frozen=True):
    """A passage of a document that fits a request: its name, where it is, and its text."""

    name: str
    place: str
    text: str


class _Shelf(Struct, frozen=True):
    """What the tools may read in a conversation: its files by name, and collections."""

    files: Mapping[str, FileContent] = {}
    collections: tuple[str, ...] = ()
    load: Loader = refuse_loading


class Documents:
    """The documents of one user; closing it closes the library and the reader."""

    def __init__(
        self, configuration: Configuration, library: Library, reader: DocumentReader
    ) -> None:
        self.library = library
        self.reader = reader
        self._configuration = configuration
        self._shelves: dict[str, _Shelf] = {}
        self._running: dict[str, asyncio.Task[DocumentText]] = {}

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
        """Let the tools read some documents and collections in a conversation from now on."""
        files = {document.name: document for document in documents}
        self._shelves[conversation] = _Shelf(files, tuple(collections), load)

    async def survey(self, conversation: str) -> Mapping[str, str]:
        """The documents that the tools may read in a conversation, and what each is."""
        shelf = self._access_shelf(conversation)
        found: dict[str, str] = {}
        for name, file in shelf.files.items():
            try:
                found[name] = describe_size(await self.read(file, shelf.load))
            except DocumentUnreadable as error:
                found[name] = f"cannot be read: {error}"
        return found

    async def read_page(self, conversation: str, source: str, page: int) -> str:
        """A page of a document; `RequestError` if there is no such document or page."""
        shelf = self._access_shelf(conversation)
        file = self._access_file(shelf, source)
        try:
            return write_page(source, await self.read(file, shelf.load), page)
        except ValueError as error:
            raise RequestError(str(error)) from error

    async def search(self, conversation: str, request: str, source: str = "") -> Sequence[Found]:
        """The passages that fit a request best, in one document or in all, the best first."""
        shelf = self._access_shelf(conversation)
        files = [self._access_file(shelf, source)] if source else [*shelf.files.values()]
        return await self.find(request, files, () if source else shelf.collections, shelf.load)

    async def find(
        self,
        request: str,
        files: Sequence[FileContent],
        collections: Sequence[str] = (),
        load: Loader = refuse_loading,
    ) -> Sequence[Found]:
        """The passages of files and collections that fit a request best, the best first.

        Files that cannot be read are left out; if none can, it raises why.
        """
        names: dict[str, tuple[str, DocumentText]] = {}
        failures: list[DocumentUnreadable] = []
        for file in files:
            try:
                key, text = await self._read(file, load)
                names[key] = (file.name, text)
            except DocumentUnreadable as error:
                failures.append(error)
        if failures and not names:
            raise failures[0]
        found: list[Found] = []
        for passage in await self.library.search(request, [*names]):
            name, text = names[passage.hash]
            place = describe_range(text, passage.start, passage.end)
            found.append(Found(name, place, passage.text))
        return found

    async def close(self) -> None:
        """End the processes and close the files; safe to call twice."""
        await self.reader.close()
        await self.library.close()

    def _access_shelf(self, conversation: str) -> _Shelf:
        return self._shelves.get(conversation, _Shelf())

    @staticmethod
    def _access_file(shelf: _Shelf, source: str) -> FileContent:
        if (file := shelf.files.get(source)) is None:
            known = ", ".join(shelf.files) or "none"
            raise RequestError(f"there is no document {source!r} here; the documents are: {known}")
        return file

    async def _read(self, document: FileContent, load: Loader) -> tuple[str, DocumentText]:
        """The key of a file in the library, and its text."""
        match document.data:
            case Reference(hash=digest):
                pass
            case bytes() as data:
                digest = await asyncio.to_thread(hash_bytes, data)
            case _:
                raise DocumentUnreadable(f"{document.name}: only its provider can read it")
        key = hashlib.sha256(bytes.fromhex(digest) + __version__.encode()).hexdigest()
        if (text := await self.library.access(key)) is not None:
            return key, text
        # Two tasks that want the same document read it once.
        if (running := self._running.get(key)) is None:
            running = asyncio.create_task(self._read_anew(key, document, load))
            self._running[key] = running
            running.add_done_callback(lambda _: self._running.pop(key, None))
        return key, await asyncio.shield(running)

    async def _read_anew(self, key: str, document: FileContent, load: Loader) -> DocumentText:
        data = document.data
        if isinstance(data, Reference):
            data = (await load([data]))[data.hash]
        assert isinstance(data, bytes)
        text = await self.reader.read(data, document.name, mimetype=document.mimetype)
        await self.library.add(key, text)
        return text


def produce_documents(configuration: Configuration, notify: Callable[[str], None]) -> Documents:
    """The documents of the user of a configuration; nothing is opened before it is used."""
    library = Library(
        configuration.places.data / FOLDER,
        lock_seconds=configuration.storage.lock_seconds,
        notify=notify,
    )
    return Documents(configuration, library, DocumentReader(configuration))
