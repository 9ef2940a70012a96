"""`memory ingest`: remembers queued turns, here or in a background process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Struct

from vibe_llms.base.configuration import Configuration, load_configuration
from vibe_llms.base.detaching import detach
from vibe_llms.base.exceptions import StorageError
from vibe_llms.cli.memory.common import (
    local_time,
    opened_journal,
    print_json,
    print_note,
    progress,
)
from vibe_llms.cli.running import asynchronous
from vibe_llms.cli.shared_options import json_option
from vibe_llms.cli.terminal import note
from vibe_llms.memory.hook import MemoryHook
from vibe_llms.memory.settings import read_memory_settings
from vibe_llms.memory.tickets import TicketJournal
from vibe_llms.messages.events import Event, NoticeEvent
from vibe_llms.messages.hidden import one_line
from vibe_llms.opening import open_session

_LOG = "ingestion.log"
#: The background process yields to all others.
_NICENESS = 19


class IngestionStatus(Struct, frozen=True):
    """Numbers of turns that are running, queued or failed, with the earliest time and the error."""

    running: int = 0
    queued: int = 0
    failed: int = 0
    since: datetime | None = None
    failure: str = ""
    process: int | None = None
    log: str = ""

    @property
    def left(self) -> int:
        """Number of turns still to be remembered."""
        return self.running + self.queued + self.failed


@click.command("ingest", short_help="Remember queued turns.")
@click.option("--detached", is_flag=True, hidden=True)
@json_option
@asynchronous
async def ingest(detached: bool, as_json: bool) -> int:
    """Remember the queued turns of earlier conversations, and retry failed ones.

    `chat --memory` with a prompt leaves this to a background process, which `vibe-llms memory
    status` shows. If that process has died, the next command starts another.
    """
    given: Mapping[str, Any] = {}
    if detached:
        os.nice(_NICENESS)
        given = json.loads(sys.stdin.buffer.read() or b"{}")

    count, status = await _ingest(given, detached=detached, quiet=as_json)
    if as_json:
        print_json({"taken_in": count, **msgspec.to_builtins(status)})
    elif not detached:
        turns = "1 turn" if count == 1 else f"{count} turns"
        note(f"processed {turns}" if count or not status.left else "processed nothing")
    for line in () if as_json or detached else describe_ingestion(status):
        note(line)
    return 0


def start_ingestion(
    configuration: Configuration,
    *,
    keys: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> None:
    """Start a background process that remembers queued turns.

    If it cannot be started, print a note; the next command tries again.
    """
    data = json.dumps({"keys": keys or {}, "configuration": overrides or {}}).encode()
    try:
        detach(["memory", "ingest", "--detached"], _log_of(configuration), data=data)
    except OSError as error:
        print_note(f"this will be remembered at the next command: {error.strerror}")


def finish_ingestion() -> None:
    """Start the background process if turns are queued and none is running."""
    configuration = load_configuration()
    status = survey_ingestion(configuration)
    if status.queued and status.process is None and not configuration.memory_waits:
        start_ingestion(configuration)


def survey_ingestion(configuration: Configuration) -> IngestionStatus:
    """Count the turns still to be remembered."""
    with opened_journal(configuration) as journal:
        left = journal.survey()
        worker = journal.find_worker() if left else None
    if not left:
        return IngestionStatus()
    failed = [one.ticket for one in left if one.ticket.failed]
    running = sum(one.held and not one.ticket.failed for one in left)
    times = [one.ticket.entered for one in left if one.ticket.entered is not None]
    failures = [one.ticket.failure for one in left if one.ticket.failure]
    return IngestionStatus(
        running=running,
        queued=len(left) - running - len(failed),
        failed=len(failed),
        since=min(times, default=None),
        failure=failures[-1] if failures else "",
        process=None if worker is None else worker.process,
        log=str(_log_of(configuration)) if _log_of(configuration).exists() else "",
    )


def describe_ingestion(status: IngestionStatus) -> Collection[str]:
    """Describe the status in lines; none if no turns are left."""
    if not status.left:
        return ()
    counts = [("running", status.running), ("queued", status.queued), ("failed", status.failed)]
    words = ", ".join(f"{count} {name}" for name, count in counts if count)
    since = "" if status.since is None else f" since {local_time(status.since)}"
    process = "" if status.process is None else f" (process {status.process})"
    lines = [f"turns to be remembered: {words}{since}{process}"]
    if status.failure:
        lines.append(f"last failure: {one_line(status.failure)}")
    if status.failed:
        lines.append("to retry: vibe-llms memory ingest")
    if status.failure and status.log:
        lines.append(f"log: {status.log}")
    return lines


async def _ingest(
    given: Mapping[str, Any], *, detached: bool, quiet: bool
) -> tuple[int, IngestionStatus]:
    """Remember queued turns; return their number, and the status afterwards."""
    configuration = load_configuration(overrides=given.get("configuration"))
    settings = read_memory_settings(configuration)
    count, tried = 0, set[str]()

    def print_notices(event: Event) -> None:
        if isinstance(event, NoticeEvent):
            print_notice(event.notice.text, detached=detached)

    stack = ExitStack()
    journal = stack.enter_context(opened_journal(configuration))
    try:
        async with asyncio.timeout(settings.background_seconds if detached else None):
            # Turns queued in the meantime have no other process.
            while _is_waiting(journal, settings.user, tried, failed=not detached):
                with journal.working() as mine:
                    if not mine:
                        break
                    async with open_session(
                        event_handler=print_notices,
                        configuration=configuration,
                        keys=given.get("keys"),
                    ) as session:
                        memory = session.access_memory()
                        assert isinstance(memory, MemoryHook)
                        with progress("remembering"):
                            done, names = await memory.catch_up(known=tried, failed=not detached)
                        count += done
                        if tried.issuperset(names):
                            # The next command retries the rest.
                            break
                        tried.update(names)
                        for report in () if quiet or detached else memory.reports:
                            for line in report.describe():
                                note(one_line(line))
    except TimeoutError:
        words = f"ended after {settings.background_seconds:g} s; the next command continues"
        print_notice(words, detached=True)
    except StorageError as error:
        if not detached:
            raise
        print_notice(str(error), detached=True)
    finally:
        stack.close()
    return count, survey_ingestion(configuration)


def _is_waiting(journal: TicketJournal, user: str, tried: Collection[str], *, failed: bool) -> bool:
    """Return True if a user has untried queued turns that no process holds."""
    return any(
        not one.held
        and one.ticket.user == user
        and one.identity not in tried
        and (failed or not one.ticket.failed)
        for one in journal.survey()
    )


def print_notice(text: str, *, detached: bool) -> None:
    """Print a note; in the log with its time."""
    if detached:
        note(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {os.getpid()} {one_line(text)}")
    else:
        print_note(text)


def _log_of(configuration: Configuration) -> Path:
    return configuration.places.state / _LOG
