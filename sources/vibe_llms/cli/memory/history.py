"""`memory log`: the changes of entries."""

from __future__ import annotations

import sys
from typing import Any

import click

from vibe_llms.cli.completion import complete_facts
from vibe_llms.cli.memory.opening import (
    encode_entry,
    fit,
    json_option,
    local_time,
    open_memory,
    print_json,
    progress,
    scope_of,
    scope_option,
    short_identity,
    tell,
    visible_scopes,
)
from vibe_llms.cli.running import run
from vibe_llms.cli.terminal import note, one_line, write
from vibe_llms.memory.history import Change, survey_changes


@click.command("log", short_help="Print the changes of all entries, or of one.")
@click.argument("identity", required=False, default="", shell_complete=complete_facts)
@scope_option
@json_option
def log(identity: str, scope: str | None, as_json: bool) -> int:
    """Print the changes of all entries, or of one, the newest last.

    With versions in git every change is known; without them, when each entry was made, last changed
    and deleted.
    """

    async def work() -> int:
        async with open_memory() as (store, settings):
            scopes = [scope_of(scope, settings)]
            if identity:
                scopes = [*await visible_scopes(store, settings, scope)]
            with progress("looking into the past"):
                changes = await survey_changes(store, scopes=scopes, identity=identity, tell=tell)
        if as_json:
            print_json([_encode_change(one) for one in changes])
            return 0
        for one in changes:
            words = one_line(one.entry.content)
            kind = str(one.kind)
            if one.entry.replaced_by and kind == "deleted":
                words += f" (for {one.entry.replaced_by[-12:]})"
            head = f"{local_time(one.time)}  {kind:<12}  {short_identity(one.entry)}  "
            write(sys.stdout, fit(f"{head}{words}", sys.stdout, least=len(head)) + "\n")
        if not changes:
            note("nothing is remembered yet; vibe-llms memory add TEXT")
        return 0

    return run(work())


def _encode_change(one: Change) -> dict[str, Any]:
    return {
        "time": one.time.isoformat(),
        "change": str(one.kind),
        "commit": one.commit,
        "entry": encode_entry(one.entry),
    }
