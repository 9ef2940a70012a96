"""Watching the files of a memory: what is edited by hand is taken in while one looks on.

Nobody needs it to find what was edited, since every search looks at the files first. It is for
those who want to be told, and for versions of edits at the time when they are made.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from vibe_llms.exceptions import PackageMissing
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Scope
from vibe_llms.memory.files import DELETED, ENTRIES, FOLDERS, Look, MemoryFiles
from vibe_llms.storage.files import make_folder, storage_errors

#: Changes within so long are told at once.
_GATHER_MILLISECONDS = 400
#: So long after a watch begins, what came before that is looked for.
_FIRST_MILLISECONDS = 500
_Looks = Mapping[Scope, Mapping[str, Look]]


class Noticed(Struct, frozen=True):
    """What has changed in a scope: how many files came, changed and went; what it has now."""

    scope: Scope
    added: int
    changed: int
    gone: int
    entries: int


@asynccontextmanager
async def watch(memory: Memory) -> AsyncIterator[AsyncIterator[Noticed]]:
    """What changes below a memory's folder, by whomever, as an iterator; it ends with the context.

    The index and the versions follow before a change is told. `PackageMissing` where the package
    that watches is not installed.
    """
    try:
        import watchfiles
    except ImportError as error:
        raise PackageMissing(
            "watching a memory",
            package="watchfiles",
            command="python -m pip install 'vibe-llms[watch]'",
        ) from error
    with storage_errors(memory.folder):
        await asyncio.to_thread(make_folder, memory.folder / ENTRIES)
    watching = _Watching(memory, watchfiles)
    await watching.look()
    async with aclosing(watching.follow()) as noticed:
        try:
            yield noticed
        finally:
            watching.stop.set()


class _Watching:
    def __init__(self, memory: Memory, package: Any) -> None:
        self.stop = asyncio.Event()
        self._memory = memory
        self._package = package
        self._files = MemoryFiles(memory.folder)
        self._looks: _Looks = {}

    async def look(self) -> list[Noticed]:
        """What has changed since the last look."""
        before, now = self._looks, await asyncio.to_thread(self._look)
        self._looks = now
        found: list[Noticed] = []
        for scope in sorted({*before, *now}):
            old, new = before.get(scope, {}), now.get(scope, {})
            if old == new:
                continue
            added, gone = len(new.keys() - old.keys()), len(old.keys() - new.keys())
            changed = sum(old[place] != new[place] for place in old.keys() & new.keys())
            entries = await self._memory.refresh(scope)
            found.append(Noticed(scope, added, changed, gone, entries))
        return found

    async def follow(self) -> AsyncGenerator[Noticed, None]:
        """Tell each change, until it shall stop."""
        while not self.stop.is_set():
            folders = await asyncio.to_thread(self._list_folders)
            # Not into links, which might lead anywhere; so each folder is watched by itself.
            changes = self._package.awatch(
                *folders,
                watch_filter=None,
                recursive=False,
                stop_event=self.stop,
                debounce=_GATHER_MILLISECONDS,
                ignore_permission_denied=True,
                rust_timeout=_FIRST_MILLISECONDS,
                yield_on_timeout=True,
            )
            begun = False
            async with aclosing(changes):
                async for events in changes:
                    # The first time also without any: something may have come before it began.
                    if begun and not events:
                        continue
                    begun = True
                    for noticed in await self.look():
                        yield noticed
                    if await asyncio.to_thread(self._list_folders) != folders:
                        break

    def _look(self) -> _Looks:
        return {
            scope: {
                **self._files.look(scope),
                **{
                    f"{DELETED}/{place}": look
                    for place, look in self._files.look(scope, deleted=True).items()
                },
            }
            for scope in self._files.survey_scopes()
        }

    def _list_folders(self) -> list[str]:
        """The folders in which entries lie or may come to lie, without links."""
        base = self._memory.folder / ENTRIES
        wanted = [base]
        for scope in self._files.survey_scopes():
            home = self._files.path_of(scope)
            wanted.append(home)
            for place in (*FOLDERS, *(f"{DELETED}/{folder}" for folder in FOLDERS)):
                parts = place.split("/")
                wanted += [home.joinpath(*parts[: end + 1]) for end in range(len(parts))]
        real = os.path.realpath(base)
        return sorted(
            {
                str(path)
                for path in wanted
                if path.is_dir() and Path(os.path.realpath(path)).is_relative_to(real)
            }
        )
