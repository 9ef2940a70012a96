"""The options of an import, and its report: one entry for each conversation, and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal, Self, TypeAlias, get_args

from msgspec import Struct

#: Paths to import: files, folders, and ZIP files.
Paths: TypeAlias = str | Path | Iterable[str | Path]
#: Outcome for a conversation. `partly` is imported or extended, but something is missing; `empty`
#: has no messages.
ImportStatus: TypeAlias = Literal["imported", "extended", "partly", "unchanged", "empty", "refused"]
STATUSES: tuple[ImportStatus, ...] = get_args(ImportStatus)


class ImportOptions(Struct, frozen=True, kw_only=True):
    """Options of an import.

    `since` leaves out conversations that were last changed before, `match` those without this text
    in their title. `tags` are added to all. In a dry run nothing is stored.
    """

    since: datetime | None = None
    match: str = ""
    tags: Collection[str] = ()
    dry_run: bool = False


class ImportedConversation(Struct, frozen=True, kw_only=True):
    """One conversation of a source, and what became of it.

    `id` is the source's, `conversation` is ours, empty if it was refused. `forks` are the
    conversations of its other branches. `messages` is the number of messages that were added.
    `updated` is the time of the last change at the source, if that is known. `reasons` says what is
    missing or was left out, or why it was refused.
    """

    source: str
    id: str
    title: str
    status: ImportStatus
    conversation: str = ""
    forks: tuple[str, ...] = ()
    messages: int = 0
    updated: datetime | None = None
    reasons: tuple[str, ...] = ()


class ImportReport(Struct, frozen=True, kw_only=True):
    """The result of an import. `skipped` is the number of conversations that filters left out.

    In a dry run nothing was stored, and the report says what an import would do.
    """

    conversations: tuple[ImportedConversation, ...]
    skipped: int = 0
    dry_run: bool = False

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of conversations by status, including those with none."""
        found = Counter(one.status for one in self.conversations)
        return {status: found[status] for status in STATUSES}

    @property
    def messages(self) -> int:
        """Number of messages that were added."""
        return sum(one.messages for one in self.conversations)


class ImportReportDocument(Struct, frozen=True, kw_only=True):
    """A report as JSON. If the import was `interrupted`, it tells what was done until then."""

    counts: Mapping[str, int]
    skipped: int
    messages: int
    dry_run: bool
    interrupted: bool
    conversations: tuple[ImportedConversation, ...]

    @classmethod
    def from_report(cls, report: ImportReport, *, interrupted: bool = False) -> Self:
        """Create the document of a report."""
        return cls(
            counts=report.counts,
            skipped=report.skipped,
            messages=report.messages,
            dry_run=report.dry_run,
            interrupted=interrupted,
            conversations=report.conversations,
        )


class ImportProgress(Struct, frozen=True):
    """Progress of an import: the latest outcome, and the bytes of conversations read so far."""

    conversation: ImportedConversation
    done: int
    total: int


#: Called after each conversation.
ProgressHandler: TypeAlias = Callable[[ImportProgress], None]


def ignore_progress(progress: ImportProgress) -> None:
    """Report nothing."""
    del progress
