"""Texts of documents in one file per owner, with an FTS5 index of their chunks.

With vectors of the chunks, made by `vibe_llms.documents.store`, passages are also found by meaning.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from vibe_llms.conversations.document_texts import DocumentText
from vibe_llms.documents.chunks import split_chunks
from vibe_llms.documents.database import DocumentDatabase, divide
from vibe_llms.documents.passages import Candidate, Passage, choose_ranges
from vibe_llms.documents.ranking import IndexedDocument, Meaning, rank
from vibe_llms.embedding.core import ignore
from vibe_llms.embedding.vectors import VectorIndex
from vibe_llms.embedding.words import split_query, split_words

if TYPE_CHECKING:
    import sqlite3


#: Default maximum number of characters that a search returns.
CHARACTERS = 6_000
#: Characters per piece of a chunk. A search returns pieces.
PIECE = 250
#: Maximum number of vectors in memory: about 150 MB with 384 dimensions.
_MOST_VECTORS = 100_000
#: Seconds after a recorded use in which further uses are not recorded.
_LATELY_SECONDS = 600.0
#: Characters per row of text.
_BLOCK = 32_768


class _Chunk(NamedTuple):
    start: int
    end: int
    breaks: bytes
    words: str


def hash_document(digest: str, version: str) -> str:
    """Return the hash of a text, from the SHA-256 of its file and the readers' version."""
    return hashlib.sha256(bytes.fromhex(digest) + version.encode()).hexdigest()


class DocumentIndex:
    """Index of one owner, in a folder, or in memory without one.

    Several processes and threads may use the same folder. If the index cannot be stored, `notify`
    is called and it continues in memory. Methods block.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        lock_seconds: float = 10.0,
        notify: Callable[[str], None] = ignore,
    ) -> None:
        self.database = DocumentDatabase(folder, lock_seconds=lock_seconds, notify=notify)
        #: Vectors by the hash of their document, most recently used last.
        self._vectors: dict[str, VectorIndex] = {}

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self.database.close()

    def add(self, digest: str, document: DocumentText, *, now: float | None = None) -> None:
        """Index a text under a hash, unless it is already there."""
        used = time.time() if now is None else now
        if self.has(digest):
            self.touch([digest], now=used)
            return
        # Replace lone surrogates, which cannot be encoded. The offsets stay the same.
        text = document.text.encode("utf-8", "replace").decode()
        document = msgspec.structs.replace(document, text=text)
        chunks = [*_divide_text(text)]
        self.database.write(lambda database: _insert(database, digest, document, chunks, used))

    def access(self, digest: str) -> DocumentText | None:
        """Return the text with a hash, or `None` if the file has to be read again."""
        return self.database.read(lambda database: _read_document(database, digest))

    def has(self, digest: str) -> bool:
        """Return True if a text has this hash."""
        return bool(self.database.read(lambda database: _find(database, [digest])))

    def touch(self, hashes: Iterable[str], *, now: float | None = None) -> None:
        """Record that documents are in use, if that was not recorded recently."""
        used = time.time() if now is None else now
        known = self.database.read(lambda database: _find(database, [*hashes]))
        rows = [(used, one.key) for one in known if one.used < used - _LATELY_SECONDS]
        if rows:
            statement = "update documents set used = max(used, ?) where key = ?"
            self.database.write(lambda database: database.executemany(statement, rows))

    def survey_unused(self, before: float) -> Sequence[str]:
        """Return the documents last used before a time, in seconds since the epoch.

        Documents of collections are always in use.
        """
        statement = (
            "select hash from documents where used < ? and hash not in (select hash from files)"
        )
        return self.database.read(
            lambda database: [one for (one,) in database.execute(statement, [before])]
        )

    def drop(self, hashes: Iterable[str]) -> None:
        """Remove documents, with their words and vectors."""
        unwanted = [*hashes]
        for one in unwanted:
            self._vectors.pop(one, None)
        if unwanted:
            self.database.write(lambda database: _drop(database, _find(database, unwanted)))
            self.database.clean()

    def search(
        self,
        request: str,
        hashes: Collection[str],
        *,
        characters: int = CHARACTERS,
        question: array[float] | None = None,
        model: str = "",
    ) -> Sequence[Passage]:
        """Return the passages of documents that fit a request best, best first.

        The total length is at most `characters`. If the documents are shorter, they are returned
        whole, in the order of their hashes. Unknown hashes are ignored. `question` is the vector of
        the request, by the `model` whose vectors of the documents are used.
        """

        def search(database: sqlite3.Connection) -> Sequence[Passage]:
            documents = _find(database, [*hashes])
            meaning = None
            if question is not None:
                vectors = {one.key: self._access_vectors(database, one, model) for one in documents}
                meaning = Meaning(question, {key: one for key, one in vectors.items() if one})
            found = _search(database, documents, request, meaning, characters)
            # The order in the index depends on when files were read.
            places = {digest: place for place, digest in enumerate(hashes)}
            return sorted(found, key=lambda one: (-one.score, places[one.hash], one.start))

        return self.database.read(search)

    def survey_bare(self, hashes: Iterable[str], model: str) -> Sequence[str]:
        """Return the documents among these that do not have vectors of a model."""
        return self.database.read(
            lambda database: [
                one.hash
                for one in _find(database, [*hashes])
                if not database.execute(
                    "select 1 from vectors where document = ? and model = ?", (one.key, model)
                ).fetchone()
            ]
        )

    def split(self, digest: str) -> Sequence[str]:
        """Return the texts of a document's chunks, each of which has a vector."""
        document = self.access(digest)
        if document is None:
            return ()
        return [document.text[start:end] for start, end in split_chunks(document.text)]

    def put_vectors(
        self,
        digest: str,
        model: str,
        vectors: Mapping[int, array[float]],
    ) -> None:
        """Store the vectors of a document's chunks by index, and replace those of another model."""
        index = VectorIndex(model)
        index.add({place: [one] for place, one in vectors.items()})
        data = index.encode()

        def put(database: sqlite3.Connection) -> None:
            for one in _find(database, [digest]):
                database.execute(
                    "insert or replace into vectors values (?, ?, ?)", (one.key, model, data)
                )

        self.database.write(put)

    def _access_vectors(
        self, database: sqlite3.Connection, document: IndexedDocument, model: str
    ) -> VectorIndex | None:
        """Return the vectors of a document, from memory if they were used recently."""
        found = self._vectors.pop(document.hash, None)
        if found is None or found.model != model:
            row = database.execute(
                "select data from vectors where document = ? and model = ?", (document.key, model)
            ).fetchone()
            if row is None:
                return None
            found = VectorIndex.decode(row[0])
        self._vectors[document.hash] = found
        while len(self._vectors) > 1 and sum(map(len, self._vectors.values())) > _MOST_VECTORS:
            del self._vectors[next(iter(self._vectors))]
        return found


def _divide_text(text: str) -> Iterator[_Chunk]:
    """Yield the chunks of a text with the words of their pieces, each word once."""
    last = 0
    for start, end in split_chunks(text):
        # The overlap with the chunk before it is in that chunk's pieces.
        begin = max(start, last)
        breaks = [begin + one for one, _ in split_chunks(text[begin:end], PIECE, 0)]
        places = array("Q", (begin, *breaks[1:], end))
        lines = (" ".join(split_words(text[one:after])) for one, after in pairwise(places))
        yield _Chunk(start, end, places.tobytes(), "\n".join(lines))
        last = end


def _insert(
    database: sqlite3.Connection,
    digest: str,
    document: DocumentText,
    chunks: Sequence[_Chunk],
    used: float,
) -> None:
    if _find(database, [digest]):
        # Another process was faster.
        return
    (last,) = database.execute("select coalesce(max(last), 0) from documents").fetchone()
    first = last + 1
    (key,) = database.execute(
        "insert into documents (hash, head, size, first, last, used) "
        "values (?, ?, ?, ?, ?, ?) returning key",
        (
            *(digest, msgspec.msgpack.encode(msgspec.structs.replace(document, text=""))),
            *(len(document.text), first, first + len(chunks) - 1, used),
        ),
    ).fetchone()
    database.executemany(
        "insert into texts (document, start, text) values (?, ?, ?)",
        (
            (key, start, document.text[start : start + _BLOCK])
            for start in range(0, len(document.text), _BLOCK)
        ),
    )
    database.executemany(
        "insert into chunks values (?, ?, ?, ?, ?)",
        ((number, *one) for number, one in enumerate(chunks, first)),
    )
    database.executemany(
        "insert into postings (rowid, words) values (?, ?)",
        ((number, one.words) for number, one in enumerate(chunks, first)),
    )


def _drop(database: sqlite3.Connection, documents: Iterable[IndexedDocument]) -> None:
    for one in documents:
        chunks = (one.first, one.last)
        # A contentless index needs the words that it should delete.
        database.execute(
            "insert into postings (postings, rowid, words) "
            "select 'delete', number, words from chunks where number between ? and ?",
            chunks,
        )
        database.execute("delete from chunks where number between ? and ?", chunks)
        database.execute("delete from texts where document = ?", [one.key])
        database.execute("delete from vectors where document = ?", [one.key])
        database.execute("delete from documents where key = ?", [one.key])
    # FTS5 only marks words as deleted until its parts are merged.
    database.execute("insert into postings (postings) values ('optimize')")


def _find(database: sqlite3.Connection, hashes: Sequence[str]) -> list[IndexedDocument]:
    """Return the documents with some hashes, in the order of their chunks."""
    found = []
    for some in divide(hashes):
        marks = ", ".join("?" * len(some))
        statement = (
            "select key, hash, size, first, last, used from documents "  # noqa: S608
            f"where hash in ({marks})"
        )
        found += [IndexedDocument(*row) for row in database.execute(statement, some)]
    # A document without chunks has the first number of the next one.
    return sorted(found, key=lambda one: (one.first, one.last))


def _read_head(database: sqlite3.Connection, key: int) -> DocumentText:
    (head,) = database.execute("select head from documents where key = ?", [key]).fetchone()
    return msgspec.msgpack.decode(head, type=DocumentText)


def _read_document(database: sqlite3.Connection, digest: str) -> DocumentText | None:
    for one in _find(database, [digest]):
        text = _read_text(database, one.key, 0, one.size)
        return msgspec.structs.replace(_read_head(database, one.key), text=text)
    return None


def _read_text(database: sqlite3.Connection, key: int, start: int, end: int) -> str:
    begin = start - start % _BLOCK
    rows = database.execute(
        "select text from texts where document = ? and start between ? and ? order by start",
        (key, begin, end),
    )
    return "".join(text for (text,) in rows)[start - begin : end - begin]


def _search(
    database: sqlite3.Connection,
    documents: Sequence[IndexedDocument],
    request: str,
    meaning: Meaning | None,
    characters: int,
) -> list[Passage]:
    if sum(one.size for one in documents) <= characters:
        wanted = [Candidate(one.key, 0, one.size, 1.0) for one in documents if one.size]
    else:
        candidates = rank(database, documents, split_query(request), meaning, characters)
        wanted = choose_ranges(candidates, characters)
    heads = {key: _read_head(database, key) for key in {one.document for one in wanted}}
    names = {one.key: one.hash for one in documents}
    passages = []
    for one in wanted:
        text = _read_text(database, one.document, one.start, one.end)
        head = heads[one.document]
        passages.append(
            Passage(
                names[one.document],
                one.start,
                one.end,
                text,
                head.place_at(one.start),
                head.place_at(max(one.start, one.end - 1)),
                head.title,
                one.score,
            )
        )
    return passages
