"""`memory prune`: forgets old entries, or lists them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

import click

from vibe_llms.base.configuration import load_configuration
from vibe_llms.cli.memory.common import (
    count_entries,
    describe_entry,
    encode_entry,
    keeping,
    only_scope_option,
    print_json,
    progress,
    with_memory,
)
from vibe_llms.cli.questions import confirm
from vibe_llms.cli.shared_options import json_option, yes_option
from vibe_llms.cli.terminal import note, write_lines
from vibe_llms.memory.core import Memory
from vibe_llms.memory.entries import Entry, Scope
from vibe_llms.memory.pruning import Retention, survey_old
from vibe_llms.memory.settings import MemorySettings

#: Number of entries that are shown before the question.
_SHOWN = 5


@click.command("prune", short_help="Forget old entries of little importance.")
@click.option(
    "--days",
    type=click.FloatRange(min=0, max=36_500, min_open=True),
    metavar="DAYS",
    help="Age instead of keep-days.",
)
@click.option(
    "--importance",
    type=click.FloatRange(0, 1),
    metavar="NUMBER",
    help="Keep this importance and more; instead of keep-importance.",
)
@only_scope_option
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be removed; change nothing.")
@yes_option
@json_option
@with_memory
async def prune(
    memory: Memory,
    settings: MemorySettings,
    days: float | None,
    importance: float | None,
    scope: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Permanently remove entries that are older than keep-days of [memory].

    The age counts from the last change. Entries with an importance of keep-importance or more are
    kept, and so are versions in git. Without --scope, all scopes are searched. With keep-days, old
    entries are also removed automatically, once a day.
    """
    age = settings.keep_days if days is None else days
    if age is None:
        raise load_configuration().error(
            "no age is set; use --days, or for example: keep-days = 365", "memory", "keep-days"
        )
    rule = Retention.of(age, settings.keep_importance if importance is None else importance)
    scopes = None if scope is None else [Scope.parse(scope)]
    own = Scope.of_user(settings.user)
    gone: Sequence[Entry] = [
        entry for _, entry in await survey_old(memory.store, rule, scopes=scopes)
    ]
    if not dry_run:
        if gone and not yes and not _confirm(gone, own):
            return 1
        with keeping(lambda: "not everything was forgotten; run it again"), progress("forgetting"):
            gone = await memory.prune(rule, scopes=scopes)
    if as_json:
        entries = [encode_entry(one) for one in gone]
        print_json({"forgotten": entries, "count": len(entries), "dry_run": dry_run})
    elif not gone:
        note("no old entries")
    elif dry_run:
        for line in _describe(gone, own, sys.stdout):
            write_lines(line, "    ")
        note(f"would forget {count_entries(len(gone))}; nothing was changed")
    else:
        note(f"forgot {count_entries(len(gone))}")
    return 0


def _confirm(gone: Sequence[Entry], own: Scope) -> bool:
    count = count_entries(len(gone))
    about = [f"old: {count}"]
    about += [f"  {line}" for line in _describe(gone[:_SHOWN], own, sys.stderr)]
    if len(gone) > _SHOWN:
        about.append(f"  and {len(gone) - _SHOWN} more; to see all: --dry-run")
    remedy = f"use --yes to forget {count}, or --dry-run to list it"
    return confirm("Remove it permanently?", about=about, remedy=remedy)


def _describe(entries: Sequence[Entry], own: Scope, stream: TextIO) -> Iterator[str]:
    for entry in entries:
        head = "" if entry.scope == own else f"{entry.scope}: "
        yield describe_entry(entry, stream, indent=head)
