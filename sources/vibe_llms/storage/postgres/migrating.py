"""Migration of a database as the owner of its tables, after a check of the roles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vibe_llms.base.configuration import ARCHIVE
from vibe_llms.base.exceptions import ConfigurationError, StorageError, StorageUnavailable
from vibe_llms.storage.backends import Confirm
from vibe_llms.storage.postgres.connections import connection_options, find_role
from vibe_llms.storage.postgres.database import database_errors
from vibe_llms.storage.postgres.migrations import (
    find_level,
    judge_level,
    migrate,
    read_level,
    survey_steps,
)
from vibe_llms.storage.postgres.settings import PostgresSettings

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_CONNECTIONS = (
    "select count(*) from pg_stat_activity where datname = current_database() and usename = %s"
)
_ROLE = "select rolsuper, rolbypassrls, rolname = current_user from pg_roles where rolname = %s"


async def migrate_database(settings: PostgresSettings, confirm: Confirm) -> Sequence[str]:
    """Migrate the tables to this version, grant the rights on them, and return the steps.

    All steps are done or none. `confirm` is asked if the migration locks out running programs.
    """
    if not settings.admin_dsn:
        raise ConfigurationError(
            "migrations run as the role that owns the tables; set its connection string",
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
                    f"the database {connection.info.dbname} has the encoding {encoding}, "
                    "which cannot store all text; create a new one: create database ... "
                    "encoding 'UTF8' template template0"
                )
            number, least = await read_level(connection)
            if number > find_level():
                judge_level(number, least)
                return ()
            steps = survey_steps(number)
            if number and any(one.least > number for one in steps):
                warning = await _describe_end(connection, number, role)
                if not confirm(warning):
                    return ()
            try:
                return await migrate(connection, role)
            except LockNotAvailable as error:
                raise StorageUnavailable(
                    "nothing was migrated, because a long transaction uses a table to be "
                    "changed; try again, or end it (select * from pg_stat_activity)"
                ) from error
            except InsufficientPrivilege as error:
                raise StorageError(
                    _explain_refusal(
                        error.diag.message_primary or "",
                        owner=connection.info.user,
                        database=connection.info.dbname,
                    )
                ) from error


async def _describe_end(connection: AsyncConnection[Any], number: int, role: str) -> str:
    """Return the warning before programs of the present level are locked out."""
    ((open_now,),) = await (await connection.execute(_CONNECTIONS, (role,))).fetchall()
    return (
        f"Servers and workers of the current version (level {number}) cannot use the tables "
        "after this migration. They notice within a minute, stop accepting requests, "
        "finish their replies, and exit with status 1. Start the new version then. Current "
        f"connections of programs to this database: {open_now}"
    )


#: Remedies of a superuser, by the server's message. `{0}` is the tables' owner, `{1}` the database.
_GRANTS = (
    ("grant role", "grant vibe_llms to {0} with admin option"),
    ("create role", "alter role {0} createrole"),
    ("extension", "create extension vector"),
    ("for database", "grant create on database {1} to {0}"),
    ("must be owner of", "name the role that owns the tables in admin-dsn, or make {0} a member"),
    ("", "name the role that owns the tables in admin-dsn"),
)


def _explain_refusal(said: str, *, owner: str, database: str) -> str:
    remedy = next(remedy for words, remedy in _GRANTS if words in said)
    who = "" if "admin-dsn" in remedy else "as a superuser, in this database: "
    advice = remedy.format(_quote(owner), _quote(database))
    return f"the role {owner!r} of admin-dsn is not allowed to do this: {said}; {who}{advice}"


def describe_role(role: str, *, superuser: bool, bypasses: bool) -> str:
    """Return the reason why policies do not apply to a role, or an empty string if they do."""
    if superuser:
        return f"the role {role!r} is a superuser, so it sees the rows of all users"
    if bypasses:
        return f"the role {role!r} has BYPASSRLS, so it sees the rows of all users"
    return ""


async def _refuse_role(connection: AsyncConnection[Any], role: str) -> None:
    """Raise a `StorageError` if programs cannot or should not connect with a role."""
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
