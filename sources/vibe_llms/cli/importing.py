"""The command `import`: conversations of other programs."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import click
import msgspec

from vibe_llms.base.configuration import LOCAL, load_configuration
from vibe_llms.cli.progress import Waiting
from vibe_llms.cli.running import ENDINGS, asynchronous, signals
from vibe_llms.cli.shared_options import json_option
from vibe_llms.cli.terminal import note, shown, write, write_json
from vibe_llms.importing.core import import_conversations
from vibe_llms.importing.reports import (
    STATUSES,
    ImportedConversation,
    ImportOptions,
    ImportProgress,
    ImportReport,
    ImportReportDocument,
)
from vibe_llms.messages.hidden import one_line
from vibe_llms.storage.backends import opened_backend

_INTERRUPTED = 130
#: Reasons printed for conversations that are imported partly.
_MOST_REASONS = 20


@click.command("import")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path())
@click.option("--dry-run", is_flag=True, help="Store nothing; print what would be imported.")
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]),
    metavar="DATE",
    help="Leave out conversations that were last changed before this date.",
)
@click.option(
    "--match", default="", metavar="TEXT", help="Import only conversations with TEXT in the title."
)
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Tag the conversations.")
@json_option
@asynchronous
async def import_(
    paths: Sequence[str],
    dry_run: bool,
    since: datetime | None,
    match: str,
    tags: Sequence[str],
    as_json: bool,
) -> int:
    """Import conversations from exports and files of other programs.

    PATH is a file, a folder, or a ZIP file. Its program is recognized automatically. Importing
    again adds only what is new. Exits with status 1 if a conversation was refused. Ctrl-C stops
    after the current conversation.
    """
    configuration = load_configuration()
    options = ImportOptions(
        since=None if since is None else since.astimezone(UTC),
        match=match,
        tags=tags,
        dry_run=dry_run,
    )
    waiting = Waiting(enabled=not as_json)
    outcomes: list[ImportedConversation] = []

    def report(progress: ImportProgress) -> None:
        outcomes.append(progress.conversation)
        share = 100 * progress.done // max(1, progress.total)
        waiting.change(f"importing: {len(outcomes):,} conversations, {share} %")

    async with opened_backend(configuration) as backend:
        archive = backend.open_archive(LOCAL, configuration.places)
        try:
            waiting.show("importing")
            work = asyncio.ensure_future(
                import_conversations(
                    paths, archive, configuration=configuration, options=options, progress=report
                )
            )
            with signals(dict.fromkeys((signal.SIGINT, *ENDINGS), work.cancel)):
                await asyncio.wait([work])
        finally:
            waiting.clear()
            await archive.close()
    interrupted = work.cancelled()
    found = (
        ImportReport(conversations=tuple(outcomes), dry_run=dry_run)
        if interrupted
        else work.result()
    )
    if as_json:
        document = ImportReportDocument.from_report(found, interrupted=interrupted)
        write_json(msgspec.json.encode(document).decode())
    else:
        _print(found)
        if interrupted:
            note("interrupted; import again to continue")
    refused = found.counts["refused"]
    return _INTERRUPTED if interrupted else int(refused > 0)


def _print(report: ImportReport) -> None:
    told = 0
    for one in report.conversations:
        if one.status == "refused":
            note(shown(one_line(f"refused: {one.title}: {'; '.join(one.reasons)}")))
        elif one.status == "partly":
            told += 1
            if told <= _MOST_REASONS:
                note(shown(one_line(f"partly: {one.title}: {'; '.join(one.reasons)}")))
    if told > _MOST_REASONS:
        note(f"partly: {told - _MOST_REASONS:,} more; to list all: --json")
    parts = [f"{report.counts[status]:,} {status}" for status in STATUSES if report.counts[status]]
    parts += [f"{report.skipped:,} skipped"] if report.skipped else []
    lead = "would import: " if report.dry_run else ""
    total = f" ({report.messages:,} messages)" if report.messages else ""
    write(sys.stdout, f"{lead}{', '.join(parts) or 'nothing'}{total}\n")


COMMANDS: dict[str, click.Command] = {"import": import_}
