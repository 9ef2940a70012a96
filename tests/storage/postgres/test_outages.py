"""A database that cannot be used: one clear error, nothing half done, back without a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing

import psycopg
import pytest

from tests.fakes.postgres import TestDatabase, temporary_database
from tests.faults.archives import produce_details, say
from tests.faults.outages import Outage, change, closed, full_for_messages, read_only
from vibe_llms.base.exceptions import StorageError, StorageUnavailable
from vibe_llms.messages.canisters import UserCanister
from vibe_llms.messages.contents import ImageContent
from vibe_llms.storage.postgres.archive import PostgresArchive
from vibe_llms.storage.postgres.blocking import BlockingDatabase
from vibe_llms.storage.postgres.contents import PostgresContents
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.settings import PostgresSettings


def open_at(dsn: str, **settings: float) -> PostgresArchive:
    values = {"connect_seconds": 2.0, **settings}
    database = Database(PostgresSettings(dsn=dsn, **values))  # type: ignore[arg-type]
    return PostgresArchive(database, PostgresContents(database, inline_bytes=1024), "ada")


@pytest.fixture
async def archive(place: TestDatabase) -> AsyncIterator[PostgresArchive]:
    archive = open_at(place.dsn)
    yield archive
    await archive.database.close()


@pytest.mark.parametrize(
    ("outage", "complaint"),
    [
        (closed, "not currently accepting connections"),
        (read_only, "read-only transaction; .* connect to a server that accepts writes"),
        (full_for_messages, "No space left on device; free space on its disk"),
    ],
)
async def test_an_outage_is_one_error_and_loses_nothing(
    outage: Outage,
    complaint: str,
    archive: PostgresArchive,
    place: TestDatabase,
) -> None:
    (first,), further = say("first"), say("further", "x" * 3_000)
    await archive.create("abcd", produce_details(), [first])
    with outage(place):
        for work in (
            archive.append("abcd", further, after=first.identity),
            archive.append("abcd", [UserCanister((ImageContent(b"p", "image/png"),))], after=None),
            archive.create("efgh", produce_details(), further),
        ):
            with pytest.raises(StorageUnavailable, match=complaint) as caught:
                await work
            assert "the database cannot be used now" in str(caught.value)
            assert "\n" not in str(caught.value)
    assert (await archive.restore("abcd")).canisters == (first,)
    await archive.append("abcd", further, after=first.identity)
    assert len((await archive.restore("abcd")).canisters) == 3
    assert [one.identity for one in await archive.survey()] == ["abcd"]


async def test_reading_goes_on_while_nothing_can_be_written(
    archive: PostgresArchive, place: TestDatabase
) -> None:
    said = say("a walrus")
    await archive.create("abcd", produce_details("name"), said)
    with read_only(place):
        assert (await archive.restore("abcd")).canisters == tuple(said)
        assert len(await archive.search("walrus")) == len(await archive.survey()) == 1
        assert await archive.resolve("name") == "abcd"


def test_memory_is_written_again_after_the_database_was_read_only(place: TestDatabase) -> None:
    with closing(BlockingDatabase(PostgresSettings(dsn=place.dsn))) as database:

        def write() -> None:
            with database.transaction("ada") as connection:
                connection.execute("insert into vibe.spenders (owner) values ('ada')")

        with read_only(place):
            with pytest.raises(StorageUnavailable, match="read-only transaction"):
                write()
            with database.transaction("ada") as connection:
                connection.execute("select from vibe.spenders")
        write()


async def test_a_statement_that_takes_too_long_is_given_up(place: TestDatabase) -> None:
    archive = open_at(place.dsn, statement_seconds=0.3)
    said = say("first")
    await archive.create("abcd", produce_details(), said)
    with psycopg.connect(place.admin_dsn) as connection:
        connection.execute("select * from vibe.conversations for update")
        with pytest.raises(StorageUnavailable, match="statement timeout"):
            await archive.append("abcd", say("late"), after=said[0].identity)
    further = say("further")
    await archive.append("abcd", further, after=said[0].identity)
    assert (await archive.restore("abcd")).canisters == (*said, *further)
    await archive.database.close()


async def test_an_append_whose_commit_breaks_can_be_repeated(
    archive: PostgresArchive, place: TestDatabase
) -> None:
    (first,), further = say("first"), say("further")
    await archive.create("abcd", produce_details(), [first])
    # The server loses the connection after the commit, before it says so.
    change(
        place,
        "create function public.leave() returns trigger language plpgsql as $$ begin "
        "perform pg_terminate_backend(pg_backend_pid()); return null; end $$;"
        "create constraint trigger leave after insert on vibe.messages "
        "deferrable initially deferred for each row execute function public.leave()",
    )
    with pytest.raises(StorageUnavailable, match="the database cannot be used now"):
        await archive.append("abcd", further, after=first.identity)
    change(place, "drop function public.leave cascade")
    for _ in range(2):
        await archive.append("abcd", further, after=first.identity)
    assert (await archive.restore("abcd")).canisters == (first, *further)


@pytest.mark.parametrize(
    ("dsn", "complaint"),
    [
        ("postgresql://app@127.0.0.1:1/x", "Connection refused"),
        ("{place}&user=nobody", 'role "nobody" does not exist; create it, or correct dsn'),
        ("{base}", 'database "nonesuch" does not exist; create it, or correct dsn'),
        ("host=nonesuch.invalid dbname=x", "the database cannot be used now"),
    ],
)
async def test_what_is_wrong_with_a_connection_is_said(
    dsn: str, complaint: str, place: TestDatabase
) -> None:
    base = place.dsn.replace(place.name, "nonesuch")
    archive = open_at(dsn.format(place=place.dsn, base=base))
    with pytest.raises(StorageUnavailable, match=complaint):
        await archive.survey()
    await archive.database.close()


async def test_a_database_is_used_as_soon_as_it_is_migrated() -> None:
    from vibe_llms.storage.postgres.migrating import migrate_database

    with temporary_database(bare=True) as bare:
        archive = open_at(bare.dsn)
        with pytest.raises(StorageError, match="vibe-llms archive migrate"):
            await archive.create("abcd", produce_details(), say("first"))
        await asyncio.gather(
            *(
                migrate_database(
                    PostgresSettings(dsn=bare.dsn, admin_dsn=bare.admin_dsn), lambda _: True
                )
                for _ in range(3)
            )
        )
        await archive.create("abcd", produce_details(), say("first"))
        await archive.database.close()
