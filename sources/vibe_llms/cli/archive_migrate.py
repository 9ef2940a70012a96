"""The command `archive migrate`: brings the tables of a database to this version."""

from __future__ import annotations

import json
import sys

import click

from vibe_llms.cli.commands import json_option
from vibe_llms.cli.running import asynchronous
from vibe_llms.cli.terminal import note, shown, write, write_json
from vibe_llms.configuration import load_configuration
from vibe_llms.storage.backends import opened_backend


@click.command("migrate")
@json_option
@asynchronous
async def migrate_archive(as_json: bool) -> None:
    """Make or change the tables of the database that [archive] names.

    It connects as the role of `admin-dsn`, which owns the tables, and lets the role of `dsn` use
    them. All steps are applied, or none. A server never does this: it refuses a database that is
    not migrated. Servers of the version before go on during a migration and after it, unless the
    step says otherwise.
    """
    async with opened_backend(load_configuration()) as backend:
        steps = await backend.migrate()
    if as_json:
        write_json(json.dumps({"applied": [*steps]}))
        return
    for step in steps:
        write(sys.stdout, shown(f"applied {step}") + "\n")
    if not steps:
        note("nothing to do: what is kept has the level of this version")
