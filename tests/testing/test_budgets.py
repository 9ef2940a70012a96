"""The contract of a store of budgets: our own keep it, and a store with a bug does not."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.fakes.postgres import temporary_database
from vibe_llms.base.configuration import RateLimit
from vibe_llms.runs import sqlite_budgets
from vibe_llms.runs.accounts import Account, Amount, Balance, Claim, Grant, decide
from vibe_llms.runs.postgres_budgets import PostgresBudgetStore
from vibe_llms.runs.sqlite_budgets import SqliteBudgetStore
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.settings import PostgresSettings
from vibe_llms.testing import check_budget_store


class Hasty(SqliteBudgetStore):
    """It looks for room in one transaction and reserves in another."""

    async def reserve(self, claim: Claim, seconds: float) -> Grant:
        balances = await self.run(
            lambda database: [
                sqlite_budgets._read(database, one, time.time()) for one in claim.accounts
            ]
        )
        grant = decide(claim, balances)
        if grant.account is not None:
            return grant
        unlimited = tuple(
            replace(one, budget=replace(one.budget, tokens=None)) for one in claim.accounts
        )
        wanted = replace(claim, accounts=unlimited, most=grant.output)
        return await super().reserve(wanted, seconds)


class Generous(SqliteBudgetStore):
    """What was sent is free if its process is gone."""

    async def send(self, user: str, identity: str) -> bool:
        def forget(database: sqlite3.Connection) -> None:
            database.execute("update reservations set sent = 0 where identity = ?", (identity,))

        sent = await super().send(user, identity)
        await self.write(forget)
        return sent


class Immortal(SqliteBudgetStore):
    """A reservation that is over is renewed."""

    async def renew(self, user: str, identities: Collection[str], seconds: float) -> None:
        await super().renew(user, identities, max(seconds, 60))


class Open(SqliteBudgetStore):
    """One user settles what another has reserved."""

    async def record_usage(
        self, user: str, identity: str, used: Amount | None, *, sent: bool = True
    ) -> None:
        await super().record_usage(user.removeprefix("not-"), identity, used, sent=sent)


class Single(SqliteBudgetStore):
    """Only the first budget counts."""

    async def reserve(self, claim: Claim, seconds: float) -> Grant:
        return await super().reserve(replace(claim, accounts=claim.accounts[:1]), seconds)


class Late(SqliteBudgetStore):
    """A balance is one of before the reservations that are over were ended."""

    async def read(self, accounts: Sequence[Account]) -> Sequence[Balance]:
        return await self.run(
            lambda database: [sqlite_budgets._read(database, one, time.time()) for one in accounts]
        )


class Unlimited(SqliteBudgetStore):
    """Nothing is limited in a minute."""

    async def reserve(self, claim: Claim, seconds: float) -> Grant:
        return await super().reserve(replace(claim, limit=RateLimit()), seconds)


class Uncorrected(SqliteBudgetStore):
    """The estimate of a request stays in the minute."""

    async def record_usage(
        self, user: str, identity: str, used: Amount | None, *, sent: bool = True
    ) -> None:
        def spoil(database: sqlite3.Connection) -> None:
            database.execute("update rates set settled = 1 where identity = ?", (identity,))

        await self.write(spoil)
        await super().record_usage(user, identity, used, sent=sent)


class Unasked(SqliteBudgetStore):
    """A request that was never sent stays in the minute."""

    async def record_usage(
        self, user: str, identity: str, used: Amount | None, *, sent: bool = True
    ) -> None:
        await super().record_usage(user, identity, used)


BROKEN: dict[Callable[[Path], SqliteBudgetStore], str] = {
    Hasty: "claims of 200 fit",
    Generous: "is not charged in full",
    Immortal: "after a process is gone",
    Open: "another user settles a claim",
    Single: "beyond the budget of an agent",
    Late: "after a process is gone",
    Unlimited: "20 requests fit into a limit of 7",
    Uncorrected: "the minute after the usage",
    Unasked: "was not sent does not give tokens back",
}


async def test_our_own_store_keeps_the_contract(tmp_path: Path) -> None:
    async def open_store() -> SqliteBudgetStore:
        return SqliteBudgetStore(tmp_path / "runs.sqlite")

    await check_budget_store(open_store)


async def test_our_store_in_postgresql_keeps_the_contract() -> None:
    with temporary_database() as place:
        databases = []

        async def open_store() -> PostgresBudgetStore:
            databases.append(Database(PostgresSettings(dsn=place.dsn)))
            return PostgresBudgetStore(databases[-1])

        try:
            await check_budget_store(open_store)
        finally:
            for one in databases:
                await one.close()


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
async def test_a_store_with_a_bug_does_not(
    kind: Callable[[Path], SqliteBudgetStore], tmp_path: Path
) -> None:
    async def open_store() -> SqliteBudgetStore:
        return kind(tmp_path / "runs.sqlite")

    with pytest.raises(AssertionError, match=BROKEN[kind]):
        await check_budget_store(open_store)
