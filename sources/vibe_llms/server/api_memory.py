"""The endpoints under `/api/memory`: the memory of a user."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from vibe_llms.base.exceptions import MemoryNotFound
from vibe_llms.memory.descriptions import FoundEntry, MemoryEntry
from vibe_llms.memory.entries import GLOBAL, Entry
from vibe_llms.memory.gate import LONGEST_TURN
from vibe_llms.server.core import ServerCore
from vibe_llms.server.exchanges import HttpExchange
from vibe_llms.server.pages import PageQuery, take_page
from vibe_llms.server.reading import SMALL_BODY_BYTES, read_body, read_query
from vibe_llms.server.spaces import UserSpace

_Word: TypeAlias = Annotated[str, Meta(max_length=100)]


class EntryList(Struct):
    """Entries, oldest first."""

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


_FACT = msgspec.json.Decoder(NewFact)


async def list_entries(_: ServerCore, exchange: HttpExchange, space: UserSpace) -> None:
    """List the remembered entries of the user, oldest first."""
    query = read_query(PageQuery, exchange.query)
    found = await space.memory.memory.survey(space.memory.user)
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
        raise MemoryNotFound(f"memory entry {identity!r} not found")
    return entry
