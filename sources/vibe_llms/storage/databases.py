"""SQLite files of what is derived: private, of one version, worth only the time to make them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from vibe_llms.storage.files import refuse_link

if TYPE_CHECKING:
    import sqlite3

#: In place of a path: nothing is on the disk.
IN_MEMORY = ":memory:"
_PRIVATE = 0o600


def open_database(
    place: str | Path,
    *,
    version: int,
    tables: str,
    seconds: float,
    pragmas: Iterable[str] = (),
    any_thread: bool = False,
) -> sqlite3.Connection:
    """The database at a place, made with these tables where there is none.

    Another process is waited for so many `seconds`. `sqlite3.DatabaseError` where another version
    made it, `OSError` or `StorageError` where it cannot lie there.
    """
    import sqlite3

    if place != IN_MEMORY:
        refuse_link(Path(place))
        if not os.path.exists(place):
            flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(place, flags, _PRIVATE))
    database = sqlite3.connect(
        place, timeout=seconds, isolation_level=None, check_same_thread=not any_thread
    )
    try:
        # Losing it costs time only, so it need not survive a power cut.
        for pragma in ("synchronous = off", *pragmas):
            database.execute(f"pragma {pragma}")
        if not _version_of(database):
            database.execute("begin immediate")
            if not _version_of(database):
                for statement in tables.split(";"):
                    database.execute(statement)
                database.execute(f"pragma user_version = {version}")
            database.execute("commit")
        if _version_of(database) != version:
            raise sqlite3.DatabaseError("another version made it")
    except sqlite3.Error:
        database.close()
        raise
    return database


def _version_of(database: sqlite3.Connection) -> int:
    return int(database.execute("pragma user_version").fetchone()[0])
