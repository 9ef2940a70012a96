"""Stable JSON form of budgets, shared by the command line and the HTTP API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from msgspec import Struct

from vibe_llms.agents.definitions import read_agents
from vibe_llms.base.configuration import Configuration
from vibe_llms.runs.accounts import NANO, Account, Balance, end_of, to_nano


class BudgetState(Struct, kw_only=True):
    """A limit of a budget, in tokens or dollars, with its use in the period that ends at `ends`."""

    user: str
    agent: str
    period: str
    unit: str
    limit: int | float
    spent: int | float
    reserved: int | float
    left: int | float
    ends: str | None


def survey_accounts(configuration: Configuration, users: Iterable[str]) -> Sequence[Account]:
    """Return the accounts of users: their own budgets and their budgets per agent."""
    agents = [agent for agent in read_agents(configuration).values() if agent.budget]
    accounts: list[Account] = []
    for user in users:
        if own := configuration.budgets.find(user):
            accounts.append(Account(user, own))
        accounts += [Account(user, one.budget, one.name) for one in agents if one.budget]
    return accounts


def describe_budgets(
    accounts: Sequence[Account], balances: Sequence[Balance]
) -> Sequence[BudgetState]:
    """Return a state for each token limit and each money limit of the budgets."""
    pairs = zip(accounts, balances, strict=True)
    return [state for account, balance in pairs for state in _describe(account, balance)]


def _describe(account: Account, balance: Balance) -> Iterator[BudgetState]:
    budget, spent, reserved = account.budget, balance.spent, balance.reserved
    ends = end_of(budget.period, datetime.now(UTC))
    for unit, scale, limit, used, held in (
        ("tokens", 1, budget.tokens, spent.tokens, reserved.tokens),
        ("dollars", NANO, to_nano(budget.money), spent.money, reserved.money),
    ):
        if limit is not None:
            yield BudgetState(
                user=account.user,
                agent=account.agent,
                period=budget.period,
                unit=unit,
                limit=_count(limit, scale),
                spent=_count(used, scale),
                reserved=_count(held, scale),
                left=_count(max(limit - used - held, 0), scale),
                ends=None if ends is None else ends.isoformat(),
            )


def _count(amount: int, scale: int) -> int | float:
    return amount if scale == 1 else round(amount / scale, 6)
