"""The derived index: lists and searches conversations without reading them all.

Files are the truth. Appends never touch the index; whoever reads it looks at the size and time of
every file first and takes in what changed. An index that is missing or damaged is made anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from vibe_llms.exceptions import ArchiveLocked, ConversationNotFound, StorageError
from vibe_llms.messages.canisters import (
    Canister,
    DocumentCanister,
    InvocationCanister,
    UserCanister,
    role_of,
)
from vibe_llms.messages.codecs import LineUnreadable, decode_canister
from vibe_llms.messages.contents import Reference, TextualContent, repair_text
from vibe_llms.storage.appending import MESSAGES, complete_size
from vibe_llms.storage.contents import ContentStore
from vibe_llms.storage.conversations import ConversationFolder, is_conversation_identity
from vibe_llms.storage.details import METADATA
from vibe_llms.storage.files import open_folder, refuse_link, storage_errors
from vibe_llms.storage.interfaces import Details, Finding, Origin, Summary

if TYPE_CHECKING:
    import sqlite3

#: Raised when the tables change; an index of another version is made anew.
_VERSION = 2
_TITLE_LENGTH = 60
_EXCERPT_LENGTH = 60
_INDEXED_CHARACTERS = 200_000
_PRIVATE = 0o600
_IN_MEMORY = ":memory:"

#: Characters of scripts that put no spaces between words, or grammar at the end of them.
_UNSPACED = (
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u312f\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
#: An index is made anew when more messages than it has, and than this, are gone from it.
_WASTE = 1000

#: What tells that a conversation changed: size and time of its lines; size, time and inode of its
#: details, which are replaced, perhaps twice within one tick of the clock.
_Look: TypeAlias = tuple[int, int, int, int, int]
T = TypeVar("T")

_TABLES = """
create table state (name text primary key, value blob) without rowid;
create table conversations (
    key integer primary key autoincrement, identity text unique not null, name text not null,
    title text not null, created text not null, updated integer not null, model text not null,
    tags text not null, origin text not null, messages integer not null,
    size integer not null, last_offset integer not null, last_hash blob not null);
create index conversations_updated on conversations (updated, created);
create index conversations_name on conversations (name);
create table messages (
    key integer primary key autoincrement, conversation integer not null, offset integer not null);
create index messages_conversation on messages (conversation);
create virtual table words using fts5 (text, content='', tokenize='unicode61 remove_diacritics 2');
"""


class Index:
    """The index of one archive, brought up to date before every answer."""

    def __init__(self, path: Path, conversations: Path, contents: ContentStore) -> None:
        self._path = path
        self._conversations = conversations
        self._contents = contents
        self._database: sqlite3.Connection | None = None
        self._forgot = False

    def survey(
        self, *, limit: int | None = None, tag: str = "", name: str = ""
    ) -> Sequence[Summary]:
        """The conversations, the most recent first."""
        values = {
            "name": repair_text(name),
            "tag": repair_text(tag),
            "limit": -1 if limit is None else limit,
        }
        return self._answer(lambda: self._survey(values))

    def search(self, text: str, *, limit: int = 20) -> Sequence[Finding]:
        """Messages that hold all words of a text, the best first."""
        words = [word for word in repair_text(text).split() if any(map(str.isalnum, word))]
        if not words:
            return []
        return self._answer(lambda: self._search(words, limit))

    def discard(self) -> None:
        """Give the index up. It is derived, so nothing is lost with it."""
        for suffix in ("", "-journal"):
            with suppress(FileNotFoundError):
                os.unlink(f"{self._path}{suffix}")

    def _answer(self, question: Callable[[], T]) -> T:
        """The answer of an index that is up to date.

        One that is damaged is made anew. Where none can be kept, as on a read-only disk, one is
        made in memory, so that no list fails for its index.
        """
        import sqlite3

        with storage_errors(self._conversations):
            now = self._look_at_all()
        for place in (str(self._path), str(self._path), _IN_MEMORY):
            try:
                with closing(self._open(place)) as self._database:
                    self._update(now)
                    return question()
            except (sqlite3.Error, OSError, ValueError, TypeError) as error:
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if code == sqlite3.SQLITE_BUSY:
                    raise ArchiveLocked(
                        "other processes have been busy with the index for "
                        f"{self._contents.settings.lock_seconds:g} s; try again",
                        path=str(self._path),
                    ) from error
                failure = error
                with suppress(OSError):
                    self.discard()
        raise StorageError(f"the index cannot be used: {failure}", path=str(self._path))

    def _update(self, now: dict[str, _Look]) -> None:
        """Take in what changed since the last time."""
        import sqlite3

        if self._looks() == now:
            return
        self._forgot = False
        database = self._access()
        database.execute("begin immediate")
        # Others may have been faster, and even have seen more: what differs is looked at again.
        known = self._looks()
        taken = {**now}
        for identity in known | now:
            before = known.get(identity)
            if before == now.get(identity):
                continue
            look = self._look_at(identity)
            if look is None:
                self._forget(identity)
            elif look == before or self._take_in(identity, look, before):
                taken[identity] = look
                continue
            taken.pop(identity, None)
        if taken != known:
            database.execute(
                "insert or replace into state values ('looks', ?)", (msgspec.msgpack.encode(taken),)
            )
        if self._forgot and self._is_waste():
            raise sqlite3.DatabaseError("most of its words belong to messages that are gone")
        database.execute("commit")

    def _survey(self, values: Mapping[str, object]) -> Sequence[Summary]:
        rows = self._access().execute(
            "select identity, name, title, created, updated, model, tags, origin, messages "
            "from conversations where (:name = '' or name = :name) and (:tag = '' or exists "
            "(select 1 from json_each(tags) where value = :tag)) "
            "order by updated desc, created desc limit :limit",
            values,
        )
        return [
            Summary(
                identity,
                name,
                title,
                datetime.fromisoformat(created),
                datetime.fromtimestamp(updated / 1e9, UTC),
                model,
                msgspec.json.decode(tags, type=tuple[str, ...]),
                msgspec.json.decode(origin, type=Origin) if origin else None,
                messages,
            )
            for identity, name, title, created, updated, model, tags, origin, messages in rows
        ]

    def _search(self, words: Sequence[str], limit: int) -> Sequence[Finding]:
        phrases = (_spread(word).replace("\0", " ").replace('"', '""') for word in words)
        rows = self._access().execute(
            "select c.identity, c.name, c.title, m.offset from words "
            "join messages m on m.key = words.rowid join conversations c on c.key = m.conversation "
            "where words match ? order by words.rank limit ?",
            (" ".join(f'"{phrase}"' for phrase in phrases), limit),
        )
        findings: list[Finding] = []
        for identity, name, title, offset in rows:
            canister = self._read_canister(identity, offset)
            if canister is not None:
                findings.append(
                    Finding(
                        identity,
                        name or title,
                        canister.identity,
                        role_of(canister),
                        canister.created,
                        _excerpt(self._text_of(canister), words),
                    )
                )
        return findings

    def _open(self, place: str) -> sqlite3.Connection:
        import sqlite3

        if place != _IN_MEMORY:
            refuse_link(self._path)
            if not self._path.exists():
                os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, _PRIVATE))
        database = sqlite3.connect(
            place, timeout=self._contents.settings.lock_seconds, isolation_level=None
        )
        try:
            # Losing the index costs time only, so it need not survive a power cut.
            database.execute("pragma synchronous = off")
            if not _version_of(database):
                database.execute("begin immediate")
                if not _version_of(database):
                    for statement in _TABLES.split(";"):
                        database.execute(statement)
                    database.execute(f"pragma user_version = {_VERSION}")
                database.execute("commit")
            if _version_of(database) != _VERSION:
                raise sqlite3.DatabaseError("another version made it")
        except sqlite3.Error:
            database.close()
            raise
        return database

    def _access(self) -> sqlite3.Connection:
        assert self._database is not None
        return self._database

    def _looks(self) -> dict[str, _Look]:
        row = self._access().execute("select value from state where name = 'looks'").fetchone()
        return {} if row is None else msgspec.msgpack.decode(row[0], type=dict[str, _Look])

    def _look_at_all(self) -> dict[str, _Look]:
        looks = ((name, self._look_at(name)) for name in os.listdir(self._conversations))
        return {name: look for name, look in looks if look is not None}

    def _look_at(self, name: str) -> _Look | None:
        folder = f"{self._conversations}/{name}"
        try:
            lines = os.stat(f"{folder}/{MESSAGES}")
        except OSError:
            return None
        try:
            details = os.stat(f"{folder}/{METADATA}")
        except OSError:
            return (lines.st_size, lines.st_mtime_ns, 0, 0, 0)
        return (
            lines.st_size,
            lines.st_mtime_ns,
            details.st_size,
            details.st_mtime_ns,
            details.st_ino,
        )

    def _take_in(self, identity: str, look: _Look, before: _Look | None) -> bool:
        """Index one conversation, from where it was left if that still stands."""
        if not is_conversation_identity(identity):
            return True
        if before is not None and look[:2] != before[:2] and look[0] <= before[0]:
            # It changed and did not grow, so somebody rewrote it.
            self._forget(identity)
        taken = self._taken(identity)
        try:
            with _open_lines(self._conversations / identity) as lines:
                if not _still_fits(lines, taken):
                    self._forget(identity)
                    taken = _Taken()
                lines.seek(taken.size)
                data = lines.read()
        except OSError:
            return False
        fresh = not taken.key or before is None or look[2:] != before[2:]
        taken = self._add_lines(identity, taken, data[: complete_size(data)])
        self._access().execute(
            "update conversations set title = ?, updated = ?, messages = ?, size = ?, "
            "last_offset = ?, last_hash = ? where key = ?",
            (
                taken.title,
                look[1],
                taken.messages,
                taken.size,
                taken.last_offset,
                taken.last_hash,
                taken.key,
            ),
        )
        if fresh:
            self._take_details(identity, taken.key)
        return True

    def _take_details(self, identity: str, key: int) -> None:
        folder = ConversationFolder(self._conversations / identity, self._contents.settings)
        try:
            details = folder.read_details()
        except (StorageError, ConversationNotFound):
            # The doctor tells about it; a list should not fail for one conversation.
            details = Details(created=datetime.fromtimestamp(0, UTC))
        self._access().execute(
            "update conversations set name = ?, created = ?, model = ?, tags = ?, origin = ? "
            "where key = ?",
            (
                details.name,
                details.created.isoformat(),
                details.model,
                msgspec.json.encode(details.tags).decode(),
                msgspec.json.encode(details.forked_from).decode() if details.forked_from else "",
                key,
            ),
        )

    def _taken(self, identity: str) -> _Taken:
        row = (
            self._access()
            .execute(
                "select key, title, messages, size, last_offset, last_hash from conversations "
                "where identity = ?",
                (identity,),
            )
            .fetchone()
        )
        return _Taken(*row) if row is not None else _Taken()

    def _add_lines(self, identity: str, taken: _Taken, data: bytes) -> _Taken:
        database = self._access()
        key, title = taken.key, taken.title
        if not key:
            made = database.execute(
                "insert into conversations (identity, name, title, created, updated, model, "
                "tags, origin, messages, size, last_offset, last_hash) "
                "values (?, '', '', '', 0, '', '[]', '', 0, 0, 0, '')",
                (identity,),
            )
            assert made.lastrowid is not None
            key = made.lastrowid
        messages: list[tuple[int, int, int]] = []
        words: list[tuple[int, str]] = []
        lines = data.split(b"\n")[:-1]
        start = offset = taken.size
        for number, line in enumerate(lines, self._last_message() + 1):
            start, offset = offset, offset + len(line) + 1
            try:
                canister = decode_canister(line)
            except LineUnreadable:
                continue
            text = self._text_of(canister)
            if not title and isinstance(canister, UserCanister):
                title = _title(text)
            messages.append((number, key, start))
            words.append((number, _spread(text)))
        database.executemany("insert into messages values (?, ?, ?)", messages)
        database.executemany("insert into words (rowid, text) values (?, ?)", words)
        count = taken.messages + len(lines)
        if not lines:
            return _Taken(key, title, count, taken.size, taken.last_offset, taken.last_hash)
        return _Taken(key, title, count, offset, start, _hash(lines[-1] + b"\n"))

    def _last_message(self) -> int:
        """The number of the last message that was ever taken in; no number is used twice."""
        row = self._access().execute("select seq from sqlite_sequence where name = 'messages'")
        return int((row.fetchone() or (0,))[0])

    def _forget(self, identity: str) -> None:
        # The words of its messages remain without a message, and so are never found again.
        database = self._access()
        row = database.execute(
            "select key from conversations where identity = ?", (identity,)
        ).fetchone()
        if row is not None:
            database.execute("delete from messages where conversation = ?", row)
            database.execute("delete from conversations where key = ?", row)
            self._forgot = True

    def _is_waste(self) -> bool:
        """Whether most of the words belong to messages that are gone."""
        (kept,) = self._access().execute("select count(*) from messages").fetchone()
        return bool(self._last_message() - kept > max(kept, _WASTE))

    def _read_canister(self, identity: str, offset: int) -> Canister | None:
        try:
            with _open_lines(self._conversations / identity) as lines:
                lines.seek(offset)
                return decode_canister(lines.readline().rstrip(b"\n"))
        except (OSError, LineUnreadable):
            return None

    def _text_of(self, canister: Canister) -> str:
        parts: list[str] = []
        match canister:
            case InvocationCanister(name=name, arguments=arguments):
                parts += [name, arguments]
            case DocumentCanister(title=title, source=source):
                parts += [title, source]
        for content in canister.contents:
            if isinstance(content, TextualContent):
                parts.append(self._read_text(content.data))
        return repair_text("\n".join(part for part in parts if part)[:_INDEXED_CHARACTERS])

    def _read_text(self, data: str | Reference) -> str:
        if isinstance(data, str):
            return data
        try:
            return self._contents.load(data).decode("utf-8", "replace")
        except StorageError:
            return ""


class _Taken(Struct, frozen=True):
    """What the index has of a conversation: up to where, and what the last line was."""

    key: int = 0
    title: str = ""
    messages: int = 0
    size: int = 0
    last_offset: int = 0
    last_hash: bytes = b""


@contextmanager
def _open_lines(folder: Path) -> Iterator[BinaryIO]:
    with open_folder(folder) as descriptor:
        file = os.open(MESSAGES, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=descriptor)
    with os.fdopen(file, "rb") as lines:
        yield lines


def _still_fits(lines: BinaryIO, taken: _Taken) -> bool:
    """Whether the file still begins with what was taken in: its last line tells."""
    if not taken.size:
        return True
    lines.seek(taken.last_offset)
    return _hash(lines.read(taken.size - taken.last_offset)) == taken.last_hash


def _version_of(database: sqlite3.Connection) -> int:
    (version,) = database.execute("pragma user_version").fetchone()
    return int(version)


def _hash(data: bytes) -> bytes:
    import hashlib

    return hashlib.sha256(data).digest()


def _title(text: str) -> str:
    """The first words of a conversation, for lists of those without a name."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= _TITLE_LENGTH else f"{line[: _TITLE_LENGTH - 1]}…"


def _spread(text: str) -> str:
    """The text with every character of a script without spaces as a word of its own."""
    return text if text.isascii() else re.sub(_UNSPACED, r" \g<0> ", text)


def _excerpt(text: str, words: Sequence[str]) -> str:
    """Some of a text around the first of the words, each of them in brackets."""
    flat = re.sub(r"\s+", " ", text)
    bare = (re.sub(r"^\W+|\W+$", "", word) for word in words)
    pattern = re.compile("|".join(_whole(word) for word in bare), re.IGNORECASE)
    found = pattern.search(flat)
    start = max((found.start() if found else 0) - _EXCERPT_LENGTH, 0)
    end = (found.end() if found else 0) + _EXCERPT_LENGTH
    marked = pattern.sub(lambda match: f"[{match[0]}]", flat[start:end])
    return f"{'…' if start else ''}{marked}{'…' if end < len(flat) else ''}"


def _whole(word: str) -> str:
    escaped = re.escape(word)
    return escaped if re.search(_UNSPACED, word) else rf"\b{escaped}\b"
