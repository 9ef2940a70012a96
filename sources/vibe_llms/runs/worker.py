"""`RunWorker`: claims runs, renews their leases, and continues runs of other workers."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractContextManager, suppress
from contextvars import Context, copy_context

from msgspec.structs import replace

from vibe_llms.base.configuration import RunSettings
from vibe_llms.base.credentials import get_logger
from vibe_llms.base.exceptions import RunUnreadable, StorageError, VibeLlmsError
from vibe_llms.runs.interfaces import Lease, RunQueue, RunRecord, RunStatus
from vibe_llms.runs.job import ConversationOpener, RunJob
from vibe_llms.runs.news import News, wait_for
from vibe_llms.runs.recorder import RunRecorder

_LOGGER = get_logger("vibe_llms.runs")

#: Seconds between polls for orders of other processes, while working and while idle.
_BUSY_SECONDS = 0.2
_IDLE_SECONDS = 0.5
_MOST_EXPECTED = 1000


class RunWorker:
    """Worker on the runs of one user or of all users, several at a time."""

    def __init__(
        self,
        store: RunQueue,
        user: str | None,
        open_conversation: ConversationOpener,
        settings: RunSettings,
        *,
        known: Collection[str] = (),
    ) -> None:
        """Create a worker for runs whose registered tools are all in `known`."""
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
        self._renewing: asyncio.Task[None] | None = None
        self._problem = ""
        self._paused = self._closed = False
        #: Raises an error while the storage is unusable; None while it is usable.
        self.guard: Callable[[], Awaitable[None]] | None = None
        self._creating = 0
        self._failing: set[asyncio.Task[None]] = set()
        self._unreadable: set[str] = set()

    @property
    def busy(self) -> bool:
        """True if this worker has a run."""
        return bool(self._jobs)

    @property
    def users(self) -> Collection[str]:
        """Users whose runs this worker has."""
        return {job.lease.user for job in self._jobs.values()}

    def access_recorder(self, run: str) -> RunRecorder | None:
        """Return the recorder for followers in this process, if this worker has the run."""
        job = self._jobs.get(run)
        return None if job is None else job.recorder

    def expecting(self, run: str) -> AbstractContextManager[asyncio.Event]:
        """Yield an event that is set when the run is claimed here or changes, within the block."""
        self._store.listen(self._news)
        return self._news.expecting(run)

    async def create(self, record: RunRecord, most: int | None = None) -> RunRecord:
        """Store a new run, and work on it at once if this worker may and has capacity.

        Raises `TooManyRuns` if the user has `most` runs queued or running.
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
            self._start_job(mine)
        return mine

    def pause(self) -> None:
        """Stop claiming runs in this process until `resume`; other processes may."""
        self._paused = True

    def resume(self) -> None:
        """Work on runs in this process again."""
        self._paused = False
        self.poke()

    def poke(self) -> None:
        """Start the worker if necessary, and poll for orders now."""
        if not self._paused:
            self._start()
            self._news.orders.set()

    def expect(self, run: str) -> None:
        """Poll for a run that this task started or continued; its spans join the task's trace."""
        self._contexts[run] = copy_context()
        while len(self._contexts) > _MOST_EXPECTED:
            # The oldest was claimed by another process.
            del self._contexts[next(iter(self._contexts))]
        self.poke()

    def _start(self) -> None:
        if self._task is None:
            self._store.listen(self._news)
            # An empty context: runs of other processes are unrelated to the first caller.
            self._task = asyncio.create_task(self._work(), name="worker of runs", context=Context())
            self._renewing = asyncio.create_task(self._renew_leases(), name="leases of runs")
            for task in (self._task, self._renewing):
                task.add_done_callback(_report_fault)

    async def close(self) -> None:
        """Release the runs, so that another worker continues them; may be called twice."""
        self._closed = True
        tasks = [task for task in (self._task, self._renewing) if task is not None]
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
                await self._poll()
                if self._problem:
                    self._problem = ""
                    _LOGGER.warning("polling for runs works again")
            except VibeLlmsError as error:
                # The store may recover soon; otherwise the leases expire.
                if str(error) != self._problem:
                    self._problem = str(error)
                    _LOGGER.warning("cannot poll for runs: %s", error)
            await wait_for(self._news.orders, _BUSY_SECONDS if self._jobs else _IDLE_SECONDS)
            self._news.orders.clear()

    async def _poll(self) -> None:
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
                # When the lease ends, a worker of a newer version may claim it.
                if error.run not in self._unreadable:
                    self._unreadable.add(error.run)
                    _LOGGER.warning("%s", error)
                continue
            if record is None:
                break
            if (earlier := self._jobs.get(record.identity)) is not None:
                # This process was suspended for longer than its lease.
                earlier.lose()
            self._start_job(record, self._contexts.pop(record.identity, None))

    def _start_job(self, record: RunRecord, context: Context | None = None) -> None:
        job = RunJob(self._store, record, self._open, context, answer_seconds=self._answer_seconds)
        self._jobs[record.identity] = job
        self._news.report(record.identity)
        job.task.add_done_callback(functools.partial(self._end_job, job))

    def _end_job(self, job: RunJob, task: asyncio.Task[None]) -> None:
        if len(self._jobs) >= self._parallel:
            self._news.orders.set()
        if self._jobs.get(job.lease.run) is job:
            del self._jobs[job.lease.run]
        job.recorder.leave()
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, StorageError):
            _LOGGER.warning("the run %s could not be recorded: %s", job.lease.run, error)
            ending = job.defer(error)
        else:
            # A bug in this library or a plugin, which another worker would hit too.
            _LOGGER.error("the run %s failed", job.lease.run, exc_info=error)
            ending = job.fail(error)
        self._failing.add(failing := asyncio.create_task(ending))
        failing.add_done_callback(self._failing.discard)

    async def _renew_leases(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            leases = [job.lease for job in self._jobs.values()]
            if leases:
                with suppress(VibeLlmsError):
                    for lost in await self._store.renew(leases, self._lease_seconds):
                        if (job := self._jobs.get(lost.run)) is not None and job.lease == lost:
                            job.lose()


def _report_fault(task: asyncio.Task[None]) -> None:
    """Log the error of a background task that should never end."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOGGER.error("the task %r has failed", task.get_name(), exc_info=error)
