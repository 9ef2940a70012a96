"""A memory as one JSON file, there and back: the form that others use, with what ours has besides.

    {"memories": [{"data": {"id": 1735689600, "content": "…", "importance": 0.9,
                            "category": "…", "topics": ["…"]},
                   "embedding": null,
                   "entry": {"id": "…", "role": "memory", "scope": "user-me", …}}],
     "updated_at": "2025-12-31T12:00:00Z", "last_deduplicated_at": null}

`entry` is ours and may be missing. Vectors are never taken in: nobody says which model made them.
A file is checked whole before anything of it is remembered.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from typing import Any

import msgspec
from msgspec import Struct

from vibe_llms.exceptions import MemoryInvalid
from vibe_llms.memory.changes import HeldScope
from vibe_llms.memory.core import Memory, ignore_progress
from vibe_llms.memory.entries import Entry, Role, Scope, check_entry
from vibe_llms.memory.files import check_place
from vibe_llms.messages.identities import produce_identity

#: A hundred thousand entries with their vectors are about this long.
LARGEST_BYTES = 1 << 30
#: So many entries are written while their scope is held.
_BATCH = 200
#: The member of the front matter that keeps the identity which others gave.
IMPORTED = "imported_id"
#: No memory of a program is older.
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
_DAY = timedelta(days=1)
_NEWLINE = b"\n"
#: How the codec says where it stopped.
_BYTE = re.compile(r" \(byte (\d+)\)")
_HALF_CHARACTER = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


class Fault(Struct, frozen=True):
    """Why an item of a file cannot be remembered; `index` counts from 0, its `line` from 1."""

    index: int
    reason: str
    line: int = 0


class Parcel(Struct, frozen=True):
    """What a file holds: entries, and the items that are none."""

    entries: Sequence[Entry]
    faults: Sequence[Fault] = ()


class Taken(Struct, frozen=True):
    """What became of the entries of a file: new ones by their scopes, and those there were."""

    new: Mapping[str, int]
    known: int


class _Data(Struct):
    content: str
    id: int | float | str | None = None
    importance: float | None = None
    category: str | None = None
    topics: list[str] | None = None


class _Own(Struct):
    id: str
    created_at: datetime
    role: Role = Role.FACT
    scope: str = ""
    speaker: str = ""
    conversation_id: str = ""
    turn: str = ""
    merged_from: tuple[str, ...] = ()
    further: dict[str, Any] = {}


class _Item(Struct):
    data: _Data
    entry: _Own | None = None
    embedding: msgspec.Raw = msgspec.Raw()


class _File(Struct):
    memories: list[msgspec.Raw]
    updated_at: Any = None


def produce_export(
    entries: Sequence[Entry],
    *,
    vectors: Callable[[Entry], Sequence[float] | None] = lambda _: None,
) -> bytes:
    """The file of some entries; `vectors` gives that of an entry where there is one."""
    items: list[dict[str, Any]] = []
    behind: dict[int, int] = {}
    for entry in entries:
        # Two of one second get different numbers all the same.
        number = _take_number(int(entry.created.timestamp()), behind)
        vector = vectors(entry)
        items.append(
            {
                "data": {
                    "id": number,
                    "content": entry.content,
                    "importance": entry.importance,
                    "category": entry.category,
                    "topics": entry.topics,
                },
                "embedding": None if vector is None else list(vector),
                "entry": _Own(
                    id=entry.identity,
                    created_at=entry.created,
                    role=entry.role,
                    scope=str(entry.scope),
                    speaker=entry.speaker,
                    conversation_id=entry.conversation,
                    turn=entry.turn,
                    merged_from=entry.merged_from,
                    further=_plain(entry.further),
                ),
            }
        )
    whole = {"memories": items, "updated_at": datetime.now(UTC), "last_deduplicated_at": None}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"


def _take_number(number: int, behind: dict[int, int]) -> int:
    """The next number that is free; `behind` leads from each that is taken to later ones."""
    passed: list[int] = []
    while number in behind:
        passed.append(number)
        number = behind[number]
    # The next one of this second does not pass them all again.
    behind.update(dict.fromkeys((*passed, number), number + 1))
    return number


def read_export(
    data: bytes, home: Scope, *, everything: bool = False, name: str = "the file"
) -> Parcel:
    """What a file holds; `MemoryInvalid` where it is no such file at all, with its `name`.

    Items that name no scope get `home`; all of them do with `everything`.
    """
    if len(data) > LARGEST_BYTES:
        raise MemoryInvalid(f"{name} is longer than {LARGEST_BYTES >> 20} MiB; take parts of it")
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        file = msgspec.json.decode(data, type=_File)
    except RecursionError as error:
        raise MemoryInvalid(f"{name} cannot be read: its values lie too deep") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MemoryInvalid(f"{name} cannot be read: {_explain(data, error)}") from error
    now = datetime.now(UTC)
    updated = _read_time(file.updated_at, now) or now
    entries: list[Entry] = []
    faults: list[Fault] = []
    seen: set[str] = set()
    lines = _Lines(data)
    for index, raw in enumerate(file.memories):
        line = lines.find(bytes(raw))
        try:
            entry = _produce_entry(raw, home, updated, now, everything=everything)
        except (msgspec.DecodeError, UnicodeDecodeError, MemoryInvalid) as error:
            faults.append(Fault(index, str(error), line))
        except RecursionError:
            faults.append(Fault(index, "its values lie too deep in each other", line))
        else:
            if entry.identity in seen:
                words = f"an item before it has the id {entry.identity!r}"
                faults.append(Fault(index, words, line))
            else:
                seen.add(entry.identity)
                entries.append(entry)
    return Parcel(entries, faults)


async def take_in(
    memory: Memory,
    entries: Sequence[Entry],
    *,
    dry_run: bool = False,
    progress: Callable[[int], None] = ignore_progress,
) -> Taken:
    """Remember entries of a file, each with its identity; what is there already stays as it is.

    A fact is there if its words are, anything else if all of it is. `dry_run` only tells.
    """
    there = await memory.survey()
    scopes = {entry.identity: entry.scope for entry in there}
    same = {entry.identity for entry in entries if scopes.get(entry.identity) == entry.scope}
    # What is there by its identity stands for no other turn that says the same at the same time.
    known = Counter(
        _key(entry) for entry in there if entry.role == Role.FACT or entry.identity not in same
    )
    new: dict[str, int] = {}
    repeats = count = 0
    for scope, some in groupby(entries, key=lambda entry: entry.scope):
        alike = list(some)
        for start in range(0, len(alike), _BATCH):
            batch, chosen = alike[start : start + _BATCH], list[Entry]()
            for entry in batch:
                key, is_fact = _key(entry), entry.role == Role.FACT
                if entry.identity in same:
                    continue
                if known[key]:
                    known[key] -= not is_fact
                    continue
                known[key] += is_fact
                # In another scope it is another entry.
                own = produce_identity() if entry.identity in scopes else entry.identity
                chosen.append(msgspec.structs.replace(entry, identity=own))
            added = len(chosen) if dry_run or not chosen else await _add(memory, scope, chosen)
            repeats += len(batch) - added
            if added:
                new[str(scope)] = new.get(str(scope), 0) + added
            count += len(batch)
            progress(count)
    return Taken(new, repeats)


async def _add(memory: Memory, scope: Scope, entries: Sequence[Entry]) -> int:
    """Remember some entries of a scope as one change; how many were not there already."""

    def work(held: HeldScope) -> int:
        return sum(held.restore(entry).identity == entry.identity for entry in entries)

    return await memory.change(scope, work)


def _produce_entry(
    raw: msgspec.Raw, home: Scope, updated: datetime, now: datetime, *, everything: bool
) -> Entry:
    item = msgspec.json.decode(raw, type=_Item)
    own = item.entry
    further: dict[str, Any] = {}
    created = updated
    if own is not None:
        further, created = own.further, own.created_at
    elif item.data.id is not None:
        further = {IMPORTED: item.data.id}
        created = _read_time(item.data.id, now) or updated
    entry = check_entry(
        Entry(
            content=item.data.content,
            identity=produce_identity() if own is None else own.id,
            role=Role.FACT if own is None else own.role,
            scope=home if everything or own is None or not own.scope else Scope.parse(own.scope),
            created=created,
            importance=0.5 if item.data.importance is None else item.data.importance,
            category=item.data.category or "",
            topics=tuple(item.data.topics or ()),
            speaker="" if own is None else own.speaker,
            conversation="" if own is None else own.conversation_id,
            turn="" if own is None else own.turn,
            merged_from=() if own is None else own.merged_from,
            further=further,
        )
    )
    check_place(entry)
    return entry


def _read_time(value: Any, now: datetime) -> datetime | None:
    """The time that others say or number, in seconds or milliseconds; none where it is no time."""
    times: list[datetime] = []
    try:
        if isinstance(value, str):
            found = msgspec.convert(value, datetime, strict=False)
            times = [found if found.tzinfo is not None else found.replace(tzinfo=UTC)]
        elif isinstance(value, int | float):
            times = [datetime.fromtimestamp(value, UTC)] if value < 1e11 else []
            times += [datetime.fromtimestamp(value / 1000, UTC)]
    except (msgspec.ValidationError, ValueError, OverflowError, OSError):
        return None
    return next((time for time in times if _EARLIEST <= time <= now + _DAY), None)


def _key(entry: Entry) -> tuple[Any, ...]:
    """What two entries have in common that are the same one."""
    if entry.role == Role.FACT:
        return entry.scope, entry.role, entry.content
    where = (entry.created, entry.conversation, entry.turn)
    return entry.scope, entry.role, entry.content, *where


def _explain(data: bytes, error: Exception) -> str:
    """Why a file is no such file, in words that help, and where."""
    place = _BYTE.search(str(error))
    # What ends too early, and what is no text, has no place of the codec's.
    stopped = len(data) if place is None else int(place[1])
    try:
        data[: stopped + 1].decode()
    except UnicodeDecodeError as broken:
        if broken.end <= stopped:
            return f"{_locate(data, broken.start)}: this is no text in UTF-8"
    if (found := _HALF_CHARACTER.search(data)) and found.start() <= stopped:
        half = found[0].decode()
        return f"{_locate(data, found.start())}: half a character, {half}; write it whole"
    if isinstance(error, msgspec.ValidationError):
        return f'it is no {{"memories": […]}}: {error}'
    if place is None:
        return f"{_locate(data, len(data.rstrip()))}: it ends before it is whole"
    return f"{_locate(data, stopped)}: {_BYTE.sub('', str(error))}"


def _locate(data: bytes, position: int) -> str:
    """The line and the column of a byte; both count from 1, columns in characters."""
    start = data.rfind(b"\n", 0, position) + 1
    column = len(data[start:position].decode("utf-8", "replace")) + 1
    return f"line {data.count(_NEWLINE, 0, position) + 1}, column {column}"


class _Lines:
    """The lines in which parts of a file begin that follow each other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._line = 1

    def find(self, part: bytes) -> int:
        """The line of the next part."""
        found = self._data.index(part, self._position)
        self._line += self._data.count(_NEWLINE, self._position, found)
        line = self._line
        self._line += part.count(_NEWLINE)
        self._position = found + len(part)
        return line


def _plain(value: Any) -> Any:
    """A value of YAML as JSON has it: what JSON has no form for becomes text."""
    match value:
        case Mapping():
            return {str(name): _plain(one) for name, one in value.items()}
        case list() | tuple() | set():
            return [_plain(one) for one in value]
        case datetime() | date():
            return value.isoformat()
        case str() | int() | None:
            return value
        case float() if value == value and abs(value) != float("inf"):
            return value
        case _:
            return str(value)
