"""Stable JSON form of budgets, shared by the command line and the HTTP API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from msgspec import Struct

from vibe_llms.agents.definitions import read_agents
from vibe_llms.base.configuration import Configuration, RateLimit
from vibe_llms.runs.accounts import NANO, Account, Balance, BudgetStore, end_of, to_nano
from vibe_llms.runs.rates import RateState


class BudgetState(Struct, kw_only=True):
    """A limit of a budget, in tokens or dollars, with its use in the period that ends at `ends`.

    A limit for a minute is in requests or tokens. Its minute is the last one, which does not end.
    """

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


def describe_rates(
    limits: Mapping[str, RateLimit], states: Sequence[RateState]
) -> Sequence[BudgetState]:
    """Return a state for each limit of requests and of tokens in a minute."""
    found: list[BudgetState] = []
    for user, state in zip(limits, states, strict=True):
        limit = state.limit
        for unit, most, used, held, left in (
            ("requests", limit.requests_per_minute, state.requests, 0, state.requests_left),
            (
                *("tokens", limit.tokens_per_minute, state.tokens - state.reserved),
                *(state.reserved, state.tokens_left),
            ),
        ):
            if most is not None:
                found.append(
                    BudgetState(
                        user=user,
                        agent="",
                        period="minute",
                        unit=unit,
                        limit=most,
                        spent=used,
                        reserved=held,
                        left=left or 0,
                        ends=None,
                    )
                )
    return found


def survey_limits(configuration: Configuration, users: Iterable[str]) -> Mapping[str, RateLimit]:
    """Return the limits for a minute of those users that have one."""
    found = {user: configuration.limits.find(user) for user in users}
    return {user: limit for user, limit in found.items() if limit}


async def read_budgets(
    configuration: Configuration, users: Sequence[str], store: BudgetStore
) -> Sequence[BudgetState]:
    """Return the state of the budgets and limits of users, without creating the store."""
    accounts, limits = survey_accounts(configuration, users), survey_limits(configuration, users)
    balances: Sequence[Balance] = [Balance()] * len(accounts)
    states: Sequence[RateState] = [RateState(limit=one) for one in limits.values()]
    if store.exists():
        balances = await store.read(accounts) if accounts else ()
        states = await store.read_rates(limits) if limits else ()
    return [*describe_budgets(accounts, balances), *describe_rates(limits, states)]


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
