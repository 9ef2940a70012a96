"""Versions of the tables: numbered SQL files, applied in order by `vibe-llms archive migrate`.

The first line of a file names the lowest level of the code that it still works with: `-- least: 3`.
So a database can be migrated while servers of that level run, and they are replaced one by one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from vibe_llms.base.exceptions import FormatNewer, StorageError
from vibe_llms.base.files import LARGEST_SETTINGS, read_file
from vibe_llms.storage.postgres import rights

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_FOLDER = Path(__file__).parent / "tables"
_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_LEAST = re.compile(r"-- least: (\d+)\n")
#: Key of the advisory lock that prevents concurrent migrations: "vibe" in ASCII.
_LOCK = 0x76696265
_REMEDY = "vibe-llms archive migrate"
#: A migration that waits for a table blocks all other users of the table.
_WAIT = "set local lock_timeout = '2s'"
#: Level of the database, and the lowest level of code that works with it.
READ = "select coalesce(max(number), 0), coalesce(max(least), 0) from vibe.migrations"


class Migration(Struct, frozen=True):
    """One step. Code below the level `least` does not work after it."""

    number: int
    name: str
    least: int
    text: str


def survey_migrations() -> Sequence[Migration]:
    """Return all steps in order."""
    return sorted(_read_all(), key=lambda one: one.number)


def survey_steps(number: int) -> Sequence[Migration]:
    """Return the steps that a database of a level needs, in order."""
    return [one for one in survey_migrations() if one.number > number]


def find_level() -> int:
    """Return the level of this code: the number of its last migration."""
    return max(one.number for one in _read_all())


async def read_level(connection: AsyncConnection[Any]) -> tuple[int, int]:
    """Return the level of the database and the lowest supported level of code; 0 if new."""
    cursor = await connection.execute("select to_regclass('vibe.migrations')")
    if await cursor.fetchall() == [(None,)]:
        return 0, 0
    number, least = (await (await connection.execute(READ)).fetchall())[0]
    return number, least


def judge_level(number: int, least: int) -> None:
    """Raise an error if the tables are older than this code needs, or too new for it."""
    own = find_level()
    if number < own:
        raise StorageError(
            f"the database has level {number}, and this version needs {own}; migrate it: {_REMEDY}"
        )
    if least > own:
        raise FormatNewer(
            f"the database has level {number}, which needs a newer version of vibe-llms "
            f"(this one has level {own})"
        )


async def migrate(connection: AsyncConnection[Any], role: str) -> Sequence[str]:
    """Apply the missing steps and grant a role its rights, all or nothing; return the changes.

    The connection is the owner's. Programs connect with the role.
    """
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
        await connection.execute(_WAIT)
        number, _ = await read_level(connection)
        steps = survey_steps(number)
        for one in steps:
            await connection.execute(one.text.encode())
            await connection.execute(
                "insert into vibe.migrations (number, name, least) values (%s, %s, %s)",
                (one.number, one.name, one.least),
            )
        granted = await _grant(connection, role)
    # In a new database, all rights are new.
    granted = granted if number else ()
    return [*(f"applied {one.number:04} {one.name}" for one in steps), *granted]


async def _grant(connection: AsyncConnection[Any], role: str) -> Sequence[str]:
    """Grant the rights that a role lacks, and return their descriptions.

    Rights granted by others, for example after a restored backup, are not granted again, because
    the owner of the tables may not be allowed to.
    """
    granted: list[str] = []
    for query in (rights.survey_membership(role), rights.survey_missing(role)):
        cursor = await connection.execute(query.query.encode(), query.values)
        for text, statement in await cursor.fetchall():
            await connection.execute(statement.encode())
            granted.append(f"granted {text}")
    return granted


def _read_all() -> Iterator[Migration]:
    for name in os.listdir(_FOLDER):
        if (match := _NAME.fullmatch(name)) is None:
            continue
        text = read_file(_FOLDER / name, LARGEST_SETTINGS).decode()
        least = _LEAST.match(text)
        number = int(match[1])
        yield Migration(number, match[2], int(least[1]) if least else number, text)
