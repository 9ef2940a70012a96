"""Budget amounts, claims, and balances, and the protocol of the budget store.

All processes of an installation share one store. Money is counted in billionths of a US dollar,
rounded up. The arithmetic is the same for every store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Protocol

from msgspec import Struct

from vibe_llms.base.configuration import Budget, BudgetPeriod, RateLimit
from vibe_llms.runs.rates import RateState

NANO = 10**9


class Amount(Struct, frozen=True):
    """Tokens and money (billionths of a US dollar)."""

    tokens: int = 0
    money: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.tokens + other.tokens, self.money + other.money)


class Account(Struct, frozen=True):
    """A user's budget: for all requests, or for the requests of one agent."""

    user: str
    budget: Budget
    agent: str = ""

    def __str__(self) -> str:
        whose = f"the agent {self.agent!r} and the user" if self.agent else "the user"
        return f"the budget of {whose} {self.user!r}"


class Balance(Struct, frozen=True):
    """Amounts spent and reserved in the current period, which ends at `ends`."""

    spent: Amount = Amount()
    reserved: Amount = Amount()
    ends: datetime | None = None


class Claim(Struct, frozen=True, kw_only=True):
    """The worst-case cost of a request, to be reserved.

    The cost is `base` for the input plus `unit` (a price) for each output token. The output is
    limited to `most` tokens, or to fewer, but at least `least`, if the budgets do not allow more.
    If `hasty`, tokens reserved by other requests may also reduce the output. `limit` is that of the
    user for a minute, which counts so many `requests`.
    """

    identity: str
    user: str
    accounts: tuple[Account, ...]
    base: Amount
    unit: int
    least: int
    most: int
    hasty: bool = False
    limit: RateLimit = RateLimit()
    requests: int = 1

    def measure(self, output: int) -> Amount:
        """Return the worst-case cost with this many output tokens."""
        return self.base + Amount(output, output * self.unit)


class Grant(Struct, frozen=True):
    """Number of output tokens reserved, or 0 if the claim was refused.

    `account` is the account that the claim exceeds. If `busy`, the claim would fit if nothing else
    were reserved. `rate` is the user's minute with the claim, or without it if that has to wait.
    """

    output: int = 0
    busy: bool = False
    account: Account | None = None
    balance: Balance = Balance()
    rate: RateState | None = None

    @property
    def refused(self) -> bool:
        """True if nothing was reserved."""
        return self.account is not None or self.limited

    @property
    def limited(self) -> bool:
        """True if the claim exceeds the limit for a minute."""
        return self.rate is not None and self.rate.wait is not None


class BudgetStore(Protocol):
    """Record of spent and reserved amounts, shared by several processes.

    A reservation is held until its request is sent. A reservation that expires is released if it
    was held, and charged in full if it was sent. All times are the store's own.

    In the limit of a user for a minute, a claim counts from its reservation on, for a minute and
    with all its tokens, until it ends with fewer.
    """

    def exists(self) -> bool:
        """Return True if anything may have been spent, without creating the store."""
        ...

    async def reserve(self, claim: Claim, seconds: float) -> Grant:
        """Reserve a claim for this many seconds if it fits the budgets and the limit; see `decide`.

        If the claim is already reserved, return the existing grant.
        """
        ...

    async def send(self, user: str, identity: str) -> bool:
        """Record durably that a request is sent; return False if its reservation has ended."""
        ...

    async def record_usage(
        self, user: str, identity: str, used: Amount | None, *, sent: bool = True
    ) -> None:
        """End a reservation and charge the amount used.

        If `used` is None, charge the whole reservation if the request was sent, and nothing if it
        was not. If not `sent`, it no longer counts in the limit for a minute.
        """
        ...

    async def renew(self, user: str, identities: Collection[str], seconds: float) -> None:
        """Extend reservations by this many seconds."""
        ...

    async def read(self, accounts: Sequence[Account]) -> Sequence[Balance]:
        """Return the current balances of accounts."""
        ...

    async def read_rates(self, limits: Mapping[str, RateLimit]) -> Sequence[RateState]:
        """Return the use of the limits of users in the last minute."""
        ...

    async def survey_users(self) -> Sequence[str]:
        """Return the users who have spent anything."""
        ...

    async def close(self) -> None:
        """Close open resources; may be called twice."""
        ...


def decide(claim: Claim, balances: Sequence[Balance]) -> Grant:
    """Decide if a claim fits into its accounts, and with how many output tokens.

    A claim that would fit without the current reservations is busy.
    """
    possible = free = claim.most
    tightest: Account | None = None
    balance = Balance()
    for account, one in zip(claim.accounts, balances, strict=True):
        for limit, unit, kind in (
            (account.budget.tokens, 1, "tokens"),
            (to_nano(account.budget.money), claim.unit, "money"),
        ):
            if limit is None:
                continue
            left = limit - getattr(one.spent, kind) - getattr(claim.base, kind)
            fits = _divide(left, unit, claim.most)
            if fits < possible or tightest is None:
                tightest, balance = account, one
            possible = min(possible, fits)
            free = min(free, _divide(left - getattr(one.reserved, kind), unit, claim.most))
    if possible < claim.least:
        return Grant(account=tightest, balance=balance)
    if free >= possible:
        return Grant(possible)
    if claim.hasty and free >= claim.least:
        return Grant(free)
    return Grant(busy=True, account=tightest, balance=balance)


def start_of(period: BudgetPeriod, now: datetime) -> datetime:
    """Return the start of the calendar period (UTC) that contains `now`."""
    hour = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    day = hour.replace(hour=0)
    match period:
        case "hour":
            return hour
        case "day":
            return day
        case "week":
            return day - timedelta(days=day.weekday())
        case "month":
            return day.replace(day=1)
        case "total":
            return datetime.fromtimestamp(0, UTC)


def end_of(period: BudgetPeriod, now: datetime) -> datetime | None:
    """Return the end of the period that contains `now`, or None if it does not end."""
    start = start_of(period, now)
    match period:
        case "hour":
            return start + timedelta(hours=1)
        case "day":
            return start + timedelta(days=1)
        case "week":
            return start + timedelta(days=7)
        case "month":
            return (start + timedelta(days=32)).replace(day=1)
        case "total":
            return None


def _divide(left: int, unit: int, most: int) -> int:
    """Return how many units fit into `left`, at most `most`; -1 if `left` is negative."""
    if left < 0:
        return -1
    return min(left // unit, most) if unit else most


def to_nano(money: float | None) -> int | None:
    """Convert dollars to billionths of a dollar."""
    return None if money is None else int(Decimal(str(money)) * NANO)
