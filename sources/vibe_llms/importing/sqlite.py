"""Databases of other programs, opened to be read only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

from vibe_llms.base.exceptions import ImportUnreadable
from vibe_llms.importing.exports import ExportFile

if TYPE_CHECKING:
    import sqlite3

#: First bytes of a database.
MAGIC = b"SQLite format 3\0"
_LOCK_SECONDS = 5.0


@contextmanager
def opened_database(file: ExportFile) -> Iterator[sqlite3.Connection]:
    """Open a database that another program may be using; raises `ImportUnreadable` for errors."""
    import sqlite3

    if file.path is None:
        raise ImportUnreadable(f"{file.name} is a database in a ZIP file; unpack it first")
    address = f"file:{quote(str(file.path.absolute()))}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=_LOCK_SECONDS)) as database:
            database.row_factory = sqlite3.Row
            yield database
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise ImportUnreadable(
                f"{file.name} is in use by another program; close it, and import again"
            ) from error
        raise ImportUnreadable(f"{file.name} cannot be read: {error}") from error
    except sqlite3.DatabaseError as error:
        raise ImportUnreadable(f"{file.name} is damaged: {error}") from error


def survey_tables(file: ExportFile) -> Mapping[str, frozenset[str]]:
    """Return the columns of each table."""
    with opened_database(file) as database:
        names = database.execute("select name from sqlite_master where type = 'table'").fetchall()
        return {
            name: frozenset(
                row["name"]
                for row in database.execute("select name from pragma_table_info(?)", (name,))
            )
            for (name,) in names
        }
