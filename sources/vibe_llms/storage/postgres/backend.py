"""`PostgresBackend`: opens the stores in the database, which share the connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress

from vibe_llms.base.configuration import Configuration, Places
from vibe_llms.base.exceptions import StorageUnavailable
from vibe_llms.storage.backends import Backend, Confirm
from vibe_llms.storage.interfaces import Diagnosis, Report, ignore
from vibe_llms.storage.objects import produce_object_store
from vibe_llms.storage.postgres.archive import PostgresArchive
from vibe_llms.storage.postgres.blocking import BlockingDatabase
from vibe_llms.storage.postgres.contents import PostgresContents
from vibe_llms.storage.postgres.database import Database
from vibe_llms.storage.postgres.inspection import (
    inspect_archive,
    inspect_database,
    inspect_objects,
)
from vibe_llms.storage.postgres.migrating import migrate_database
from vibe_llms.storage.postgres.settings import read_postgres_settings


class PostgresBackend:
    """Backend of `[archive] module = "vibe_llms.storage.postgres"`."""

    kind = "postgres"

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.settings = read_postgres_settings(configuration)
        self.database = Database(self.settings)
        #: Connections for code that runs in threads, such as memory.
        self.blocking = BlockingDatabase(self.settings)
        self.contents = PostgresContents(
            self.database,
            inline_bytes=configuration.storage.inline_bytes,
            objects=produce_object_store(configuration),
        )

    @property
    def address(self) -> str:
        """Host, port, and name of the database."""
        return self.database.address

    async def survey_users(self) -> Sequence[str]:
        """Return the users who have conversations, contents, files, or memory."""
        return [user for (user,) in await self.database.fetch("", "select vibe.survey_users()")]

    def open_archive(
        self, user: str, places: Places, *, report: Report = ignore
    ) -> PostgresArchive:
        """Return the archive of a user, which does not need files."""
        del places, report
        return PostgresArchive(self.database, self.contents, user, self.configuration.storage)

    async def inspect(
        self, homes: Iterable[Places], *, repair: bool = False
    ) -> AsyncIterator[Diagnosis]:
        """Yield the problems of the database, its roles, the object store, and the users' data."""
        del homes
        problems = await self.check()
        for one in problems:
            yield one
        if any(one.subject == "database" for one in problems):
            return
        for user in await self.survey_users():
            archive = self.open_archive(user, self.configuration.places)
            async for one in inspect_archive(archive):
                yield one
            if repair:
                await archive.collect()
        if repair:
            # An unavailable object store is already among the problems.
            with suppress(StorageUnavailable):
                await self.catch_up()

    async def check(self) -> Sequence[Diagnosis]:
        """Return the problems of the database, its roles, and the object store."""
        problems = await inspect_database(self.database)
        return [*problems, *await inspect_objects(self.contents.objects)]

    async def prepare(self) -> None:
        """Raise a `StorageError` if the database does not answer or has an unsuitable level."""
        await self.database.check()

    async def catch_up(self) -> None:
        """Move contents to the object store after an outage; see `PostgresContents`."""
        await self.contents.return_displaced()

    async def migrate(self, confirm: Confirm) -> Sequence[str]:
        """Migrate the tables to this version as their owner, and grant the rights on them."""
        return await migrate_database(self.settings, confirm)

    async def close(self) -> None:
        """Close all connections; safe to call twice."""
        self.blocking.close()
        await self.database.close()


def access_database(backend: Backend) -> Database:
    """Return the database of a backend, which must be a `PostgresBackend`."""
    assert isinstance(backend, PostgresBackend)
    return backend.database
