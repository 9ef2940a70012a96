"""`PostgresImportRecords`: records of imports in PostgreSQL, shared by all servers."""

from __future__ import annotations

from collections.abc import Mapping

from vibe_llms.base.configuration import Places
from vibe_llms.server.import_records import MOST_RECORDS, StoredImport, Wish
from vibe_llms.storage.backends import Backend
from vibe_llms.storage.postgres.backend import access_database
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.pipelines import Statement

#: Seconds after which a server that has not updated a record does not hold the import any more.
_SILENT_SECONDS = 15
_REMOVE_OLD = (
    "delete from vibe.imports where owner = %(owner)s and identity in "
    "(select identity from vibe.imports where owner = %(owner)s order by identity desc "
    "offset %(left)s)"
)


class PostgresImportRecords:
    """`ImportRecords` of one user in PostgreSQL."""

    def __init__(self, database: Database, user: str) -> None:
        self._database = database
        self._user = user

    async def survey(self) -> Mapping[str, StoredImport]:
        """Return the records, newest first."""
        rows = await self._database.fetch(
            self._user,
            "select identity, record, "
            "updated > clock_timestamp() - make_interval(secs => %s) from vibe.imports "
            "where owner = %s order by identity desc",
            (_SILENT_SECONDS, self._user),
        )
        return {identity: StoredImport(bytes(record), alive) for identity, record, alive in rows}

    async def begin(self, identity: str, record: bytes) -> None:
        """Store the record of a new import, and delete the oldest ones."""
        values = {"owner": self._user, "identity": identity, "record": record}
        await self._database.run(
            [
                Statement(
                    self._user,
                    "insert into vibe.imports (owner, identity, record) "
                    "values (%(owner)s, %(identity)s, %(record)s)",
                    values,
                ),
                Statement(self._user, _REMOVE_OLD, {"owner": self._user, "left": MOST_RECORDS}),
            ]
        )

    async def put(self, identity: str, record: bytes, report: bytes | None = None) -> Wish | None:
        """Replace a record, and a report if given; see `ImportRecords`."""
        rows = await self._database.fetch(
            self._user,
            "with old as (select wish from vibe.imports where owner = %(owner)s "
            "and identity = %(identity)s for update) "
            "update vibe.imports set record = %(record)s, updated = clock_timestamp(), "
            "wish = '', report = coalesce(%(report)s, report) from old "
            "where owner = %(owner)s and identity = %(identity)s returning old.wish",
            {"owner": self._user, "identity": identity, "record": record, "report": report},
        )
        return rows[0][0] if rows else None

    async def ask(self, identity: str, wish: Wish) -> None:
        """Ask the server that holds an import to do something."""
        await self._database.execute(
            self._user,
            "update vibe.imports set wish = %s where owner = %s and identity = %s",
            (wish, self._user, identity),
        )

    async def load_report(self, identity: str) -> bytes | None:
        """Return the report of an import, if it has one."""
        rows = await self._database.fetch(
            self._user,
            "select report from vibe.imports where owner = %s and identity = %s",
            (self._user, identity),
        )
        return bytes(rows[0][0]) if rows and rows[0][0] is not None else None

    async def remove(self, identity: str) -> None:
        """Delete a record and its report."""
        await self._database.execute(
            self._user,
            "delete from vibe.imports where owner = %s and identity = %s",
            (self._user, identity),
        )


class PostgresImportRecordStore:
    """The `ImportRecordStore` of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self, user: str, places: Places) -> PostgresImportRecords:
        """Open the records of one user."""
        del places
        return PostgresImportRecords(self._database, user)


def produce_store(backend: Backend) -> PostgresImportRecordStore:
    """Open the store of the records of all users in a backend's database."""
    return PostgresImportRecordStore(access_database(backend))
