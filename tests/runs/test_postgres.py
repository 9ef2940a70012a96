"""The store of runs in PostgreSQL, beyond the contract: see tests/testing/test_runs.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from tests.fakes.postgres import TestDatabase, temporary_database
from vibe_llms.base.configuration import StorageSettings
from vibe_llms.base.exceptions import (
    LeaseLost,
    RunNotFound,
    RunUnreadable,
    StorageError,
    StorageUnavailable,
)
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.runs import MessageDelta
from vibe_llms.runs import postgres_statements as statements
from vibe_llms.runs.events import decode_event, first_cursor
from vibe_llms.runs.interfaces import Lease, Outline, Recipe, RequestKey, RunRecord, RunStatus
from vibe_llms.runs.postgres import PostgresRunStore
from vibe_llms.runs.recorder import RunRecorder
from vibe_llms.runs.steering import end_cancelled
from vibe_llms.storage.interfaces import Details
from vibe_llms.storage.postgres.archive import PostgresArchive
from vibe_llms.storage.postgres.contents import PostgresContents
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.settings import PostgresSettings

_SECONDS = 600.0


@pytest.fixture
def place() -> Iterator[TestDatabase]:
    with temporary_database() as made:
        yield made


@pytest.fixture
async def store(place: TestDatabase) -> AsyncIterator[PostgresRunStore]:
    database = Database(PostgresSettings(dsn=place.dsn, connect_seconds=2, pooler=True))
    store = PostgresRunStore(database, events_days=1)
    yield store
    await store.close()
    await database.close()


def record(user: str, run: str = "run1", **changes: Any) -> RunRecord:
    now = datetime.now(UTC)
    values: dict[str, Any] = {
        "identity": run,
        "user": user,
        "conversation": f"of {run}",
        "status": RunStatus.RUNNING,
        "recipe": Recipe(model="scripted/demo"),
        "prompt": b"hello",
        "created": now,
        "updated": now,
        "epoch": 1,
        **changes,
    }
    return RunRecord(**values)


async def begin(store: PostgresRunStore, user: str, run: str = "run1") -> Lease:
    await store.create(record(user, run), _SECONDS)
    return Lease(user, run, 1)


def fetch(place: TestDatabase, query: str) -> list[Any]:
    with psycopg.connect(place.admin_dsn, autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()


async def test_events_of_all_users_that_come_together_are_one_transaction(
    store: PostgresRunStore, place: TestDatabase
) -> None:
    users = [f"user{number}" for number in range(9)]
    leases = [await begin(store, user) for user in users]
    first, *others = (
        asyncio.ensure_future(store.append_events(lease, [(first_cursor(1) + 1, b"{}")]))
        for lease in leases
    )
    await asyncio.gather(first, *others)
    written = fetch(place, "select count(distinct xmin::text), count(*) from vibe.run_events")
    assert written == [(1, 9)]
    for user in users:
        assert await store.read_events(user, "run1") == [(first_cursor(1) + 1, b"{}")]


async def test_what_is_refused_spoils_nothing_that_came_with_it(store: PostgresRunStore) -> None:
    ada, bob, eve = [await begin(store, user) for user in ("ada", "bob", "eve")]
    await store.append_events(eve, [(7, b"first")])
    outcomes = await asyncio.gather(
        store.append_events(ada, [(7, b"kept")]),
        store.append_events(Lease("bob", "run1", 2), [(7, b"of a lease that was lost")]),
        store.append_events(eve, [(8, b"new"), (7, b"again")]),
        store.append_events(bob, [(8, b"kept")]),
        return_exceptions=True,
    )
    assert [type(one) for one in outcomes] == [type(None), LeaseLost, StorageError, type(None)]
    found = [await store.read_events(user, "run1") for user in ("ada", "bob", "eve")]
    assert found == [[(7, b"kept")], [(8, b"kept")], [(7, b"first")]]


async def end(store: PostgresRunStore, place: TestDatabase, user: str, run: str, age: int) -> None:
    """Keep a run that ended some days ago, whose prompt was long."""
    made = record(user, run, opening=b"before", origin=b"asked", outline=Outline(b"h", b"b"))
    await store.create(made, _SECONDS)
    lease = Lease(user, run, 1)
    await store.begin_call(lease, "call")
    await store.finish(lease, RunStatus.COMPLETED, [(first_cursor(1) + 1, b"{}")])
    aged = f"update vibe.runs set updated = updated - interval '{age} days' "
    fetch(place, f"{aged} where owner = '{user}' and identity = '{run}' returning 1")


async def wait_until(place: TestDatabase, query: str, expected: object) -> None:
    async with asyncio.timeout(30):
        while fetch(place, query) != [(expected,)]:
            await asyncio.sleep(0.02)


async def test_what_runs_that_ended_long_ago_do_not_need_is_deleted(
    store: PostgresRunStore, place: TestDatabase
) -> None:
    for user, age in (("ada", 2), ("bob", 0)):
        await end(store, place, user, "run1", age)
    later = PostgresRunStore(store._database, events_days=1)
    await later.create(record("eve"))
    await later.close()
    ada, bob = await store.access("ada", "run1"), await store.access("bob", "run1")
    assert not await store.read_events("ada", "run1")
    assert await store.read_events("bob", "run1")
    assert (ada.prompt, ada.opening, ada.origin) == (b"h", b"b", b"asked")
    assert (bob.prompt, bob.opening, bob.origin) == (b"hello", b"before", b"asked")
    assert ada.status is RunStatus.COMPLETED
    assert fetch(place, "select owner from vibe.run_calls") == [("bob",)]


async def test_a_purge_goes_on_in_steps_and_fails_no_new_run(place: TestDatabase) -> None:
    database = Database(PostgresSettings(dsn=place.dsn, statement_seconds=0.5))
    store = PostgresRunStore(database, events_days=100)
    for number in range(50):
        await end(store, place, "ada", f"run{number:02}", 2)
    with psycopg.connect(place.admin_dsn) as connection:
        connection.execute("lock table vibe.run_events in access exclusive mode")
        failing = PostgresRunStore(database, events_days=1)
        await failing.create(record("eve"))
        await failing.close()
        left = "select count(*) from vibe.runs where status = 'completed' and not purged"
        assert fetch(place, left) == [(50,)]
    working = PostgresRunStore(database, events_days=1)
    await working.create(record("eve", "run2"))
    await wait_until(place, left, 0)
    steps = "select count(distinct xmin::text)::int from vibe.runs where purged"
    assert fetch(place, steps) == [(3,)]
    await working.close()
    await store.close()
    await database.close()


async def test_the_database_shows_the_runs_of_no_other_user(
    store: PostgresRunStore, place: TestDatabase
) -> None:
    lease = await begin(store, "ada")
    await store.append_events(lease, [(7, b"secret")])
    await store.steer("ada", lease.run, UserCanister.from_text("secret"))
    tables = [
        *("runs", "run_recipes", "run_events", "run_calls", "run_approvals", "run_questions"),
        *("run_requests", "run_steering", "spenders", "budgets", "reservations"),
    ]
    with psycopg.connect(place.dsn, autocommit=True) as connection:
        for user in ("", "bob"):
            connection.execute("select set_config('vibe.user', %s, false)", (user,))
            for table in tables:
                assert not connection.execute(f"table vibe.{table}".encode()).fetchall()
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(
                    "insert into vibe.run_events (owner, run, cursor, data) "
                    "values ('ada', 'run1', 8, '')"
                )
        found = connection.execute("select * from vibe.read_orders(null, '{}', '{}', '{}')")
        assert found.fetchall() == [([], False)]
        connection.execute("select set_config('vibe.user', 'ada', false)")
        assert connection.execute("select data from vibe.run_events").fetchall() == [(b"secret",)]


async def test_leases_do_not_wait_for_other_work(place: TestDatabase) -> None:
    database = Database(PostgresSettings(dsn=place.dsn, connections=1, connect_seconds=0.2))
    store = PostgresRunStore(database)
    lease = await begin(store, "ada")
    await store.create(record("bob", status=RunStatus.QUEUED, epoch=0))
    async with database.transaction("ada"):
        with pytest.raises(StorageUnavailable, match="all 1 connections"):
            await store.check(lease)
        assert not await store.renew([lease], _SECONDS)
        assert (await store.read_orders(None, [lease], known=())).claimable
        assert await store.claim(None, _SECONDS, known=()) is not None
    await store.close()
    await database.close()


_DELETE_CLAIMED = """
create function delete_claimed() returns trigger language plpgsql security definer as
$$ begin delete from vibe.runs where identity = new.identity; return null; end $$;
create constraint trigger delete_claimed after update on vibe.runs
deferrable initially deferred for each row execute function delete_claimed()
"""


async def test_a_run_that_is_deleted_once_it_is_claimed_is_lost(
    store: PostgresRunStore, place: TestDatabase
) -> None:
    await store.create(record("ada", status=RunStatus.QUEUED, epoch=0))
    with psycopg.connect(place.admin_dsn, autocommit=True) as connection:
        connection.execute(_DELETE_CLAIMED.encode())
    claimed = await store.claim(None, _SECONDS, known=())
    assert claimed is not None
    with pytest.raises(LeaseLost):
        await store.check(Lease("ada", claimed.identity, claimed.epoch))
    assert await store.claim(None, _SECONDS, known=()) is None


async def test_a_run_that_cannot_be_read_is_claimed_before_that_is_said(
    store: PostgresRunStore, place: TestDatabase
) -> None:
    for run in ("newer", "readable"):
        await store.create(record("ada", run, status=RunStatus.QUEUED, epoch=0))
    fetch(place, "update vibe.run_recipes set state = '[]' where run = 'newer' returning 1")
    with pytest.raises(RunUnreadable, match="the run newer cannot be read"):
        await store.claim(None, _SECONDS, known=())
    claimed = await store.claim(None, _SECONDS, known=())
    assert claimed is not None
    assert claimed.identity == "readable"


async def test_a_worker_that_lost_its_run_adds_no_message_however_late(
    place: TestDatabase,
) -> None:
    database = Database(PostgresSettings(dsn=place.dsn))
    store = PostgresRunStore(database)
    contents = PostgresContents(database, inline_bytes=1024)
    archive = PostgresArchive(database, contents, "ada", StorageSettings())
    conversation, first = "conversation", UserCanister.from_text("Hello!")
    await archive.create(conversation, Details(created=datetime.now(UTC)), [first])
    lease = await begin(store, "ada")
    with store.fenced(lease):
        # Tasks that begin here keep the fence.
        added = [UserCanister.from_text("Again!")]
        await asyncio.create_task(archive.append(conversation, added, after=first.identity))
        await store.renew([lease], -1)
        # No other worker has it yet.
        late = [UserCanister.from_text("Late!")]
        await archive.append(conversation, late, after=added[0].identity)
        assert await store.claim("ada", _SECONDS, known=()) is not None
        with pytest.raises(LeaseLost):
            await archive.append(
                conversation, [UserCanister.from_text("Too late!")], after=late[0].identity
            )
    restored = (await archive.restore(conversation)).canisters
    assert [one.identity for one in restored[1:]] == [added[0].identity, late[0].identity]
    await archive.append(conversation, [UserCanister.from_text("Fine.")], after=late[0].identity)
    await store.close()
    await database.close()


async def test_a_run_that_is_locked_costs_no_other_one_its_lease(
    place: TestDatabase,
) -> None:
    database = Database(PostgresSettings(dsn=place.dsn, statement_seconds=1))
    store = PostgresRunStore(database)
    ada, bob = [await begin(store, user) for user in ("ada", "bob")]
    await store.renew([ada, bob], -60)
    over = "select owner from vibe.runs where until < clock_timestamp()"
    lost = Lease("eve", "run1", 1)
    with psycopg.connect(place.admin_dsn) as connection:
        connection.execute("select from vibe.runs where owner = 'ada' for no key update")
        assert await store.renew([ada, lost, bob], _SECONDS) == [lost]
        assert fetch(place, over) == [("ada",)]
    assert await store.renew([ada, bob], _SECONDS) == []
    assert fetch(place, over) == []
    await store.close()
    await database.close()


@pytest.mark.parametrize("query", [statements.FENCE, statements.APPEND, statements.BEGIN_CALL])
async def test_a_worker_that_is_writing_keeps_its_epoch_and_its_lease(
    query: str, place: TestDatabase
) -> None:
    database = Database(PostgresSettings(dsn=place.dsn, statement_seconds=1))
    store = PostgresRunStore(database)
    lease = await begin(store, "ada")
    await store.renew([lease], -60)
    values = {"owner": "ada", "run": "run1", "epoch": 1, "refusal": "", "conversation": ""}
    values |= {"invocation": "call", "cursors": [7], "data": [b"{}"]}
    epoch = "select epoch from vibe.runs"
    with psycopg.connect(place.admin_dsn) as connection:
        connection.execute(query.encode(), values)
        # Not even for as long as it takes: the other ones are claimed meanwhile.
        assert await store.claim(None, _SECONDS, known=()) is None
        with pytest.raises(StorageUnavailable, match="statement timeout"):
            await store.cancel("ada", "run1", end_cancelled)
        # As servers of the version before this one do it.
        with pytest.raises(StorageUnavailable, match="statement timeout"):
            await database.execute("ada", "update vibe.runs set epoch = epoch + 1")
        assert await store.renew([lease], _SECONDS) == []
        assert fetch(place, "select 1 from vibe.runs where until > clock_timestamp()") == [(1,)]
        await store.renew([lease], -60)
        assert fetch(place, epoch) == [(1,)]
    assert (await store.claim(None, _SECONDS, known=())) is not None
    assert fetch(place, epoch) == [(2,)]
    await store.close()
    await database.close()


async def wait_until_one_waits(place: TestDatabase) -> None:
    waiting = "select 1 from pg_stat_activity where datname = current_database() "
    waiting += "and usename = 'app' and wait_event_type = 'Lock'"
    async with asyncio.timeout(30):
        while not await asyncio.to_thread(fetch, place, waiting):
            pass


async def test_what_is_written_while_another_worker_claims_the_run_is_refused(
    store: PostgresRunStore, place: TestDatabase
) -> None:
    lease = await begin(store, "ada")
    await store.renew([lease], -60)
    with psycopg.connect(place.admin_dsn) as connection:
        connection.execute("select vibe.claim_run(null, 60, '{}')")
        writing = asyncio.create_task(store.append_events(lease, [(7, b"{}")]))
        await wait_until_one_waits(place)
    with pytest.raises(LeaseLost):
        await writing
    assert await store.read_events("ada", "run1") == []


async def test_a_run_that_ends_while_it_is_cancelled_waits_for_nothing(
    store: PostgresRunStore, place: TestDatabase
) -> None:
    lease = await begin(store, "ada")
    await store.renew([lease], -60)
    values = {"owner": "ada", "run": "run1", "epoch": 1, "conversation": ""}
    values |= {"cursors": [7], "data": [b"{}"], "status": "completed"}
    with psycopg.connect(place.admin_dsn) as connection:
        connection.execute(statements.APPEND.encode(), values)
        cancelling = asyncio.create_task(store.cancel("ada", "run1", end_cancelled))
        await wait_until_one_waits(place)
        connection.execute("set lock_timeout = 100")
        connection.execute(statements.GIVE_BACK.encode(), values)
    assert await cancelling is RunStatus.COMPLETED


async def test_a_name_that_the_database_cannot_hold_is_that_of_no_run(
    store: PostgresRunStore,
) -> None:
    for name in ("a\0bcd", "\ud800bcd"):
        with pytest.raises(RunNotFound):
            await store.access("ada", name)
        with pytest.raises(RunNotFound):
            await store.survey("ada", after=name)
        assert not await store.read_events("ada", name)
        await store.remove("ada", name)
        await store.find_request("ada", RequestKey(name, b"digest"))


def allow(place: TestDatabase, connections: int) -> None:
    """Break all connections, and let so many be made again; -1 is as many as are wanted."""
    with psycopg.connect(place.admin_dsn, autocommit=True) as connection:
        connection.execute(f"alter database {place.name} connection limit {connections}".encode())
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = %s and pid <> pg_backend_pid()",
            (place.name,),
        )


async def test_events_that_come_while_the_database_is_away_are_recorded_once_it_is_back(
    store: PostgresRunStore, place: TestDatabase
) -> None:
    lease = await begin(store, "ada")
    recorder = RunRecorder(store, lease)
    recorder.put(MessageDelta("said", "Hello"))
    await recorder.flush()
    allow(place, 0)
    recorder.put(MessageDelta("said", " there."))
    flushing = asyncio.create_task(recorder.flush())
    await asyncio.sleep(0.5)
    assert not flushing.done()
    allow(place, -1)
    await flushing
    recorder.drop()
    found = [decode_event(data) for _, data in await store.read_events("ada", "run1")]
    assert found == [MessageDelta("said", "Hello"), MessageDelta("said", " there.")]


async def test_while_the_database_is_away_nothing_is_half_done(
    store: PostgresRunStore, place: TestDatabase
) -> None:
    lease = await begin(store, "ada")
    allow(place, 0)
    for work in (
        store.append_events(lease, [(7, b"{}")]),
        store.finish(lease, RunStatus.COMPLETED, [(8, b"{}")]),
        store.create(record("ada", "run2")),
    ):
        with pytest.raises(StorageUnavailable):
            await work
    allow(place, -1)
    await store.append_events(lease, [(7, b"{}")])
    assert [one.identity for one in await store.survey("ada")] == ["run1"]
    assert (await store.access("ada", "run1")).status is RunStatus.RUNNING
