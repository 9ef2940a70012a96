"""The command `archive migrate`: updates the tables of a database to this version."""

from __future__ import annotations

import json
import sys

import click

from vibe_llms.base.configuration import load_configuration
from vibe_llms.cli.questions import confirm
from vibe_llms.cli.running import asynchronous
from vibe_llms.cli.shared_options import json_option, yes_option
from vibe_llms.cli.terminal import note, shown, write, write_json
from vibe_llms.storage.backends import opened_backend

_APPLIED, _GRANTED = "applied ", "granted "


@click.command("migrate")
@yes_option
@json_option
@asynchronous
async def migrate_archive(yes: bool, as_json: bool) -> int:
    """Make or change the tables of the database that [archive] names.

    It connects as the role of `admin-dsn`, which owns the tables, and lets the role of `dsn` use
    them. Either all steps are applied, or none. A server never migrates: it refuses a database that
    is not migrated. Servers of the previous version continue during and after a migration; if they
    cannot, the command says so and asks first.
    """
    refused = False

    def ask(warning: str) -> bool:
        nonlocal refused
        note(warning)
        refused = not confirm("Migrate?", yes=yes)
        return not refused

    async with opened_backend(load_configuration()) as backend:
        done = await backend.migrate(ask)
        address = backend.address
    if refused:
        return 1
    if as_json:
        steps = [one.removeprefix(_APPLIED) for one in done if one.startswith(_APPLIED)]
        granted = [one.removeprefix(_GRANTED) for one in done if one.startswith(_GRANTED)]
        write_json(json.dumps({"archive": address, "applied": steps, "granted": granted}))
        return 0
    for one in done:
        write(sys.stdout, shown(one) + "\n")
    note(f"migrated {address}" if done else f"nothing to do: {address} has this version")
    return 0
