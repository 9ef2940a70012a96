"""`ChangeFeed`: changes of a user's conversations, runs and imports, also by other processes."""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import TypeAlias

from msgspec import Struct

from vibe_llms.base.exceptions import RunNotFound
from vibe_llms.messages.identities import produce_identity
from vibe_llms.runs.interfaces import UNFINISHED, RunRecord, RunStatus
from vibe_llms.server.imports import ImportState, UserImports
from vibe_llms.session.core import Session
from vibe_llms.storage.interfaces import ConversationVersions

#: Seconds between two looks at the stores while somebody follows.
_POLL_SECONDS = 0.5
_CURSOR = re.compile(r"([0-9a-f]+)-([0-9]{1,15})")
#: Changes that are kept for followers who come back.
_MOST_KEPT = 1000
#: Number of ended runs that are compared; more do not begin and end between two looks.
_MOST_ENDED = 50
#: Number of runs that have not ended that are compared.
_MOST_UNFINISHED = 600


class _Change(Struct, frozen=True, tag_field="change"):
    """A change of something that a user has."""


class ListsChanged(_Change, frozen=True, tag="all"):
    """Anything may have changed: load the lists again."""


class ConversationUpdated(_Change, frozen=True, tag="conversation"):
    """A conversation was created, continued, renamed, tagged, or `removed`."""

    id: str
    removed: bool = False


class RunUpdated(_Change, frozen=True, tag="run"):
    """A run was started or has another status, or calls or questions of it were decided."""

    id: str
    conversation: str
    status: RunStatus


class ImportUpdated(_Change, frozen=True, tag="import"):
    """An import has another state, or has made progress."""

    id: str
    state: ImportState


AnyChange: TypeAlias = ListsChanged | ConversationUpdated | RunUpdated | ImportUpdated


class _RunState(Struct, frozen=True):
    """State of a run that is compared; a difference is a change."""

    conversation: str
    status: RunStatus
    updated: float
    #: Number of calls and questions that wait.
    waiting: int


class ChangeFeed:
    """The latest changes of one user, each with a cursor.

    The stores are looked at only while somebody follows. What changed in the meantime is found when
    the next follower comes.
    """

    def __init__(self, session: Session, imports: UserImports) -> None:
        self._session = session
        self._imports = imports
        # A cursor of another process, or of an earlier feed, is unknown here.
        self._name = produce_identity()[-12:]
        self._kept: deque[AnyChange] = deque(maxlen=_MOST_KEPT)
        self._last = 0
        self._looked = 0.0
        self._looking = asyncio.Lock()
        self._versions: ConversationVersions | None = None
        self._runs: Mapping[str, _RunState] = {}
        #: State and progress of each import.
        self._imported: Mapping[str, tuple[ImportState, int, int]] = {}

    async def follow(
        self, cursor: str, is_ending: Callable[[], bool]
    ) -> AsyncGenerator[tuple[str, AnyChange], None]:
        """Yield the changes after a cursor, each with its own, until the server ends.

        The first one is `ListsChanged` if the cursor is unknown.
        """
        await self._look()
        place = self._find_place(cursor)
        while not is_ending():
            if place is None or place < self._last - len(self._kept):
                place = self._last
                yield self._name_place(place), ListsChanged()
            while self._last - len(self._kept) <= place < self._last:
                change = self._kept[place - self._last]
                place += 1
                yield self._name_place(place), change
            if place == self._last:
                await asyncio.sleep(_POLL_SECONDS)
                await self._look()

    def _name_place(self, place: int) -> str:
        return f"{self._name}-{place}"

    def _find_place(self, cursor: str) -> int | None:
        matched = _CURSOR.fullmatch(cursor)
        if matched is None or matched[1] != self._name or int(matched[2]) > self._last:
            return None
        return int(matched[2])

    async def _look(self) -> None:
        """Note what has changed, unless another follower has just done so."""
        async with self._looking:
            if self._looked and time.monotonic() - self._looked < _POLL_SECONDS / 2:
                return
            versions = await self._session.archive.survey_versions(self._versions)
            runs = await self._survey_runs()
            imported: dict[str, tuple[ImportState, int, int]] = {
                one.id: (one.state, one.received, one.conversations)
                for one in await self._imports.survey()
            }
            changes: list[AnyChange] = []
            if self._versions is not None:
                changes += _compare_versions(self._versions, versions)
                changes += [
                    RunUpdated(run, state.conversation, state.status)
                    for run, state in runs.items()
                    if state != self._runs.get(run)
                ]
                changes += [one async for one in self._find_ended(runs)]
                changes += [
                    ImportUpdated(one, state[0])
                    for one, state in imported.items()
                    if state != self._imported.get(one)
                ]
            self._versions, self._runs, self._imported = versions, runs, imported
            self._kept += changes
            self._last += len(changes)
            self._looked = time.monotonic()

    async def _survey_runs(self) -> Mapping[str, _RunState]:
        """Return the runs that have not ended, and the newest that have."""
        survey = self._session.survey_runs
        found: dict[str, _RunState] = {}
        for record in await survey(statuses=UNFINISHED, limit=_MOST_UNFINISHED):
            found[record.identity] = _describe(record, await self._count_waiting(record))
        for record in await survey(limit=_MOST_ENDED):
            if record.status.ended:
                found[record.identity] = _describe(record, 0)
        return found

    async def _count_waiting(self, record: RunRecord) -> int:
        if record.status is RunStatus.QUEUED:
            return 0
        store = self._session.access_runs().store
        asked = await store.survey_questions(record.user, record.identity)
        calls = await store.survey_approvals(record.user, record.identity)
        return sum(one.answer is None for one in asked) + sum(one.allowed is None for one in calls)

    async def _find_ended(self, now: Mapping[str, _RunState]) -> AsyncGenerator[RunUpdated, None]:
        """Yield the runs that have ended and are too old for the list."""
        for run, state in self._runs.items():
            if run not in now and not state.status.ended:
                try:
                    record = (await self._session.access_run(run)).record
                except RunNotFound:
                    # It was removed with its conversation.
                    continue
                yield RunUpdated(run, record.conversation, record.status)


def _compare_versions(
    before: ConversationVersions, now: ConversationVersions
) -> Iterator[ConversationUpdated]:
    if now is before:
        return
    for identity, version in now.versions.items():
        if before.versions.get(identity) != version:
            yield ConversationUpdated(identity)
    for identity in before.versions.keys() - now.versions.keys():
        yield ConversationUpdated(identity, removed=True)


def _describe(record: RunRecord, waiting: int) -> _RunState:
    return _RunState(record.conversation, record.status, record.updated.timestamp(), waiting)
