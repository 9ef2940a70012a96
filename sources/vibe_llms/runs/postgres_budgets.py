"""`PostgresBudgetStore`: the budgets of all users in PostgreSQL.

A row per user is locked while that user's budgets change; users do not wait for each other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from vibe_llms.base.configuration import RateLimit
from vibe_llms.runs.accounts import Account, Amount, Balance, Claim, Grant, decide, end_of, start_of
from vibe_llms.runs.rates import RateState, spare
from vibe_llms.storage.backends import Backend
from vibe_llms.storage.postgres.backend import access_database
from vibe_llms.storage.postgres.database import Connection, Database
from vibe_llms.storage.postgres.pipelines import Statement

#: Locks the row of a user, creating it if necessary.
_LOCK = """
insert into vibe.spenders (owner) values (%s)
on conflict (owner) do update set owner = excluded.owner
returning clock_timestamp()
"""
#: Ends reservations and charges the amount used, or the reserved amount of sent requests.
_RECORD_USAGE = """
with over as (
    delete from vibe.reservations
    where owner = %(owner)s
        and (identity = %(identity)s or (%(identity)s::text is null and until < %(now)s))
    returning agent, period, start, sent, tokens, money
),
spent as (
    insert into vibe.budgets (owner, agent, period, start, tokens, money)
    select %(owner)s, agent, period, start,
        sum(coalesce(%(tokens)s::bigint, case when sent then tokens else 0 end)),
        sum(coalesce(%(money)s::bigint, case when sent then money else 0 end))
    from over group by agent, period, start
    on conflict (owner, agent, period, start) do update
    set tokens = budgets.tokens + excluded.tokens, money = budgets.money + excluded.money
    returning 1
)
update vibe.spenders set spent = true
where owner = %(owner)s and not spent and exists (select from spent)
"""
_READ = """
with all_of as (
    select owner, agent, period, start, true as spent, tokens, money from vibe.budgets
    union all
    select owner, agent, period, start, false, tokens, money from vibe.reservations
)
select
    coalesce(sum(tokens) filter (where spent), 0)::bigint,
    coalesce(sum(money) filter (where spent), 0)::bigint,
    coalesce(sum(tokens) filter (where not spent), 0)::bigint,
    coalesce(sum(money) filter (where not spent), 0)::bigint
from all_of
where owner = %(owner)s and agent = %(agent)s and period = %(period)s and start = %(start)s
"""

#: The grant of a claim if it is reserved, and otherwise its user's minute: sums, the newest entry,
#: and the newest entries that have to leave before the claim fits.
_KNOWN = """
with recent as (
    select entered, requests, tokens, settled,
        sum(requests) over newest as newer_requests,
        sum(tokens) over newest as newer_tokens,
        sum(case when settled then tokens else 0 end) over newest as newer_settled
    from vibe.rates
    where %(limited)s and owner = %(owner)s and entered > %(now)s - interval '1 minute'
        and identity <> %(identity)s
    window newest as (
        order by entered desc, identity rows between unbounded preceding and current row
    )
)
select case when %(priced)s
        then (select output from vibe.reservations
            where owner = %(owner)s and identity = %(identity)s limit 1)
        else (select output from vibe.rates where owner = %(owner)s and identity = %(identity)s)
    end,
    coalesce(sum(requests), 0)::bigint, coalesce(sum(tokens), 0)::bigint,
    coalesce(sum(tokens) filter (where not settled), 0)::bigint,
    extract(epoch from max(entered))::float8,
    extract(epoch from max(entered) filter (
        where newer_requests > %(requests)s::bigint))::float8,
    extract(epoch from max(entered) filter (where newer_tokens > %(tokens)s::bigint))::float8,
    extract(epoch from max(entered) filter (where newer_settled > %(tokens)s::bigint))::float8
from recent
"""
#: Reserves a claim in its accounts, and counts it in its user's minute, without what has left it.
_RESERVE = """
with over as (
    delete from vibe.rates
    where %(limited)s and owner = %(owner)s and entered <= %(now)s - interval '1 minute'
),
counted as (
    insert into vibe.rates (owner, identity, entered, requests, tokens, output)
    select %(owner)s, %(identity)s, %(now)s, %(requests)s, %(tokens)s, %(output)s
    where %(limited)s
    -- The reservation of a claim that was not sent in time has ended.
    on conflict (owner, identity) do update set entered = excluded.entered
),
known as (
    update vibe.spenders set spent = true where %(limited)s and owner = %(owner)s and not spent
)
insert into vibe.reservations
    (owner, identity, agent, period, start, tokens, money, output, until)
select %(owner)s, %(identity)s, agent, period, start, %(tokens)s, %(money)s, %(output)s,
    %(now)s + make_interval(secs => %(seconds)s)
from unnest(%(agents)s::text[], %(periods)s::text[], %(starts)s::timestamptz[])
    as account (agent, period, start)
"""
_SETTLE = """
update vibe.rates set settled = true, tokens = coalesce(%s::bigint, tokens)
where owner = %s and identity = %s and not settled
"""
_LEAVE = "delete from vibe.rates where owner = %s and identity = %s"


class PostgresBudgetStore:
    """A `BudgetStore` in PostgreSQL; each change is durable when its method returns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def exists(self) -> bool:
        """Return True, because only the database knows if anything was spent."""
        return True

    async def reserve(self, claim: Claim, seconds: float) -> Grant:
        """Reserve a claim for this many seconds if it fits; see `decide`."""
        async with self._changing(claim.user) as (connection, now):
            # Budgets may allow fewer tokens, so this is the most that the claim can need.
            known, state = await _read_rate(
                connection, claim.user, claim.limit, now, claim, claim.measure(claim.most).tokens
            )
            if known is not None:
                return Grant(known)
            balances = [await _read(connection, one, now) for one in claim.accounts]
            grant = decide(claim, balances)
            if grant.account is not None:
                return grant
            worst = claim.measure(grant.output)
            if claim.limit:
                if state.wait is not None:
                    return Grant(rate=state, busy=state.busy)
                grant = replace(grant, rate=state.add(claim.requests, worst.tokens))
            places = [_place(account, now) for account in claim.accounts]
            values = {
                "owner": claim.user,
                "identity": claim.identity,
                "limited": bool(claim.limit),
                "requests": claim.requests,
                "tokens": worst.tokens,
                "money": worst.money,
                "output": grant.output,
                "now": now,
                "seconds": seconds,
                "agents": [one["agent"] for one in places],
                "periods": [one["period"] for one in places],
                "starts": [one["start"] for one in places],
            }
            await connection.execute(_RESERVE, values)
        return grant

    async def send(self, user: str, identity: str) -> bool:
        """Record durably that a request is sent; return False if its reservation has ended."""
        changed = await self._database.execute(
            user,
            "update vibe.reservations set sent = true "
            "where owner = %s and identity = %s and until >= clock_timestamp()",
            (user, identity),
        )
        return changed > 0

    async def record_usage(
        self, user: str, identity: str, used: Amount | None, *, sent: bool = True
    ) -> None:
        """End a reservation and charge the amount used."""
        place = (user, identity)
        settle = Statement(user, _SETTLE, (None if used is None else used.tokens, *place))
        values = {
            "owner": user,
            "identity": identity,
            "now": None,
            "tokens": None if used is None else used.tokens,
            "money": None if used is None else used.money,
        }
        await self._database.run(
            [
                Statement(user, _LOCK, (user,)),
                Statement(user, _RECORD_USAGE, values),
                settle if sent else Statement(user, _LEAVE, place),
            ]
        )

    async def renew(self, user: str, identities: Collection[str], seconds: float) -> None:
        """Extend reservations by this many seconds."""
        renew = (
            "update vibe.reservations set until = clock_timestamp() + make_interval(secs => %s) "
        )
        renew += "where owner = %s and identity = any(%s) and until >= clock_timestamp()"
        values = (seconds, user, [*identities])
        await self._database.run([Statement(user, _LOCK, (user,)), Statement(user, renew, values)])

    async def read(self, accounts: Sequence[Account]) -> Sequence[Balance]:
        """Return the current balances of accounts."""
        balances: dict[int, Balance] = {}
        for user in sorted({account.user for account in accounts}):
            async with self._changing(user) as (connection, now):
                for place, account in enumerate(accounts):
                    if account.user == user:
                        balances[place] = await _read(connection, account, now)
        return [balance for _, balance in sorted(balances.items())]

    async def read_rates(self, limits: Mapping[str, RateLimit]) -> Sequence[RateState]:
        """Return the use of the limits of users in the last minute."""
        states: list[RateState] = []
        for user, limit in limits.items():
            async with self._database.transaction(user) as connection:
                cursor = await connection.execute("select clock_timestamp()")
                ((now,),) = await cursor.fetchall()
                states.append((await _read_rate(connection, user, limit, now))[1])
        return states

    async def survey_users(self) -> Sequence[str]:
        """Return the users who have spent anything."""
        rows = await self._database.fetch("", "select owner from vibe.survey_spenders()")
        return [owner for (owner,) in rows]

    async def close(self) -> None:
        """Do nothing; the backend closes the database."""

    @asynccontextmanager
    async def _changing(self, user: str) -> AsyncIterator[tuple[Connection, datetime]]:
        """Lock the budgets of a user in a transaction, and yield it with its time.

        Expired reservations are ended first.
        """
        async with self._database.transaction(user) as connection:
            row = await (await connection.execute(_LOCK, (user,))).fetchone()
            assert row is not None
            now: datetime = row[0]
            over = {"owner": user, "identity": None, "now": now, "tokens": None, "money": None}
            await connection.execute(_RECORD_USAGE, over)
            yield connection, now


def produce_store(backend: Backend) -> PostgresBudgetStore:
    """Open the store of the budgets of all users in a backend's database."""
    return PostgresBudgetStore(access_database(backend))


async def _read_rate(
    connection: Connection,
    user: str,
    limit: RateLimit,
    now: datetime,
    claim: Claim | None = None,
    need: int = 0,
) -> tuple[int | None, RateState]:
    """Return the grant of a known claim, and the user's minute with the wait of the claim."""
    requests, tokens = spare(limit, 0 if claim is None else claim.requests, need)
    values = {
        "owner": user,
        "identity": "" if claim is None else claim.identity,
        "priced": claim is not None and bool(claim.accounts),
        "limited": bool(limit),
        "now": now,
        "requests": requests,
        "tokens": tokens,
    }
    row = await (await connection.execute(_KNOWN, values)).fetchone()
    assert row is not None
    known, *sums = row
    return known, RateState.from_row(limit, now.timestamp(), sums)


async def _read(connection: Connection, account: Account, now: datetime) -> Balance:
    row = await (await connection.execute(_READ, _place(account, now))).fetchone()
    assert row is not None
    tokens, money, *reserved = row
    return Balance(Amount(tokens, money), Amount(*reserved), end_of(account.budget.period, now))


def _place(account: Account, now: datetime) -> Mapping[str, Any]:
    return {
        "owner": account.user,
        "agent": account.agent,
        "period": account.budget.period,
        "start": start_of(account.budget.period, now),
    }
