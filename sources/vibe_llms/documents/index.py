"""The texts of documents, found by their words: an FTS5 index of the chunks of each text.

A request often has its words in two sentences that follow each other, in different chunks. So a
chunk also has the words of the chunks around it, though they count less. FTS5 gives the chunks that
have a word; they are scored here, as in `vibe_llms.memory.database`.

With vectors of the chunks, made by `vibe_llms.documents.store`, meaning counts beside words.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import chain, pairwise
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from vibe_llms.documents.chunks import SIZE, split_chunks
from vibe_llms.documents.database import DocumentDatabase
from vibe_llms.documents.passages import Candidate, Passage, choose_ranges
from vibe_llms.documents.texts import DocumentText
from vibe_llms.memory.embedders.core import ignore
from vibe_llms.memory.vectors import VectorIndex
from vibe_llms.memory.words import split_query, split_words

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

#: The characters that a search returns by default.
CHARACTERS = 6_000
#: How fast a word that is repeated counts less, as in BM25.
K1 = 1.2
#: Chunks are divided into pieces of so many characters, which are what a search returns.
PIECE = 250
#: A word counts for the pieces around it too: so many characters away, 1/e of what it counts there.
REACH = 400.0
#: What meaning counts beside words.
MEANING = 0.4
#: Chunks around a chosen one that are rated too: words further away count little.
_NEAR = 2
#: The rarest words choose chunks, up to so many: a word that most chunks have chooses nothing.
_MOST_ROWS = 3_000
#: Chosen chunks for each that may be returned, and chunks that are looked at for each of those.
_POOL, _FIRST = 2, 4
#: Vectors that stay in memory: about 150 MB of 384 dimensions.
_MOST_VECTORS = 100_000
#: A use within so many seconds of the one recorded is not recorded.
_LATELY_SECONDS = 600.0
#: Characters of a row of text.
_BLOCK = 32_768
#: SQLite takes at least this many values in a statement.
_ASKED = 30_000


class _Piece(NamedTuple):
    document: int
    chunk: int
    start: int
    end: int
    words: list[str]


class _Chunk(NamedTuple):
    start: int
    end: int
    breaks: bytes
    words: str


class _Document(NamedTuple):
    key: int
    hash: str
    size: int
    first: int
    last: int
    used: float


def hash_document(digest: str, version: str) -> str:
    """The hash that a text is kept under, by the SHA-256 of its file and the readers' version."""
    return hashlib.sha256(bytes.fromhex(digest) + version.encode()).hexdigest()


class DocumentIndex:
    """The index of one owner, in a folder, or in memory without one.

    Several processes and threads may use the same folder. `notify` is called if the index cannot be
    stored; then it continues in memory. Methods block.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        lock_seconds: float = 10.0,
        notify: Callable[[str], None] = ignore,
    ) -> None:
        self.database = DocumentDatabase(folder, lock_seconds=lock_seconds, notify=notify)
        #: Vectors by the hash of their document, used last at the end.
        self._vectors: dict[str, VectorIndex] = {}

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self.database.close()

    def add(self, digest: str, document: DocumentText, *, now: float | None = None) -> None:
        """Index a text under a hash, unless it is there already."""
        used = time.time() if now is None else now
        if self.has(digest):
            self.touch([digest], now=used)
            return
        # Characters that no encoding has; the offsets stay what they are.
        text = document.text.encode("utf-8", "replace").decode()
        document = msgspec.structs.replace(document, text=text)
        chunks = [*_divide_text(text)]
        self.database.write(lambda database: _insert(database, digest, document, chunks, used))

    def access(self, digest: str) -> DocumentText | None:
        """The text with a hash; `None` if it has to be read again."""
        return self.database.read(lambda database: _read_document(database, digest))

    def has(self, digest: str) -> bool:
        """Whether there is a text with a hash."""
        return bool(self.database.read(lambda database: _find(database, [digest])))

    def touch(self, hashes: Iterable[str], *, now: float | None = None) -> None:
        """Record that documents are in use, if that was not recorded lately."""
        used = time.time() if now is None else now
        known = self.database.read(lambda database: _find(database, [*hashes]))
        rows = [(used, one.key) for one in known if one.used < used - _LATELY_SECONDS]
        if rows:
            statement = "update documents set used = max(used, ?) where key = ?"
            self.database.write(lambda database: database.executemany(statement, rows))

    def survey_unused(self, before: float) -> Sequence[str]:
        """The documents that were last used before a time, in seconds since the epoch.

        Those of collections are always in use.
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
        """The passages of some documents that fit a request best, the best first.

        They have up to so many characters together. If the documents have no more, they are
        returned whole, in the order of their hashes. Unknown hashes are ignored. `question` is the
        vector of the request, by the `model` whose vectors of the documents are used.
        """

        def search(database: sqlite3.Connection) -> Sequence[Passage]:
            documents = _find(database, [*hashes])
            meaning = None
            if question is not None:
                vectors = {one.key: self._access_vectors(database, one, model) for one in documents}
                meaning = Meaning(question, {key: one for key, one in vectors.items() if one})
            found = _search(database, documents, request, meaning, characters)
            # In which order files were read is chance.
            places = {digest: place for place, digest in enumerate(hashes)}
            return sorted(found, key=lambda one: (-one.score, places[one.hash], one.start))

        return self.database.read(search)

    def survey_bare(self, hashes: Iterable[str], model: str) -> Sequence[str]:
        """Those of some documents that have no vectors of a model."""
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
        """The texts of a document's chunks, each of which has a vector."""
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
        """Keep the vectors of a document's chunks, by their place among them.

        Replaces those of another model.
        """
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
        self, database: sqlite3.Connection, document: _Document, model: str
    ) -> VectorIndex | None:
        """The vectors of a document, read again only if they were not used lately."""
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
    """The chunks of a text, and the words of their pieces, each word once."""
    last = 0
    for start, end in split_chunks(text):
        # What a chunk repeats of the one before it is in a piece of that.
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


def _drop(database: sqlite3.Connection, documents: Iterable[_Document]) -> None:
    for one in documents:
        chunks = (one.first, one.last)
        # An index without content has to be given what it is to forget.
        database.execute(
            "insert into postings (postings, rowid, words) "
            "select 'delete', number, words from chunks where number between ? and ?",
            chunks,
        )
        database.execute("delete from chunks where number between ? and ?", chunks)
        database.execute("delete from texts where document = ?", [one.key])
        database.execute("delete from vectors where document = ?", [one.key])
        database.execute("delete from documents where key = ?", [one.key])
    # Until its parts are merged, FTS5 only marks words as deleted.
    database.execute("insert into postings (postings) values ('optimize')")


def _find(database: sqlite3.Connection, hashes: Sequence[str]) -> list[_Document]:
    """The documents with some hashes, in the order of their chunks."""
    found = []
    for some in _divide(hashes):
        marks = ", ".join("?" * len(some))
        statement = (
            "select key, hash, size, first, last, used from documents "  # noqa: S608
            f"where hash in ({marks})"
        )
        found += [_Document(*row) for row in database.execute(statement, some)]
    return sorted(found, key=lambda one: one.first)


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
    documents: Sequence[_Document],
    request: str,
    meaning: Meaning | None,
    characters: int,
) -> list[Passage]:
    if sum(one.size for one in documents) <= characters:
        wanted = [Candidate(one.key, 0, one.size, 1.0) for one in documents if one.size]
    else:
        candidates = _rank(database, documents, split_query(request), meaning, characters)
        wanted = choose_ranges(candidates, characters)
    heads = {key: _read_head(database, key) for key in {one.document for one in wanted}}
    names = {one.key: one.hash for one in documents}
    passages = []
    for one in wanted:
        text = _read_text(database, one.document, one.start, one.end)
        head = heads[one.document]
        passages.append(
            Passage(
                *(names[one.document], one.start, one.end, text),
                *(head.place_at(one.start), head.place_at(max(one.start, one.end - 1))),
                *(head.title, one.score),
            )
        )
    return passages


def _rank(
    database: sqlite3.Connection,
    documents: Sequence[_Document],
    words: Sequence[str],
    meaning: Meaning | None,
    characters: int,
) -> list[Candidate]:
    """The pieces of some documents that fit a request, the best first."""
    count = sum(one.last + 1 - one.first for one in documents)
    wanted = _Numbers(database, documents)
    frequencies = {word: wanted.count(word) for word in words}
    rarities = {
        word: log(1 + (count - frequency + 0.5) / (frequency + 0.5))
        for word, frequency in frequencies.items()
        if frequency
    }
    held: dict[int, float] = {}
    seen = 0
    for word in sorted(rarities, key=rarities.__getitem__, reverse=True):
        seen += frequencies[word]
        if held and seen > _MOST_ROWS:
            break
        rarity = rarities[word]
        for number in wanted.match(word):
            held[number] = held.get(number, 0.0) + rarity
    pool = _POOL * (characters // SIZE + 1)
    best = nlargest(_FIRST * pool, held, key=held.__getitem__)
    around = {
        number: held[number] + (held.get(number - 1, 0.0) + held.get(number + 1, 0.0)) / 2
        for number in best
    }
    chosen = nlargest(pool, around, key=around.__getitem__)
    if meaning is not None:
        chosen += meaning.choose(documents, pool)
    near = {number + step for number in chosen for step in range(-_NEAR, _NEAR + 1)}
    pieces = [*wanted.pieces(sorted(near))]
    scores = _rate(rarities, pieces)
    if meaning is not None:
        alike = meaning.compare(documents, near)
        scores = [
            (score + MEANING * alike.get(one.chunk, 0.0)) / (1 + MEANING)
            for score, one in zip(scores, pieces, strict=True)
        ]
    found = [
        Candidate(one.document, one.start, one.end, score)
        for one, score in zip(pieces, scores, strict=True)
    ]
    return sorted(found, key=lambda one: (-one.score, one.document, one.start))


class Meaning(NamedTuple):
    """The vector of a request, and those of documents by their keys."""

    question: array[float]
    vectors: Mapping[int, VectorIndex]

    def choose(self, documents: Sequence[_Document], count: int) -> list[int]:
        """The numbers of the nearest chunks."""
        cosines: dict[int, float] = {}
        for one, vectors in self._pairs(documents):
            nearest = vectors.search(self.question, count)
            cosines.update((one.first + place, cosine) for place, cosine in nearest.items())
        return nlargest(count, cosines, key=cosines.__getitem__)

    def compare(self, documents: Sequence[_Document], numbers: Collection[int]) -> dict[int, float]:
        """How much nearer than the mean some chunks are, as a part of the way to 1."""
        pairs = self._pairs(documents)
        sums = [vectors.sum_up(self.question) for _, vectors in pairs]
        mean = sum(total for total, _ in sums) / (sum(count for _, count in sums) or 1)
        alike: dict[int, float] = {}
        for one, vectors in pairs:
            places = [number - one.first for number in numbers if one.first <= number <= one.last]
            for place, cosine in vectors.score(self.question, places).items():
                alike[one.first + place] = (cosine - mean) / (1 - mean)
        return alike

    def _pairs(self, documents: Sequence[_Document]) -> list[tuple[_Document, VectorIndex]]:
        return [
            (one, vectors)
            for one in documents
            if (vectors := self.vectors.get(one.key)) and vectors.fits(self.question)
        ]


class _Numbers:
    """The numbers of the chunks of some documents, and what the database has under them."""

    def __init__(self, database: sqlite3.Connection, documents: Sequence[_Document]) -> None:
        self._database = database
        self._documents = documents
        self._firsts = [one.first for one in documents]
        self._range = (documents[0].first, documents[-1].last)
        #: Needed if chunks of other documents lie between.
        self._own: set[int] | None = None
        if any(after.first > one.last + 1 for one, after in pairwise(documents)):
            self._own = {*chain.from_iterable(range(one.first, one.last + 1) for one in documents)}

    def count(self, word: str) -> int:
        """How many chunks have a word."""
        if self._own is not None:
            return len(self.match(word))
        statement = "select count(*) from postings where postings match ? and rowid between ? and ?"
        (count,) = self._database.execute(statement, (f'"{word}"', *self._range)).fetchone()
        return int(count)

    def match(self, word: str) -> Collection[int]:
        """The chunks that have a word."""
        statement = "select rowid from postings where postings match ? and rowid between ? and ?"
        rows = self._database.execute(statement, (f'"{word}"', *self._range))
        numbers = chain.from_iterable(rows)
        return [*numbers] if self._own is None else self._own.intersection(numbers)

    def pieces(self, numbers: Sequence[int]) -> Iterator[_Piece]:
        """The pieces of those of some chunks that are there, in their order."""
        for some in _divide(numbers):
            marks = ", ".join("?" * len(some))
            statement = (
                "select number, breaks, words from chunks "  # noqa: S608
                f"where number in ({marks}) order by number"
            )
            for number, breaks, words in self._database.execute(statement, some):
                owner = self._documents[bisect_right(self._firsts, number) - 1]
                if number <= owner.last:
                    for (start, end), line in zip(
                        pairwise(array("Q", breaks)), words.split("\n"), strict=True
                    ):
                        yield _Piece(owner.key, number, start, end, line.split())


def _rate(rarities: Mapping[str, float], pieces: Sequence[_Piece]) -> list[float]:
    """The share of some words that each piece has, with those around it, from 0 to 1."""
    fading = [
        exp((one.start + one.end - after.start - after.end) / 2 / REACH)
        if one.document == after.document
        else 0.0
        for one, after in pairwise(pieces)
    ]
    asked = {*rarities}
    counts = [
        {word: one.words.count(word) for word in asked.intersection(one.words)} for one in pieces
    ]
    scores = [0.0] * len(pieces)
    for word, rarity in rarities.items():
        weights = _spread([one.get(word, 0) for one in counts], fading)
        for place, weight in enumerate(weights):
            scores[place] += rarity * weight / (weight + K1)
    most = sum(rarities.values())
    return [score / most for score in scores] if most else scores


def _spread(counts: Sequence[float], fading: Sequence[float]) -> list[float]:
    """Counts with those before and after, which fade with their distance."""
    weights = [*counts]
    carried = 0.0
    for place, fade in enumerate(fading, 1):
        carried = (carried + counts[place - 1]) * fade
        weights[place] += carried
    carried = 0.0
    for place in range(len(fading) - 1, -1, -1):
        carried = (carried + counts[place + 1]) * fading[place]
        weights[place] += carried
    return weights


def _divide(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), _ASKED):
        yield values[start : start + _ASKED]
