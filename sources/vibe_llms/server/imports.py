"""`UserImports`: uploads of other programs' exports, and their import in the background."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.base.credentials import get_logger
from vibe_llms.base.exceptions import VibeLlmsError
from vibe_llms.base.folders import storage_errors, write_all
from vibe_llms.importing.reports import (
    STATUSES,
    ImportedConversation,
    ImportOptions,
    ImportProgress,
    ImportReport,
    ImportReportDocument,
    ProgressHandler,
)
from vibe_llms.messages.identities import produce_identity
from vibe_llms.server.exchanges import UntilDone
from vibe_llms.server.failures import Rejected, describe_failure
from vibe_llms.server.import_records import UPLOAD, ImportRecords, create_upload, held_folder

_LOGGER = get_logger("vibe_llms.server")
#: Imports of all users that one server runs at the same time.
PARALLEL = 2
#: Seconds for which the file of a dry run is kept.
_KEPT_SECONDS = 3600.0
_BEAT_SECONDS = 1.0
#: Parts of an upload are written when they have this size together.
_WRITTEN_BYTES = 1024 * 1024
_LONGEST_NAME_BYTES = 200
_UNSAFE = re.compile(r'[\x00-\x1f\x7f<>:"|?*\ud800-\udfff]')

#: `waiting` for other imports of this server. An import is `interrupted` if its server ended.
ImportState: TypeAlias = Literal[
    "uploading", "waiting", "running", "completed", "failed", "cancelled", "interrupted"
]
_ACTIVE = ("uploading", "waiting", "running")
#: Imports a file, with options and a handler of progress.
ImportWork: TypeAlias = Callable[[Path, ImportOptions, ProgressHandler], Awaitable[ImportReport]]


class ImportDescription(Struct, kw_only=True):
    """An import: its state, and what was done until now.

    `received` are the bytes that were uploaded, `done` of `total` the bytes of conversations that
    were read. `expected` is the number of conversations, which is known after a dry run. `oldest`
    and `newest` are times of last changes. An import is `ready` if its dry run has ended and its
    file is kept, so that it can be started. `error` says why it failed as a whole.
    """

    id: str
    name: str
    created: datetime
    dry_run: bool
    state: ImportState = "uploading"
    received: int = 0
    done: int = 0
    total: int = 0
    conversations: int = 0
    expected: int | None = None
    counts: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(STATUSES, 0))
    skipped: int = 0
    messages: int = 0
    sources: list[str] = []
    oldest: datetime | None = None
    newest: datetime | None = None
    ready: bool = False
    error: str = ""

    @property
    def active(self) -> bool:
        """True if it has not ended."""
        return self.state in _ACTIVE


class UserImports:
    """The imports of one user, one at a time.

    Other servers may have imports of the user too, which are known by their records.
    """

    def __init__(
        self,
        records: ImportRecords,
        folder: Path,
        work: ImportWork,
        slots: asyncio.Semaphore,
        hidden: Sequence[Path],
    ) -> None:
        """Create the imports; `hidden` are folders that errors must not name."""
        self.records = records
        self.folder = folder
        self.work = work
        self.slots = slots
        self.hidden = hidden
        self._beginning = asyncio.Lock()
        self.job: ImportJob | None = None

    @property
    def busy(self) -> bool:
        """True if this server has an import of the user, or the file of one."""
        return self.job is not None

    async def survey(self) -> Sequence[ImportDescription]:
        """Return the latest imports, newest first."""
        found = []
        for identity, stored in (await self.records.survey()).items():
            if self.job is not None and self.job.description.id == identity:
                found.append(self.job.description)
                continue
            try:
                one = msgspec.json.decode(stored.record, type=ImportDescription)
            except msgspec.DecodeError:
                # After a power failure, it may not be whole.
                continue
            if not stored.alive:
                one.ready = False
                if one.active:
                    one.state = "interrupted"
            found.append(one)
        return found

    async def access(self, identity: str) -> ImportDescription:
        """Return an import; `Rejected` if the user has none with this id."""
        for one in await self.survey():
            if one.id == identity:
                return one
        raise Rejected(f"import {identity!r} not found", status=404, code="import_not_found")

    async def load_report(self, identity: str) -> ImportReportDocument:
        """Return the report of an import, without conversations until it has ended."""
        one = await self.access(identity)
        stored = await self.records.load_report(identity)
        if stored is not None and not one.active:
            report = await asyncio.to_thread(msgspec.json.decode, stored, type=ImportReportDocument)
            # After a kill, there is only the report of the dry run before.
            if report.dry_run == one.dry_run:
                return report
        return ImportReportDocument(
            counts=one.counts,
            skipped=one.skipped,
            messages=one.messages,
            dry_run=one.dry_run,
            interrupted=one.state != "completed",
            conversations=(),
        )

    async def upload(
        self, name: str, options: ImportOptions, parts: AsyncIterator[bytes]
    ) -> ImportDescription:
        """Receive a file, and begin to import it in the background.

        Raises `Rejected` if another import of the user has not ended. If the upload fails, nothing
        of it is left.
        """
        async with self._beginning:
            if any(one.active for one in await self.survey()):
                raise Rejected(
                    "another import is in progress; wait until it has ended, or cancel it",
                    status=409,
                    code="import_in_progress",
                )
            if self.job is not None:
                await self.job.release()
            job = ImportJob(self, name, options)
            await job.open()
            self.job = job
        async with AsyncExitStack() as stack:
            stack.push_async_callback(job.discard)
            await job.receive(parts)
            stack.pop_all()
        job.run()
        return job.description

    async def start(self, identity: str) -> ImportDescription:
        """Import the file of a dry run; `Rejected` if it is not kept any more."""
        one = await self.access(identity)
        if not one.ready:
            raise Rejected(
                "it has not ended"
                if one.active
                else "its file is not kept any more; upload it again",
                status=409,
                code="import_not_ready",
            )
        if self.job is not None and self.job.description is one:
            await self.job.start()
        else:
            await self.records.ask(identity, "start")
        return one

    async def cancel(self, identity: str) -> ImportDescription:
        """Stop an import; what was imported stays. Without effect if it has ended."""
        one = await self.access(identity)
        if self.job is not None and self.job.description is one:
            await self.job.cancel()
        elif one.active or one.ready:
            await self.records.ask(identity, "cancel")
        return one

    async def remove(self, identity: str) -> ImportDescription:
        """Delete the record of an import that has ended, and its file."""
        one = await self.access(identity)
        if one.active:
            raise Rejected("it has not ended; cancel it first", status=409, code="import_active")
        if self.job is not None and self.job.description is one:
            await self.job.release()
        await self.records.remove(identity)
        return one

    async def close(self) -> None:
        """Interrupt the import; what was imported stays."""
        if self.job is not None:
            await self.job.close()


class ImportJob:
    """An import that this server holds, with its file."""

    def __init__(self, imports: UserImports, name: str, options: ImportOptions) -> None:
        self._imports = imports
        self._records = imports.records
        self._options = options
        self._outcomes: list[ImportedConversation] = []
        self._stack = ExitStack()
        self._path = Path()
        self._cancelled = False
        self._stopped = asyncio.get_running_loop().create_future()
        self._kept_until = 0.0
        self._storing = asyncio.Lock()
        self._beating: asyncio.Task[None] | None = None
        self._importing: asyncio.Task[ImportReport] | None = None
        self._finishing: asyncio.Task[None] | None = None
        self.description = ImportDescription(
            id=produce_identity(),
            name=name,
            created=datetime.now(UTC),
            dry_run=options.dry_run,
        )

    async def open(self) -> None:
        """Create the folder and the record."""
        one = self.description
        with ExitStack() as stack:
            held = stack.enter_context(held_folder(self._imports.folder, one.id))
            self._path = held / UPLOAD / _clean_name(one.name)
            await self._records.begin(one.id, msgspec.json.encode(one))
            self._stack = stack.pop_all()
        self._beating = asyncio.create_task(self._beat())

    async def receive(self, parts: AsyncIterator[bytes]) -> None:
        """Write the file."""
        cancelled = Rejected("it was cancelled", status=409, code="import_cancelled")
        async with UntilDone(self._stopped, cancelled):
            await self._write(parts)
        if not self.description.received:
            raise Rejected("the file is empty", code="empty_file", param="file")

    async def _write(self, parts: AsyncIterator[bytes]) -> None:
        with storage_errors(self._path):
            descriptor = create_upload(self._path)
            try:
                waiting: list[bytes] = []
                size = 0
                async for part in parts:
                    waiting.append(part)
                    size += len(part)
                    self.description.received += len(part)
                    if size >= _WRITTEN_BYTES:
                        await asyncio.to_thread(write_all, descriptor, b"".join(waiting))
                        waiting.clear()
                        size = 0
                write_all(descriptor, b"".join(waiting))
            finally:
                os.close(descriptor)

    def run(self) -> None:
        """Import the file in the background."""
        self.description.state = "waiting"
        self._importing = asyncio.create_task(self._import(), name="import")
        self._finishing = asyncio.create_task(self._finish(self._importing))

    async def start(self) -> None:
        """Import after the dry run."""
        one = self.description
        self._options = replace(self._options, dry_run=False)
        self._outcomes = []
        one.dry_run = one.ready = False
        one.expected = one.conversations
        one.done = one.conversations = one.messages = one.skipped = 0
        one.counts = dict.fromkeys(STATUSES, 0)
        self.run()
        # After a kill, it must not look like a dry run.
        await self._store(one)

    async def cancel(self) -> None:
        """Stop the upload or the import, or delete the file of a dry run."""
        self._cancelled = True
        if not self._stopped.done():
            self._stopped.set_result(None)
        if self.description.ready:
            self.description.state = "cancelled"
        await self.close()

    async def close(self) -> None:
        """Interrupt the import, and delete the file."""
        if self.description.ready:
            await self.release()
        elif self._importing is not None and self._finishing is not None:
            self._importing.cancel()
            await asyncio.wait([self._finishing])

    async def discard(self) -> None:
        """Delete the file and the record."""
        await self._leave()
        await self._records.remove(self.description.id)

    async def release(self) -> None:
        """Delete the file, and keep the record."""
        self.description.ready = False
        await self._store(self.description)
        await self._leave()

    async def _leave(self) -> None:
        if self._beating is not None and self._beating is not asyncio.current_task():
            self._beating.cancel()
        # To delete a large file takes a while.
        await asyncio.to_thread(self._stack.close)
        if self._imports.job is self:
            self._imports.job = None

    async def _import(self) -> ImportReport:
        async with self._imports.slots:
            self.description.state = "running"
            return await self._imports.work(self._path, self._options, self._note)

    async def _finish(self, importing: asyncio.Task[ImportReport]) -> None:
        """Wait for the import, and store its end.

        The file is deleted unless it can be imported now.
        """
        await asyncio.wait([importing])
        one = self.description
        state: ImportState = "completed"
        if importing.cancelled():
            state = "cancelled" if self._cancelled else "interrupted"
        elif isinstance(error := importing.exception(), Exception):
            state = "failed"
            message = describe_failure(error).message
            one.error = self._hide(message)
            if not isinstance(error, VibeLlmsError):
                _LOGGER.error("an import failed", exc_info=error)
            elif not str(error).startswith(message):
                # The operator is told, because the client is not.
                _LOGGER.warning("an import failed: %s", error)
        else:
            one.done, one.skipped = one.total, importing.result().skipped
        report = ImportReportDocument(
            counts=one.counts,
            skipped=one.skipped,
            messages=one.messages,
            dry_run=one.dry_run,
            interrupted=state != "completed",
            conversations=tuple(self._outcomes),
        )
        ready = state == "completed" and one.dry_run
        encoded = await asyncio.to_thread(msgspec.json.encode, report)
        # Nothing else begins before its end is stored.
        await self._store(replace(one, state=state, ready=ready), encoded)
        self._kept_until = asyncio.get_running_loop().time() + _KEPT_SECONDS
        if not ready:
            await self._leave()
        one.state, one.ready = state, ready

    def _note(self, progress: ImportProgress) -> None:
        one, outcome = self.description, progress.conversation
        reasons = tuple(map(self._hide, outcome.reasons))
        self._outcomes.append(replace(outcome, reasons=reasons))
        one.done, one.total = progress.done, progress.total
        one.conversations += 1
        one.counts[outcome.status] += 1
        one.messages += outcome.messages
        if outcome.source and outcome.source not in one.sources:
            one.sources = [*one.sources, outcome.source]
        if outcome.updated is not None:
            one.oldest = _choose(min, one.oldest, outcome.updated)
            one.newest = _choose(max, one.newest, outcome.updated)

    def _hide(self, text: str) -> str:
        """Remove paths of the server from an error."""
        for path in (self._path.parent, *self._imports.hidden):
            text = text.replace(f"{path}/", "")
        return text

    async def _beat(self) -> None:
        """Store the progress from time to time, and do what other servers want."""
        one = self.description
        while self._imports.job is self:
            await asyncio.sleep(_BEAT_SECONDS)
            match await self._store(one):
                case "cancel":
                    await self.cancel()
                case "start" if one.ready:
                    await self.start()
                case None:
                    await self.cancel()
                case _ if one.ready and asyncio.get_running_loop().time() > self._kept_until:
                    await self.release()

    async def _store(self, one: ImportDescription, report: bytes | None = None) -> str | None:
        """Store the record; return what another server wants, or None if the record is gone."""
        try:
            # In order, because the last one tells how it ended.
            async with self._storing:
                return await self._records.put(one.id, msgspec.json.encode(one), report)
        except VibeLlmsError as error:
            # The next time may succeed.
            _LOGGER.warning("the record of an import was not stored: %s", error)
            return ""


def _choose(
    choose: Callable[[Iterable[datetime]], datetime], one: datetime | None, other: datetime
) -> datetime:
    return other if one is None else choose((one, other))


def _clean_name(name: str) -> str:
    """Return the name of a file without a path, as some importers identify by it.

    >>> _clean_name("../a/b.zip"), _clean_name("..")
    ('b.zip', 'export')
    """
    name = _UNSAFE.sub("_", re.split(r"[/\\]", name)[-1])
    with suppress(UnicodeError):
        name = name.encode()[:_LONGEST_NAME_BYTES].decode("utf-8", "ignore")
    return "export" if name.strip(". ") == "" else name
