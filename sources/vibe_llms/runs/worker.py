"""Works on runs: claims them, holds their leases, continues what other workers left."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractContextManager, suppress
from contextvars import Context, copy_context

from msgspec.structs import replace

from vibe_llms.configuration import RunSettings
from vibe_llms.credentials import get_logger
from vibe_llms.exceptions import RunUnreadable, StorageError, VibeLlmsError
from vibe_llms.runs.interfaces import Lease, RunRecord, RunStatus, RunStore
from vibe_llms.runs.job import ConversationOpener, RunJob
from vibe_llms.runs.news import News, wait_for
from vibe_llms.runs.recorder import RunRecorder

_LOGGER = get_logger("vibe_llms.runs")

#: How often a worker looks for orders of other processes while it works, and while it does not.
_BUSY_SECONDS = 0.2
_IDLE_SECONDS = 0.5
_EXPECTED = 1000


class RunWorker:
    """Works on the runs of one user, or of all, several at the same time."""

    def __init__(
        self,
        store: RunStore,
        user: str | None,
        open_conversation: ConversationOpener,
        settings: RunSettings,
        *,
        known: Collection[str] = (),
    ) -> None:
        """A worker for runs that need no registered tools besides those that are `known`."""
        self._known = known
        self._store = store
        self._user = user
        self._open = open_conversation
        self._lease_seconds = settings.lease_seconds
        self._parallel = settings.parallel
        self._answer_seconds = settings.answer_seconds
        self._jobs: dict[str, RunJob] = {}
        self._contexts: dict[str, Context] = {}
        self._news = News()
        self._task: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._problem = ""
        self._paused = self._closed = False
        #: Raises an error while what is kept cannot be used; None while it can, as far as is known.
        self.guard: Callable[[], Awaitable[None]] | None = None
        self._creating = 0
        self._failing: set[asyncio.Task[None]] = set()
        self._unreadable: set[str] = set()

    @property
    def busy(self) -> bool:
        """Whether it has a run."""
        return bool(self._jobs)

    @property
    def users(self) -> Collection[str]:
        """Whose runs it has."""
        return {job.lease.user for job in self._jobs.values()}

    def access_recorder(self, run: str) -> RunRecorder | None:
        """What followers in this process listen to, if this worker has the run."""
        job = self._jobs.get(run)
        return None if job is None else job.recorder

    def expecting(self, run: str) -> AbstractContextManager[asyncio.Event]:
        """An event that is set when it claims a run, or hears of it, within the block."""
        self._store.listen(self._news)
        return self._news.expecting(run)

    async def create(self, record: RunRecord, most: int | None = None) -> RunRecord:
        """Keep a new run, and work on it at once if this worker may and has room.

        `TooManyRuns` if its user has `most` of them.
        """
        if self.guard is not None:
            # A run that cannot be recorded would leave its client waiting.
            await self.guard()
        if self._paused or len(self._jobs) + self._creating >= self._parallel:
            await self._store.create(record, most=most)
            self.expect(record.identity)
            return record
        mine = replace(record, status=RunStatus.RUNNING, epoch=1)
        self._creating += 1
        try:
            await self._store.create(mine, self._lease_seconds, most=most)
        finally:
            self._creating -= 1
        if self._closed:
            await self._store.release(Lease(mine.user, mine.identity, mine.epoch))
        else:
            self._start()
            self._take(mine)
        return mine

    def pause(self) -> None:
        """Claim no runs in this process until `resume`; they are left to others."""
        self._paused = True

    def resume(self) -> None:
        """Work on runs in this process again."""
        self._paused = False
        self.poke()

    def poke(self) -> None:
        """Start if it has not, and look for orders now."""
        if not self._paused:
            self._start()
            self._news.orders.set()

    def expect(self, run: str) -> None:
        """Look for a run that begins or goes on because of this task, within whose span it lies."""
        self._contexts[run] = copy_context()
        while len(self._contexts) > _EXPECTED:
            # Another process has claimed the oldest.
            del self._contexts[next(iter(self._contexts))]
        self.poke()

    def _start(self) -> None:
        if self._task is None:
            self._store.listen(self._news)
            # In no context: a run of another process has nothing to do with who asked first.
            self._task = asyncio.create_task(self._work(), name="worker of runs", context=Context())
            self._beating = asyncio.create_task(self._beat(), name="leases of runs")
            for task in (self._task, self._beating):
                task.add_done_callback(_report_fault)

    async def close(self) -> None:
        """Give back the runs it has, so that another worker continues them; safe to call twice."""
        self._closed = True
        tasks = [task for task in (self._task, self._beating) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        jobs = [*self._jobs.values()]
        for job in jobs:
            job.give_back()
        await asyncio.gather(*(job.task for job in jobs), return_exceptions=True)
        await asyncio.gather(*self._failing, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            try:
                await self._look()
                if self._problem:
                    self._problem = ""
                    _LOGGER.warning("runs are looked for again")
            except VibeLlmsError as error:
                # The store may be back in a moment; the leases end if it is not.
                if str(error) != self._problem:
                    self._problem = str(error)
                    _LOGGER.warning("runs cannot be looked for: %s", error)
            await wait_for(self._news.orders, _BUSY_SECONDS if self._jobs else _IDLE_SECONDS)
            self._news.orders.clear()

    async def _look(self) -> None:
        leases = [job.lease for job in self._jobs.values()]
        orders = await self._store.read_orders(self._user, leases, known=self._known)
        for run in orders.cancel:
            if run in self._jobs:
                self._jobs[run].cancel()
        may_claim = not self._paused and self.guard is None
        while orders.claimable and may_claim and len(self._jobs) < self._parallel:
            try:
                record = await self._store.claim(self._user, self._lease_seconds, known=self._known)
            except RunUnreadable as error:
                # When the lease ends, a worker of a newer version may take it.
                if error.run not in self._unreadable:
                    self._unreadable.add(error.run)
                    _LOGGER.warning("%s", error)
                continue
            if record is None:
                break
            if (earlier := self._jobs.get(record.identity)) is not None:
                # This process was stopped for longer than its lease.
                earlier.lose()
            self._take(record, self._contexts.pop(record.identity, None))

    def _take(self, record: RunRecord, context: Context | None = None) -> None:
        job = RunJob(
            *(self._store, record, self._open, context), answer_seconds=self._answer_seconds
        )
        self._jobs[record.identity] = job
        self._news.report(record.identity)
        job.task.add_done_callback(functools.partial(self._forget, job))

    def _forget(self, job: RunJob, task: asyncio.Task[None]) -> None:
        if len(self._jobs) >= self._parallel:
            self._news.orders.set()
        if self._jobs.get(job.lease.run) is job:
            del self._jobs[job.lease.run]
        job.recorder.leave()
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, StorageError):
            _LOGGER.warning("the run %s could not be recorded: %s", job.lease.run, error)
            ending = job.put_off(error)
        else:
            # A fault in this library or in a plugin: another worker would meet it too.
            _LOGGER.error("the run %s failed", job.lease.run, exc_info=error)
            ending = job.fail(error)
        self._failing.add(failing := asyncio.create_task(ending))
        failing.add_done_callback(self._failing.discard)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            leases = [job.lease for job in self._jobs.values()]
            if leases:
                with suppress(VibeLlmsError):
                    for lost in await self._store.renew(leases, self._lease_seconds):
                        if (job := self._jobs.get(lost.run)) is not None and job.lease == lost:
                            job.lose()


def _report_fault(task: asyncio.Task[None]) -> None:
    """Log why a task that should not end has ended."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOGGER.error("the task %r has failed", task.get_name(), exc_info=error)
