"""The endpoints under `/api/documents`: collections of documents, uploads to them, and search."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from vibe_llms.base.configuration import LOCAL
from vibe_llms.base.exceptions import CollectionNotFound
from vibe_llms.documents.catalog import (
    Catalog,
    CatalogCollection,
    CatalogDocument,
    FoundPassage,
    State,
)
from vibe_llms.documents.collections import check_name
from vibe_llms.server import files
from vibe_llms.server.api_files import check_type
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.failures import Rejected
from vibe_llms.server.pages import PageQuery, take_page
from vibe_llms.server.reading import read_query
from vibe_llms.server.spaces import UserSpace

#: Name that is part of another path.
_SEARCH = "search"
#: Characters of passages for each one that is asked for.
_PASSAGE = 2_000


class CollectionDescription(Struct):
    """A collection, with the numbers of its documents; the user may upload to an `own` one."""

    name: str
    own: bool
    documents: int
    indexed: int
    waiting: int
    failed: int
    indexing: bool


class CollectionList(Struct):
    """Collections that the user may search, by name."""

    collections: list[CollectionDescription]


class DocumentDescription(Struct):
    """A document: `waiting` to be read, `indexed`, or `failed` with a `problem`.

    Documents of the server's collections are named by their paths there.
    """

    id: str
    name: str
    size: int
    mimetype: str
    created: str
    state: State
    problem: str


class DocumentList(Struct):
    """A collection and its documents, by name."""

    collection: CollectionDescription
    documents: list[DocumentDescription]
    has_more: bool


class DocumentQuery(Struct):
    """Collection of the document, and its name, which also helps to detect its type."""

    collection: str
    name: Annotated[str, Meta(min_length=1, max_length=files.LONGEST_NAME)]


class PassagesQuery(Struct):
    """Search text, and the collection to search; without one, all are searched."""

    text: Annotated[str, Meta(min_length=1)]
    collection: str = ""
    limit: Annotated[int, Meta(ge=1, le=100)] = 10


class PassageDescription(Struct):
    """A passage of a document; `place` is such as `page 3`, and `score` is from 0 to 1."""

    collection: str
    document: str
    name: str
    place: str
    text: str
    score: float


class PassageList(Struct):
    """Passages, best match first; `waiting` documents were not searched, as they are not read."""

    passages: list[PassageDescription]
    waiting: int


class CollectionRemoved(Struct):
    """A deleted collection, and the number of its documents."""

    name: str
    documents: int
    deleted: bool = True


async def list_collections(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """List collections of documents: the user's own, and those of the server's agents."""
    found = await _catalog(space).survey()
    listed = CollectionList([_describe_collection(space, one) for one in found])
    await exchange.reply(msgspec.json.encode(listed))


async def list_documents(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """List the documents of a collection. Those of an own one that wait are then read."""
    query = read_query(PageQuery, exchange.query)
    collection = await _catalog(space).access(exchange.argument)
    _resume(space, collection)
    page, more = take_page(collection.documents, query, lambda one: one.id)
    listed = DocumentList(
        _describe_collection(space, collection),
        [_describe(space, collection, one) for one in page],
        more,
    )
    await exchange.reply(msgspec.json.encode(listed))


async def search_documents(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Find passages by words, and by meaning if there is an embedder; best match first."""
    query = read_query(PassagesQuery, exchange.query)
    catalog = _catalog(space)
    if query.collection:
        collections = [await catalog.access(query.collection)]
    else:
        collections = [*await catalog.survey()]
    for one in collections:
        _resume(space, one)
    async with space.asking():
        found = await catalog.search(query.text, collections, characters=query.limit * _PASSAGE)
    waiting = sum(one.count("waiting") for one in collections)
    listed = PassageList([*map(_describe_passage, found[: query.limit])], waiting)
    await exchange.reply(msgspec.json.encode(listed))


async def upload_document(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Add a document, whose bytes are the body, to an own collection; one of its name is replaced.

    The collection is created with its first document. The document is read in the background.
    """
    query, kind = read_query(DocumentQuery, exchange.query), check_type(exchange.media_type)
    collection, name = query.collection, query.name
    check_name(collection)
    if collection == _SEARCH:
        raise Rejected(f"a collection cannot be named {_SEARCH!r}", param="collection")
    with suppress(CollectionNotFound):
        _require_own(await _catalog(space).access(collection))
    await files.check_count(space)
    data = await exchange.receive(core.settings)
    kind = await files.detect_kind(data, name, kind)
    document = await _catalog(space).upload(collection, data, name, kind)
    space.indexer.start(collection)
    await exchange.reply(msgspec.json.encode(_describe_document(document)), status=201)


async def index_collection(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Read the documents of an own collection that wait or have failed, in the background."""
    collection = await _access_own(space, exchange.argument)
    space.indexer.start(collection.name, failed=True)
    described = _describe_collection(space, collection)
    await exchange.reply(msgspec.json.encode(described), status=202)


async def remove_collection(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Delete an own collection with its documents."""
    collection = await _access_own(space, exchange.argument)
    await _remove(space, collection, *collection.documents)
    removed = CollectionRemoved(collection.name, len(collection.documents))
    await exchange.reply(msgspec.json.encode(removed))


async def describe_document(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Show a document of a collection; get the bytes of an uploaded one from `/api/files`."""
    collection, document = await _find_document(space, *exchange.arguments)
    await exchange.reply(msgspec.json.encode(_describe(space, collection, document)))


async def remove_document(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Delete a document from an own collection."""
    collection, document = await _find_document(space, *exchange.arguments)
    _require_own(collection)
    await _remove(space, collection, document)
    await exchange.reply(msgspec.json.encode(_describe(space, collection, document)))


def _catalog(space: UserSpace) -> Catalog:
    return space.session.access_documents().catalog


async def _find_document(
    space: UserSpace, name: str, identity: str
) -> tuple[CatalogCollection, CatalogDocument]:
    collection = await _catalog(space).access(name)
    for document in collection.documents:
        if document.id == identity:
            return collection, document
    raise Rejected(f"document {identity!r} not found", status=404, code="document_not_found")


async def _access_own(space: UserSpace, name: str) -> CatalogCollection:
    collection = await _catalog(space).access(name)
    _require_own(collection)
    return collection


def _require_own(collection: CatalogCollection) -> None:
    if not collection.own:
        raise Rejected(
            f"{collection.name!r} is a collection of the server, which is not changed here; use "
            "another name",
            status=409,
            code="collection_read_only",
        )


async def _remove(
    space: UserSpace, collection: CatalogCollection, *documents: CatalogDocument
) -> None:
    await _catalog(space).remove(collection.name, [one.id for one in documents])
    space.collect_later()


def _resume(space: UserSpace, collection: CatalogCollection) -> None:
    """Read waiting documents, for example those that another server has received."""
    indexing = space.indexer.is_indexing(collection.name)
    if collection.own and collection.count("waiting") and not indexing:
        space.indexer.start(collection.name)


def _describe_collection(space: UserSpace, collection: CatalogCollection) -> CollectionDescription:
    return CollectionDescription(
        name=collection.name,
        own=collection.own,
        documents=len(collection.documents),
        indexed=collection.count("indexed"),
        waiting=collection.count("waiting"),
        failed=collection.count("failed"),
        indexing=collection.own and space.indexer.is_indexing(collection.name),
    )


def _describe(
    space: UserSpace, collection: CatalogCollection, document: CatalogDocument
) -> DocumentDescription:
    described = _describe_document(document)
    if described.problem and not collection.own and space.user != LOCAL:
        # It may name paths of the server.
        described.problem = "the server could not read it"
    return described


def _describe_document(document: CatalogDocument) -> DocumentDescription:
    return DocumentDescription(
        id=document.id,
        name=document.name,
        size=document.size,
        mimetype=document.mimetype,
        created=document.created,
        state=document.state,
        problem=document.problem,
    )


def _describe_passage(found: FoundPassage) -> PassageDescription:
    return PassageDescription(
        collection=found.collection.name,
        document=found.document.id,
        name=found.document.name,
        place=found.place,
        text=found.text,
        score=round(found.score, 4),
    )
