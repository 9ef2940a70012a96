"""The endpoints under `/api/memory`: the memory of a user."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from vibe_llms.base.credentials import get_logger
from vibe_llms.base.exceptions import MemoryNotFound
from vibe_llms.memory.core import Memory
from vibe_llms.memory.descriptions import FoundEntry, MemoryChange, MemoryEntry
from vibe_llms.memory.entries import GLOBAL, Entry, Scope
from vibe_llms.memory.gate import LONGEST_TURN
from vibe_llms.memory.history import survey_changes
from vibe_llms.memory.recall import SHORT, is_recalled, read_documents, survey_recalled
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.pages import PageQuery, take_page
from vibe_llms.server.reading import SMALL_BODY_BYTES, read_body, read_query
from vibe_llms.server.spaces import UserSpace

_INCOMPLETE = "git could not be read or written, so some changes are missing"
_LOGGER = get_logger("vibe_llms.server")
_Word: TypeAlias = Annotated[str, Meta(max_length=100)]


class EntryListQuery(PageQuery):
    """A page of the list of entries, and its order."""

    order: Literal["oldest", "newest"] = "oldest"


class EntryList(Struct):
    """Entries, oldest or newest first."""

    entries: list[MemoryEntry]
    has_more: bool


class EntriesQuery(Struct):
    """Search text and limit."""

    text: Annotated[str, Meta(min_length=1)]
    limit: Annotated[int, Meta(ge=1, le=1000)] = 10


class FoundEntryList(Struct):
    """Matching entries, best match first."""

    entries: list[FoundEntry]


class NewFact(Struct, forbid_unknown_fields=True):
    """A fact, with an `importance` from 0 to 1."""

    content: Annotated[str, Meta(max_length=LONGEST_TURN)]
    importance: Annotated[float, Meta(ge=0, le=1)] = 0.5
    category: _Word = ""
    topics: Annotated[tuple[_Word, ...], Meta(max_length=100)] = ()


class FactChange(Struct, forbid_unknown_fields=True):
    """Changes to an entry; what is null stays."""

    content: Annotated[str, Meta(max_length=LONGEST_TURN)] | None = None
    importance: Annotated[float, Meta(ge=0, le=1)] | None = None
    category: _Word | None = None
    topics: Annotated[tuple[_Word, ...], Meta(max_length=100)] | None = None


class EntryHistory(Struct):
    """Changes of an entry, newest last; `note` says what is missing, if anything is.

    Without versions in git, they are when it was added, last changed, and deleted.
    """

    changes: list[MemoryChange]
    note: str


class RecalledDocument(Struct):
    """A stored message with what was recalled for the message after it.

    `entries` are the recalled entries as they are now; `gone` were deleted or replaced since.
    """

    message: str
    entries: list[MemoryEntry]
    gone: int


class RecalledList(Struct):
    """Recalled entries of a conversation, oldest first."""

    recalled: list[RecalledDocument]


_CHANGE = msgspec.json.Decoder(FactChange)
_FACT = msgspec.json.Decoder(NewFact)


async def list_entries(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """List the remembered entries of the user, by default oldest first."""
    query = read_query(EntryListQuery, exchange.query)
    found = await space.memory.memory.survey(space.memory.user)
    if query.order == "newest":
        found = found[::-1]
    page, more = take_page(found, query, lambda one: one.identity)
    listed = EntryList([*map(MemoryEntry.of, page)], more)
    await exchange.reply(msgspec.json.encode(listed))


async def search_entries(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Find entries by words, and by meaning if there is an embedder; best match first."""
    query = read_query(EntriesQuery, exchange.query)
    hook = space.memory
    async with space.asking():
        found = await hook.memory.search(
            query.text,
            scopes=(hook.user, GLOBAL),
            settings=replace(hook.settings, limit=query.limit),
        )
    listed = FoundEntryList([*map(FoundEntry.of_recollection, found)])
    await exchange.reply(msgspec.json.encode(listed))


async def add_fact(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Remember a fact. Repeating it changes nothing. Likely secrets are refused."""
    fact = read_body(_FACT, await exchange.read(core.settings), most_bytes=SMALL_BODY_BYTES)
    hook = space.memory
    async with space.asking():
        entry = await hook.memory.add(
            fact.content,
            scope=hook.user,
            importance=fact.importance,
            category=fact.category,
            topics=fact.topics,
        )
    await exchange.reply(msgspec.json.encode(MemoryEntry.of(entry)), status=201)


async def show_entry(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Show an entry."""
    entry = await _access(space, exchange.argument)
    await exchange.reply(msgspec.json.encode(MemoryEntry.of(entry)))


async def change_entry(core: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Change an entry of memory. Likely secrets are refused."""
    change = read_body(_CHANGE, await exchange.read(core.settings), most_bytes=SMALL_BODY_BYTES)
    changes = {key: one for key, one in asdict(change).items() if one is not None}
    entry = await _access(space, exchange.argument)
    if changes:
        entry = await space.memory.memory.revise(entry.identity, scopes=[entry.scope], **changes)
    await exchange.reply(msgspec.json.encode(MemoryEntry.of(entry)))


async def show_history(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Show the changes of an entry, also of a deleted one."""
    hook, identity, notes = space.memory, exchange.argument, list[str]()
    try:
        changes = await survey_changes(
            hook.memory, scopes=(hook.user, GLOBAL), identity=identity, notify=notes.append
        )
    except MemoryNotFound:
        changes = ()
    changes = [one for one in changes if one.entry.identity == identity]
    if not changes:
        raise _refuse_missing(identity)
    for note in notes:
        _LOGGER.warning("%s: %s", exchange.request_id, note)
    shown = EntryHistory([*map(MemoryChange.of, changes)], _INCOMPLETE if notes else "")
    await exchange.reply(msgspec.json.encode(shown))


async def list_recalled(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """List the entries of memory that were recalled in a conversation, by message."""
    restored = await space.archive.restore(exchange.argument)
    exchange.conversation = exchange.argument
    documents = [one for one in restored.canisters if is_recalled(one)]
    named = [
        [part for text in texts for part in survey_recalled(text)]
        for one in documents
        for texts in [await read_documents([one], space.archive.load_all)]
    ]
    scopes = (space.memory.user, GLOBAL, Scope.of_conversation(exchange.argument))
    found = await _find_parts(space.memory.memory, scopes, {*chain.from_iterable(named)})
    listed = [
        RecalledDocument(
            document.identity,
            [MemoryEntry.of(found[part]) for part in parts if part in found],
            sum(part not in found for part in parts),
        )
        for document, parts in zip(documents, named, strict=True)
    ]
    await exchange.reply(msgspec.json.encode(RecalledList(listed)))


async def remove_entry(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """Delete an entry from memory."""
    entry = await _access(space, exchange.argument)
    gone = await space.memory.memory.remove(entry.identity, scopes=[entry.scope])
    await exchange.reply(msgspec.json.encode(MemoryEntry.of(gone)))


async def _access(space: UserSpace, identity: str) -> Entry:
    """Return an entry visible to the user; its identity must be complete."""
    hook = space.memory
    entry = await hook.memory.access(identity, scopes=(hook.user, GLOBAL))
    if entry.identity != identity:
        raise _refuse_missing(identity)
    return entry


async def _find_parts(
    memory: Memory, scopes: Iterable[Scope], parts: Collection[str]
) -> Mapping[str, Entry]:
    """Return entries by the last `SHORT` characters of their identities."""
    found: dict[str, Entry] = {}
    for scope in scopes if parts else ():
        records = [one for one in await memory.outline(scope) if one.identity[-SHORT:] in parts]
        for entry in await memory.read(scope, records):
            if entry is not None:
                found[entry.identity[-SHORT:]] = entry
    return found


def _refuse_missing(identity: str) -> MemoryNotFound:
    return MemoryNotFound(f"memory entry {identity!r} not found")
