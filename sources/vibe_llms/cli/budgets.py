"""The command `budgets`: what users may spend, and have spent."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from vibe_llms.agents import read_agents
from vibe_llms.cli.commands import json_option
from vibe_llms.cli.running import asynchronous
from vibe_llms.cli.terminal import note, shown, write, write_json
from vibe_llms.cli.text import pad
from vibe_llms.configuration import Configuration, load_configuration
from vibe_llms.runs.accounts import NANO, Account, Balance, end_of, to_nano
from vibe_llms.runs.budgets import produce_budget_store
from vibe_llms.runs.interfaces import LOCAL

_CELLS = 16
_PERIODS = {"hour": "an hour", "total": "in total"}


@click.command("budgets")
@json_option
@asynchronous
async def list_budgets(as_json: bool) -> None:
    """Show each budget: what was spent, is reserved and is left, and when the period ends."""
    configuration = load_configuration()
    store = produce_budget_store(configuration)
    try:
        known = await store.survey_users() if store.exists() else ()
        users = dict.fromkeys((LOCAL, *configuration.budgets.users, *known))
        accounts = _gather(configuration, [*users])
        # Nothing is created to say that nothing was spent.
        balances = await store.read(accounts) if store.exists() else [Balance()] * len(accounts)
    finally:
        await store.close()
    rows = [row for pair in zip(accounts, balances, strict=True) for row in _describe(*pair)]
    if as_json:
        write_json(json.dumps(rows, ensure_ascii=False))
        return
    for row in rows:
        whose = f"{row['user']} {row['agent']}".rstrip()
        ends = f", until {row['ends']}" if row["ends"] else ""
        period = _PERIODS.get(row["period"], f"a {row['period']}")
        text = f"{row['spent']:,} of {row['limit']:,} {row['unit']} {period}"
        text += f", {row['reserved']:,} reserved, {row['left']:,} left{ends}"
        write(sys.stdout, shown(f"{pad(whose, _CELLS)} {text}") + "\n")
    if not rows:
        note("no budgets; set one in [budgets] of config.toml: vibe-llms config edit")


def _gather(configuration: Configuration, users: Sequence[str]) -> Sequence[Account]:
    agents = [agent for agent in read_agents(configuration).values() if agent.budget]
    accounts: list[Account] = []
    for user in users:
        if own := configuration.budgets.find(user):
            accounts.append(Account(user, own))
        accounts += [Account(user, one.budget, one.name) for one in agents if one.budget]
    return accounts


def _describe(account: Account, balance: Balance) -> Iterator[dict[str, Any]]:
    """A row for the tokens of a budget, and one for its money."""
    budget, spent, reserved = account.budget, balance.spent, balance.reserved
    for unit, limit, used, held in (
        ("tokens", budget.tokens, spent.tokens, reserved.tokens),
        ("dollars", to_nano(budget.money), spent.money, reserved.money),
    ):
        if limit is not None:
            scale = 1 if unit == "tokens" else NANO
            names = ("limit", "spent", "reserved", "left")
            amounts = (limit, used, held, max(limit - used - held, 0))
            ends = end_of(budget.period, datetime.now(UTC))
            yield {
                "user": account.user,
                "agent": account.agent,
                "period": budget.period,
                "unit": unit,
                **{
                    name: amount if scale == 1 else round(amount / scale, 6)
                    for name, amount in zip(names, amounts, strict=True)
                },
                "ends": ends and ends.isoformat(),
            }


COMMANDS = {"budgets": list_budgets}
