"""Import of files, folders and ZIP files: recognition, filters, progress, and the report."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from vibe_llms.base.configuration import IMPORTERS, Configuration, load_configuration
from vibe_llms.base.exceptions import (
    ConfigurationError,
    ConversationMoved,
    ImportUnreadable,
    RequestError,
    StorageError,
    StorageUnavailable,
)
from vibe_llms.importing.exports import Export, ExportFile
from vibe_llms.importing.interfaces import ExportedRecord, Importer, access_importer
from vibe_llms.importing.messages import ExportedConversation
from vibe_llms.importing.reports import (
    ImportedConversation,
    ImportOptions,
    ImportProgress,
    ImportReport,
    Paths,
    ProgressHandler,
    ignore_progress,
)
from vibe_llms.importing.samples import describe_damage, is_candidate, read_sample
from vibe_llms.importing.storing import LONGEST_TITLE, ConversationStorer, ImportTarget
from vibe_llms.importing.writing import ImportWriter
from vibe_llms.messages.hidden import one_line
from vibe_llms.providers.registry import guard_code
from vibe_llms.storage.interfaces import Archive
from vibe_llms.storage.transfer import TransferableArchive

T = TypeVar("T")
#: Outcomes are reported after at most this many.
_REPORTED = 100


class _Recognized(Struct, frozen=True):
    """A file and the importer that reads it."""

    file: ExportFile
    name: str
    module: str
    importer: Importer


async def import_conversations(
    paths: Paths,
    archive: Archive,
    *,
    configuration: Configuration | None = None,
    options: ImportOptions | None = None,
    progress: ProgressHandler | None = None,
) -> ImportReport:
    """Import conversations that other programs exported or stored; return a report.

    `paths` are files, folders and ZIP files of any known programs, which are recognized by the
    structure of their files. All files of one call belong together, such as the parts of a divided
    export. Each conversation is stored for itself: one that cannot be read is refused, and the
    others are imported. Importing again changes nothing, except that what is new is added.

    If the call is cancelled, the conversations so far stay. Raises `ImportUnreadable` before
    anything is stored if a file cannot be opened or nothing is recognized.
    """
    if not isinstance(archive, TransferableArchive):
        raise RequestError(f"{type(archive).__name__} cannot store imported conversations")
    configuration = configuration or load_configuration()
    given = read_paths(paths)
    with await asyncio.to_thread(Export.open, given) as export:
        importers = await asyncio.to_thread(_access_importers, configuration)
        options, progress = options or ImportOptions(), progress or ignore_progress
        run = _Import(export, archive, configuration, options, progress)
        await run.recognize(importers, given)
        return await run.carry_out()


def read_paths(paths: Paths) -> Sequence[Path]:
    """Return the paths to import; `~` is the home folder."""
    found = [paths] if isinstance(paths, str | Path) else [*paths]
    return [Path(one).expanduser() for one in found]


class _Import:
    """One import."""

    def __init__(
        self,
        export: Export,
        archive: TransferableArchive,
        configuration: Configuration,
        options: ImportOptions,
        progress: ProgressHandler,
    ) -> None:
        self._export = export
        self._archive = archive
        self._configuration = configuration
        self._options = options
        self._progress = progress
        self._files: list[_Recognized] = []
        self._writer = ImportWriter(archive)
        self._outcomes: list[ImportedConversation] = []
        #: Outcomes of conversations that wait to be stored, with the bytes that were read.
        self._waiting: list[tuple[ImportedConversation, int]] = []
        #: Outcomes of conversations that are being stored.
        self._storing: list[tuple[ImportedConversation, int]] = []
        self._skipped = 0
        self._done = 0
        self._total = 0

    async def recognize(
        self, importers: Mapping[str, tuple[str, Importer]], given: Sequence[Path]
    ) -> None:
        """Find the importer of each file; raises `ImportUnreadable` if there is none for all."""
        for file in self._export.files:
            try:
                found = await asyncio.to_thread(_recognize, file, importers)
            except (ImportUnreadable, ConfigurationError) as error:
                self._outcomes.append(_refuse("", file.name, str(error)))
                continue
            if found is not None:
                self._files.append(found)
            elif file.path in given:
                damage = await asyncio.to_thread(describe_damage, file)
                reason = _describe_unknown(importers)
                if damage:
                    reason = f"{reason}; its first value cannot be read as JSON: {damage}"
                self._outcomes.append(_refuse("", file.name, reason))
        if not self._files:
            names = ", ".join(str(path) for path in given)
            reasons = {reason for one in self._outcomes for reason in one.reasons}
            why = "; ".join(sorted(reasons)) or _describe_unknown(importers)
            raise ImportUnreadable(f"no conversations found in {names}: {why}")
        self._total = sum(one.file.size for one in self._files)

    async def carry_out(self) -> ImportReport:
        """Import the conversations of all recognized files."""
        try:
            await self._import_files()
        finally:
            # If the import is cancelled, what was read is stored.
            await _finish(self._conclude())
        return ImportReport(
            conversations=tuple(self._outcomes),
            skipped=self._skipped,
            dry_run=self._options.dry_run,
        )

    async def _import_files(self) -> None:
        known = {*await self._archive.survey_identities()}
        for found in self._files:
            target = ImportTarget(
                archive=self._archive,
                writer=self._writer,
                known=known,
                settings=self._configuration.storage,
                source=found.name,
                module=found.module,
                tags=self._options.tags,
                dry_run=self._options.dry_run,
            )
            await self._import_file(found, target)
            self._done += found.file.size

    async def _import_file(self, found: _Recognized, target: ImportTarget) -> None:
        records = found.importer.survey(found.file, self._export)
        while True:
            try:
                record = await asyncio.to_thread(_read_next, found, records)
            except (ImportUnreadable, ConfigurationError) as error:
                refused = _refuse(found.name, found.file.name, str(error))
                self._waiting.append((refused, self._done + found.file.size))
                return
            if record is None:
                return
            outcome = await _finish(self._import_record(found, record, target))
            if outcome is None:
                self._skipped += 1
            else:
                self._waiting.append((outcome, self._done + record.consumed))
            if self._writer.is_full or len(self._waiting) >= _REPORTED:
                await _finish(self._begin_batch())

    async def _begin_batch(self) -> None:
        """Begin to store what is waiting, and report the outcomes of the batch before."""
        await self._writer.begin()
        stored, self._storing, self._waiting = self._storing, self._waiting, []
        self._report(stored)

    async def _conclude(self) -> None:
        """Store and report everything."""
        await self._begin_batch()
        await self._writer.flush()
        stored, self._storing = self._storing, []
        self._report(stored)

    def _report(self, outcomes: Sequence[tuple[ImportedConversation, int]]) -> None:
        for outcome, done in outcomes:
            stored = self._check(outcome)
            self._outcomes.append(stored)
            self._progress(ImportProgress(stored, done, self._total))

    def _check(self, outcome: ImportedConversation) -> ImportedConversation:
        """Return an outcome, or its refusal if the conversation could not be stored."""
        errors = self._writer.errors
        failed = [
            str(errors[one]) for one in (outcome.conversation, *outcome.forks) if one in errors
        ]
        if not failed:
            return outcome
        return replace(outcome, status="refused", conversation="", messages=0, reasons=(failed[0],))

    async def _import_record(
        self, found: _Recognized, record: ExportedRecord, target: ImportTarget
    ) -> ImportedConversation | None:
        """Import a conversation; return None if a filter leaves it out."""
        if record.problem:
            return _refuse(found.name, record.file.name, record.problem)
        title = _find_title(record)
        try:
            conversation = await asyncio.to_thread(self._convert, found, record)
            updated = conversation.find_updated()
            if not self._is_wanted(conversation, updated):
                return None
            title = conversation.title or title
            outcome = await ConversationStorer(conversation, target).store()
            return replace(outcome, updated=updated)
        except StorageUnavailable:
            # The remaining conversations would fail too.
            raise
        except ConversationMoved:
            reason = "it was changed here during the import; import it again"
        except (ConfigurationError, StorageError, RequestError, RecursionError) as error:
            reason = str(error) or "it is nested too deeply"
        return _refuse(found.name, title, reason)

    def _convert(self, found: _Recognized, record: ExportedRecord) -> ExportedConversation:
        with guard_code(f"the importer {found.name!r}"):
            try:
                return found.importer.convert(record, self._export)
            except ValueError as error:
                raise ImportUnreadable(str(error)) from error

    def _is_wanted(self, conversation: ExportedConversation, updated: datetime | None) -> bool:
        options = self._options
        if options.match and options.match.casefold() not in conversation.title.casefold():
            return False
        return options.since is None or updated is None or updated >= options.since


def _access_importers(configuration: Configuration) -> Mapping[str, tuple[str, Importer]]:
    return {row.name: (row.module, access_importer(row)) for row in configuration.rows(IMPORTERS)}


def _recognize(
    file: ExportFile, importers: Mapping[str, tuple[str, Importer]]
) -> _Recognized | None:
    if not is_candidate(file):
        return None
    sample = read_sample(file)
    for name, (module, importer) in importers.items():
        with guard_code(f"the importer {name!r}"):
            if importer.recognize(sample):
                return _Recognized(file, name, module, importer)
    return None


def _read_next(found: _Recognized, records: Iterator[ExportedRecord]) -> ExportedRecord | None:
    with guard_code(f"the importer {found.name!r}"):
        return next(records, None)


def _find_title(record: ExportedRecord) -> str:
    """Return the title of a conversation that may turn out to be unreadable, or its file's name."""
    value = record.value if isinstance(record.value, dict) else {}
    found = value.get("title") or value.get("name")
    if not found or not isinstance(found, str):
        return record.file.name
    return one_line(found)[:LONGEST_TITLE]


def _refuse(source: str, title: str, reason: str) -> ImportedConversation:
    return ImportedConversation(
        source=source, id="", title=title, status="refused", reasons=(reason,)
    )


def _describe_unknown(importers: Mapping[str, object]) -> str:
    return f"it is not an export of a known program ({', '.join(importers)})"


async def _finish(work: Awaitable[T]) -> T:
    """Finish work even if the caller is cancelled, so that no conversation is half stored."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
