"""`memory reindex|dedup|status|watch|serve-embedder`: the whole memory, its index and its files."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import click
import msgspec

from vibe_llms.base.configuration import Configuration, load_configuration
from vibe_llms.base.exceptions import ArchiveLocked, ConfigurationError
from vibe_llms.cli.memory.common import (
    count_entries,
    encode_entry,
    keeping,
    local_time,
    print_entry,
    print_json,
    print_note,
    progress,
    scope_of,
    scope_option,
    with_memory,
)
from vibe_llms.cli.memory.ingesting import describe_ingestion, survey_ingestion
from vibe_llms.cli.running import ENDINGS, asynchronous, signals
from vibe_llms.cli.shared_options import json_option
from vibe_llms.cli.terminal import note, write, write_lines
from vibe_llms.conversations.asking import ModelAsker
from vibe_llms.embedding.interfaces import LoadingEmbedder
from vibe_llms.embedding.rows import produce_embedder
from vibe_llms.embedding.serving import EmbedderServer, Served, find_server
from vibe_llms.memory.core import Memory
from vibe_llms.memory.deduplication import Deduplication, Group
from vibe_llms.memory.settings import MemorySettings, read_memory_settings
from vibe_llms.memory.store import ScopeStatus
from vibe_llms.memory.watching import watch
from vibe_llms.messages.hidden import one_line
from vibe_llms.opening import open_session

#: A server that another command starts yields to all other processes.
_NICENESS = 5


@click.command("reindex")
@json_option
@with_memory
async def reindex(memory: Memory, _: MemorySettings, as_json: bool) -> None:
    """Rebuild the index from the files."""
    with progress("building the index"):
        count = await memory.reindex()
    if as_json:
        print_json({"entries": count})
    else:
        note(f"indexed {count_entries(count)}")


@click.command("dedup", short_help="Merge duplicate facts.")
@scope_option
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be merged; change nothing.")
@click.option("-m", "--model", metavar="MODEL", help="Ask this model which facts mean the same.")
@json_option
@with_memory
async def deduplicate(
    memory: Memory,
    settings: MemorySettings,
    scope: str | None,
    dry_run: bool,
    model: str | None,
    as_json: bool,
) -> None:
    """Merge duplicate facts; prints each fact that is kept and those merged into it.

    Facts with the same words are merged. With -m, or `model` in `[memory.ingestion]`, a model is
    asked which other facts mean the same. The files of merged facts are kept as deleted.
    """
    async with AsyncExitStack() as stack:
        asker = None
        if chosen := model or settings.ingestion.model:
            session = await stack.enter_async_context(open_session())
            asker = ModelAsker(
                await session.access_model(chosen), output_tokens=settings.ingestion.output_tokens
            )
        deduplication = Deduplication(
            memory,
            settings.deduplication,
            print_note,
            asker=asker,
            seconds=settings.ingestion.timeout_seconds,
        )
        where = scope_of(scope, settings)
        kept = "not all facts were merged; run it again to continue"
        with keeping(lambda: kept), progress("comparing facts"):
            report = await (deduplication.survey(where) if dry_run else deduplication.run(where))
    if as_json:
        groups, skipped = _encode_groups(report.groups), _encode_groups(report.skipped)
        print_json({"groups": groups, "skipped": skipped, "dry_run": dry_run})
        return
    for group in report.groups:
        print_entry(group.merged)
        for entry in group.deleted:
            print_entry(entry, indent="  ")
    gone = sum(len(group.deleted) for group in report.groups)
    facts = f"{gone} {'fact' if gone == 1 else 'facts'}"
    if not report.groups:
        note("no duplicate facts")
    else:
        note(f"would merge {facts}; nothing was changed" if dry_run else f"merged {facts}")
    if left := len(report.skipped):
        note(f"skipped {left} {'group' if left == 1 else 'groups'} that changed; run it again")


@click.command("status", short_help="Print the folder and the state of memory.")
@json_option
@with_memory
async def status(memory: Memory, settings: MemorySettings, as_json: bool) -> None:
    """Print where memory is kept, its scopes, pending work and unreadable files."""
    configuration = load_configuration()
    ingestion = survey_ingestion(configuration)
    served = await survey_served(configuration, settings)
    scopes = await memory.status()
    versions = None if memory.versions is None else await memory.versions.status()
    if as_json:
        print_json(
            {
                "folder": memory.store.address,
                "scopes": [_encode_status(one) for one in scopes],
                "versions": msgspec.to_builtins(versions),
                "ingestion": msgspec.to_builtins(ingestion),
                "embedder": msgspec.to_builtins(served),
            }
        )
        return
    lines = [memory.store.address]
    for one in scopes:
        lines.append(f"{one.scope}: {one.entries} remembered, {one.deleted} deleted")
    if served is not None:
        lines.append(describe_served(served))
    lines += describe_ingestion(ingestion)
    if versions is not None:
        last = "none yet" if versions.last is None else f"the last {local_time(versions.last)}"
        lines.append(f"versions: one commit per command, tool call and turn; {last}")
    for line in lines:
        write_lines(line, "    " if ": " in line else "")
    for error in await _find_damaged(memory):
        note(f"vibe-llms: {one_line(error)}")
    if versions is not None and versions.failure:
        since = "" if versions.since is None else f" since {local_time(versions.since)}"
        note(f"vibe-llms: no versions{since}: {one_line(versions.failure)}")


@click.command("watch", short_help="Print changes to the files as they happen.")
@json_option
@with_memory
async def watch_files(memory: Memory, _: MemorySettings, as_json: bool) -> None:
    """Print changes to the files by any program, until Ctrl-C.

    The index and the versions are updated at once, and unreadable files are reported. Edits are
    also found without this command.
    """
    async with watch(memory) as changes:
        known = await _find_damaged(memory)
        note(f"watching {memory.folder}; Ctrl-C ends it", dim=True)
        async for one in changes:
            counts = {"added": one.added, "changed": one.changed, "gone": one.gone}
            if as_json:
                print_json({"scope": str(one.scope), **counts, "entries": one.entries})
            else:
                changed = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
                write(sys.stdout, f"{one.scope}: {changed}; {one.entries} remembered\n")
            damaged = await _find_damaged(memory)
            for words in damaged:
                if words not in known:
                    note(f"vibe-llms: {one_line(words)}")
            known = damaged


async def _find_damaged(memory: Memory) -> Sequence[str]:
    """Return the errors of unreadable files."""
    return sorted(str(error) for one in await memory.status() for error in one.damaged)


def _encode_status(one: ScopeStatus) -> dict[str, Any]:
    return {
        "scope": str(one.scope),
        "entries": one.entries,
        "deleted": one.deleted,
        "damaged": sorted(str(error) for error in one.damaged),
    }


def _encode_groups(groups: Sequence[Group]) -> list[dict[str, Any]]:
    return [
        {
            "kept": encode_entry(group.merged),
            "before": group.kept.content,
            "given_up": [encode_entry(entry) for entry in group.deleted],
        }
        for group in groups
    ]


@click.command("serve-embedder", short_help="Keep the embedding model loaded.")
@click.option(
    "--idle-minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    metavar="MINUTES",
    show_default=True,
    help="Exit after this time without a request.",
)
@click.option("--embedder", metavar="ROW[/MODEL]", help="Use this embedder.")
@click.option("--detached", is_flag=True, hidden=True)
@asynchronous
async def serve_embedder(idle_minutes: float, embedder: str | None, detached: bool) -> int:
    """Keep the embedding model loaded for other commands, until Ctrl-C.

    They reach it through a socket that only you can use. To start it automatically, set
    keep-loaded-minutes in [memory].
    """
    if detached:
        os.nice(_NICENESS)

    configuration = load_configuration()
    settings = read_memory_settings(configuration)
    address = embedder or settings.embedder
    if not address:
        raise configuration.error(
            "no embedder is set; for a local one: embedder = 'onnx'",
            "memory",
            "embedder",
        )
    strict = produce_embedder(configuration, address, notify=print_note, served=False)
    try:
        if not isinstance(strict.bare, LoadingEmbedder):
            raise ConfigurationError(
                f"{address} does not load a model, so there is nothing to keep loaded"
            )
        await strict.inquire()
        server = EmbedderServer(strict.bare, configuration.places, idle_minutes=idle_minutes)
        await _serve(server, configuration, strict.bare.model, detached=detached)
    finally:
        await strict.close()
    return 0


async def _serve(
    server: EmbedderServer, configuration: Configuration, model: str, *, detached: bool
) -> None:
    with ExitStack() as stack:
        stack.enter_context(progress(f"loading {model}"))

        def report_ready() -> None:
            stack.close()
            if not detached:
                note(f"serving {model}; Ctrl-C ends it")

        task = asyncio.ensure_future(server.serve(report_ready))
        try:
            with signals(dict.fromkeys((signal.SIGINT, *ENDINGS), task.cancel)):
                await task
        except asyncio.CancelledError:
            return
        except ArchiveLocked:
            served = await find_server(configuration.places, model)
            by = "another process" if served is None else f"process {served.process}"
            note(f"{model} is already served by {by}")
            return
    if not detached:
        note("ended: idle")


async def survey_served(configuration: Configuration, settings: MemorySettings) -> Served | None:
    """Find the process that keeps the embedding model loaded, if any."""
    if not settings.embedder:
        return None
    embedder = produce_embedder(configuration, settings.embedder, served=False)
    try:
        if not isinstance(embedder.bare, LoadingEmbedder):
            return None
        return await find_server(configuration.places, embedder.bare.model)
    finally:
        await embedder.close()


def describe_served(served: Served) -> str:
    """Describe the process in one line."""
    return (
        f"embedder: {served.model}, kept loaded by process {served.process} since "
        f"{local_time(served.since)}, until it is idle for {served.idle_minutes:g} minutes"
    )
