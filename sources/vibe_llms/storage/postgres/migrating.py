"""Migrates a database as the owner of its tables, after a look at the roles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vibe_llms.configuration import ARCHIVE
from vibe_llms.exceptions import ConfigurationError, StorageError, StorageUnavailable
from vibe_llms.storage.postgres.connections import connection_options
from vibe_llms.storage.postgres.database import database_errors
from vibe_llms.storage.postgres.migrations import (
    Migration,
    find_level,
    judge_level,
    migrate,
    read_level,
)
from vibe_llms.storage.postgres.settings import PostgresSettings

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_ROLE = "select rolsuper, rolbypassrls, rolname = current_user from pg_roles where rolname = %s"


async def migrate_database(settings: PostgresSettings) -> Sequence[Migration]:
    """Bring the tables to this version; returns the steps. All of them are applied, or none."""
    if not settings.admin_dsn:
        raise ConfigurationError(
            "tables are made and changed by the role that owns them; give its connection string",
            table=ARCHIVE,
            key="admin-dsn",
        )
    with database_errors():
        from psycopg import AsyncConnection
        from psycopg.errors import InsufficientPrivilege, LockNotAvailable

        options = connection_options(settings.admin_dsn, settings)
        async with await AsyncConnection.connect(
            settings.admin_dsn, autocommit=True, **options
        ) as connection:
            role = find_role(settings.dsn)
            await _refuse_role(connection, role)
            encoding = connection.info.parameter_status("server_encoding")
            if encoding != "UTF8":
                raise StorageError(
                    f"the database {connection.info.dbname} has the encoding {encoding}, which "
                    "cannot hold all text; create one: "
                    "create database ... encoding 'UTF8' template template0"
                )
            number, least = await read_level(connection)
            if number > find_level():
                judge_level(number, least)
                return ()
            try:
                return await migrate(connection, role)
            except LockNotAvailable as error:
                raise StorageUnavailable(
                    "nothing was migrated: a long transaction uses a table that has to be changed; "
                    "try again, or end it (select * from pg_stat_activity)"
                ) from error
            except InsufficientPrivilege as error:
                owner, database = connection.info.user, connection.info.dbname
                raise StorageError(
                    f"the role {owner!r} of admin-dsn may not do this: {error.diag.message_primary}"
                    f"; as a superuser: grant create on database {database} to {owner}; "
                    f"alter role {owner} createrole; create extension if not exists vector"
                ) from error


def find_role(dsn: str) -> str:
    """The role that a connection string names, or libpq takes if it names none."""
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.pq import Conninfo

    if role := conninfo_to_dict(dsn).get("user"):
        return str(role)
    defaults = {one.keyword: one.val for one in Conninfo.get_defaults()}
    return (defaults.get(b"user") or b"").decode()


def describe_role(role: str, *, superuser: bool, bypasses: bool) -> str:
    """Why policies do not hold a role; empty if they do."""
    if superuser:
        return f"the role {role!r} is a superuser, so it sees the rows of all users"
    if bypasses:
        return f"the role {role!r} has BYPASSRLS, so it sees the rows of all users"
    return ""


async def _refuse_role(connection: AsyncConnection[Any], role: str) -> None:
    """Raise if programs cannot or should not connect with a role."""
    row = await (await connection.execute(_ROLE, (role,))).fetchone()
    if row is None:
        raise StorageError(
            f"the role {role!r} of dsn does not exist; create it: "
            f"create role {_quote(role)} login password '...'"
        )
    superuser, bypasses, is_owner = row
    problem = describe_role(role, superuser=superuser, bypasses=bypasses)
    if is_owner:
        problem = f"dsn and admin-dsn name the same role, {role!r}, which would own the tables"
    if problem:
        raise StorageError(
            f"{problem}; use another one in dsn: create role vibe_app login password '...'"
        )


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
