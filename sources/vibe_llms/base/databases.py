"""SQLite files of derived data: private, versioned, and easy to rebuild."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vibe_llms.base.exceptions import StorageError, StorageUnavailable
from vibe_llms.base.folders import advise, refuse_link

if TYPE_CHECKING:
    import sqlite3

#: Path of a database that stores nothing on disk.
IN_MEMORY = ":memory:"
_PRIVATE = 0o600
_RETRY_SECONDS = 0.01


def open_database(
    place: str | Path,
    *,
    version: int,
    tables: str,
    seconds: float,
    upgrades: Mapping[int, str] = {},
    pragmas: Iterable[str] = (),
    any_thread: bool = False,
) -> sqlite3.Connection:
    """Open the database at a path, and create it with these tables if it does not exist.

    `upgrades` maps earlier versions to the statements that upgrade them. Waits up to `seconds` for
    another process. Raises `sqlite3.DatabaseError` if another version made the file, `OSError` or
    `StorageError` if it cannot be created.
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
        # The data can be rebuilt, so it need not survive a power failure.
        for pragma in ("synchronous = off", *pragmas):
            _set(database, pragma, seconds)
        lacking = {0: tables, **upgrades}
        if _version_of(database) in lacking:
            database.execute("begin immediate")
            # Another process may have created or upgraded it.
            if (statements := lacking.get(_version_of(database))) is not None:
                for statement in statements.split(";"):
                    database.execute(statement)
                database.execute(f"pragma user_version = {version}")
            database.execute("commit")
        if _version_of(database) != version:
            raise sqlite3.DatabaseError("it was made by another version")
    except sqlite3.Error:
        database.close()
        raise
    return database


def explain_failure(error: sqlite3.Error, what: str, path: Path) -> StorageError:
    """Return the `StorageError` for a failed statement; `what` names the contents of the file."""
    import sqlite3

    # The lowest 8 bits are the primary result code.
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return StorageUnavailable(f"{what}: {advise(errno.ENOSPC)}", path=str(path), full=True)
        case sqlite3.SQLITE_BUSY:
            return StorageUnavailable(f"{what}: another process uses the file", path=str(path))
    return StorageError(f"{what}: {error}", path=str(path))


def _set(database: sqlite3.Connection, pragma: str, seconds: float) -> None:
    """Set a pragma; SQLite itself does not wait while another process changes the journal mode."""
    import sqlite3

    deadline = time.monotonic() + seconds
    while True:
        try:
            database.execute(f"pragma {pragma}")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def _version_of(database: sqlite3.Connection) -> int:
    return int(database.execute("pragma user_version").fetchone()[0])
