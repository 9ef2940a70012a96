"""Deduplication: facts that say the same become one, at times and on demand; nothing is lost.

A run looks at a snapshot and takes its time; what it decided is carried out group by group while
the scope is held, and a group of which anything changed meanwhile is left for the next run. The
merged fact is written before the others are given up, so a crash leaves a repeat and never a gap.
"""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from vibe_llms.exceptions import ArchiveLocked, MemoryInvalid, VibeLlmsError
from vibe_llms.files import LARGEST_SETTINGS, read_file
from vibe_llms.memory.catalogue import Known
from vibe_llms.memory.changes import HeldScope
from vibe_llms.memory.core import Memory
from vibe_llms.memory.embedders.core import ignore
from vibe_llms.memory.entries import Entry, Role, Scope
from vibe_llms.memory.files import ENTRIES, UPKEEP
from vibe_llms.memory.likeness import (
    Neighbours,
    VectorNeighbours,
    WordNeighbours,
    find_groups,
    find_mean,
    rank,
    read_wordings,
)
from vibe_llms.memory.merging import merge_entries
from vibe_llms.memory.passages import split_passages
from vibe_llms.memory.retrieval import Share
from vibe_llms.storage.files import make_folder, replace_file, storage_errors
from vibe_llms.storage.locks import locked

_LAST = "deduplicated.json"
#: What is longer is a text and no fact.
_LONGEST = 1000
#: So many facts are read, or groups merged, while the scope is held.
_READ_AT_ONCE, _MERGED_AT_ONCE = 256, 16
_EMBEDDED_AT_ONCE = 256


class DeduplicationSettings(Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """`[memory.deduplication]`: when facts are compared, and how alike they are merged.

    `likeness` is a cosine of vectors, `word_likeness` one of words where there is no embedder.
    """

    automatic: bool = True
    more_than: Annotated[int, Meta(ge=0)] = 10
    hours: Annotated[float, Meta(ge=0)] = 24.0
    likeness: Share = 0.75
    word_likeness: Share = 0.7


class Group(Struct, frozen=True):
    """Facts that say the same: the one that stays, what it becomes, and those given up for it."""

    kept: Entry
    merged: Entry
    given_up: Sequence[Entry]


class Report(Struct, frozen=True):
    """What a run did, or would do; `skipped` are groups of which something changed meanwhile."""

    groups: Sequence[Group] = ()
    skipped: Sequence[Group] = ()


class _State(Struct):
    last: datetime


class _Found(Struct, frozen=True):
    group: Group
    known: Sequence[Known]


class Deduplication:
    """Merges the facts of a memory that say the same.

    Where the memory has an embedder they are compared by their meaning; otherwise, and where it
    fails, by their words, and `tell` is told why.
    """

    def __init__(
        self,
        memory: Memory,
        settings: DeduplicationSettings = DeduplicationSettings(),
        tell: Callable[[str], None] = ignore,
    ) -> None:
        self._memory = memory
        self._settings = settings
        self._tell = tell

    async def survey(self, scope: Scope) -> Report:
        """What a run would do now; nothing is changed."""
        return Report(tuple(found.group for found in await self._find(scope)))

    async def run(
        self, scope: Scope, *, seconds: float = 10.0, now: datetime | None = None
    ) -> Report:
        """Merge what says the same; waits so many seconds for another process that does, too.

        `ArchiveLocked` where that takes longer.
        """
        if not self._exists(scope):
            return Report()
        path = self._memory.folder / UPKEEP / str(scope)
        with storage_errors(path):
            await asyncio.to_thread(make_folder, path)
        with storage_errors(path), ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, locked(path, seconds=seconds))
            report = await self._merge(scope, await self._find(scope))
            last = now or datetime.now(UTC)
            await asyncio.to_thread(write_last, self._memory.folder, scope, last)
        return report

    async def run_if_due(self, scope: Scope, *, now: datetime | None = None) -> Report | None:
        """Run where facts have become many since a run that was long ago; none where it is not due.

        It is not where another process is at it. Where it is not due this costs a look at a file.
        """
        when = now or datetime.now(UTC)
        if not self._settings.automatic or not self._exists(scope) or not self._is_due(scope, when):
            return None
        facts = await self._memory.change(scope, _look)
        if len(facts) <= self._settings.more_than:
            return None
        with suppress(ArchiveLocked):
            return await self.run(scope, seconds=0.0, now=when)
        return None

    def _exists(self, scope: Scope) -> bool:
        return os.path.isdir(self._memory.folder / ENTRIES / str(scope))

    def _is_due(self, scope: Scope, now: datetime) -> bool:
        last = read_last(self._memory.folder, scope)
        if last is None:
            return True
        # A clock that was wrong once shall not stop it for good.
        return not timedelta(0) <= now - last <= timedelta(hours=self._settings.hours)

    async def _find(self, scope: Scope) -> list[_Found]:
        if not self._exists(scope):
            return []
        known = await self._memory.change(scope, _look)
        read: list[tuple[Entry, Known]] = []
        for start in range(0, len(known), _READ_AT_ONCE):
            batch = known[start : start + _READ_AT_ONCE]
            read += await self._memory.change(scope, partial(_read, batch=batch))
        read.sort(key=lambda pair: rank(pair[0]))
        entries = [entry for entry, _ in read]
        vectors = await self._embed(entries)
        groups = await asyncio.to_thread(self._group, entries, vectors)
        return [_make_found([read[place] for place in group]) for group in groups]

    async def _embed(self, entries: Sequence[Entry]) -> list[array[float]]:
        """A vector for each entry, the mean of those of its passages; none at all by words."""
        if (embedder := self._memory.embedder) is None:
            return []
        passages = [split_passages(entry) for entry in entries]
        texts = [text for some in passages for text in some]
        vectors: list[array[float]] = []
        try:
            for start in range(0, len(texts), _EMBEDDED_AT_ONCE):
                vectors += await embedder.embed(texts[start : start + _EMBEDDED_AT_ONCE])
        except VibeLlmsError as error:
            self._tell(f"facts are compared by their words alone: {error}")
            return []
        every = iter(vectors)
        return [find_mean([next(every) for _ in some]) for some in passages]

    def _group(self, entries: Sequence[Entry], vectors: Sequence[array[float]]) -> list[list[int]]:
        wordings = read_wordings(entries)
        near: Neighbours
        if vectors:
            near = VectorNeighbours(vectors, self._settings.likeness)
        else:
            near = WordNeighbours(wordings, self._settings.word_likeness)
        return find_groups(entries, wordings, near)

    async def _merge(self, scope: Scope, found: Sequence[_Found]) -> Report:
        done: list[Group] = []
        skipped: list[Group] = []
        for start in range(0, len(found), _MERGED_AT_ONCE):
            batch = found[start : start + _MERGED_AT_ONCE]
            merged = await self._memory.change(scope, partial(_carry_out, batch=batch))
            for one, was in zip(batch, merged, strict=True):
                (done if was else skipped).append(one.group)
        return Report(tuple(done), tuple(skipped))


def read_last(folder: Path, scope: Scope) -> datetime | None:
    """When the facts of a scope were deduplicated last, in the memory in a folder."""
    try:
        data = read_file(folder / UPKEEP / str(scope) / _LAST, LARGEST_SETTINGS)
        last = msgspec.json.decode(data, type=_State).last
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return last if last.tzinfo is not None else last.replace(tzinfo=UTC)


def write_last(folder: Path, scope: Scope, last: datetime) -> None:
    """Keep when the facts of a scope were deduplicated last."""
    path = folder / UPKEEP / str(scope)
    with storage_errors(path):
        make_folder(path)
        replace_file(path / _LAST, msgspec.json.encode(_State(last)), durable=False)


def _look(held: HeldScope) -> list[Known]:
    return [known for known in held.entries if known.role == Role.FACT]


def _read(held: HeldScope, batch: Sequence[Known]) -> list[tuple[Entry, Known]]:
    return [
        (entry, known)
        for known in batch
        if (entry := held.read(known)) is not None and 0 < len(entry.content) <= _LONGEST
    ]


def _make_found(members: Sequence[tuple[Entry, Known]]) -> _Found:
    kept, *others = (entry for entry, _ in members)
    group = Group(kept, merge_entries(kept, others), others)
    return _Found(group, [known for _, known in members])


def _carry_out(held: HeldScope, batch: Sequence[_Found]) -> list[bool]:
    """Merge those groups whose files are what they were; whether each was merged."""
    return [_carry_out_one(held, found) for found in batch]


def _carry_out_one(held: HeldScope, found: _Found) -> bool:
    kept, group = found.known[0], found.group
    if not all(held.is_unchanged(known) for known in found.known):
        return False
    if group.merged != group.kept:
        try:
            held.write_over(group.merged, kept)
        except MemoryInvalid:
            # What others wrote into its front matter leaves no room for where it came from.
            return False
    for entry, known in zip(group.given_up, found.known[1:], strict=True):
        held.put_away(entry, known, replaced_by=group.kept.identity)
    return True
