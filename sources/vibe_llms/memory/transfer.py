"""Export and import of a memory as one JSON file: a common format with additional members.

    {"memories": [{"data": {"id": 1735689600, "content": "…", "importance": 0.9,
                            "category": "…", "topics": ["…"]},
                   "embedding": [0.023, -0.145, …],
                   "entry": {"id": "…", "role": "memory", "scope": "user-me", "embedder": "…", …}}],
     "updated_at": "2025-12-31T12:00:00Z", "last_deduplicated_at": "2025-12-31T09:00:00Z"}

`entry` is our addition, and optional. `embedding` is the mean of the vectors of the entry's
sentences, or null. It is imported only if `entry` names the same embedder and the entry is a single
sentence; others are embedded again. The whole file is checked before anything is remembered.
"""

from __future__ import annotations

import asyncio
import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from typing import Any

import msgspec
from msgspec import Struct

from vibe_llms.base.exceptions import MemoryInvalid
from vibe_llms.memory.changes import HeldScope
from vibe_llms.memory.core import Memory, ignore_progress
from vibe_llms.memory.entries import Entry, Role, Scope, check_entry, words_of
from vibe_llms.memory.places import check_place
from vibe_llms.memory.secrets import find_secret, refuse_secrets
from vibe_llms.messages.identities import produce_identity

#: Maximum size of a file: about a hundred thousand entries with their vectors.
LARGEST_BYTES = 1 << 30
#: Number of entries written while their scope is held.
_BATCH = 200
#: Front matter member with the identity from another program.
IMPORTED = "imported_id"
#: Earlier times are ignored.
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
_DAY = timedelta(days=1)
#: Maximum deviation from 1 of the length of a vector in decimal digits.
_TOLERANCE = 1e-3
_NEWLINE = b"\n"
#: Position of an error, in messages of the codec.
_BYTE = re.compile(r" \(byte (\d+)\)")
_HALF_CHARACTER = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


class Fault(Struct, frozen=True):
    """Reason to reject an item; `index` counts from 0, `line` from 1."""

    index: int
    reason: str
    line: int = 0


class ImportFile(Struct, frozen=True):
    """Content of a file: entries, and the items that are invalid.

    `secrets` and `vectors` belong to some of the entries, by identity: the possible secret, masked,
    and the vector with the name of its embedder.
    """

    entries: Sequence[Entry]
    faults: Sequence[Fault] = ()
    secrets: Mapping[str, Fault] = {}
    vectors: Mapping[str, tuple[str, array[float]]] = {}
    last_deduplicated: datetime | None = None


class ImportResult(Struct, frozen=True):
    """Number of new entries of a file, by scope, and number of existing ones."""

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
    embedder: str = ""
    further: dict[str, Any] = {}


class _Item(Struct):
    data: _Data
    entry: _Own | None = None
    embedding: msgspec.Raw = msgspec.Raw()


class _File(Struct):
    memories: list[msgspec.Raw]
    updated_at: Any = None
    last_deduplicated_at: Any = None


async def export_memory(memory: Memory, scope: Scope | None = None) -> tuple[bytes, int]:
    """Return the file of one scope or of all, with existing vectors, and the number of entries."""
    entries = await memory.survey(scope)
    scopes = {entry.scope for entry in entries if entry.role == Role.FACT}
    times = await asyncio.to_thread(lambda: [memory.store.read_last(one) for one in scopes])
    known = [time for time in times if time is not None]
    vectors = await memory.read_vectors(entries)
    embedder = "" if memory.embedder is None else memory.embedder.model
    data = produce_export(
        entries,
        vectors=lambda entry: vectors.get((entry.scope, entry.identity)),
        embedder=embedder,
        # The earliest of several scopes: for the others, another run does no harm.
        last_deduplicated=min(known) if known and len(known) == len(times) else None,
    )
    return data, len(entries)


def produce_export(
    entries: Sequence[Entry],
    *,
    vectors: Callable[[Entry], Sequence[float] | None] = lambda _: None,
    embedder: str = "",
    last_deduplicated: datetime | None = None,
) -> bytes:
    """Produce the file of some entries; `vectors` returns an entry's vector by `embedder`."""
    items: list[dict[str, Any]] = []
    behind: dict[int, int] = {}
    for entry in entries:
        # Entries of the same second get different numbers.
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
                # Nine digits distinguish any two numbers of this size.
                "embedding": None if vector is None else [float(f"{one:.9g}") for one in vector],
                "entry": _Own(
                    id=entry.identity,
                    created_at=entry.created,
                    role=entry.role,
                    scope=str(entry.scope),
                    speaker=entry.speaker,
                    conversation_id=entry.conversation,
                    turn=entry.turn,
                    merged_from=entry.merged_from,
                    embedder="" if vector is None else embedder,
                    further=_plain(entry.further),
                ),
            }
        )
    times = {"updated_at": datetime.now(UTC), "last_deduplicated_at": last_deduplicated}
    whole = {"memories": items, **times}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"


def _take_number(number: int, behind: dict[int, int]) -> int:
    """Return the next free number; `behind` leads from each used one to later ones."""
    passed: list[int] = []
    while number in behind:
        passed.append(number)
        number = behind[number]
    # Shortcut for the next entry of this second.
    behind.update(dict.fromkeys((*passed, number), number + 1))
    return number


def read_export(
    data: bytes, home: Scope, *, everything: bool = False, name: str = "the file"
) -> ImportFile:
    """Parse a file; raise `MemoryInvalid` with its `name` if it is not an export.

    Items without a scope get `home`; with `everything`, all items do.
    """
    if len(data) > LARGEST_BYTES:
        raise MemoryInvalid(f"{name} is longer than {LARGEST_BYTES >> 20} MiB; split it")
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        file = msgspec.json.decode(data, type=_File)
    except RecursionError as error:
        raise MemoryInvalid(f"{name} cannot be read: values are nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MemoryInvalid(f"{name} cannot be read: {_explain(data, error)}") from error
    now = datetime.now(UTC)
    updated = _read_time(file.updated_at, now) or now
    entries: list[Entry] = []
    faults: list[Fault] = []
    secrets: dict[str, Fault] = {}
    vectors: dict[str, tuple[str, array[float]]] = {}
    seen: set[str] = set()
    lines = _Lines(data)
    for index, raw in enumerate(file.memories):
        line = lines.find(bytes(raw))
        try:
            item = msgspec.json.decode(raw, type=_Item)
            entry = _produce_entry(item, home, updated, now, everything=everything)
        except (msgspec.DecodeError, UnicodeDecodeError, MemoryInvalid) as error:
            faults.append(Fault(index, str(error), line))
        except RecursionError:
            faults.append(Fault(index, "values are nested too deeply", line))
        else:
            if entry.identity in seen:
                words = f"an earlier item has the id {entry.identity!r}"
                faults.append(Fault(index, words, line))
            else:
                seen.add(entry.identity)
                entries.append(entry)
                if masked := find_secret(*words_of(entry)):
                    secrets[entry.identity] = Fault(index, masked, line)
                if vector := _read_vector(item):
                    vectors[entry.identity] = vector
    return ImportFile(
        entries, faults, secrets, vectors, _read_time(file.last_deduplicated_at, now, ahead=False)
    )


async def import_memory(
    memory: Memory,
    entries: Sequence[Entry],
    *,
    dry_run: bool = False,
    keep_secrets: bool = False,
    vectors: Mapping[str, tuple[str, array[float]]] = {},
    last_deduplicated: datetime | None = None,
    progress: Callable[[int], None] = ignore_progress,
) -> ImportResult:
    """Remember entries of a file, each with its identity; existing ones stay unchanged.

    A fact exists if its text does, other entries if all their members do. `dry_run` only counts. If
    any text looks like a secret, nothing is remembered and `SecretRefused` is raised, unless
    `keep_secrets` is set. `vectors` and `last_deduplicated` come from the file: vectors of another
    embedder are left out, and so is the time for a scope that already has facts.
    """
    if not keep_secrets and not dry_run:
        refuse_secrets(*(text for entry in entries for text in words_of(entry)))
    there = await memory.survey()
    full = {entry.scope for entry in there}
    embedder = "" if memory.embedder is None else memory.embedder.model
    scopes = {entry.identity: entry.scope for entry in there}
    same = {entry.identity for entry in entries if scopes.get(entry.identity) == entry.scope}
    # An entry with the same identity does not count as another turn with the same text and time.
    known = Counter(
        _key(entry) for entry in there if entry.role == Role.FACT or entry.identity not in same
    )
    new: dict[str, int] = {}
    repeats = count = 0
    for scope, some in groupby(entries, key=lambda entry: entry.scope):
        alike = list(some)
        for start in range(0, len(alike), _BATCH):
            batch, chosen = alike[start : start + _BATCH], list[Entry]()
            fitting: list[tuple[Entry, array[float]]] = []
            for entry in batch:
                key, is_fact = _key(entry), entry.role == Role.FACT
                if entry.identity in same:
                    continue
                if known[key]:
                    known[key] -= not is_fact
                    continue
                known[key] += is_fact
                # In another scope it becomes another entry.
                own = produce_identity() if entry.identity in scopes else entry.identity
                chosen.append(msgspec.structs.replace(entry, identity=own))
                if entry.identity in vectors and vectors[entry.identity][0] == embedder:
                    fitting.append((entry, vectors[entry.identity][1]))
            added = len(chosen) if dry_run or not chosen else await _add(memory, scope, chosen)
            if added and not dry_run:
                await memory.keep_vectors(fitting)
            repeats += len(batch) - added
            if added:
                new[str(scope)] = new.get(str(scope), 0) + added
            count += len(batch)
            progress(count)
        if last_deduplicated and scope not in full and str(scope) in new and not dry_run:
            await asyncio.to_thread(memory.store.write_last, scope, last_deduplicated)
    return ImportResult(new, repeats)


async def _add(memory: Memory, scope: Scope, entries: Sequence[Entry]) -> int:
    """Remember entries of a scope as one change; return how many were new."""

    def work(held: HeldScope) -> int:
        return sum(held.restore(entry).identity == entry.identity for entry in entries)

    return await memory.change(scope, work)


def _read_vector(item: _Item) -> tuple[str, array[float]] | None:
    """Return the name of an item's embedder, and its vector, if usable."""
    if item.entry is None or not item.entry.embedder:
        return None
    try:
        vector = array("f", msgspec.json.decode(item.embedding, type=list[float]))
    except (msgspec.DecodeError, OverflowError):
        return None
    return (item.entry.embedder, vector) if abs(math.hypot(*vector) - 1) < _TOLERANCE else None


def _produce_entry(
    item: _Item, home: Scope, updated: datetime, now: datetime, *, everything: bool
) -> Entry:
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


def _read_time(value: Any, now: datetime, *, ahead: bool = True) -> datetime | None:
    """Parse a time from a text, or a number in seconds or milliseconds; `None` for other values.

    Other clocks may be a day `ahead`.
    """
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
    latest = now + _DAY if ahead else now
    return next((time for time in times if _EARLIEST <= time <= latest), None)


def _key(entry: Entry) -> tuple[Any, ...]:
    """Return the values that are equal in two equal entries."""
    if entry.role == Role.FACT:
        return entry.scope, entry.role, entry.content
    where = (entry.created, entry.conversation, entry.turn)
    return entry.scope, entry.role, entry.content, *where


def _explain(data: bytes, error: Exception) -> str:
    """Explain why a file cannot be read, and where the error is."""
    place = _BYTE.search(str(error))
    # The codec gives no position for a truncated or non-text file.
    stopped = len(data) if place is None else int(place[1])
    try:
        data[: stopped + 1].decode()
    except UnicodeDecodeError as broken:
        if broken.end <= stopped:
            return f"{_locate(data, broken.start)}: not UTF-8 text"
    if (found := _HALF_CHARACTER.search(data)) and found.start() <= stopped:
        half = found[0].decode()
        return f"{_locate(data, found.start())}: {half} is half of a surrogate pair"
    if isinstance(error, msgspec.ValidationError):
        return f'not an object {{"memories": […]}}: {error}'
    if place is None:
        return f"{_locate(data, len(data.rstrip()))}: unexpected end of the file"
    return f"{_locate(data, stopped)}: {_BYTE.sub('', str(error))}"


def _locate(data: bytes, position: int) -> str:
    """Return the line and column of a byte, counted from 1, columns in characters."""
    start = data.rfind(b"\n", 0, position) + 1
    column = len(data[start:position].decode("utf-8", "replace")) + 1
    return f"line {data.count(_NEWLINE, 0, position) + 1}, column {column}"


class _Lines:
    """Finder of the lines in which successive parts of a file begin."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._line = 1

    def find(self, part: bytes) -> int:
        """Return the line of the next part."""
        found = self._data.index(part, self._position)
        self._line += self._data.count(_NEWLINE, self._position, found)
        line = self._line
        self._line += part.count(_NEWLINE)
        self._position = found + len(part)
        return line


def _plain(value: Any) -> Any:
    """Convert a YAML value for JSON; values that JSON cannot express become text."""
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
