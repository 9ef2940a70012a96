"""Derived index, which lists and searches conversations without reading them all.

The files are authoritative. Appends never touch the index. Before each answer, the index checks the
conversations that this library has marked as changed, or all of them if another program changed the
folder. It always checks those in the answer. `verify` and a list without a limit check all. Changed
files are read. A missing or damaged index is rebuilt.

Words of deleted conversations do not stay in the file. A full-text index only marks words as
deleted, and SQLite leaves copies where rows have moved. Therefore the index is merged into one
piece and the file is rewritten. Until then the file contains a mark, so that the next process
cleans it after a crash.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.base.databases import IN_MEMORY, open_database
from vibe_llms.base.exceptions import ArchiveLocked, ConversationNotFound, StorageError
from vibe_llms.base.files import LARGEST_FILE, read_parts
from vibe_llms.base.folders import TEMPORARY, storage_errors, time_of
from vibe_llms.messages.canisters import (
    Canister,
    role_of,
)
from vibe_llms.messages.codecs import LineUnreadable
from vibe_llms.messages.contents import repair_text
from vibe_llms.storage.appending import MESSAGES
from vibe_llms.storage.changes import (
    Changes,
    are_of_one_table,
    clear_slots,
    compare,
    identify_boot,
    is_being_changed,
    slot_of,
)
from vibe_llms.storage.contents import ContentStore
from vibe_llms.storage.conversations import is_conversation_identity
from vibe_llms.storage.details import METADATA
from vibe_llms.storage.families import find_family
from vibe_llms.storage.indexing import (
    Fingerprint,
    FoundConversation,
    Indexer,
    decode_fingerprint,
    encode_fingerprint,
    open_lines,
    text_of_all,
)
from vibe_llms.storage.interfaces import Finding, Origin, Relative, Report, Summary, ignore
from vibe_llms.storage.lines import LineReader
from vibe_llms.storage.texts import excerpt_of, spread, words_of

if TYPE_CHECKING:
    import sqlite3

#: Increase when the tables change. An index of another version is rebuilt.
_VERSION = 8
_TAGS = msgspec.json.Decoder(tuple[str, ...])
_ORIGIN = msgspec.json.Decoder(Origin)
#: Seconds until all files are checked again, because other programs may have changed some.
CHECK_SECONDS = 10.0
#: Longest tick in seconds of a file system's clock. Changes within one tick would not show.
_TICK_SECONDS = 2.0
#: Longest tick in seconds if a time is not a multiple of `_COARSE` ns, as on current file systems,
#: which use the system's clock with ticks of at most 10 ms.
_FINE_TICK_SECONDS = 0.1
_COARSE = 10_000_000
#: Number of changed slots above which a check of all files is quicker.
_MANY_SLOTS = 500
#: Number of changed slots up to which a change is noted in memory only.
_FEW_SLOTS = 50

_SUMMARY = (
    "identity, name, title, created, updated, model, tags, origin, messages, problem, superseded_by"
)
_PLACE = "select updated, created, identity from conversations where identity = :after"
#: Prefix of the folder names of deleted conversations. The next process that sees one removes it.
DOOMED = f"{TEMPORARY}gone-"
_MARK_BYTES = 16
#: Databases inherited by a forked process. SQLite forbids even closing them there.
_INHERITED: list[sqlite3.Connection | None] = []
_UNCLEAN = "words of deleted conversations stay in it until the next `vibe-llms list`"

T = TypeVar("T")

_TABLES = """
create table state (name text primary key, value blob) without rowid;
create table conversations (
    key integer primary key autoincrement, identity text unique not null, name text not null,
    title text not null, created text not null, updated integer not null, model text not null,
    tags text not null, origin text not null, shared integer not null, messages integer not null,
    size integer not null, last_offset integer not null, last_hash blob not null,
    problem text not null, superseded_by text not null,
    slot integer not null, look blob not null, inode integer not null);
create index conversations_slot on conversations (slot);
create index conversations_unread on conversations (identity) where look = x'';
create index conversations_updated on conversations (updated, created, identity);
create index conversations_name on conversations (name);
create index conversations_origin on conversations (identity, origin) where origin <> '';
create view listed as select *, superseded_by <> '' and exists (
    select 1 from conversations o where o.identity = c.superseded_by) as hidden
    from conversations c;
create table messages (
    key integer primary key autoincrement, conversation integer not null, offset integer not null,
    text blob not null);
create index messages_conversation on messages (conversation);
create virtual table words using fts5 (text, content='', tokenize='unicode61 remove_diacritics 2');
"""


class Seen(Struct, frozen=True, array_like=True):
    """State of an archive before its files were checked.

    `root` is the device, the inode, and the time of the folder of conversations. The time is 0 if
    later changes may have the same one. `checked` is the time of the last check of all files.
    """

    boot: str = ""
    root: tuple[int, int, int] = (0, 0, 0)
    changes: bytes = b""
    checked: float = 0.0


class _Memory(Struct):
    """Cached state of an open database, until another connection changes it.

    `stored` is the state in the database. `seen` may be newer by a few conversations, which another
    process has to check again. `inodes` are the inodes of the conversations' folders, once they
    were read.
    """

    version: int
    stored: Seen
    seen: Seen
    inodes: dict[str, int] | None = None
    #: Slots that have changed since `stored`.
    unstored: set[int] = msgspec.field(default_factory=set)

    def needs_storing(self, now: Seen, slots: set[int]) -> bool:
        """Record the slots seen as changed, and return True if the state is worth storing.

        The state is larger than most messages. If a few slots are missing in it, the next process
        checks their conversations again.
        """
        self.unstored |= slots
        return (
            len(self.unstored) > _FEW_SLOTS
            or self.stored.root != now.root
            or self.stored.boot != now.boot
            or self.stored.checked != now.checked
            or not are_of_one_table(self.stored.changes, now.changes)
        )

    def note_stored(self, now: Seen) -> None:
        """Record that the database has this state."""
        self.stored = now
        self.unstored.clear()


class _Plan(Struct, frozen=True):
    """Conversations to check again, all or some, and the states that led to them."""

    seen: Seen
    now: Seen
    whole: bool
    slots: set[int]
    suspects: set[str]
    is_fresh: bool


class Index:
    """Index of one archive, updated before every answer.

    `is_due` is True after an answer if it is time to `verify`. `report` is called, perhaps in
    another thread, with the number of indexed conversations and the total.
    """

    def __init__(
        self,
        path: Path,
        conversations: Path,
        contents: ContentStore,
        report: Report = ignore,
    ) -> None:
        self._path = path
        self._conversations = conversations
        self._root = str(conversations)
        self._contents = contents
        self._changes = Changes(path.parent)
        self._report = report
        self._database: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None
        self._process = os.getpid()
        self._memory: _Memory | None = None
        #: Conversations in the current answer, with their fingerprints.
        self._shown: dict[str, bytes] = {}
        self.is_due = False
        #: Folders of deleted conversations that are to be removed.
        self.doomed: list[str] = []

    def survey(
        self,
        *,
        limit: int | None = None,
        tag: str = "",
        superseded: bool = False,
        after: str = "",
    ) -> Sequence[Summary]:
        """Return conversations, most recent first; see `vibe_llms.storage.interfaces.Archive`."""
        values = {
            "every": superseded,
            "tag": repair_text(tag),
            "limit": -1 if limit is None else limit,
            "after": repair_text(after),
        }
        return self._answer(lambda: self._survey(values), every=limit is None)

    def count(self, *, tag: str = "", superseded: bool = False) -> int:
        """Return the number of conversations."""
        values = {"every": superseded, "tag": repair_text(tag)}
        return self._answer(lambda: self._count(values))

    def survey_family(self, identity: str) -> Sequence[Relative]:
        """Return all conversations that were forked from the same one, oldest first."""
        return self._answer(lambda: self._survey_family(repair_text(identity)))

    def search(self, text: str, *, limit: int = 20, superseded: bool = False) -> Sequence[Finding]:
        """Return the messages that contain all words of a text, best match first."""
        words = words_of(text)
        if not words:
            return []
        return self._answer(lambda: self._search(words, limit, superseded))

    def verify(self) -> None:
        """Check all files, and index the changes of other programs."""
        self._answer(lambda: None, every=True)

    def clean(self) -> None:
        """Remove all words of deleted conversations and the leftovers of a crash.

        Raises `ArchiveLocked` or `StorageError` on failure. The next answer then tries again.
        """
        if os.path.lexists(self._path):
            self._answer(lambda: None, cleaning=True)

    def discard(self) -> None:
        """Delete the index. It is derived, so nothing is lost."""
        for suffix in ("", "-journal"):
            with suppress(FileNotFoundError):
                os.unlink(f"{self._path}{suffix}")

    def _answer(
        self, question: Callable[[], T], *, every: bool = False, cleaning: bool = False
    ) -> T:
        """Return the answer of an up-to-date index.

        A damaged index is rebuilt. If it cannot be stored, as on a read-only disk, it is built in
        memory so that lists still work, except when `cleaning` the file.
        """
        import sqlite3

        places = (str(self._path), str(self._path), *(() if cleaning else (IN_MEMORY,)))
        failure: Exception | None = None
        for place in places:
            sound = False
            try:
                self._connect(place)
                self._update(every=every)
                self._clean(patient=cleaning)
                answer = question()
                if not every and (changed := self._find_changed()):
                    self._update(changed)
                    answer = question()
                sound = place != IN_MEMORY
                return answer
            except (sqlite3.Error, OSError, ValueError, TypeError) as error:
                if _code_of(error) == sqlite3.SQLITE_BUSY:
                    raise ArchiveLocked(
                        "the index has been locked by other processes for "
                        f"{self._contents.settings.lock_seconds:g} s; "
                        + (_UNCLEAN if cleaning else "try again"),
                        path=str(self._path),
                    ) from error
                failure = error
                self.close()
                with suppress(OSError):
                    self.discard()
            finally:
                if not sound:
                    self.close()
        raise StorageError(f"the index cannot be used: {failure}", path=str(self._path))

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the database. The next answer opens it again."""
        database, self._database = self._database, None
        self._memory = None
        if database is not None:
            database.close()

    def _connect(self, place: str) -> None:
        """Open the database, unless it is still open and at its path."""
        self.doomed = []
        if self._process != os.getpid():
            _INHERITED.append(self._database)
            self._database, self._memory, self._process = None, None, os.getpid()
        if self._database is not None:
            with suppress(OSError):
                if self._opened == _place_of(os.stat(place)):
                    return
            self.close()
        self._database = self._open(place)
        self._opened = None if place == IN_MEMORY else _place_of(os.stat(place))

    def _update(self, further: Collection[str] = (), *, every: bool = False) -> None:
        """Index the changes since the last update, including those among `further`.

        With `every`, all files are checked.
        """
        plan = self._plan(further, every=every)
        self.is_due = not (plan.whole or plan.is_fresh)
        if plan.suspects:
            self._carry_out(plan)
        elif plan.now != plan.seen and not (every and plan.is_fresh):
            self._remember(plan)

    def _plan(self, further: Collection[str], *, every: bool) -> _Plan:
        """Return the conversations to check again."""
        seen = self._recall().seen
        # Taken before the files are checked: the next update then sees changes in the meantime.
        now = self._read_state()
        slots = compare(seen.changes, now.changes)
        suspects = None if every else self._find_suspects(seen, now, slots)
        whole = suspects is None
        is_fresh = 0 <= now.checked - seen.checked < CHECK_SECONDS
        if suspects is None:
            suspects = self._compare_all(slots)
        else:
            now = replace(now, checked=seen.checked)
        return _Plan(seen, now, whole, slots, suspects | {*further}, is_fresh)

    def _find_suspects(self, seen: Seen, now: Seen, slots: set[int]) -> set[str] | None:
        """Return the conversations that may have changed, or `None` if any of them may have."""
        if (
            not now.boot
            or now.boot != seen.boot
            or now.root[:2] != seen.root[:2]
            or not are_of_one_table(seen.changes, now.changes)
            or len(slots) > _MANY_SLOTS
        ):
            return None
        rows = self._access().execute("select identity from conversations where look = x''")
        suspects = {str(identity) for (identity,) in rows}
        for slot in slots:
            rows = self._access().execute(
                "select identity from conversations where slot = ?", (slot,)
            )
            suspects |= {str(identity) for (identity,) in rows}
        if now.root != seen.root or not now.root[2]:
            different = self._compare_folders()
            marked = all(slot_of(identity) in slots for identity in different)
            # Otherwise another program made the change, which may have changed files elsewhere too.
            if not marked or not (different or slots or not seen.root[2]):
                return None
            suspects |= different
        return suspects

    def _recall(self) -> _Memory:
        """Return the cached state, read again if another connection has changed the database."""
        (version,) = self._access().execute("pragma data_version").fetchone()
        memory = self._memory
        if memory is None or memory.version != version:
            row = self._access().execute("select value from state where name = 'seen'").fetchone()
            seen = Seen() if row is None else msgspec.msgpack.decode(row[0], type=Seen)
            memory = self._memory = _Memory(version, seen, seen)
        return memory

    def _compare_folders(self) -> set[str]:
        """Return the conversations that were added, deleted, or replaced."""
        memory, there = self._recall(), self._read_names()
        if memory.inodes is None:
            rows = self._access().execute("select identity, inode from conversations")
            memory.inodes = dict(rows.fetchall())
        if there == memory.inodes:
            return set()
        different = {name for name, _ in there.items() ^ memory.inodes.items()}
        return {name for name in different if self._is_conversation(name)}

    def _compare_all(self, slots: set[int]) -> set[str]:
        """Return the conversations that differ from the index or are marked."""
        rows = self._access().execute("select identity, look, inode from conversations")
        known = {identity: (fingerprint, inode) for identity, fingerprint, inode in rows}
        there = self._scan()
        suspects = known.keys() - there.keys()
        for identity, inode in there.items():
            fingerprint = self._fingerprint(identity)
            state = fingerprint and (encode_fingerprint(fingerprint), inode)
            if state != known.get(identity) or (slots and slot_of(identity) in slots):
                suspects.add(identity)
        return suspects

    def _carry_out(self, plan: _Plan) -> None:
        database = self._access()
        memory = self._recall()
        indexer = Indexer(database, self._conversations, self._contents)
        busy: set[int] = set()
        new: list[FoundConversation] = []
        inodes = memory.inodes if memory.inodes is not None else {}
        database.execute("begin immediate")
        for identity in plan.suspects:
            slot = slot_of(identity)
            # Checked before the files are, because a change may follow their check.
            if slot in plan.slots and is_being_changed(f"{self._root}/{identity}"):
                busy.add(slot)
            found = self._find(identity)
            if found is None:
                inodes.pop(identity, None)
            else:
                inodes[identity] = found.inode
            row = database.execute(
                "select look, inode from conversations where identity = ?", (identity,)
            ).fetchone()
            if found is None:
                indexer.forget(identity)
            elif row is None:
                new.append(found)
            elif row != (encode_fingerprint(found.fingerprint), found.inode):
                indexer.index_changes(found, decode_fingerprint(row[0]))
        indexer.finish()
        indexer.index_new(new, self._report)
        now = plan.now
        if busy:
            now = replace(now, changes=clear_slots(now.changes, busy))
        if memory.needs_storing(now, plan.slots):
            self._keep("seen", msgspec.msgpack.encode(now))
            memory.note_stored(now)
        if indexer.forgot:
            self._keep("unclean", os.urandom(_MARK_BYTES))
        database.execute("commit")
        memory.seen = now

    def _remember(self, plan: _Plan) -> None:
        """Store the state, unless another process is using the index."""
        import sqlite3

        memory, now = self._recall(), plan.now
        memory.seen = now
        if not memory.needs_storing(now, plan.slots):
            return
        database = self._access()
        database.execute("pragma busy_timeout = 0")
        try:
            self._keep("seen", msgspec.msgpack.encode(now))
            memory.note_stored(now)
        except sqlite3.OperationalError as error:
            if _code_of(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
        finally:
            seconds = self._contents.settings.lock_seconds
            database.execute(f"pragma busy_timeout = {int(seconds * 1000)}")

    def _keep(self, name: str, value: bytes) -> None:
        self._access().execute("insert or replace into state values (?, ?)", (name, value))

    def _find_changed(self) -> set[str]:
        """Return the conversations in the answer that have changed without a mark."""
        shown, self._shown = self._shown, {}
        changed: set[str] = set()
        for identity, known in shown.items():
            fingerprint = self._fingerprint(identity)
            if known and (fingerprint is None or encode_fingerprint(fingerprint) != known):
                changed.add(identity)
        return changed

    def _read_state(self) -> Seen:
        checked = time.time()
        changes = self._changes.read()
        with storage_errors(self._conversations):
            root = os.stat(self._conversations)
        fine = root.st_mtime_ns % _COARSE
        recent = checked - root.st_mtime < (_FINE_TICK_SECONDS if fine else _TICK_SECONDS)
        return Seen(
            identify_boot(),
            (root.st_dev, root.st_ino, 0 if recent else root.st_mtime_ns),
            changes,
            checked,
        )

    def _scan(self) -> dict[str, int]:
        """Return the conversations in the folder, with the inodes of their folders."""
        names = self._read_names()
        return {name: inode for name, inode in names.items() if self._is_conversation(name)}

    def _read_names(self) -> dict[str, int]:
        """Return all names in the folder of conversations, with their inodes."""
        with storage_errors(self._conversations), os.scandir(self._conversations) as entries:
            return {entry.name: entry.inode() for entry in entries}

    def _is_conversation(self, name: str) -> bool:
        """Return True for the name of a conversation. Collect the names of folders to remove."""
        if name.startswith(DOOMED):
            self.doomed.append(name)
        return is_conversation_identity(name)

    def _find(self, identity: str) -> FoundConversation | None:
        fingerprint = self._fingerprint(identity)
        if fingerprint is None:
            return None
        try:
            folder = os.stat(f"{self._root}/{identity}", follow_symlinks=False)
        except OSError:
            return None
        return FoundConversation(identity, fingerprint, folder.st_ino)

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
            if patient or _code_of(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise

    def _survey(self, values: Mapping[str, object]) -> Sequence[Summary]:
        database = self._access()
        if values["after"] and not database.execute(_PLACE, values).fetchone():
            raise ConversationNotFound(f"conversation {values['after']} not found")
        selected = database.execute(
            f"select {_SUMMARY}, look from listed where {_describe_wanted(values)} "  # noqa: S608  (the condition is ours)
            "order by updated desc, created desc, identity desc limit :limit",
            values,
        )
        rows = selected.fetchall()
        self._shown = {identity: fingerprint for identity, *_, fingerprint in rows}
        return [_summarize(*row) for *row, _ in rows]

    def _survey_family(self, identity: str) -> Sequence[Relative]:
        database = self._access()
        forks = database.execute("select identity, origin from conversations where origin <> ''")
        parents = {fork: _ORIGIN.decode(origin).conversation for fork, origin in forks}
        family = msgspec.json.encode([*find_family(identity, parents)]).decode()
        rows = database.execute(
            f"select {_SUMMARY}, shared, look from conversations "  # noqa: S608  (the columns are ours)
            "where identity in (select value from json_each(?)) order by created, identity",
            (family,),
        ).fetchall()
        self._shown = {identity: fingerprint for identity, *_, fingerprint in rows}
        if identity not in self._shown:
            raise ConversationNotFound(f"conversation {identity} not found")
        return [Relative(_summarize(*row), shared) for *row, shared, _ in rows]

    def _count(self, values: Mapping[str, object]) -> int:
        wanted = _describe_wanted(values)
        question = f"select count(*) from listed where {wanted}"  # noqa: S608  (the same)
        return int(self._access().execute(question, values).fetchone()[0])

    def _search(self, words: Sequence[str], limit: int, every: bool) -> Sequence[Finding]:
        phrases = (spread(word).replace("\0", " ").replace('"', '""') for word in words)
        selected = self._access().execute(
            "select c.identity, c.name, c.title, m.offset, c.look from words "
            "join messages m on m.key = words.rowid join listed c on c.key = m.conversation "
            "where words match :words and (:every or not hidden) order by words.rank limit :limit",
            {
                "words": " ".join(f'"{phrase}"' for phrase in phrases),
                "limit": limit,
                "every": every,
            },
        )
        rows = selected.fetchall()
        self._shown = {identity: fingerprint for identity, *_, fingerprint in rows}
        findings: list[Finding] = []
        for identity, name, title, offset, _ in rows:
            canister = self._read_canister(identity, offset)
            if canister is not None:
                findings.append(
                    Finding(
                        identity,
                        name or title,
                        canister.identity,
                        role_of(canister),
                        canister.created,
                        excerpt_of(text_of_all(canister, self._contents), words),
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
            # Secure deletion also overwrites changed names and titles at once. Creating and
            # deleting a journal would take longer than everything else that a message needs.
            pragmas=("secure_delete = on", "journal_mode = truncate"),
            # The database stays open, and the next answer may run in another thread.
            any_thread=True,
        )

    def _access(self) -> sqlite3.Connection:
        assert self._database is not None
        return self._database

    def _fingerprint(self, name: str) -> Fingerprint | None:
        folder = f"{self._root}/{name}"
        try:
            lines = os.stat(f"{folder}/{MESSAGES}", follow_symlinks=False)
        except OSError as error:
            return self._fingerprint_broken(name, error)
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

    def _fingerprint_broken(self, name: str, error: OSError) -> Fingerprint | None:
        """Return the fingerprint of a conversation without lines, or `None` if it is missing."""
        try:
            folder = os.stat(f"{self._root}/{name}", follow_symlinks=False)
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


def _describe_wanted(values: Mapping[str, object]) -> str:
    """Return the condition for the wanted conversations.

    Conditions without effect are omitted, because SQLite would evaluate them for each row.
    """
    conditions = {
        "not hidden": not values["every"],
        "exists (select 1 from json_each(tags) where value = :tag)": values["tag"],
        f"(updated, created, identity) < ({_PLACE})": values.get("after"),
    }
    return " and ".join([one for one, needed in conditions.items() if needed] or ["true"])


def _summarize(
    identity: str,
    name: str,
    title: str,
    created: str,
    updated: int,
    model: str,
    tags: str,
    origin: str,
    *rest: Any,
) -> Summary:
    """Return the summary in a row with the columns `_SUMMARY`."""
    return Summary(
        identity,
        name,
        title,
        datetime.fromisoformat(created),
        time_of(updated),
        model,
        () if tags == "[]" else _TAGS.decode(tags),
        _ORIGIN.decode(origin) if origin else None,
        *rest,
    )


def _place_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _code_of(error: Exception) -> int:
    """Return SQLite's primary error code, or 0 for other errors."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
