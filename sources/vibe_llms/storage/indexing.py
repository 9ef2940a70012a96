"""Adds conversations to the index: their details and their new lines.

A rewritten conversation is removed first, with all its words. The index keeps the compressed text
of every message, because words can only be removed with the text that they came from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import Struct

from vibe_llms.exceptions import ConversationNotFound, StorageError
from vibe_llms.files import LARGEST_FILE, opened, read_parts
from vibe_llms.messages.canisters import (
    Canister,
    DocumentCanister,
    InvocationCanister,
    UserCanister,
)
from vibe_llms.messages.codecs import LineUnreadable
from vibe_llms.messages.contents import Reference, TextualContent, repair_text
from vibe_llms.storage.appending import MESSAGES
from vibe_llms.storage.contents import ContentStore
from vibe_llms.storage.conversations import ConversationFolder, is_conversation_identity
from vibe_llms.storage.files import describe, open_folder
from vibe_llms.storage.interfaces import Details
from vibe_llms.storage.lines import Line, LineReader

if TYPE_CHECKING:
    import sqlite3

_TITLE_LENGTH = 60
_INDEXED_CHARACTERS = 200_000
#: Characters of scripts without spaces between words, or with grammar at their ends.
UNSPACED = (
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u312f\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
#: Texts are small, and there are many.
_PACKING = 1

#: What shows that a conversation changed: size and time of its lines; size, time and inode of its
#: details, which are replaced, perhaps twice within one tick of the clock.
Look: TypeAlias = tuple[int, int, int, int, int]


class Intake:
    """Adds conversations to the tables of a database."""

    def __init__(
        self, database: sqlite3.Connection, conversations: Path, contents: ContentStore
    ) -> None:
        self._database = database
        self._conversations = conversations
        self._contents = contents
        self.forgot = False

    def take_in(self, identity: str, look: Look, before: Look | None) -> bool:
        """Index one conversation, continuing where it stopped if the file still begins the same.

        Returns whether all of it could be read; a failure is recorded as the conversation's
        problem.
        """
        if not is_conversation_identity(identity):
            return True
        try:
            problem = self._take_in(identity, look, before)
        except FileNotFoundError:
            problem = f"the folder has no {MESSAGES}"
        except OSError as error:
            problem = describe(error)
        if problem:
            key = self._access_key(identity)
            self._database.execute(
                "update conversations set problem = ?, updated = max(updated, ?) where key = ?",
                (problem, look[1], key),
            )
        return not problem

    def _take_in(self, identity: str, look: Look, before: Look | None) -> str:
        if before is not None and look[:2] != before[:2] and look[0] <= before[0]:
            # It changed without growing, so it was rewritten.
            self.forget(identity)
        taken = self._taken(identity)
        with open_lines(self._conversations / identity) as lines:
            if not _still_fits(lines, taken, self._contents.settings.line_bytes):
                self.forget(identity)
                taken = _Taken()
            os.lseek(lines, taken.size, os.SEEK_SET)
            fresh = not taken.key or before is None or look[2:] != before[2:]
            taken = self._add_lines(identity, taken, lines)
        self._database.execute(
            "update conversations set title = ?, updated = ?, messages = ?, size = ?, "
            "last_offset = ?, last_hash = ?, problem = '' where key = ?",
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
        return self._take_details(identity, taken.key) if fresh else ""

    def _take_details(self, identity: str, key: int) -> str:
        folder = ConversationFolder(self._conversations / identity, self._contents.settings)
        problem = ""
        try:
            details = folder.read_details()
        except (StorageError, ConversationNotFound) as error:
            problem = str(error).removeprefix(f"{getattr(error, 'path', '')}: ")
            details = Details(created=datetime.fromtimestamp(0, UTC))
        self._database.execute(
            "update conversations set name = ?, created = ?, model = ?, tags = ?, origin = ?, "
            "superseded_by = ? where key = ?",
            (
                details.name,
                details.created.isoformat(),
                details.model,
                msgspec.json.encode(details.tags).decode(),
                msgspec.json.encode(details.forked_from).decode() if details.forked_from else "",
                details.superseded_by,
                key,
            ),
        )
        return problem

    def _taken(self, identity: str) -> _Taken:
        row = self._database.execute(
            "select key, title, messages, size, last_offset, last_hash from conversations "
            "where identity = ?",
            (identity,),
        ).fetchone()
        return _Taken(*row) if row is not None else _Taken()

    def _access_key(self, identity: str) -> int:
        """The key of a conversation's row, which is created if it does not exist."""
        made = self._database.execute(
            "insert into conversations (identity, name, title, created, updated, model, "
            "tags, origin, messages, size, last_offset, last_hash, problem, superseded_by) "
            "values (?, '', '', ?, 0, '', '[]', '', 0, 0, 0, '', '', '') "
            "on conflict (identity) do update set key = key returning key",
            (identity, datetime.fromtimestamp(0, UTC).isoformat()),
        )
        return int(made.fetchone()[0])

    def _add_lines(self, identity: str, taken: _Taken, file: int) -> _Taken:
        title = taken.title
        key = taken.key or self._access_key(identity)
        messages: list[tuple[int, int, int, bytes]] = []
        words: list[tuple[int, str]] = []
        longest = self._contents.settings.line_bytes
        last: Line | None = None
        number = self._last_message()
        for line in LineReader(read_parts(file, LARGEST_FILE), longest):
            last = line
            number += 1
            start = taken.size + line.offset
            try:
                canister = line.decode()
            except LineUnreadable:
                continue
            text = text_of_all(canister, self._contents)
            if not title and isinstance(canister, UserCanister):
                title = _title(text)
            text = spread(text)
            messages.append((number, key, start, _pack(text)))
            words.append((number, text))
        self._database.executemany("insert into messages values (?, ?, ?, ?)", messages)
        self._database.executemany("insert into words (rowid, text) values (?, ?)", words)
        if last is None:
            return msgspec.structs.replace(taken, key=key)
        start = taken.size + last.offset
        return _Taken(
            key,
            title,
            taken.messages + last.number,
            start + last.size + 1,
            start,
            _hash(last.data or b""),
        )

    def _last_message(self) -> int:
        """The number of the last message ever indexed; numbers are never reused."""
        row = self._database.execute("select seq from sqlite_sequence where name = 'messages'")
        return int((row.fetchone() or (0,))[0])

    def forget(self, identity: str) -> None:
        """Remove a conversation; the database must be cleaned afterwards."""
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


class _Taken(Struct, frozen=True):
    """How much of a conversation is indexed, and its last indexed line."""

    key: int = 0
    title: str = ""
    messages: int = 0
    size: int = 0
    last_offset: int = 0
    last_hash: bytes = b""


@contextmanager
def open_lines(folder: Path) -> Iterator[int]:
    """The descriptor of a conversation's lines, in its folder only."""
    with (
        open_folder(folder) as descriptor,
        opened(MESSAGES, os.O_RDONLY | os.O_NOFOLLOW, folder=descriptor) as lines,
    ):
        yield lines


def _still_fits(lines: int, taken: _Taken, longest: int) -> bool:
    """Whether the file still begins with the indexed lines, judged by the last one."""
    if not taken.size:
        return True
    size = taken.size - taken.last_offset - 1
    last = os.pread(lines, size, taken.last_offset) if size <= longest else b""
    return _hash(last) == taken.last_hash


def _hash(data: bytes) -> bytes:
    import hashlib

    return hashlib.sha256(data).digest()


def _pack(text: str) -> bytes:
    import zlib

    return zlib.compress(text.encode(), _PACKING)


def _unpack(packed: bytes) -> str:
    """The text of a message; `ValueError` if it is damaged."""
    import zlib

    try:
        return zlib.decompress(packed).decode()
    except zlib.error as error:
        raise ValueError("the text of a message is damaged") from error


def _title(text: str) -> str:
    """The first words of a conversation, shown if it has no name."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= _TITLE_LENGTH else f"{line[: _TITLE_LENGTH - 1]}…"


def spread(text: str) -> str:
    """The text with every character of a script without spaces as a separate word."""
    return text if text.isascii() else re.sub(UNSPACED, r" \g<0> ", text)


def text_of_all(canister: Canister, contents: ContentStore) -> str:
    """The searchable words of a canister, including those that are stored separately."""
    parts: list[str] = []
    match canister:
        case InvocationCanister(name=name, arguments=arguments):
            parts += [name, arguments]
        case DocumentCanister(title=title, source=source):
            parts += [title, source]
    for content in canister.contents:
        if isinstance(content, TextualContent):
            parts.append(_read_text(content.data, contents))
    return repair_text("\n".join(part for part in parts if part)[:_INDEXED_CHARACTERS])


def _read_text(data: str | Reference, contents: ContentStore) -> str:
    if isinstance(data, str):
        return data
    try:
        return contents.load(data).decode("utf-8", "replace")
    except StorageError:
        return ""
