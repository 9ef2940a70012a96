"""The command `budgets`: shows the budgets, limits, and spending of users."""

from __future__ import annotations

import json

import click
import msgspec

from vibe_llms.base.configuration import LOCAL, load_configuration
from vibe_llms.cli.running import asynchronous
from vibe_llms.cli.shared_options import json_option
from vibe_llms.cli.terminal import note, write_json, write_row
from vibe_llms.runs.budget_states import read_budgets
from vibe_llms.runs.budgets import produce_budget_store
from vibe_llms.storage.backends import opened_backend

_CELLS = 16
_PERIODS = {"hour": "an hour", "total": "in total"}


@click.command("budgets")
@json_option
@asynchronous
async def list_budgets(as_json: bool) -> None:
    """Show each budget: what was spent, is reserved and is left, and when the period ends.

    Limits are shown with what the last minute had.
    """
    configuration = load_configuration()
    async with opened_backend(configuration) as backend:
        store = produce_budget_store(backend)
        try:
            known = await store.survey_users() if store.exists() else ()
            named = (*configuration.budgets.users, *configuration.limits.users)
            users = dict.fromkeys((LOCAL, *named, *known))
            rows = await read_budgets(configuration, [*users], store)
        finally:
            await store.close()
    if as_json:
        write_json(json.dumps(msgspec.to_builtins(rows), ensure_ascii=False))
        return
    for row in rows:
        whose = f"{row.user} {row.agent}".rstrip()
        ends = f", until {row.ends}" if row.ends else ""
        period = _PERIODS.get(row.period, f"a {row.period}")
        text = f"{row.spent:,} of {row.limit:,} {row.unit} {period}"
        text += f", {row.reserved:,} reserved, {row.left:,} left{ends}"
        write_row(whose, text, cells=_CELLS)
    if not rows:
        note("no budgets; set one in [budgets] or [limits] of config.toml: vibe-llms config edit")


COMMANDS = {"budgets": list_budgets}
