"""Servers whose clocks differ: what they compare are the times of the database."""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.fakes.postgres import temporary_database
from vibe_llms.base.configuration import Budget
from vibe_llms.base.exceptions import LeaseLost
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.runs.accounts import Account, Amount, Claim
from vibe_llms.runs.interfaces import Lease, Recipe, RunRecord, RunStatus
from vibe_llms.runs.postgres import PostgresRunStore
from vibe_llms.runs.postgres_budgets import PostgresBudgetStore
from vibe_llms.storage.interfaces import Details
from vibe_llms.storage.postgres.archive import PostgresArchive
from vibe_llms.storage.postgres.contents import PostgresContents
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.settings import PostgresSettings

_SECONDS = 600.0
_DATETIME = dt.datetime


class _Kind(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _DATETIME)


@contextmanager
def clock(hours: float) -> Iterator[None]:
    """The clock of this process is wrong by so much."""
    away = dt.timedelta(hours=hours)
    now, clock_time, clock_time_ns = _DATETIME.now, time.time, time.time_ns

    class Shifted(_DATETIME, metaclass=_Kind):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Any:
            return now(tz) + away

    with pytest.MonkeyPatch.context() as patch:
        for name, module in [*sys.modules.items()]:
            if name.startswith("vibe_llms") and getattr(module, "datetime", None) is _DATETIME:
                patch.setattr(module, "datetime", Shifted)
        patch.setattr(time, "time", lambda: clock_time() + hours * 3600)
        patch.setattr(time, "time_ns", lambda: clock_time_ns() + round(hours * 3600e9))
        yield


class Server:
    """The stores of one server."""

    def __init__(self, dsn: str) -> None:
        self.database = Database(PostgresSettings(dsn=dsn))
        self.runs = PostgresRunStore(self.database)
        self.budgets = PostgresBudgetStore(self.database)
        contents = PostgresContents(self.database, inline_bytes=1024)
        self.archive = PostgresArchive(self.database, contents, "ada")


@pytest.fixture
async def servers() -> AsyncIterator[tuple[Server, Server]]:
    with temporary_database() as place:
        both = Server(place.dsn), Server(place.dsn)
        yield both
        for one in both:
            await one.runs.close()
            await one.database.close()


def produce_record() -> RunRecord:
    now = _DATETIME.fromtimestamp(time.time(), dt.UTC)
    return RunRecord(
        identity="run",
        user="ada",
        conversation="conversation",
        status=RunStatus.RUNNING,
        recipe=Recipe(model="scripted/demo"),
        prompt=b"hello",
        created=now,
        updated=now,
        epoch=1,
    )


@pytest.mark.parametrize("hours", [-48, 48])
async def test_a_lease_is_neither_lost_nor_kept_by_a_wrong_clock(
    hours: float, servers: tuple[Server, Server]
) -> None:
    early, late = servers
    lease = Lease("ada", "run", 1)
    with clock(hours):
        await early.runs.create(produce_record(), _SECONDS)
    with clock(-hours):
        assert await late.runs.claim(None, _SECONDS, known=()) is None
    with clock(hours):
        assert not await early.runs.renew([lease], -1)
    with clock(-hours):
        claimed = await late.runs.claim(None, _SECONDS, known=())
        assert claimed is not None
        assert claimed.epoch == 2
    with clock(hours):
        with pytest.raises(LeaseLost):
            await early.runs.check(lease)
        assert await early.runs.claim(None, _SECONDS, known=()) is None


async def test_the_newest_conversation_is_the_one_that_changed_last(
    servers: tuple[Server, Server],
) -> None:
    ahead, behind = servers
    for server, hours, identity in ((ahead, 48, "aaaa"), (behind, -48, "bbbb")):
        with clock(hours):
            details = Details(created=_DATETIME.fromtimestamp(time.time(), dt.UTC))
            await server.archive.create(identity, details, [UserCanister.from_text(identity)])
    for server, hours in ((ahead, 48), (behind, -48)):
        with clock(hours):
            assert [one.identity for one in await server.archive.survey()] == ["bbbb", "aaaa"]
            assert await server.archive.resolve("-1") == "bbbb"


async def test_what_another_server_has_just_stored_is_not_collected(
    servers: tuple[Server, Server],
) -> None:
    one, other = servers
    with clock(-48):
        reference = await one.archive.put(b"x" * 3_000)
    with clock(48):
        assert not await other.archive.collect()
    assert await one.archive.load(reference) == b"x" * 3_000


async def test_servers_agree_on_the_period_of_a_budget(servers: tuple[Server, Server]) -> None:
    one, other = servers
    account = Account("ada", Budget(tokens=150, money=None, period="day"))

    def claim(identity: str) -> Claim:
        return Claim(
            identity=identity,
            user="ada",
            accounts=(account,),
            base=Amount(100),
            unit=0,
            least=1,
            most=10,
        )

    with clock(-48):
        assert (await one.budgets.reserve(claim("first"), _SECONDS)).output == 10
    with clock(48):
        # The reservation is not over there.
        assert (await other.budgets.reserve(claim("second"), _SECONDS)).busy
        assert await other.budgets.send("ada", "first")
        await other.budgets.record_usage("ada", "first", Amount(110))
    with clock(-48):
        grant = await one.budgets.reserve(claim("third"), _SECONDS)
        assert (grant.account, grant.balance.spent.tokens) == (account, 110)
