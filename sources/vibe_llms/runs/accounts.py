"""What is spent and reserved, as values, and the protocol of the store that all processes share.

Money is counted in billionths of a US dollar, rounded up. The arithmetic is the same for every
store.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Protocol

from msgspec import Struct

from vibe_llms.configuration import Budget, BudgetPeriod

NANO = 10**9


class Amount(Struct, frozen=True):
    """Tokens, and money in billionths of a US dollar."""

    tokens: int = 0
    money: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.tokens + other.tokens, self.money + other.money)


class Account(Struct, frozen=True):
    """A budget of a user: for all requests, or for those of an agent."""

    user: str
    budget: Budget
    agent: str = ""

    def __str__(self) -> str:
        whose = f"the agent {self.agent!r} and the user" if self.agent else "the user"
        return f"the budget of {whose} {self.user!r}"


class Balance(Struct, frozen=True):
    """What was spent from an account in this period, and what is reserved; `ends` is its end."""

    spent: Amount = Amount()
    reserved: Amount = Amount()
    ends: datetime | None = None


class Claim(Struct, frozen=True, kw_only=True):
    """The worst case of a request, which is to be reserved.

    It is `base`, for its input, and for each token of its output `unit`, a price. The output may
    have `most` tokens, or fewer down to `least` if the budgets allow no more. With `hasty` it may
    also have fewer because of what other requests have reserved.
    """

    identity: str
    user: str
    accounts: tuple[Account, ...]
    base: Amount
    unit: int
    least: int
    most: int
    hasty: bool = False

    def measure(self, output: int) -> Amount:
        """The worst case with so many tokens of output."""
        return self.base + Amount(output, output * self.unit)


class Grant(Struct, frozen=True):
    """How many tokens of output were reserved; none if the claim was refused.

    `account` is the one that it does not fit into, and `busy` says that it would fit if nothing
    else were reserved.
    """

    output: int = 0
    busy: bool = False
    account: Account | None = None
    balance: Balance = Balance()


class BudgetStore(Protocol):
    """Adds up what is spent and reserved; several processes use it at the same time.

    A reservation is held until it is sent. When its time is over, it is released if it was held,
    and charged in full if it was sent. Times are the store's own.
    """

    def exists(self) -> bool:
        """Whether anything may have been spent; nothing is created to find that out."""
        ...

    async def reserve(self, claim: Claim, seconds: float) -> Grant:
        """Reserve a claim for so many seconds, if it fits: see `decide`.

        A claim that is reserved already is granted as it was.
        """
        ...

    async def send(self, user: str, identity: str) -> bool:
        """Record, durably, that a request is sent; false if its reservation is over."""
        ...

    async def settle(self, user: str, identity: str, used: Amount | None) -> None:
        """End a reservation, and charge what was used.

        Without that, all that was reserved is charged if it was sent, and nothing if it was not.
        """
        ...

    async def renew(self, user: str, identities: Collection[str], seconds: float) -> None:
        """Keep reservations for so many seconds more."""
        ...

    async def read(self, accounts: Sequence[Account]) -> Sequence[Balance]:
        """What was spent and is reserved now."""
        ...

    async def survey_users(self) -> Sequence[str]:
        """The users who have spent anything."""
        ...

    async def close(self) -> None:
        """Close what is open; safe to call twice."""
        ...


def decide(claim: Claim, balances: Sequence[Balance]) -> Grant:
    """Whether a claim fits into its accounts, and with how many tokens of output.

    If it fits, but not next to what is reserved, it is busy.
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
    """When a period began; periods are those of the calendar, in UTC."""
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
    """When a period ends, if it does."""
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
    """How many units fit into what is left, up to `most`; -1 if nothing is left."""
    if left < 0:
        return -1
    return min(left // unit, most) if unit else most


def to_nano(money: float | None) -> int | None:
    """Dollars in billionths."""
    return None if money is None else int(Decimal(str(money)) * NANO)
