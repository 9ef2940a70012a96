"""Changes of tables: what the database has to be like, and what every change must keep."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from tests.fakes.postgres import TestDatabase, access_cluster, temporary_database
from vibe_llms.base.exceptions import StorageError, StorageUnavailable
from vibe_llms.storage.postgres import migrations, rights
from vibe_llms.storage.postgres.migrating import migrate_database
from vibe_llms.storage.postgres.migrations import Migration
from vibe_llms.storage.postgres.settings import PostgresSettings


async def migrate(place: TestDatabase) -> list[str]:
    settings = PostgresSettings(dsn=place.dsn, admin_dsn=place.admin_dsn)
    return [*await migrate_database(settings, lambda _: True)]


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


def test_every_right_of_programs_is_known() -> None:
    with temporary_database() as place, psycopg.connect(place.admin_dsn) as connection:
        granted = connection.execute(
            "select case c.relkind when 'S' then 'sequence' else 'table' end, c.relname, "
            "array_agg(lower(a.privilege_type)) "
            "from pg_class c cross join aclexplode(c.relacl) a "
            "where c.relnamespace = 'vibe'::regnamespace "
            "and a.grantee = 'vibe_llms'::regrole group by 1, 2"
        ).fetchall()
        functions = connection.execute(
            "select p.proname from pg_proc p cross join aclexplode(p.proacl) a "
            "where p.pronamespace = 'vibe'::regnamespace and a.grantee = 'vibe_llms'::regrole"
        ).fetchall()
    known = {
        (kind, name): {*listed.split(", ")}
        for kind, tables in rights.RIGHTS.items()
        for name, listed in tables.items()
    }
    assert {(kind, name): {*listed} for kind, name, listed in granted} == known
    assert {name for (name,) in functions} == {*rights.FUNCTIONS}


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
    with temporary_database() as place:
        monkeypatch.setattr(migrations, "survey_migrations", lambda: [later])
        with psycopg.connect(place.admin_dsn) as connection:
            connection.execute("lock vibe.runs in row exclusive mode")
            with pytest.raises(StorageUnavailable, match="a long transaction uses a table"):
                async with asyncio.timeout(20):
                    await migrate(place)
        assert await migrate(place) == ["applied 9999 later"]
