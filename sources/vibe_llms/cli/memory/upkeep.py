"""`memory reindex|status|watch`: the whole of it looked at, and its index made anew."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from vibe_llms.cli.memory.ingesting import (
    describe_ingestion,
    encode_ingestion,
    survey_ingestion,
)
from vibe_llms.cli.memory.opening import (
    json_option,
    local_time,
    open_memory,
    print_json,
    progress,
)
from vibe_llms.cli.memory.serving import describe_served, encode_served, survey_served
from vibe_llms.cli.running import run
from vibe_llms.cli.terminal import note, one_line, write
from vibe_llms.configuration import load_configuration
from vibe_llms.memory.core import Memory
from vibe_llms.memory.store import ScopeStatus
from vibe_llms.memory.watching import watch


@click.command("reindex")
@json_option
def reindex(as_json: bool) -> int:
    """Make the index anew from the files."""

    async def work() -> int:
        async with open_memory() as (store, _):
            with progress("making the index") as tell_embedded:
                count = await store.reindex(progress=tell_embedded)
            if as_json:
                print_json({"entries": count})
                return 0
            note(f"indexed {count} {'entry' if count == 1 else 'entries'}")
        return 0

    return run(work())


@click.command("watch", short_help="Print changes of the files as they happen.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON each, for programs.")
def watch_files(as_json: bool) -> int:
    """Print changes of the files, by any program, until Ctrl-C.

    The index and the versions are updated at once, and files that can no longer be read are
    named. Edits are found without this command too.
    """

    async def work() -> int:
        async with open_memory() as (store, _), watch(store) as changes:
            known = await _find_damaged(store)
            note(f"watching {store.folder}; Ctrl-C ends it", dim=True)
            async for one in changes:
                counts = {"added": one.added, "changed": one.changed, "gone": one.gone}
                if as_json:
                    print_json({"scope": str(one.scope), **counts, "entries": one.entries})
                else:
                    changed = ", ".join(
                        f"{count} {name}" for name, count in counts.items() if count
                    )
                    write(sys.stdout, f"{one.scope}: {changed}; {one.entries} remembered\n")
                damaged = await _find_damaged(store)
                for words in damaged:
                    if words not in known:
                        note(f"vibe-llms: {one_line(words)}")
                known = damaged
        return 0

    return run(work())


@click.command("status", short_help="Print where the files lie, and what there is.")
@json_option
def status(as_json: bool) -> int:
    """Print where the files lie, what there is, and what cannot be read."""

    async def work() -> int:
        configuration = load_configuration()
        ingestion = survey_ingestion(configuration)
        async with open_memory() as (store, settings):
            served = await survey_served(configuration, settings)
            scopes = await store.status()
            folder = store.folder
            versions = None if store.versions is None else await store.versions.status()
        if as_json:
            print_json(
                {
                    "folder": str(folder),
                    "scopes": [_encode_status(one) for one in scopes],
                    "versions": msgspec.to_builtins(versions),
                    "ingestion": encode_ingestion(ingestion),
                    "embedder": encode_served(served),
                }
            )
            return 0
        write(sys.stdout, f"{folder}\n")
        for one in scopes:
            write(sys.stdout, f"{one.scope}: {one.entries} remembered, {one.deleted} deleted\n")
            for damaged in sorted(one.damaged, key=str):
                note(f"vibe-llms: {one_line(str(damaged))}")
        if served is not None:
            write(sys.stdout, f"{describe_served(served)}\n")
        for line in describe_ingestion(ingestion):
            write(sys.stdout, f"{line}\n")
        if versions is not None:
            last = "none yet" if versions.last is None else f"the last {local_time(versions.last)}"
            write(sys.stdout, f"versions: one commit per command, tool call and turn; {last}\n")
            if versions.failure:
                since = "" if versions.since is None else f" since {local_time(versions.since)}"
                note(f"vibe-llms: no versions{since}: {one_line(versions.failure)}")
        return 0

    return run(work())


async def _find_damaged(store: Memory) -> Sequence[str]:
    """What cannot be read, in words."""
    return sorted(str(error) for one in await store.status() for error in one.damaged)


def _encode_status(one: ScopeStatus) -> dict[str, Any]:
    damaged: Sequence[str] = sorted(str(error) for error in one.damaged)
    return {
        "scope": str(one.scope),
        "entries": one.entries,
        "deleted": one.deleted,
        "damaged": damaged,
    }
