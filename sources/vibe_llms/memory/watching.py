"""Watch the files of a memory, to report edits as they are made, and to version them.

Searches do not need it: each one checks the files first.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from vibe_llms.base.exceptions import PackageMissing
from vibe_llms.base.folders import make_folder, storage_errors
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Scope
from vibe_llms.memory.files import ENTRIES, MemoryFiles
from vibe_llms.memory.places import DELETED, FOLDERS, FileStat

#: Changes within this time are reported together.
_GATHER_MILLISECONDS = 400
#: Time after which changes from before the watch began are reported.
_FIRST_MILLISECONDS = 500
_Stats = Mapping[Scope, Mapping[str, FileStat]]


class Noticed(Struct, frozen=True):
    """Number of files of a scope that were added, changed, and removed, and of its entries."""

    scope: Scope
    added: int
    changed: int
    gone: int
    entries: int


@asynccontextmanager
async def watch(memory: Memory) -> AsyncIterator[AsyncIterator[Noticed]]:
    """Iterate over changes in a memory's folder, by any program, until the context ends.

    The index and the versions are updated before a change is reported. Raise `PackageMissing` if
    the package `watchfiles` is not installed.
    """
    try:
        import watchfiles
    except ImportError as error:
        raise PackageMissing(
            "watching memory",
            package="watchfiles",
            command="python -m pip install 'vibe-llms[watch]'",
        ) from error
    with storage_errors(memory.folder):
        await asyncio.to_thread(make_folder, memory.folder / ENTRIES)
    watching = _Watching(memory, watchfiles)
    await watching.survey_changes()
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
        self._stats: _Stats = {}

    async def survey_changes(self) -> list[Noticed]:
        """Return the changes since the last call."""
        before, now = self._stats, await asyncio.to_thread(self._scan)
        self._stats = now
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
        """Yield each change, until the watch is stopped."""
        while not self.stop.is_set():
            folders = await asyncio.to_thread(self._list_folders)
            # Each folder separately, so that links are not followed.
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
                    # The first time even without changes: some may have come before it began.
                    if begun and not events:
                        continue
                    begun = True
                    for noticed in await self.survey_changes():
                        yield noticed
                    if await asyncio.to_thread(self._list_folders) != folders:
                        break

    def _scan(self) -> _Stats:
        return {
            scope: {
                **self._files.scan(scope),
                **{
                    f"{DELETED}/{place}": stat
                    for place, stat in self._files.scan(scope, deleted=True).items()
                },
            }
            for scope in self._files.survey_scopes()
        }

    def _list_folders(self) -> list[str]:
        """Return the folders that contain entries, now or later, without links."""
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
