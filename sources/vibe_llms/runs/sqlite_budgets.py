"""`SqliteBudgetStore`: the budgets of all users, in the SQLite file of runs.

Each change is committed with `synchronous = full` before a request is sent.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from vibe_llms.base.configuration import RateLimit
from vibe_llms.runs.accounts import Account, Amount, Balance, Claim, Grant, decide, end_of, start_of
from vibe_llms.runs.database import RunFile, find_file
from vibe_llms.runs.rates import WINDOW_SECONDS, RateState, spare
from vibe_llms.storage.backends import Backend

#: Created on opening, because files of earlier versions lack these tables.
_TABLES = (
    """
    create table if not exists budgets (
        user text not null, agent text not null, period text not null, start integer not null,
        tokens integer not null, money integer not null,
        primary key (user, agent, period, start)
    ) without rowid
    """,
    """
    create table if not exists reservations (
        user text not null, identity text not null, agent text not null, period text not null,
        start integer not null, tokens integer not null, money integer not null,
        output integer not null, sent integer not null, until real not null,
        primary key (user, identity, agent)
    ) without rowid
    """,
    """
    create table if not exists rates (
        user text not null, identity text not null, entered real not null,
        requests integer not null, tokens integer not null, output integer not null,
        settled integer not null default 0,
        primary key (user, identity)
    ) without rowid
    """,
    "create index if not exists rates_by_age on rates (user, entered)",
)


#: Sums of a user's minute, and the newest entries that have to leave before a claim fits.
_RATE = """
with recent as (
    select entered, requests, tokens, settled,
        sum(requests) over newest as newer_requests,
        sum(tokens) over newest as newer_tokens,
        sum(tokens * settled) over newest as newer_settled
    from rates where user = ?1 and entered > ?2
    window newest as (
        order by entered desc, identity rows between unbounded preceding and current row
    )
)
select coalesce(sum(requests), 0), coalesce(sum(tokens), 0),
    coalesce(sum(tokens * (1 - settled)), 0), max(entered),
    max(case when newer_requests > ?3 then entered end),
    max(case when newer_tokens > ?4 then entered end),
    max(case when newer_settled > ?4 then entered end)
from recent
"""


class SqliteBudgetStore(RunFile):
    """A `BudgetStore` in a file, opened on first use."""

    def __init__(self, path: Path, *, lock_seconds: float = 10.0) -> None:
        super().__init__(path, lock_seconds=lock_seconds, added=_TABLES)

    async def reserve(self, claim: Claim, seconds: float) -> Grant:
        """Reserve a claim for this many seconds if it fits; see `decide`."""

        def work(database: sqlite3.Connection) -> Grant:
            now = time.time()
            _expire(database, claim.user, now)
            known = database.execute(
                "select output from reservations where user = ? and identity = ?",
                (claim.user, claim.identity),
            ).fetchone()
            if known is not None:
                return Grant(known[0])
            grant = decide(claim, [_read(database, one, now) for one in claim.accounts])
            if claim.limit and grant.account is None:
                grant = _enter(database, claim, grant, now)
            if not grant.refused:
                worst = claim.measure(grant.output)
                database.executemany(
                    "insert into reservations values (?, ?, ?, ?, ?, ?, ?, ?, 0, ?)",
                    (
                        (
                            *(claim.user, claim.identity, account.agent, account.budget.period),
                            *(_start(account, now), worst.tokens, worst.money, grant.output),
                            now + seconds,
                        )
                        for account in claim.accounts
                    ),
                )
            return grant

        return await self.write(work)

    async def send(self, user: str, identity: str) -> bool:
        """Record durably that a request is sent; return False if its reservation has ended."""

        def work(database: sqlite3.Connection) -> bool:
            changed = database.execute(
                "update reservations set sent = 1 where user = ? and identity = ? and until >= ?",
                (user, identity, time.time()),
            )
            return changed.rowcount > 0

        return await self.write(work)

    async def record_usage(
        self, user: str, identity: str, used: Amount | None, *, sent: bool = True
    ) -> None:
        """End a reservation and charge the amount used."""

        def work(database: sqlite3.Connection) -> None:
            _record_usage(database, user, identity, used)
            place = (user, identity)
            if not sent:
                database.execute("delete from rates where user = ? and identity = ?", place)
            else:
                database.execute(
                    "update rates set settled = 1, tokens = coalesce(?, tokens) "
                    "where user = ? and identity = ? and not settled",
                    (None if used is None else used.tokens, *place),
                )

        await self.write(work)

    async def renew(self, user: str, identities: Collection[str], seconds: float) -> None:
        """Extend reservations by this many seconds."""

        def work(database: sqlite3.Connection) -> None:
            now = time.time()
            database.executemany(
                "update reservations set until = ? where user = ? and identity = ? and until >= ?",
                ((now + seconds, user, identity, now) for identity in identities),
            )

        await self.write(work)

    async def read(self, accounts: Sequence[Account]) -> Sequence[Balance]:
        """Return the current balances of accounts."""

        def work(database: sqlite3.Connection) -> Sequence[Balance]:
            now = time.time()
            for user in {account.user for account in accounts}:
                _expire(database, user, now)
            return [_read(database, account, now) for account in accounts]

        return await self.write(work)

    async def read_rates(self, limits: Mapping[str, RateLimit]) -> Sequence[RateState]:
        """Return the use of the limits of users in the last minute."""

        def work(database: sqlite3.Connection) -> Sequence[RateState]:
            now = time.time()
            return [_read_rate(database, user, limit, now) for user, limit in limits.items()]

        return await self.run(work)

    async def survey_users(self) -> Sequence[str]:
        """Return the users who have spent anything."""

        def work(database: sqlite3.Connection) -> Sequence[str]:
            rows = database.execute("select user from budgets union select user from rates")
            return [row[0] for row in rows]

        return await self.run(work)


def produce_store(backend: Backend) -> SqliteBudgetStore:
    """Open the store of the budgets of all users."""
    configuration = backend.configuration
    return SqliteBudgetStore(
        find_file(configuration), lock_seconds=configuration.storage.lock_seconds
    )


def _enter(database: sqlite3.Connection, claim: Claim, grant: Grant, now: float) -> Grant:
    """Count a granted claim in the user's minute, unless it has to wait."""
    place = (claim.user, claim.identity)
    known = database.execute(
        "select output from rates where user = ? and identity = ?", place
    ).fetchone()
    if known is not None:
        if not claim.accounts:
            return Grant(known[0])
        # The reservation of a claim that was not sent in time has ended.
        database.execute("delete from rates where user = ? and identity = ?", place)
    # Entries of the future were made before the clock was set back.
    database.execute(
        "delete from rates where user = ? and (entered <= ? or entered > ?)",
        (claim.user, now - WINDOW_SECONDS, now + WINDOW_SECONDS),
    )
    tokens = claim.measure(grant.output).tokens
    state = _read_rate(database, claim.user, claim.limit, now, claim.requests, tokens)
    if state.wait is not None:
        return Grant(rate=state, busy=state.busy)
    database.execute(
        "insert into rates (user, identity, entered, requests, tokens, output) "
        "values (?, ?, ?, ?, ?, ?)",
        (claim.user, claim.identity, now, claim.requests, tokens, grant.output),
    )
    return replace(grant, rate=state.add(claim.requests, tokens))


def _read_rate(
    database: sqlite3.Connection,
    user: str,
    limit: RateLimit,
    now: float,
    requests: int = 0,
    tokens: int = 0,
) -> RateState:
    """Return a user's minute, with the wait of a claim for so many requests and tokens."""
    values = (user, now - WINDOW_SECONDS, *spare(limit, requests, tokens))
    row = database.execute(_RATE, values).fetchone()
    return RateState.from_row(limit, now, row)


def _expire(database: sqlite3.Connection, user: str, now: float) -> None:
    """End the expired reservations of a user."""
    over = database.execute(
        "select distinct identity from reservations where user = ? and until < ?", (user, now)
    ).fetchall()
    for (identity,) in over:
        _record_usage(database, user, identity, None)


def _record_usage(
    database: sqlite3.Connection, user: str, identity: str, used: Amount | None
) -> None:
    one = "from reservations where user = ? and identity = ?"
    rows = database.execute(
        f"select agent, period, start, tokens, money, sent {one}",
        (user, identity),
    ).fetchall()
    database.execute(f"delete {one}", (user, identity))
    for agent, period, start, tokens, money, sent in rows:
        amount = used
        if amount is None:
            amount = Amount(tokens, money) if sent else Amount()
        database.execute(
            "insert into budgets values (?, ?, ?, ?, ?, ?) on conflict do update "
            "set tokens = tokens + excluded.tokens, money = money + excluded.money",
            (user, agent, period, start, amount.tokens, amount.money),
        )


def _read(database: sqlite3.Connection, account: Account, now: float) -> Balance:
    place = (account.user, account.agent, account.budget.period, _start(account, now))
    spent, reserved = (
        database.execute(
            f"select coalesce(sum(tokens), 0), coalesce(sum(money), 0) from {table} "  # noqa: S608
            "where user = ? and agent = ? and period = ? and start = ?",
            place,
        ).fetchone()
        for table in ("budgets", "reservations")
    )
    ends = end_of(account.budget.period, datetime.fromtimestamp(now, UTC))
    return Balance(Amount(*spent), Amount(*reserved), ends)


def _start(account: Account, now: float) -> int:
    return int(start_of(account.budget.period, datetime.fromtimestamp(now, UTC)).timestamp())
