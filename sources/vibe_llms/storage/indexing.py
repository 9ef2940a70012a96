"""Index writer: adds the details and the new lines of conversations.

A rewritten conversation is removed first, with all its words. The index keeps the text of every
message, because words can only be removed with the text that they came from.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import ConversationNotFound, StorageError
from vibe_llms.base.files import LARGEST_FILE, opened, read_parts
from vibe_llms.base.folders import describe, open_folder
from vibe_llms.messages.canisters import Canister, UserCanister
from vibe_llms.messages.codecs import LineUnreadable
from vibe_llms.messages.contents import Reference
from vibe_llms.storage.appending import MESSAGES
from vibe_llms.storage.changes import slot_of
from vibe_llms.storage.contents import ContentStore
from vibe_llms.storage.conversations import ConversationFolder
from vibe_llms.storage.details import read_details
from vibe_llms.storage.interfaces import Origin
from vibe_llms.storage.lines import Line, LineReader
from vibe_llms.storage.texts import spread, text_of, title_of

if TYPE_CHECKING:
    import sqlite3
    from concurrent.futures import Executor, Future

#: Characters; shorter texts hardly shrink.
_PACKED_FROM = 512
_COMPRESSION_LEVEL = 1
#: Conversations per batch, and batches read ahead.
_BATCH = 100
_BATCHES_AHEAD = 4
#: Rows per statement; SQLite has allowed 32,766 values since 2020.
_ROWS_PER_STATEMENT = 1_000

#: Fingerprint of a conversation: size and time of its lines; size, time, and inode of its details,
#: which may be replaced twice within one tick of the clock.
Fingerprint: TypeAlias = tuple[int, int, int, int, int]
Column: TypeAlias = str | int | bytes
#: A message's offset in the file and its words.
Message: TypeAlias = tuple[int, str]

T = TypeVar("T")
U = TypeVar("U")

_FINGERPRINT_ENCODER = msgspec.msgpack.Encoder()
_NO_DETAILS: Mapping[str, Column] = {
    "name": "",
    "created": datetime.fromtimestamp(0, UTC).isoformat(),
    "model": "",
    "tags": "[]",
    "origin": "",
    "superseded_by": "",
}


class FoundConversation(NamedTuple):
    """A conversation on disk: its identity, its fingerprint, and the inode of its folder."""

    identity: str
    fingerprint: Fingerprint
    inode: int


class Indexer:
    """Writer that adds conversations to the tables of a database."""

    def __init__(
        self, database: sqlite3.Connection, conversations: Path, contents: ContentStore
    ) -> None:
        self._database = database
        self._conversations = conversations
        self._contents = contents
        self.forgot = False
        #: Messages to insert: key of the conversation, offset, and text.
        self._waiting: list[tuple[int, int, str]] = []

    def index_changes(self, found: FoundConversation, before: Fingerprint | None) -> None:
        """Index the changes of a known conversation since its fingerprint `before`.

        Indexing continues where it stopped if the file still begins the same. A failure is recorded
        as the conversation's problem, and the next answer tries again. Call `finish` after the last
        conversation.
        """
        identity, fingerprint, _ = found
        if before is not None and fingerprint[:2] != before[:2] and fingerprint[0] <= before[0]:
            # It changed without growing, so it was rewritten.
            self.forget(identity)
        progress = self._load_progress(identity)
        messages: Sequence[Message] = ()
        try:
            with open_lines(self._conversations / identity) as lines:
                if not _still_fits(lines, progress, self._contents.settings.line_bytes):
                    self.forget(identity)
                    progress = _Progress()
                if progress.key:
                    os.lseek(lines, progress.size, os.SEEK_SET)
                    progress, messages = self._read_lines(progress, lines)
        except OSError as error:
            if not progress.key:
                self._insert([self._read(found)])
            else:
                self._change(
                    progress.key,
                    problem=_describe(error),
                    look=b"",
                    inode=found.inode,
                    updated=max(fingerprint[1], progress.updated),
                )
            return
        if not progress.key:
            self._insert([self._read(found)])
            return
        self._waiting += [(progress.key, *message) for message in messages]
        if len(self._waiting) >= _ROWS_PER_STATEMENT:
            self.finish()
        columns: dict[str, Column] = {}
        problem = ""
        if before is None or fingerprint[2:] != before[2:]:
            columns, problem = self._read_details(identity)
        self._change(progress.key, **columns, **_columns_of(found, progress, problem))

    def finish(self) -> None:
        """Insert the pending messages; one statement serves many."""
        self._insert_messages(self._waiting)
        self._waiting = []

    def index_new(
        self, found: Sequence[FoundConversation], report: Callable[[int, int], None]
    ) -> None:
        """Index conversations that the index does not have.

        The next batches are read while one is indexed. `report` is called with the number of
        indexed conversations and the total.
        """
        parts = [found[start : start + _BATCH] for start in range(0, len(found), _BATCH)]
        if len(parts) < 2:
            self._insert([self._read(one) for one in found])
            return
        from concurrent.futures import ThreadPoolExecutor

        done = 0
        report(done, len(found))
        with ThreadPoolExecutor(1) as reader:
            for batch in _ahead(reader, lambda part: [self._read(one) for one in part], parts):
                self._insert(batch)
                done += len(batch)
                report(done, len(found))

    def _read(self, found: FoundConversation) -> _Read:
        """Read a whole conversation without using the database."""
        progress = _Progress()
        messages: list[Message] = []
        columns, problem = dict(_NO_DETAILS), ""
        try:
            with open_lines(self._conversations / found.identity) as lines:
                columns, problem = self._read_details(found.identity)
                progress, messages = self._read_lines(progress, lines, _read_origin(columns))
        except OSError as error:
            problem = _describe(error)
        columns["identity"] = found.identity
        columns["slot"] = slot_of(found.identity)
        return _Read(columns | _columns_of(found, progress, problem), messages)

    def _read_details(self, identity: str) -> tuple[dict[str, Column], str]:
        """Return the columns for a conversation's details, and the reason for a failure."""
        path = self._conversations / identity
        try:
            try:
                details = read_details(path)
            except OSError:
                # This call raises an error that explains the failure.
                details = ConversationFolder(path, self._contents.settings).read_details()
        except (StorageError, ConversationNotFound) as error:
            return dict(_NO_DETAILS), str(error).removeprefix(f"{getattr(error, 'path', '')}: ")
        origin = details.forked_from
        return {
            "name": details.name,
            "created": details.created.isoformat(),
            "model": details.model,
            "tags": msgspec.json.encode(details.tags).decode(),
            "origin": msgspec.json.encode(origin).decode() if origin else "",
            "superseded_by": details.superseded_by,
        }, ""

    def _load_progress(self, identity: str) -> _Progress:
        row = self._database.execute(
            "select key, title, messages, size, last_offset, last_hash, updated, shared "
            "from conversations where identity = ?",
            (identity,),
        ).fetchone()
        return _Progress(*row) if row is not None else _Progress()

    def _read_lines(
        self, progress: _Progress, file: int, origin: str = ""
    ) -> tuple[_Progress, list[Message]]:
        """Return the messages from the file's position on, and the updated progress.

        `origin` is the last message of the conversation that a new fork was made from.
        """
        title, shared = progress.title, progress.shared
        messages: list[Message] = []
        longest = self._contents.settings.line_bytes
        last: Line | None = None
        for line in LineReader(read_parts(file, LARGEST_FILE), longest):
            last = line
            try:
                canister = line.decode()
            except LineUnreadable:
                continue
            text = text_of_all(canister, self._contents)
            if not title and isinstance(canister, UserCanister):
                title = title_of(text)
            messages.append((progress.size + line.offset, spread(text)))
            if origin and canister.identity == origin:
                shared = len(messages)
        if last is None:
            return progress, messages
        start = progress.size + last.offset
        return _Progress(
            progress.key,
            title,
            progress.messages + last.number,
            start + last.size + 1,
            start,
            _hash(last.data or b""),
            shared=shared,
        ), messages

    def _change(self, key: int, **columns: Column) -> None:
        names = ", ".join(f"{name} = ?" for name in columns)
        self._database.execute(
            f"update conversations set {names} where key = ?",  # noqa: S608  (names are ours)
            (*columns.values(), key),
        )

    def _insert(self, batch: Sequence[_Read]) -> None:
        if not batch:
            return
        first = self._last_key("conversations") + 1
        names = ["key", *batch[0].columns]
        self._insert_all(
            "conversations",
            names,
            [(key, *one.columns.values()) for key, one in enumerate(batch, first)],
        )
        self._insert_messages(
            [(key, *message) for key, one in enumerate(batch, first) for message in one.messages]
        )

    def _insert_messages(self, messages: Sequence[tuple[int, int, str]]) -> None:
        """Insert messages (conversation, offset, text) in few statements.

        Between statements another thread may hold the interpreter's lock.
        """
        if not messages:
            return
        first = self._last_key("messages") + 1
        self._insert_all(
            "messages",
            ("key", "conversation", "offset", "text"),
            [
                (number, conversation, offset, _pack(text))
                for number, (conversation, offset, text) in enumerate(messages, first)
            ],
        )
        self._database.execute(
            "insert into words (rowid, text) select key, text from messages "
            "where key >= ? and typeof(text) = 'text'",
            (first,),
        )
        self._database.executemany(
            "insert into words (rowid, text) values (?, ?)",
            [
                (number, text)
                for number, (_, _, text) in enumerate(messages, first)
                if _is_packed(text)
            ],
        )

    def _insert_all(
        self, table: str, names: Sequence[str], rows: Sequence[tuple[Column, ...]]
    ) -> None:
        row = f"({', '.join('?' * len(names))})"
        into = f"insert into {table} ({', '.join(names)}) values "  # noqa: S608  (ours, too)
        for start in range(0, len(rows), _ROWS_PER_STATEMENT):
            some = rows[start : start + _ROWS_PER_STATEMENT]
            self._database.execute(
                f"{into}{', '.join([row] * len(some))}",
                [value for one in some for value in one],
            )

    def _last_key(self, table: str) -> int:
        """Return the last key ever used in a table. Keys are never reused."""
        row = self._database.execute("select seq from sqlite_sequence where name = ?", (table,))
        return int((row.fetchone() or (0,))[0])

    def forget(self, identity: str) -> None:
        """Remove a conversation. The database must be cleaned afterwards."""
        row = self._database.execute(
            "select key from conversations where identity = ?", (identity,)
        ).fetchone()
        if row is None:
            return
        for number, packed in self._database.execute(
            "select key, text from messages where conversation = ?", row
        ).fetchall():
            self._database.execute(
                "insert into words (words, rowid, text) values ('delete', ?, ?)",
                (number, _unpack(packed)),
            )
        self._database.execute("delete from messages where conversation = ?", row)
        self._database.execute("delete from conversations where key = ?", row)
        self.forgot = True


class _Progress(Struct, frozen=True):
    """Indexed part of a conversation, and its last indexed line."""

    key: int = 0
    title: str = ""
    messages: int = 0
    size: int = 0
    last_offset: int = 0
    last_hash: bytes = b""
    updated: int = 0
    shared: int = 0


class _Read(Struct, frozen=True):
    """A conversation as read: the columns of its row, and its messages."""

    columns: dict[str, Column]
    messages: list[Message]


def _columns_of(found: FoundConversation, progress: _Progress, problem: str) -> dict[str, Column]:
    return {
        "title": progress.title,
        "updated": found.fingerprint[1],
        "messages": progress.messages,
        "size": progress.size,
        "last_offset": progress.last_offset,
        "last_hash": progress.last_hash,
        "shared": progress.shared,
        "problem": problem,
        "look": b"" if problem else encode_fingerprint(found.fingerprint),
        "inode": found.inode,
    }


def _read_origin(columns: Mapping[str, Column]) -> str:
    """Return the last message that a fork took over, or an empty string."""
    origin = columns["origin"]
    return (
        msgspec.json.decode(origin, type=Origin).canister
        if isinstance(origin, str) and origin
        else ""
    )


def encode_fingerprint(fingerprint: Fingerprint) -> bytes:
    """Return the stored form of a fingerprint. Empty bytes mark an unreadable conversation."""
    return _FINGERPRINT_ENCODER.encode(fingerprint)


def decode_fingerprint(data: bytes) -> Fingerprint | None:
    """Return the decoded fingerprint, or `None` for empty data."""
    return msgspec.msgpack.decode(data, type=Fingerprint) if data else None


def _ahead(executor: Executor, read: Callable[[T], U], parts: Sequence[T]) -> Iterator[U]:
    """Yield the results of `read` for each part in order, reading ahead in the background."""
    waiting: deque[Future[U]] = deque()
    try:
        for part in parts:
            waiting.append(executor.submit(read, part))
            if len(waiting) > _BATCHES_AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _describe(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"the folder has no {MESSAGES}"
    return describe(error)


@contextmanager
def open_lines(folder: Path) -> Iterator[int]:
    """Open a conversation's lines without following links, and yield the descriptor."""
    with (
        open_folder(folder) as descriptor,
        opened(MESSAGES, os.O_RDONLY | os.O_NOFOLLOW, folder=descriptor) as lines,
    ):
        yield lines


def _still_fits(lines: int, progress: _Progress, longest: int) -> bool:
    """Return True if the file still contains the last indexed line at the same place."""
    if not progress.size:
        return True
    size = progress.size - progress.last_offset - 1
    last = os.pread(lines, size, progress.last_offset) if size <= longest else b""
    return _hash(last) == progress.last_hash


def _hash(data: bytes) -> bytes:
    import hashlib

    return hashlib.sha256(data).digest()


def _is_packed(text: str) -> bool:
    return len(text) >= _PACKED_FROM


def _pack(text: str) -> str | bytes:
    if not _is_packed(text):
        return text
    import zlib

    return zlib.compress(text.encode(), _COMPRESSION_LEVEL)


def _unpack(packed: str | bytes) -> str:
    """Return the text of a message, or raise a `ValueError` if it is damaged."""
    if isinstance(packed, str):
        return packed
    import zlib

    try:
        return zlib.decompress(packed).decode()
    except zlib.error as error:
        raise ValueError("the text of a message is damaged") from error


def text_of_all(canister: Canister, contents: ContentStore) -> str:
    """Return the searchable text of a canister, including separately stored contents."""

    def read(reference: Reference) -> str:
        try:
            return contents.load(reference).decode("utf-8", "replace")
        except StorageError:
            return ""

    return text_of(canister, read)
