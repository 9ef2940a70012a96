"""Changes of tables: what the database has to be like, and what every change must keep."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from tests.fakes.postgres import TestDatabase, access_cluster, temporary_database
from vibe_llms.exceptions import StorageError, StorageUnavailable
from vibe_llms.storage.postgres import migrations
from vibe_llms.storage.postgres.migrating import migrate_database
from vibe_llms.storage.postgres.migrations import Migration
from vibe_llms.storage.postgres.settings import PostgresSettings


async def migrate(place: TestDatabase) -> list[Migration]:
    settings = PostgresSettings(dsn=place.dsn, admin_dsn=place.admin_dsn)
    return [*await migrate_database(settings)]


def test_no_function_with_the_rights_of_its_owner_calls_what_a_caller_has_made() -> None:
    with temporary_database() as place, psycopg.connect(place.admin_dsn) as connection:
        rows = connection.execute(
            "select proname, proconfig from pg_proc "
            "where pronamespace = 'vibe'::regnamespace and prosecdef"
        ).fetchall()
    assert len(rows) > 10
    for name, settings in rows:
        (path,) = [one for one in settings or [""] if one.startswith("search_path=")] or [""]
        assert path == "search_path=pg_catalog, vibe, pg_temp", name


async def test_a_database_that_cannot_hold_all_text_is_refused() -> None:
    cluster, name = access_cluster(), "latin"
    cluster.execute(f"create database {name} encoding 'LATIN1' locale 'C' template template0")
    place = TestDatabase(name, cluster.address(name, "app"), cluster.address(name))
    try:
        with pytest.raises(StorageError, match="has the encoding LATIN1"):
            await migrate(place)
    finally:
        cluster.drop(name)


async def test_a_migration_does_not_wait_for_a_long_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    later = Migration(9999, "later", 8, "create index later on vibe.runs (created)")
    monkeypatch.setattr(migrations, "survey_migrations", lambda: [later])
    with temporary_database() as place:
        with psycopg.connect(place.admin_dsn) as connection:
            connection.execute("lock vibe.runs in row exclusive mode")
            with pytest.raises(StorageUnavailable, match="a long transaction uses a table"):
                async with asyncio.timeout(20):
                    await migrate(place)
        assert await migrate(place) == [later]
