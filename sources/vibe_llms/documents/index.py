"""The texts of documents, found by their words: an FTS5 index of the chunks of each text.

A request often has its words in two sentences that follow each other, in different chunks. So a
chunk also has the words of the chunks around it, though they count less. FTS5 gives the chunks that
have a word; they are scored here, as in `vibe_llms.memory.database`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from vibe_llms.documents.chunks import split_chunks
from vibe_llms.documents.database import DocumentDatabase
from vibe_llms.documents.passages import Candidate, Passage, choose_ranges
from vibe_llms.documents.texts import DocumentText
from vibe_llms.memory.words import split_query, split_words

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

#: The characters that a search returns by default.
CHARACTERS = 6_000
K1, B = 1.2, 0.75
#: What a word counts in the chunks around the one that has it, by their distance.
WINDOW = {-1: 0.5, 0: 1.0, 1: 0.5}
#: Numbers that no chunk has, between two documents, so that no window reaches across.
_GAP = 2
#: The best chunks are scored again, with the words that they have; so many for each that fits.
_POOL = 4
_TYPICAL_CHUNK = 400
#: A use within so many seconds of the one recorded is not recorded.
_LATELY_SECONDS = 600.0
#: Characters of a row of text.
_BLOCK = 32_768
#: SQLite takes at least this many values in a statement.
_ASKED = 30_000


class _Document(NamedTuple):
    key: int
    hash: str
    size: int
    first: int
    last: int
    words: int
    used: float


def hash_document(data: bytes, version: str) -> str:
    """The hash that the text of a file is kept under: of its bytes, and the reader's version."""
    return hashlib.sha256(hashlib.sha256(data).digest() + version.encode()).hexdigest()


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
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._database = DocumentDatabase(folder, lock_seconds=lock_seconds, notify=notify)

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._database.close()

    def add(self, hash: str, document: DocumentText, *, now: float | None = None) -> None:  # noqa: A002
        """Index a text under a hash, unless it is there already."""
        used = time.time() if now is None else now
        if self._database.read(lambda database: _find(database, [hash])):
            self.touch([hash], now=used)
            return
        # Characters that no encoding has; the offsets stay what they are.
        text = document.text.encode("utf-8", "replace").decode()
        document = msgspec.structs.replace(document, text=text)
        chunks = [(start, end, split_words(text[start:end])) for start, end in split_chunks(text)]
        self._database.write(lambda database: _insert(database, hash, document, chunks, used))

    def access(self, hash: str) -> DocumentText | None:  # noqa: A002
        """The text with a hash; `None` if it has to be read again."""
        return self._database.read(lambda database: _read_document(database, hash))

    def touch(self, hashes: Iterable[str], *, now: float | None = None) -> None:
        """Record that documents are in use, if that was not recorded lately."""
        used = time.time() if now is None else now
        known = self._database.read(lambda database: _find(database, [*hashes]))
        rows = [(used, one.key) for one in known if one.used < used - _LATELY_SECONDS]
        if rows:
            statement = "update documents set used = max(used, ?) where key = ?"
            self._database.write(lambda database: database.executemany(statement, rows))

    def purge(self, before: float) -> None:
        """Drop the documents that were last used before a time, in seconds since the epoch."""
        statement = "select hash from documents where used < ?"
        unused = self._database.read(
            lambda database: [one for (one,) in database.execute(statement, [before])]
        )
        if unused:
            self._database.write(lambda database: _drop(database, _find(database, unused)))

    def search(
        self, request: str, hashes: Collection[str], *, characters: int = CHARACTERS
    ) -> Sequence[Passage]:
        """The passages of some documents that fit a request best, the best first.

        They have up to so many characters together. If the documents have no more, they are
        returned whole. Unknown hashes are ignored.
        """
        return self._database.read(
            lambda database: _search(database, request, [*hashes], characters)
        )


def _insert(
    database: sqlite3.Connection,
    hash: str,  # noqa: A002
    document: DocumentText,
    chunks: Sequence[tuple[int, int, Sequence[str]]],
    used: float,
) -> None:
    if _find(database, [hash]):
        # Another process was faster.
        return
    (last,) = database.execute("select coalesce(max(last), 0) from documents").fetchone()
    first = last + 1 + _GAP
    (key,) = database.execute(
        "insert into documents (hash, head, size, first, last, words, used) "
        "values (?, ?, ?, ?, ?, ?, ?) returning key",
        (
            *(hash, msgspec.msgpack.encode(msgspec.structs.replace(document, text=""))),
            *(len(document.text), first, first + len(chunks) - 1),
            *(sum(len(words) for _, _, words in chunks), used),
        ),
    ).fetchone()
    database.executemany(
        "insert into texts (document, start, text) values (?, ?, ?)",
        (
            (key, start, document.text[start : start + _BLOCK])
            for start in range(0, len(document.text), _BLOCK)
        ),
    )
    rows = [
        (number, start, end, " ".join(words))
        for number, (start, end, words) in enumerate(chunks, first)
    ]
    database.executemany("insert into chunks values (?, ?, ?, ?)", rows)
    database.executemany(
        "insert into postings (rowid, words) values (?, ?)", ((row[0], row[3]) for row in rows)
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
        database.execute("delete from documents where key = ?", [one.key])
    # Until its parts are merged, FTS5 only marks words as deleted.
    database.execute("insert into postings (postings) values ('optimize')")


def _find(database: sqlite3.Connection, hashes: Sequence[str]) -> list[_Document]:
    """The documents with some hashes, in the order of their chunks."""
    found = []
    for some in _divide(hashes):
        marks = ", ".join("?" * len(some))
        statement = (
            "select key, hash, size, first, last, words, used from documents "  # noqa: S608
            f"where hash in ({marks})"
        )
        found += [_Document(*row) for row in database.execute(statement, some)]
    return sorted(found, key=lambda one: one.first)


def _read_head(database: sqlite3.Connection, key: int) -> DocumentText:
    (head,) = database.execute("select head from documents where key = ?", [key]).fetchone()
    return msgspec.msgpack.decode(head, type=DocumentText)


def _read_document(database: sqlite3.Connection, hash: str) -> DocumentText | None:  # noqa: A002
    for one in _find(database, [hash]):
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
    database: sqlite3.Connection, request: str, hashes: Sequence[str], characters: int
) -> list[Passage]:
    documents = _find(database, hashes)
    if sum(one.size for one in documents) <= characters:
        wanted = [Candidate(one.key, 0, one.size, 1.0) for one in documents]
    else:
        candidates = _rank(database, documents, split_query(request), characters)
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
                *(head.place_at(one.start), head.title, one.score),
            )
        )
    return passages


def _rank(
    database: sqlite3.Connection,
    documents: Sequence[_Document],
    words: Sequence[str],
    characters: int,
) -> list[Candidate]:
    """The chunks that fit some words, the best first."""
    count = sum(one.last + 1 - one.first for one in documents)
    mean = sum(one.words for one in documents) / max(count, 1)
    wanted = _Numbers(documents)
    rows = {word: wanted.match(database, word) for word in words}
    rarities = {word: _rarity(len(some), count) for word, some in rows.items() if some}
    scores: dict[int, float] = {}
    for word, rarity in rarities.items():
        worth: dict[int, float] = {}
        for distance, share in sorted(WINDOW.items(), key=lambda one: one[1]):
            part = rarity * share / (share + K1)
            for number in rows[word]:
                worth[number + distance] = part
        for number, part in worth.items():
            scores[number] = scores.get(number, 0.0) + part
    numbers = sorted(scores, key=scores.__getitem__, reverse=True)
    best = [number for number in numbers if number in wanted]
    best = best[: _POOL * (characters // _TYPICAL_CHUNK + 1)]
    return _rate(database, rarities, mean, best, wanted)


class _Numbers:
    """The numbers of the chunks of some documents."""

    def __init__(self, documents: Sequence[_Document]) -> None:
        self._ranges = [(one.first, one.last, one.key) for one in documents]
        self._owners = {
            number: key for first, last, key in self._ranges for number in range(first, last + 1)
        }

    def __contains__(self, number: int) -> bool:
        return number in self._owners

    def owner(self, number: int) -> int:
        """The key of the document that a chunk belongs to."""
        return self._owners[number]

    def match(self, database: sqlite3.Connection, word: str) -> list[int]:
        """The chunks that have a word."""
        rows = database.execute(
            "select rowid from postings where postings match ? and rowid between ? and ?",
            (f'"{word}"', self._ranges[0][0], self._ranges[-1][1]),
        )
        return [number for (number,) in rows if number in self._owners]


def _rate(
    database: sqlite3.Connection,
    rarities: Mapping[str, float],
    mean: float,
    numbers: Sequence[int],
    wanted: _Numbers,
) -> list[Candidate]:
    near = sorted({number - distance for number in numbers for distance in WINDOW})
    rows = {row[0]: row for row in _select(database, near)}
    counts: dict[int, dict[str, int]] = {}
    lengths: dict[int, int] = {}
    for number, _, _, text in rows.values():
        words = text.split()
        lengths[number] = len(words)
        counts[number] = {word: words.count(word) for word in rarities.keys() & set(words)}
    usual = mean * sum(WINDOW.values())
    most = sum(rarities.values()) or 1.0
    found = []
    for number in numbers:
        weights: dict[str, float] = {}
        length = 0.0
        for distance, share in WINDOW.items():
            length += share * lengths.get(number - distance, 0)
            for word, times in counts.get(number - distance, {}).items():
                weights[word] = weights.get(word, 0.0) + share * times
        flat = K1 * (1 - B + B * length / usual)
        score = sum(rarities[word] * weight / (weight + flat) for word, weight in weights.items())
        _, start, end, _ = rows[number]
        found.append(Candidate(wanted.owner(number), start, end, score / most))
    return sorted(found, key=lambda one: (-one.score, one.document, one.start))


def _select(
    database: sqlite3.Connection, numbers: Sequence[int]
) -> Iterator[tuple[int, int, int, str]]:
    """The rows of some chunks."""
    for some in _divide(numbers):
        marks = ", ".join("?" * len(some))
        statement = f"select number, start, end, words from chunks where number in ({marks})"  # noqa: S608
        yield from database.execute(statement, some).fetchall()


def _rarity(frequency: int, count: int) -> float:
    return log(1 + (count - frequency + 0.5) / (frequency + 0.5))


def _divide(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), _ASKED):
        yield values[start : start + _ASKED]
