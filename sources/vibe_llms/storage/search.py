"""The derived index: lists and searches conversations without reading them all.

The files are authoritative. Appends never touch the index. Each answer first checks the size and
time of every file and reads what changed. A missing or damaged index is rebuilt.

No word of deleted conversations stays in the file. A full-text index only marks words as deleted,
and SQLite leaves copies where rows have moved. Therefore the index is merged into one piece and the
file is rewritten. Until then the file contains a mark, so that after a crash the next process
cleans it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from vibe_llms.exceptions import ArchiveLocked, StorageError
from vibe_llms.files import LARGEST_FILE, read_parts
from vibe_llms.messages.canisters import (
    Canister,
    role_of,
)
from vibe_llms.messages.codecs import LineUnreadable
from vibe_llms.messages.contents import repair_text
from vibe_llms.storage.appending import MESSAGES
from vibe_llms.storage.contents import ContentStore
from vibe_llms.storage.conversations import is_conversation_identity
from vibe_llms.storage.databases import IN_MEMORY, open_database
from vibe_llms.storage.details import METADATA
from vibe_llms.storage.files import storage_errors
from vibe_llms.storage.indexing import UNSPACED, Intake, Look, open_lines, spread, text_of_all
from vibe_llms.storage.interfaces import Finding, Origin, Summary
from vibe_llms.storage.lines import LineReader

if TYPE_CHECKING:
    import sqlite3

#: Increased when the tables change; an index of another version is rebuilt.
_VERSION = 5
_EXCERPT_LENGTH = 60
#: The state of an unreadable file, which is tried again every time.
_UNREAD: Look = (-1, -1, -1, -1, -1)
_INDEXED_CHARACTERS = 200_000

_MARK_BYTES = 16
_UNCLEAN = "words of deleted conversations stay in it until the next `vibe-llms list`"

T = TypeVar("T")

_TABLES = """
create table state (name text primary key, value blob) without rowid;
create table conversations (
    key integer primary key autoincrement, identity text unique not null, name text not null,
    title text not null, created text not null, updated integer not null, model text not null,
    tags text not null, origin text not null, messages integer not null,
    size integer not null, last_offset integer not null, last_hash blob not null,
    problem text not null, superseded_by text not null);
create index conversations_updated on conversations (updated, created);
create index conversations_name on conversations (name);
create view listed as select *, superseded_by <> '' and exists (
    select 1 from conversations o where o.identity = c.superseded_by) as hidden
    from conversations c;
create table messages (
    key integer primary key autoincrement, conversation integer not null, offset integer not null,
    text blob not null);
create index messages_conversation on messages (conversation);
create virtual table words using fts5 (text, content='', tokenize='unicode61 remove_diacritics 2');
"""


class Index:
    """The index of one archive, updated before every answer."""

    def __init__(self, path: Path, conversations: Path, contents: ContentStore) -> None:
        self._path = path
        self._conversations = conversations
        self._contents = contents
        self._database: sqlite3.Connection | None = None

    def survey(
        self, *, limit: int | None = None, tag: str = "", superseded: bool = False
    ) -> Sequence[Summary]:
        """The conversations, most recent first; with `superseded`, all of them."""
        values = {
            "every": superseded,
            "tag": repair_text(tag),
            "limit": -1 if limit is None else limit,
        }
        return self._answer(lambda: self._survey(values))

    def search(self, text: str, *, limit: int = 20, superseded: bool = False) -> Sequence[Finding]:
        """Messages that contain all words of a text, best first."""
        words = [word for word in repair_text(text).split() if any(map(str.isalnum, word))]
        if not words:
            return []
        return self._answer(lambda: self._search(words, limit, superseded))

    def clean(self) -> None:
        """Remove all words of deleted conversations, and leftovers of a crash.

        `ArchiveLocked` or `StorageError` if that fails; then the next answer does it.
        """
        if os.path.lexists(self._path):
            self._answer(lambda: None, cleaning=True)

    def discard(self) -> None:
        """Delete the index. It is derived, so nothing is lost."""
        for suffix in ("", "-journal"):
            with suppress(FileNotFoundError):
                os.unlink(f"{self._path}{suffix}")

    def _answer(self, question: Callable[[], T], *, cleaning: bool = False) -> T:
        """The answer of an up-to-date index.

        A damaged index is rebuilt. If none can be stored, as on a read-only disk, it is built in
        memory, so that lists still work, except when `cleaning` the file.
        """
        import sqlite3

        with storage_errors(self._conversations):
            now = self._look_at_all()
        places = (str(self._path), str(self._path), *(() if cleaning else (IN_MEMORY,)))
        failure: Exception | None = None
        for place in places:
            try:
                with closing(self._open(place)) as self._database:
                    self._update(now)
                    self._clean(patient=cleaning)
                    return question()
            except (sqlite3.Error, OSError, ValueError, TypeError) as error:
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if code == sqlite3.SQLITE_BUSY:
                    raise ArchiveLocked(
                        "other processes have been busy with the index for "
                        f"{self._contents.settings.lock_seconds:g} s; "
                        + (_UNCLEAN if cleaning else "try again"),
                        path=str(self._path),
                    ) from error
                failure = error
                with suppress(OSError):
                    self.discard()
        raise StorageError(f"the index cannot be used: {failure}", path=str(self._path))

    def _update(self, now: dict[str, Look]) -> None:
        """Index what changed since the last time."""
        if self._looks() == now:
            return
        database = self._access()
        intake = Intake(database, self._conversations, self._contents)
        database.execute("begin immediate")
        # Another process may have been faster and seen more: differences are checked again.
        known = self._looks()
        taken = {**now}
        for identity in known | now:
            before = known.get(identity)
            if before == now.get(identity):
                continue
            look = self._look_at(identity)
            if look is None:
                intake.forget(identity)
                taken.pop(identity, None)
            elif look == before or intake.take_in(identity, look, before):
                taken[identity] = look
            else:
                taken[identity] = _UNREAD
        if taken != known:
            database.execute(
                "insert or replace into state values ('looks', ?)", (msgspec.msgpack.encode(taken),)
            )
        if intake.forgot:
            database.execute(
                "insert or replace into state values ('unclean', ?)", (os.urandom(_MARK_BYTES),)
            )
        database.execute("commit")

    def _clean(self, *, patient: bool) -> None:
        """Rewrite the file if it may contain words of deleted conversations."""
        import sqlite3

        database = self._access()
        mark = database.execute("select value from state where name = 'unclean'").fetchone()
        if mark is None:
            return
        try:
            database.execute("insert into words (words) values ('optimize')")
            database.execute("vacuum")
            # A deletion in the meantime has left another mark.
            database.execute("delete from state where name = 'unclean' and value = ?", mark)
        except sqlite3.OperationalError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if patient or code not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise

    def _survey(self, values: Mapping[str, object]) -> Sequence[Summary]:
        rows = self._access().execute(
            "select identity, name, title, created, updated, model, tags, origin, messages, "
            "problem, superseded_by "
            "from listed where (:every or not hidden) and (:tag = '' or exists "
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
                *rest,
            )
            for identity, name, title, created, updated, model, tags, origin, *rest in rows
        ]

    def _search(self, words: Sequence[str], limit: int, every: bool) -> Sequence[Finding]:
        phrases = (spread(word).replace("\0", " ").replace('"', '""') for word in words)
        rows = self._access().execute(
            "select c.identity, c.name, c.title, m.offset from words "
            "join messages m on m.key = words.rowid join listed c on c.key = m.conversation "
            "where words match :words and (:every or not hidden) order by words.rank limit :limit",
            {
                "words": " ".join(f'"{phrase}"' for phrase in phrases),
                "limit": limit,
                "every": every,
            },
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
                        _excerpt(text_of_all(canister, self._contents), words),
                        name,
                    )
                )
        return findings

    def _open(self, place: str) -> sqlite3.Connection:
        return open_database(
            place,
            version=_VERSION,
            tables=_TABLES,
            seconds=self._contents.settings.lock_seconds,
            # Changed names and titles are overwritten at once, too.
            pragmas=("secure_delete = on",),
        )

    def _access(self) -> sqlite3.Connection:
        assert self._database is not None
        return self._database

    def _looks(self) -> dict[str, Look]:
        row = self._access().execute("select value from state where name = 'looks'").fetchone()
        return {} if row is None else msgspec.msgpack.decode(row[0], type=dict[str, Look])

    def _look_at_all(self) -> dict[str, Look]:
        looks = ((name, self._look_at(name)) for name in os.listdir(self._conversations))
        return {name: look for name, look in looks if look is not None}

    def _look_at(self, name: str) -> Look | None:
        folder = f"{self._conversations}/{name}"
        try:
            lines = os.stat(f"{folder}/{MESSAGES}", follow_symlinks=False)
        except OSError as error:
            return self._look_at_broken(name, error)
        try:
            details = os.stat(f"{folder}/{METADATA}", follow_symlinks=False)
        except OSError:
            return (lines.st_size, lines.st_mtime_ns, 0, 0, 0)
        return (
            lines.st_size,
            lines.st_mtime_ns,
            details.st_size,
            details.st_mtime_ns,
            details.st_ino,
        )

    def _look_at_broken(self, name: str, error: OSError) -> Look | None:
        """The state of a conversation without lines; none if it was deleted or is not one."""
        if not is_conversation_identity(name):
            return None
        try:
            folder = os.stat(f"{self._conversations}/{name}", follow_symlinks=False)
        except OSError:
            return None
        return (0, folder.st_mtime_ns, 0, 0, error.errno or 0)

    def _read_canister(self, identity: str, offset: int) -> Canister | None:
        try:
            with open_lines(self._conversations / identity) as descriptor:
                os.lseek(descriptor, offset, os.SEEK_SET)
                longest = self._contents.settings.line_bytes
                for line in LineReader(read_parts(descriptor, LARGEST_FILE), longest):
                    return line.decode()
        except (OSError, LineUnreadable):
            pass
        return None


def _excerpt(text: str, words: Sequence[str]) -> str:
    """Part of a text around the first of the words, with the words in brackets."""
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
    return escaped if re.search(UNSPACED, word) else rf"\b{escaped}\b"
