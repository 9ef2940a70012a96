"""`PostgresContinuations`: continuations in PostgreSQL, shared by all servers."""

from __future__ import annotations

from vibe_llms.base.configuration import Places
from vibe_llms.server.continuations import ContinuationPlace
from vibe_llms.storage.backends import Backend
from vibe_llms.storage.postgres.backend import access_database
from vibe_llms.storage.postgres.database import Database


class PostgresContinuations:
    """`Continuations` of one user in PostgreSQL."""

    def __init__(self, database: Database, user: str) -> None:
        self._database = database
        self._user = user

    async def find(self, chain: bytes) -> ContinuationPlace | None:
        """Return the stored place of a history, if its last reply came from this server."""
        rows = await self._database.fetch(
            self._user,
            "select conversation, canister, system from vibe.continuations "
            "where owner = %s and chain = %s",
            (self._user, chain),
        )
        return ContinuationPlace(*rows[0]) if rows else None

    async def put(self, chain: bytes, place: ContinuationPlace) -> None:
        """Record the stored place of a history, replacing that of an equal history."""
        await self._database.execute(
            self._user,
            "insert into vibe.continuations (owner, chain, conversation, canister, system) "
            "values (%s, %s, %s, %s, %s) on conflict (owner, chain) do update set "
            "conversation = excluded.conversation, canister = excluded.canister, "
            "system = excluded.system",
            (self._user, chain, place.conversation, place.canister, place.system),
        )

    async def forget(self, conversation: str) -> None:
        """Do nothing; the archive deletes the entries with the conversation."""

    async def close(self) -> None:
        """Do nothing; the backend closes the database."""


class PostgresContinuationStore:
    """The `ContinuationStore` of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self, user: str, places: Places) -> PostgresContinuations:
        """Open the continuations of one user."""
        del places
        return PostgresContinuations(self._database, user)


def produce_store(backend: Backend) -> PostgresContinuationStore:
    """Open the store of the continuations of all users in a backend's database."""
    return PostgresContinuationStore(access_database(backend))
