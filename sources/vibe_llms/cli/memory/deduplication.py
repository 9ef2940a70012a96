"""`memory dedup`: facts that say the same are shown, and made one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from vibe_llms.cli.memory.opening import (
    encode_entry,
    json_option,
    keeping,
    open_memory,
    print_entry,
    print_json,
    progress,
    scope_of,
    scope_option,
    tell,
)
from vibe_llms.cli.running import run
from vibe_llms.cli.terminal import note
from vibe_llms.memory.deduplication import Deduplication, Group


@click.command("dedup", short_help="Merge facts that say the same.")
@scope_option
@click.option("-n", "--dry-run", is_flag=True, help="Only show what would be merged.")
@json_option
def deduplicate(scope: str | None, dry_run: bool, as_json: bool) -> int:
    """Make one of facts that say the same; prints each that stays, and what is merged into it.

    Merged entries are deleted: their files are kept among the deleted ones.
    """

    async def work() -> int:
        async with open_memory() as (store, settings):
            deduplication = Deduplication(store, settings.deduplication, tell)
            where = scope_of(scope, settings)
            kept = "not all was merged; the same once more goes on"
            with keeping(lambda: kept), progress("comparing facts"):
                report = await (
                    deduplication.survey(where) if dry_run else deduplication.run(where)
                )
        if as_json:
            print_json(
                {
                    "groups": _encode(report.groups),
                    "skipped": _encode(report.skipped),
                    "dry_run": dry_run,
                }
            )
            return 0
        for group in report.groups:
            _print(group)
        gone = sum(len(group.given_up) for group in report.groups)
        if not report.groups:
            note("no two facts say the same")
        else:
            facts = f"{gone} {'fact' if gone == 1 else 'facts'}"
            note(f"would merge {facts}; nothing was changed" if dry_run else f"merged {facts}")
        if report.skipped:
            groups = (
                "1 group as it is"
                if len(report.skipped) == 1
                else (f"{len(report.skipped)} groups as they are")
            )
            note(f"left {groups}: something changed meanwhile; run it again")
        return 0

    return run(work())


def _print(group: Group) -> None:
    print_entry(group.merged)
    for entry in group.given_up:
        print_entry(entry, indent="  ")


def _encode(groups: Sequence[Group]) -> list[dict[str, Any]]:
    return [
        {
            "kept": encode_entry(group.merged),
            "before": group.kept.content,
            "given_up": [encode_entry(entry) for entry in group.given_up],
        }
        for group in groups
    ]
