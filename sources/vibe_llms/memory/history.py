"""History of entries, from git if it keeps versions, else from the files.

Files show when an entry was added, last changed, and deleted. Git also shows each version in
between, and files that were removed.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from vibe_llms.base.exceptions import (
    MemoryDamaged,
    MemoryInvalid,
    MemoryNotFound,
    StorageError,
    VersioningFailed,
)
from vibe_llms.embedding.core import ignore
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import SHORTEST_PART, Entry, Scope, decode_entry, is_part
from vibe_llms.memory.files import ENTRIES
from vibe_llms.memory.git import ask
from vibe_llms.memory.interfaces import EntryReader
from vibe_llms.memory.objects import Commit, FileChange, read_batch, read_log
from vibe_llms.memory.places import DELETED, identity_in
from vibe_llms.memory.repository import Repository
from vibe_llms.memory.versions import Versions

#: Timeout for git while a user waits.
LOG_SECONDS = 10.0
#: A file modified within this time of its entry's creation counts as unchanged.
_AT_ONCE = timedelta(seconds=5)
_ZERO = b"0"


class ChangeKind(StrEnum):
    """Kind of a change."""

    ADDED = "added"
    CHANGED = "changed"
    DELETED = "deleted"
    RESTORED = "brought back"
    REMOVED = "removed"


class Change(Struct, frozen=True, kw_only=True):
    """One change of an entry, with the entry as it was then."""

    time: datetime
    kind: ChangeKind
    entry: Entry
    commit: str = ""


async def survey_changes(
    memory: Memory,
    *,
    scopes: Iterable[Scope] | None = None,
    identity: str = "",
    notify: Callable[[str], None] = ignore,
    seconds: float = LOG_SECONDS,
) -> Sequence[Change]:
    """Return the changes of the entries of some scopes, or of all, newest last.

    With an `identity`, or at least 4 characters of its beginning or end, return only the changes of
    that entry; raise `MemoryNotFound` unless exactly one matches. If git fails or takes longer than
    `seconds`, the changes come from the files, and `notify` gets the reason.
    """
    chosen = None if scopes is None else frozenset(scopes)
    found: Sequence[Change] | None = None
    if memory.versions is not None:
        try:
            found = await _ask_git(memory.versions, chosen, identity, seconds, notify)
        except StorageError as error:
            notify(f"git cannot be read; changes come from the files: {error}")
    if not found:
        # Git may not have kept any version yet.
        found = await asyncio.to_thread(_read_files, memory.store, chosen)
    if identity:
        found = _choose(found, identity)
    # Stable: commits of the same second keep their order.
    return sorted(found, key=lambda one: one.time)


async def _ask_git(
    versions: Versions,
    scopes: frozenset[Scope] | None,
    identity: str,
    seconds: float,
    notify: Callable[[str], None],
) -> Sequence[Change] | None:
    """Return the changes in git, or `None` if there is no repository."""
    ends, failure = time.monotonic() + seconds, ""
    # Include manual edits.
    try:
        await versions.commit(seconds=seconds)
    except StorageError as error:
        if isinstance(error, VersioningFailed) and error.slow:
            raise
        # The repository is still readable.
        failure = str(error)
    repository = versions.repository
    if not repository.exists:
        return None
    left = max(ends - time.monotonic(), 0.0)
    found = await ask(repository.git, lambda: _read_repository(repository, scopes, identity, left))
    if failure:
        notify(f"the latest changes are not committed and not listed: {failure}")
    return found


def _choose(changes: Sequence[Change], identity: str) -> Sequence[Change]:
    if len(identity) < SHORTEST_PART:
        raise MemoryNotFound(f"{identity!r} is too short; use at least {SHORTEST_PART} characters")
    fitting = [one for one in changes if is_part(identity, one.entry.identity)]
    names = {one.entry.identity for one in fitting}
    if identity in names:
        return [one for one in fitting if one.entry.identity == identity]
    if len(names) > 1:
        raise MemoryNotFound(f"{identity!r} matches several entries; use more characters")
    if not names:
        raise MemoryNotFound(f"no entry matches {identity!r}; see: vibe-llms memory log")
    return fitting


def _read_files(files: EntryReader, scopes: frozenset[Scope] | None) -> Sequence[Change]:
    found: list[Change] = []
    for scope in files.survey_scopes():
        if scopes is not None and scope not in scopes:
            continue
        for deleted in (False, True):
            head = f"{DELETED}/" if deleted else ""
            stats = {f"{head}{one}": it for one, it in files.scan(scope, deleted=deleted).items()}
            for place, entry in files.read_many(scope, stats):
                if isinstance(entry, MemoryDamaged):
                    continue
                written = _time_of(entry)
                found.append(Change(time=written, kind=ChangeKind.ADDED, entry=entry))
                modified = datetime.fromtimestamp(stats[place].modified / 1e9, UTC)
                gone = datetime.fromtimestamp(stats[place].changed / 1e9, UTC)
                if modified - written > _AT_ONCE and not (deleted and entry.replaced_by):
                    found.append(Change(time=modified, kind=ChangeKind.CHANGED, entry=entry))
                if deleted:
                    found.append(Change(time=gone, kind=ChangeKind.DELETED, entry=entry))
    return found


def _time_of(entry: Entry) -> datetime:
    """Return the time an entry was written, from its UUIDv7 if it has one."""
    with suppress(ValueError):
        identity = uuid.UUID(entry.identity)
        if identity.version == 7:
            return datetime.fromtimestamp((identity.int >> 80) / 1000, UTC)
    return entry.created


def _read_repository(
    repository: Repository, scopes: frozenset[Scope] | None, identity: str, seconds: float
) -> Sequence[Change]:
    with repository.working(seconds) as run:
        commits = [*read_log(run)][::-1]
        wanted = [
            (commit, change, scope, place)
            for commit in commits
            for change in commit.changes
            for scope, place in _locate(change.path)
            if scopes is None or scope in scopes
            if not identity or not identity_in(place) or is_part(identity, identity_in(place))
        ]
        blobs = {_blob_of(change) for _, change, _, _ in wanted}
        printed = run("cat-file", "--batch", "--buffer", data=b"\n".join(blobs) + b"\n")
    texts = {name: data for _, name, data in read_batch(printed)}
    grouped: dict[tuple[bytes, Scope, str], _Group] = {}
    for commit, change, scope, place in wanted:
        with suppress(MemoryDamaged):
            blob = _blob_of(change)
            entry = decode_entry(texts.get(blob, b""), scope, place, modified=0.0)
            key = (commit.name, scope, entry.identity)
            group = grouped.setdefault(key, _Group(commit, [], []))
            where = group.deleted if place.startswith(f"{DELETED}/") else group.living
            where.append((change.status, entry))
    return [one for group in grouped.values() for one in group.find_change()]


class _Group(Struct):
    """Effects of one commit on the current and deleted files of one entry."""

    commit: Commit
    living: list[tuple[str, Entry]]
    deleted: list[tuple[str, Entry]]

    def find_change(self) -> Iterator[Change]:
        """Yield the change of the entry, unless only its deleted file was rewritten."""
        letters = {letter for letter, _ in self.living}
        buried = {letter for letter, _ in self.deleted}
        entry = next(
            (entry for letter, entry in (*self.deleted, *self.living) if letter != "D"), None
        )
        if entry is None:
            entry = (*self.living, *self.deleted)[0][1]
        if "A" in buried:
            kind = ChangeKind.DELETED
        elif "A" in letters:
            kind = ChangeKind.RESTORED if "D" in buried else ChangeKind.ADDED
            kind = ChangeKind.CHANGED if "D" in letters else kind
        elif "M" in letters:
            kind = ChangeKind.CHANGED
        elif "D" in letters | buried:
            kind = ChangeKind.REMOVED
        else:
            return
        name = self.commit.name.decode()
        yield Change(time=self.commit.time, kind=kind, entry=entry, commit=name)


def _locate(path: bytes) -> Iterator[tuple[Scope, str]]:
    """Yield the scope and place of an entry's file, or nothing for other files."""
    parts = path.decode("utf-8", "replace").split("/", 2)
    if len(parts) == 3 and parts[0] == ENTRIES:
        with suppress(MemoryInvalid):
            yield Scope.parse(parts[1]), parts[2]


def _blob_of(change: FileChange) -> bytes:
    return change.before if not change.after.strip(_ZERO) else change.after
