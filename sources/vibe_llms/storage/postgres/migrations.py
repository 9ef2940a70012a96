"""The versions of the tables: numbered SQL files, applied in order by `vibe-llms archive migrate`.

The first line of a file says which level of the code it still works with: `-- least: 3`. So a
database can be migrated while servers of that level run, and they are replaced one by one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from vibe_llms.exceptions import FormatNewer, StorageError
from vibe_llms.files import LARGEST_SETTINGS, read_file
from vibe_llms.storage.postgres import rights

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_FOLDER = Path(__file__).parent / "tables"
_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_LEAST = re.compile(r"-- least: (\d+)\n")
#: Two migrations do not run at once: the key of an advisory lock, "vibe" in ASCII.
_LOCK = 0x76696265
_REMEDY = "vibe-llms archive migrate"
#: A migration that waits for a table keeps all others from it.
_WAIT = "set local lock_timeout = '2s'"
#: The level of the database, and the least level of code that works with it.
READ = "select coalesce(max(number), 0), coalesce(max(least), 0) from vibe.migrations"


class Migration(Struct, frozen=True):
    """One step; code below the level `least` does not work after it."""

    number: int
    name: str
    least: int
    text: str


def survey_migrations() -> Sequence[Migration]:
    """All steps, in order."""
    return sorted(_read_all(), key=lambda one: one.number)


def survey_steps(number: int) -> Sequence[Migration]:
    """The steps that a database of a level needs, in order."""
    return [one for one in survey_migrations() if one.number > number]


def find_level() -> int:
    """The level of this code: the number of its last migration."""
    return max(one.number for one in _read_all())


async def read_level(connection: AsyncConnection[Any]) -> tuple[int, int]:
    """The level of the database, and the least level of code that works with it; 0 if it is new."""
    cursor = await connection.execute("select to_regclass('vibe.migrations')")
    if await cursor.fetchall() == [(None,)]:
        return 0, 0
    number, least = (await (await connection.execute(READ)).fetchall())[0]
    return number, least


def judge_level(number: int, least: int) -> None:
    """Raise if the tables are older than this code needs, or too new for it."""
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
    """Apply what is missing, and let a role use the tables, all or nothing; returns what was done.

    The connection is the owner's. The role is the one that programs connect with.
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
    # All of them are new to a new database.
    granted = granted if number else ()
    return [*(f"applied {one.number:04} {one.name}" for one in steps), *granted]


async def _grant(connection: AsyncConnection[Any], role: str) -> Sequence[str]:
    """Grant the rights that a role does not have; returns them in words.

    What was granted by others, such as after a backup was restored, is not granted again: the owner
    of the tables may not be allowed to.
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
