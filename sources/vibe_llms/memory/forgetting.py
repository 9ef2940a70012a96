"""Preview of forgetting: the entries that would be removed, and related facts that would stay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from msgspec import Struct

from vibe_llms.base.exceptions import MemoryInvalid
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Entry, Role, Scope
from vibe_llms.memory.interfaces import TextReader
from vibe_llms.memory.places import DELETED
from vibe_llms.memory.summaries import find_derived
from vibe_llms.memory.text_search import find_all, find_holding, fold

_SAID = (Role.USER, Role.ASSISTANT)


class Trace(Struct, frozen=True):
    """A file that would be removed; an unreadable one has an entry without an identity."""

    place: str
    entry: Entry

    @property
    def deleted(self) -> bool:
        """True if the entry is already deleted."""
        return self.place.startswith(f"{DELETED}/")


async def survey_traces(
    store: TextReader, words: str | None, *, scopes: Iterable[Scope] | None = None
) -> Sequence[Trace]:
    """Return the entries that `Memory.forget` would remove now, oldest first.

    Without `words`, return the entries that `Memory.forget_scope` would remove.
    """
    wanted = "" if words is None else fold(words)
    if words is not None and not wanted:
        raise MemoryInvalid("the text to forget is empty")
    chosen = None if scopes is None else tuple(scopes)
    return await asyncio.to_thread(_survey, store, wanted, chosen)


async def survey_offspring(memory: Memory, gone: Iterable[Entry]) -> Sequence[Entry]:
    """Return the facts from removed turns that would be left, oldest first.

    They say the same in other words.
    """
    entries = list(gone)
    turns = {(one.conversation, one.turn) for one in entries if one.turn and one.role in _SAID}
    if not turns:
        return []
    identities = {one.identity for one in entries}
    return [
        fact
        for fact in await memory.survey(role=Role.FACT)
        if (fact.conversation, fact.turn) in turns and fact.identity not in identities
    ]


def _survey(files: TextReader, wanted: str, scopes: Sequence[Scope] | None) -> Sequence[Trace]:
    found: list[Trace] = []
    for scope in files.survey_scopes() if scopes is None else scopes:
        holding = find_holding(files, scope, wanted) if wanted else find_all(files, scope)
        if wanted:
            holding += find_derived(files, scope, holding)
        found += (Trace(place, entry) for place, entry in holding)
    return sorted(found, key=lambda one: (one.entry.created, one.entry.identity))
